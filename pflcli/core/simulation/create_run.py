"""Create the run of a method from a federation and settings; every ``Run`` is created here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pflcli.core import models, parameters, rng
from pflcli.core.engine import backend, normalization
from pflcli.core.engine.engine import Engine
from pflcli.core.engine.federation import Federation
from pflcli.core.federation import aggregators, uploads
from pflcli.core.federation.run import LINKS, Run
from pflcli.core.methods import Method
from pflcli.core.parameters import Params
from pflcli.core.reporter import SILENT, Reporter
from pflcli.core.settings import Settings

if TYPE_CHECKING:
    from pflcli.core.engine.executors.ray_runtime import RayCluster
    from pflcli.core.federation.attack import Attack
    from pflcli.core.federation.private_mean import PrivateMean

DrawNetwork = Callable[[int], models.Net]
"""Returns a network whose initial parameters are drawn from a seed."""


def create_run(
    method: Method,
    cfg: Any,
    federation: Federation,
    settings: Settings,
    seed: int,
    *,
    draw_network: DrawNetwork | None = None,
    initial_weights: Callable[[Params], Params] | None = None,
    normalized_like: Federation | None = None,
    attack: Attack | None = None,
    private_rng: Callable[..., np.random.Generator] | None = None,
    threads: int = 1,
    mode: str = "auto",
    jobs: int = 0,
    ray: RayCluster | None = None,
    reporter: Reporter = SILENT,
) -> Run:
    """Return a run of ``method`` with the options ``cfg`` on the samples of ``federation``, which are on its device.

    ``draw_network`` builds the network, by default that of ``settings.model``. ``initial_weights`` returns the initial
    parameters in place of those that were drawn. Images are normalized like those of ``normalized_like``, by default
    like those of ``federation``. Poisoned clients change their updates by ``attack``. Noise that protects clients is
    drawn from ``private_rng``, by default from a new secret. The caller sets the backbone, embeddings and stores of the
    run, if the method needs them.
    """
    device = federation.y.device
    reference = federation if normalized_like is None else normalized_like
    federation = normalization.normalized(federation, settings.normalize, reference)
    federation = federation.refitted() if settings.refit else federation
    shape, outputs, tokens = federation.in_shape, federation.task.outputs, federation.has_tokens
    draw = draw_network or partial(models.create, settings.model, shape, outputs, tokens=tokens)
    net = draw(seed)
    if initial_weights is not None:
        parameters.load(net, initial_weights(parameters.state(net)))
    network = net if settings.adapter is None else models.add_adapter(net, settings.adapter, seed)
    engine = Engine(network, federation, seed=seed, threads=threads, mode=mode, jobs=jobs, ray=ray)
    _report(engine, f"{settings.model} on {device}", reporter)
    run = Run(
        method.KIND,
        cfg,
        settings,
        seed,
        engine.federation,  # with worker processes, it is a copy of the federation in shared memory
        engine,
        parameters.move(parameters.copy_params(network), device),
        network=network,
        whole_network=net,
        draw_model=partial(_draw_parameters, draw, net, settings.adapter, seed, device),
        uploads=tuple(uploads.load(step) for step in settings.upload),
        aggregator=aggregators.load(settings.aggregator),
        private_rng=rng.secret_generators() if private_rng is None else private_rng,
        attack=attack,
    )
    if settings.dp and LINKS[method.KIND]:
        run.privacy = private_mean(run)
    return run


def _report(engine: Engine, what: str, reporter: Reporter) -> None:
    """Report how an engine works on ``what``, and let it report what it finds."""
    workers = f"{engine.threads} threads"
    if engine.jobs or engine.on_ray:
        workers = f"{engine.jobs} {'Ray workers' if engine.on_ray else 'processes'}"
    why_off = backend.why_off()
    acceleration = "acceleration on" if why_off is None else f"acceleration off ({why_off})"
    reporter.detail(f"{what}, engine mode {engine.mode}, {workers}, {acceleration}")
    engine.explain = lambda strategy: reporter.detail(f"clients train by {strategy}")
    engine.warn, engine.detail = reporter.say, reporter.detail


def _draw_parameters(
    draw: DrawNetwork, net: models.Net, adapter: str | None, seed: int, device: torch.device, number: int
) -> Params:
    """Return the initial parameters of a further model; what an adapter freezes is that of ``net``."""
    drawn = draw(model_seed := rng.integer(seed, "start", number))
    if adapter is not None:
        drawn = models.add_adapter(models.Net(net.body, drawn.head), adapter, model_seed)
    return parameters.move(parameters.copy_params(drawn), device)


def private_mean(run: Run) -> PrivateMean:
    """Return the differentially private mean of a run with the noise and clip of its settings."""
    from pflcli.core.federation.privacy import guarantee
    from pflcli.core.federation.private_mean import FIRST_CLIP, PrivateMean

    noise, _ = guarantee.plan_noise(settings := run.settings)
    clip, clients = settings.first_clip, len(run.federation.participants)
    return PrivateMean(noise, clip or FIRST_CLIP, clip is None, settings.participation, clients, run.private_rng)
