"""Build the run of a method from artifacts: its samples, lineage, initial weights and earlier choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli import parameters
from pflcli.artifacts.kinds import datastore, embeddings, predictions
from pflcli.artifacts.kinds.backbone import read_tensors
from pflcli.artifacts.kinds.partition import Partition
from pflcli.artifacts.reader import Artifact
from pflcli.engine.federation import Federation
from pflcli.errors import InputError
from pflcli.execution import Execution
from pflcli.federation.attack import Attack
from pflcli.federation.run import Run
from pflcli.knn.stores import Stores
from pflcli.methods import Method
from pflcli.parameters import Params
from pflcli.settings import Settings
from pflcli.simulation.create_run import create_run
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
    """Return a run on the samples ``data``, ready for ``checkpointed.run_rounds`` or ``predict.predict``.

    ``lineage`` contains artifacts by kind; its backbone, embeddings and datastore are read into the run. Models start
    from the initial weights of the backbone, or from the file ``weights``; without either, at random. With ``refit``,
    choices are those of the predictions ``earlier_run``. See ``create_run`` for the rest.
    """
    device = hardware.device(execution.device)
    threads = hardware.threads(execution.threads)
    torch.set_num_threads(threads)
    attack = None
    if data.update_factor is not None and data.update_noise is not None:
        attack = Attack(data.update_factor, data.update_noise, seed)
    run = create_run(
        method,
        cfg,
        _federation(data, device),
        settings,
        seed,
        initial_weights=_initial_weights(lineage.get("backbone"), weights, settings, execution),
        normalized_like=None if normalized_like is None else _federation(normalized_like, device),
        attack=attack,
        private_rng=private_rng,
        threads=threads,
        mode=hardware.engine(execution.engine),
        jobs=hardware.jobs(execution.jobs),
        ray=hardware.ray_cluster(execution.executor, execution.ray_address, execution.gpus_per_worker),
        reporter=execution.reporter,
    )
    _read_lineage(run, lineage)
    if earlier_run is not None:
        run.choices = _read_choices(earlier_run, method.choices(cfg))
    return run


def _initial_weights(
    backbone: Artifact | None, weights: initial.Weights | None, settings: Settings, execution: Execution
) -> Callable[[Params], Params] | None:
    """Return what replaces random initial parameters: the weights of the backbone, or those of a file; None if none."""
    if backbone is not None and "weights" in backbone.manifest.request:
        return lambda drawn: read_tensors(backbone, initial.INITIAL, drawn)
    if weights is not None:
        return lambda drawn: initial.apply_weights(weights, settings, drawn, execution.reporter.say)
    return None


def _federation(data: Partition, device: str) -> Federation:
    return Federation.from_blocks(
        np.asarray(data.x), data.y, data.offsets, data.classes, device, data.new, data.cluster
    )


def _read_lineage(run: Run, lineage: Mapping[str, Artifact | None]) -> None:
    """Read the backbone, the embeddings and the datastore of a lineage into the run, if it has them."""
    if (backbone := lineage.get("backbone")) is not None:
        run.backbone = parameters.move(read_tensors(backbone, like=run.init), run.federation.x.device)
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
