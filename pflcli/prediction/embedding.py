"""Representations of further samples, as ``extract`` computes them, in place of or beside the stored ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.artifacts import client_blocks
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds.backbone import tensors
from pflcli.artifacts.kinds.datastore import build_store
from pflcli.artifacts.kinds.embeddings import StoredEmbeddings
from pflcli.artifacts.kinds.partition import Partition
from pflcli.artifacts.reader import Artifact, ancestor
from pflcli.engine.executors.threads import BATCH
from pflcli.errors import ComputationError
from pflcli.execution import Execution
from pflcli.federation.run import Run
from pflcli.knn.embedded import Embedded
from pflcli.knn.stores import Stores
from pflcli.training import run_request
from pflcli.training.build_run import build_run

Outputs = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Representations (n, d) and logits (n, C)."""


@dataclass(frozen=True)
class _Backbone:
    """The run in which a backbone embeds samples, with its trained weights."""

    run: Run
    weights: Mapping[str, torch.Tensor]

    def outputs(self, rows: NDArray[np.int64]) -> Outputs:
        """Return the outputs for rows of the federation; raises ComputationError if a number is not finite."""
        logits, z = self.run.engine.infer(dict(self.weights), rows, features=True)
        if not (torch.isfinite(z).all() and torch.isfinite(logits).all()):
            raise ComputationError("representations of the samples are not finite: their features are too large")
        return z.cpu().numpy(), logits.cpu().numpy()


def _opened(lineage: Mapping[str, Artifact | None], data: Partition, execution: Execution) -> _Backbone:
    backbone, partition = lineage["backbone"], lineage["partition"]
    assert backbone is not None  # embeddings are made by one
    assert partition is not None
    request, trained_on = backbone.manifest.request, ancestor(backbone, "partition")
    plan = run_request.resolve_settings(request["settings"], {})
    is_other = trained_on is not None and trained_on.manifest.fingerprint != partition.manifest.fingerprint
    known = partitions.read(trained_on) if trained_on is not None and is_other and plan.normalize == "dataset" else None
    # As extract does, which has no choice of engines.
    execution = replace(execution, engine="auto")
    run = build_run(
        data, run_request.method_of(backbone), None, plan, request["seed"], execution, normalized_like=known
    )
    device = run.federation.x.device
    return _Backbone(run, {name: value.to(device) for name, value in tensors(backbone, like=run.init).items()})


def with_queries(
    run: Run, lineage: Mapping[str, Artifact | None], data: Partition, client: int, execution: Execution
) -> Mapping[str, Embedded]:
    """Return the run's embeddings with those of a client's test samples in ``data`` in place of the stored ones.

    A batch may have samples of other clients: these are in it again, so that the bits agree.
    """
    assert run.embeddings is not None
    backbone = _opened(lineage, data, execution)
    federation = backbone.run.federation
    rows = federation.rows_of(backbone.run.clients, "test")
    begin, end = client_blocks.offsets(federation.sizes("test"))[client : client + 2].tolist()
    batch = BATCH[federation.y.device.type]
    first, last = begin // batch * batch, -(-end // batch) * batch
    own = slice(begin - first, end - first)
    z, logits = (values[own] for values in backbone.outputs(rows[first:last]))
    backbone.run.engine.close()
    split = run.embeddings["test"]
    return {**run.embeddings, "test": _replaced(split, client, z, logits)}


def with_test_samples(
    run: Run, lineage: Mapping[str, Artifact | None], data: Partition, execution: Execution
) -> Mapping[str, Embedded]:
    """Return the run's embeddings with those of all test samples in ``data`` in place of the stored ones."""
    assert run.embeddings is not None
    backbone = _opened(lineage, data, execution)
    federation = backbone.run.federation
    rows = np.concatenate([federation.rows(int(client), "test") for client in backbone.run.clients])
    z, logits = backbone.outputs(rows)
    backbone.run.engine.close()
    offsets = client_blocks.offsets(federation.sizes("test"))
    return {**run.embeddings, "test": Embedded(z, logits, federation.y[rows].cpu().numpy(), offsets)}


def _replaced(split: Embedded, client: int, z: NDArray[np.float32], logits: NDArray[np.float32]) -> Embedded:
    """Return a split of embeddings in which samples (n, d) stand in place of those of a client."""
    first, last = split.offsets[client : client + 2]
    offsets = split.offsets.copy()
    offsets[client + 1 :] += len(z) - (last - first)

    def joined(values: NDArray[Any], own: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([values[:first], own, values[last:]])

    y = joined(split.y, np.zeros(len(z), np.int64))
    return Embedded(joined(split.z, z), joined(split.logits, logits), y, offsets)


def with_later_clients(run: Run, lineage: Mapping[str, Artifact | None], data: Partition, execution: Execution) -> None:
    """Give a run the embeddings of the clients of ``data`` behind those that are stored, and their stores."""
    assert run.embeddings is not None
    backbone = _opened(lineage, data, execution)
    federation = backbone.run.federation
    stored_clients = len(run.embeddings["test"].offsets) - 1
    extended = dict(run.embeddings)
    for client in run.clients[stored_clients:].tolist():
        for split, known in extended.items():
            rows = federation.rows(client, split)
            z, logits = backbone.outputs(rows)
            extended[split] = _appended(known, z, logits, federation.y[rows].cpu().numpy())
            if split == "validation" and run.arrived is not None:
                run.arrived = _appended(run.arrived, z, logits, federation.y[rows].cpu().numpy())
    backbone.run.engine.close()
    run.embeddings = extended
    datastore = lineage["datastore"]
    if datastore is not None and run.stores is not None:
        for client in run.clients[stored_clients:].tolist():
            run.stores = _with_store(run.stores, datastore, extended["train"], client)


def _appended(split: Embedded, z: NDArray[np.float32], logits: NDArray[np.float32], y: NDArray[np.int64]) -> Embedded:
    """Return a split of embeddings with the samples (n, d) of one more client."""
    return Embedded(
        np.concatenate([split.z, z]),
        np.concatenate([split.logits, logits]),
        np.concatenate([split.y, y]),
        np.append(split.offsets, split.offsets[-1] + len(y)),
    )


def _with_store(stores: Stores, datastore: Artifact, train: Embedded, client: int) -> Stores:
    """Return the stores with that of one more client, built as the others were."""
    stored = StoredEmbeddings(train.z, train.logits, train.y, train.offsets, np.arange(len(train.y)))
    blob, samples = build_store(datastore.manifest.request, stored, client)
    return Stores(
        np.concatenate([stores.blob, blob]),
        np.append(stores.bytes, stores.bytes[-1] + len(blob)),
        np.concatenate([stores.y, samples.y]),
        np.append(stores.offsets, stores.offsets[-1] + len(samples.y)),
        np.append(stores.train, len(samples.y)),
        stores.threads,
    )
