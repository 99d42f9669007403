"""Create the run of a method from a federation, settings and inputs; every ``Run`` is created here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pflcli.core import models, parameters, rng
from pflcli.core.engine import normalization
from pflcli.core.engine.engine import Engine
from pflcli.core.engine.federation import Federation
from pflcli.core.federation import aggregators, uploads
from pflcli.core.federation.run import LINKS, Run, RunInputs
from pflcli.core.methods import Method
from pflcli.core.parameters import Params
from pflcli.core.settings import Settings

if TYPE_CHECKING:
    from pflcli.core.engine.executors.ray_runtime import RayCluster
    from pflcli.core.federation.private_mean import PrivateMean


def create_run(
    method: Method,
    cfg: Any,
    federation: Federation,
    settings: Settings,
    seed: int,
    inputs: RunInputs | None = None,
    *,
    threads: int = 1,
    mode: str = "auto",
    jobs: int = 0,
    ray: RayCluster | None = None,
) -> Run:
    """Return a run of ``method`` with the options ``cfg`` on the samples of ``federation``, which are on its device.

    ``threads``, ``mode``, ``jobs`` and ``ray`` are those of ``Engine``.
    """
    device, inputs = federation.y.device, inputs or RunInputs()
    reference = federation if inputs.normalized_like is None else inputs.normalized_like
    federation = normalization.normalized(federation, settings.normalize, reference)
    federation = federation.standardized() if federation.task.by_client else federation
    federation = federation.refitted() if settings.refit else federation
    shape, outputs, tokens = federation.in_shape, federation.task.outputs, federation.has_tokens
    draw = inputs.draw_network or partial(models.create, settings.model, shape, outputs, tokens=tokens)
    net = draw(seed)
    if inputs.initial_weights is not None:
        parameters.load(net, inputs.initial_weights(parameters.state(net)))
    network = net if settings.adapter is None else models.add_adapter(net, settings.adapter, seed)
    how: dict[str, Any] = {"threads": threads, "mode": mode, "jobs": jobs, "ray": ray, "apart": settings.apart}
    engine = Engine(network, federation, seed=seed, **how)
    private_rng, privacy = inputs.private_rng or rng.secret_generators(), None
    if settings.dp and LINKS[method.KIND]:
        privacy = private_mean(settings, len(federation.participants), private_rng)
        privacy = privacy if inputs.private_mean is None else inputs.private_mean(privacy)
    steps = inputs.uploads
    return Run(
        method.KIND,
        cfg,
        settings,
        seed,
        engine.federation,  # with worker processes, it is a copy of the federation in shared memory
        engine,
        parameters.move(parameters.copy_params(network), device),
        network=network,
        whole_network=net,
        inputs=inputs,
        draw_model=partial(_draw_parameters, draw, net, settings.adapter, seed, device),
        uploads=tuple(uploads.load(step) for step in settings.upload) if steps is None else steps,
        aggregator=aggregators.load(settings.aggregator),
        private_rng=private_rng,
        privacy=privacy,
    )


def _draw_parameters(
    draw: Callable[[int], models.Net],
    net: models.Net,
    adapter: str | None,
    seed: int,
    device: torch.device,
    number: int,
) -> Params:
    """Return the initial parameters of a further model; what an adapter freezes is that of ``net``."""
    drawn = draw(model_seed := rng.integer(seed, "start", number))
    if adapter is not None:
        drawn = models.add_adapter(models.Net(net.body, drawn.head), adapter, model_seed)
    return parameters.move(parameters.copy_params(drawn), device)


def private_mean(settings: Settings, clients: int, private_rng: Callable[..., np.random.Generator]) -> PrivateMean:
    """Return the differentially private mean of ``clients`` participants with the noise and clip of the settings."""
    from pflcli.core.federation.privacy import guarantee
    from pflcli.core.federation.private_mean import FIRST_CLIP, PrivateMean

    noise, _ = guarantee.plan_noise(settings)
    clip = settings.first_clip
    return PrivateMean(noise, clip or FIRST_CLIP, clip is None, settings.participation, clients, private_rng)
