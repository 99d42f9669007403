"""Build the run of a method from its samples, settings, lineage, initial weights and earlier choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli import models, parameters, rng
from pflcli.artifacts.kinds import datastore, embeddings, predictions
from pflcli.artifacts.kinds.backbone import read_tensors
from pflcli.artifacts.kinds.partition import Partition
from pflcli.artifacts.reader import Artifact
from pflcli.engine import backend
from pflcli.engine.engine import Engine
from pflcli.engine.federation import Federation
from pflcli.engine.normalization import normalized
from pflcli.errors import InputError
from pflcli.execution import Execution
from pflcli.federation import aggregators, uploads
from pflcli.federation.attack import Attack
from pflcli.federation.privacy import guarantee
from pflcli.federation.private_mean import FIRST_CLIP, PrivateMean
from pflcli.federation.run import LINKS, Run
from pflcli.knn.stores import Stores
from pflcli.methods import Method
from pflcli.settings import Settings
from pflcli.training import hardware
from pflcli.training import initial_weights as initial


def build_run(
    data: Partition,
    method: Method,
    cfg: Any,
    settings: Settings,
    seed: int,
    execution: Execution,
    *,
    lineage: Mapping[str, Artifact | None] = MappingProxyType({}),
    weights: initial.Weights | None = None,
    earlier_run: Artifact | None = None,
    normalized_like: Partition | None = None,
    private_rng: Callable[..., np.random.Generator] | None = None,
) -> Run:
    """Return a run on the samples ``data``, ready for ``loop.run_rounds`` or ``predict.predict``.

    ``lineage`` contains artifacts by kind; its backbone, embeddings and datastore are read into the run. Models start
    from the initial weights of the backbone, or from the file ``weights``; without either, at random. With ``refit``,
    choices are those of the predictions ``earlier_run``. Images are normalized like those of the partition
    ``normalized_like``, by default like those of ``data``. Noise that protects clients is drawn from ``private_rng``
    (see ``dp_secret``), by default from a new secret.
    """
    device = hardware.device(execution.device)
    threads, jobs = hardware.threads(execution.threads), hardware.jobs(execution.jobs)
    torch.set_num_threads(threads)
    federation = _federation(data, device)
    reference = federation if normalized_like is None else _federation(normalized_like, device)
    federation = normalized(federation, settings.normalize, reference)
    federation = federation.refitted() if settings.refit else federation
    shape, tokens = federation.in_shape, federation.x.dtype not in (torch.uint8, torch.float32)

    def draw_network(model_seed: int) -> models.Net:
        return models.create(settings.model, shape, data.classes, model_seed, tokens=tokens)

    def draw_parameters(number: int) -> parameters.Params:
        drawn = draw_network(model_seed := rng.integer(seed, "start", number))
        if settings.adapter is not None:  # the frozen part is common to all
            drawn = models.add_adapter(models.Net(net.body, drawn.head), settings.adapter, model_seed)
        return _on_device(parameters.copy_params(drawn), device)

    net = draw_network(seed)
    backbone = lineage.get("backbone")
    if backbone is not None and "weights" in backbone.manifest.request:
        parameters.load(net, read_tensors(backbone, initial.INITIAL, parameters.state(net)))
    elif weights is not None:
        parameters.load(net, initial.apply_weights(weights, settings, parameters.state(net), execution.reporter.say))
    network = net if settings.adapter is None else models.add_adapter(net, settings.adapter, seed)
    cluster = hardware.ray_cluster(execution.executor, execution.ray_address, execution.gpus_per_worker)
    mode = hardware.engine(execution.engine)
    engine = Engine(network, federation, seed=seed, threads=threads, mode=mode, jobs=jobs, ray=cluster)
    init = _on_device(parameters.copy_params(network), device)
    workers = f"{threads} threads"
    if jobs or cluster:
        workers = f"{engine.jobs} {'Ray workers' if cluster else 'processes'}"
    why_off = backend.why_off()
    acceleration = "acceleration on" if why_off is None else f"acceleration off ({why_off})"
    execution.reporter.detail(f"{settings.model} on {device}, engine mode {engine.mode}, {workers}, {acceleration}")
    engine.explain = lambda strategy: execution.reporter.detail(f"clients train by {strategy}")
    engine.warn, engine.detail = execution.reporter.say, execution.reporter.detail
    run = Run(
        method.KIND,
        cfg,
        settings,
        seed,
        engine.federation,  # with worker processes, it is a copy of the federation in shared memory
        engine,
        init,
        network=network,
        whole_network=net,
        draw_model=draw_parameters,
        uploads=tuple(uploads.load(step) for step in settings.upload),
        aggregator=aggregators.load(settings.aggregator),
        private_rng=rng.secret_generators() if private_rng is None else private_rng,
    )
    if settings.dp and LINKS[method.KIND]:
        run.privacy = private_mean(run)
    if data.update_factor is not None and data.update_noise is not None:
        run.attack = Attack(data.update_factor, data.update_noise, seed)
    _read_lineage(run, lineage)
    if earlier_run is not None:
        run.choices = _read_choices(earlier_run, method.choices(cfg))
    return run


def private_mean(run: Run) -> PrivateMean:
    """Return the differentially private mean of a run with the noise and clip of its settings."""
    noise, _ = guarantee.plan_noise(settings := run.settings)
    clip, clients = settings.first_clip, len(run.federation.participants)
    return PrivateMean(noise, clip or FIRST_CLIP, clip is None, settings.participation, clients, run.private_rng)


def _federation(data: Partition, device: str) -> Federation:
    return Federation.from_blocks(
        np.asarray(data.x), data.y, data.offsets, data.classes, device, data.new, data.cluster
    )


def _on_device(params: Mapping[str, torch.Tensor], device: str | torch.device) -> parameters.Params:
    return {name: value.to(device) for name, value in params.items()}


def _read_lineage(run: Run, lineage: Mapping[str, Artifact | None]) -> None:
    """Read the backbone, the embeddings and the datastore of a lineage into the run, if it has them."""
    if (backbone := lineage.get("backbone")) is not None:
        run.backbone = _on_device(read_tensors(backbone, like=run.init), run.federation.x.device)
    if (embedded := lineage.get("embeddings")) is not None:
        run.embeddings = embeddings.read(embedded)
    if (stored := lineage.get("datastore")) is not None:
        assert run.embeddings is not None  # a datastore is built from embeddings
        packed = datastore.read_stores(stored, run.federation.classes, run.embeddings["train"].z.shape[1])
        run.arrived = datastore.read_arrived(stored)
        run.stores = Stores(packed.blob, packed.bytes, packed.y, packed.offsets, packed.train, run.engine.threads)


def _read_choices(artifact: Artifact, names: tuple[str, ...]) -> dict[str, NDArray[np.float64]]:
    """Return what each client (m,) chose, by name; raises InputError if something is missing."""
    chosen = predictions.read_tuned(artifact)
    for name in names:
        if name not in chosen:
            raise InputError(f"{artifact.path} does not contain the {name} that its clients chose", "run it again")
    return {name: chosen[name] for name in names}
