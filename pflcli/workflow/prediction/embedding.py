"""Compute representations of further samples as ``extract`` does, to replace or extend the stored ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.artifacts import client_blocks
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds.datastore import build_store
from pflcli.artifacts.kinds.embeddings import StoredEmbeddings
from pflcli.artifacts.kinds.partition import Partition
from pflcli.artifacts.reader import Artifact, ancestor
from pflcli.core.engine.executors.threads import BATCH
from pflcli.core.errors import ComputationError
from pflcli.core.execution import Execution
from pflcli.core.federation.layers import represent_by_layer
from pflcli.core.federation.run import Run, RunInputs
from pflcli.core.knn.embedded import Embedded
from pflcli.core.knn.stores import Stores
from pflcli.workflow.training.run_spec import RunSpec

Outputs = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Representations (n, d) and logits (n, C)."""


def _embed(backbone_run: Run, rows: NDArray[np.int64], lineage: Mapping[str, Artifact | None]) -> Outputs:
    """Return the outputs of a backbone for rows of its run; raises ComputationError if one is not finite.

    Representations are those of the layer from which the embeddings in ``lineage`` were made.
    """
    assert backbone_run.backbone is not None
    stored = lineage["embeddings"]
    layer = None if stored is None else stored.manifest.request.get("layer")
    logits, z = backbone_run.engine.infer(backbone_run.backbone, rows, features=layer is None)
    if layer is not None:
        z = represent_by_layer(backbone_run, rows, layer)
    if not (torch.isfinite(z).all() and torch.isfinite(logits).all()):
        raise ComputationError("the representations are not finite: the features of the samples are too large")
    return z.cpu().numpy(), logits.cpu().numpy()


def _backbone_run(lineage: Mapping[str, Artifact | None], data: Partition, execution: Execution) -> Run:
    """Build the run of the backbone in ``lineage`` on the samples ``data``."""
    backbone, partition = lineage["backbone"], lineage["partition"]
    assert backbone is not None  # a run with embeddings has a backbone
    assert partition is not None
    spec, trained_on = RunSpec.of_backbone(backbone), ancestor(backbone, "partition")
    is_other = trained_on is not None and trained_on.manifest.fingerprint != partition.manifest.fingerprint
    if trained_on is not None and is_other and spec.settings.normalize == "dataset":
        spec = replace(spec, normalized_like=partitions.read(trained_on))
    # extract has no option for the engine, so the original embeddings were made with this one.
    return spec.build(data, replace(execution, engine="auto"))


def embed_queries(
    inputs: RunInputs, lineage: Mapping[str, Artifact | None], data: Partition, client: int, execution: Execution
) -> RunInputs:
    """Return the inputs with one client's test embeddings computed from its test samples in ``data``.

    Samples are embedded in the same batches as by ``extract``, together with those of other clients, so that the
    results agree bit for bit.
    """
    assert inputs.embeddings is not None
    backbone_run = _backbone_run(lineage, data, execution)
    federation = backbone_run.federation
    rows = federation.rows_of(backbone_run.clients, "test")
    begin, end = client_blocks.offsets(federation.sizes("test"))[client : client + 2].tolist()
    batch = BATCH[federation.y.device.type]
    first, last = begin // batch * batch, -(-end // batch) * batch
    own = slice(begin - first, end - first)
    z, logits = (values[own] for values in _embed(backbone_run, rows[first:last], lineage))
    backbone_run.engine.close()
    test = _replace_client(inputs.embeddings["test"], client, z, logits)
    return replace(inputs, embeddings={**inputs.embeddings, "test": test})


def embed_test_samples(
    inputs: RunInputs, lineage: Mapping[str, Artifact | None], data: Partition, execution: Execution
) -> RunInputs:
    """Return the inputs with the test embeddings computed from all test samples in ``data``."""
    assert inputs.embeddings is not None
    backbone_run = _backbone_run(lineage, data, execution)
    federation = backbone_run.federation
    rows = np.concatenate([federation.rows(int(client), "test") for client in backbone_run.clients])
    z, logits = _embed(backbone_run, rows, lineage)
    backbone_run.engine.close()
    offsets = client_blocks.offsets(federation.sizes("test"))
    test = Embedded(z, logits, federation.y[rows].cpu().numpy(), offsets)
    return replace(inputs, embeddings={**inputs.embeddings, "test": test})


def _replace_client(split: Embedded, client: int, z: NDArray[np.float32], logits: NDArray[np.float32]) -> Embedded:
    """Return a split of embeddings with a client's samples replaced by others (n, d)."""
    first, last = split.offsets[client : client + 2]
    offsets = split.offsets.copy()
    offsets[client + 1 :] += len(z) - (last - first)

    def splice(values: NDArray[Any], own: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([values[:first], own, values[last:]])

    y = splice(split.y, np.zeros(len(z), np.int64))
    return Embedded(splice(split.z, z), splice(split.logits, logits), y, offsets)


def append_later_clients(
    inputs: RunInputs, lineage: Mapping[str, Artifact | None], data: Partition, execution: Execution
) -> RunInputs:
    """Return the inputs with the embeddings and stores of the later clients of ``data``."""
    assert inputs.embeddings is not None
    backbone_run = _backbone_run(lineage, data, execution)
    federation = backbone_run.federation
    later = backbone_run.clients[len(inputs.embeddings["test"].offsets) - 1 :].tolist()
    extended, arrived, stores = dict(inputs.embeddings), inputs.arrived, inputs.stores
    for client in later:
        for split, known in extended.items():
            rows = federation.rows(client, split)
            z, logits = _embed(backbone_run, rows, lineage)
            extended[split] = _append_client(known, z, logits, federation.y[rows].cpu().numpy())
            if split == "validation" and arrived is not None:
                arrived = _append_client(arrived, z, logits, federation.y[rows].cpu().numpy())
    backbone_run.engine.close()
    if (datastore := lineage["datastore"]) is not None and stores is not None:
        for client in later:
            stores = _append_store(stores, datastore, extended["train"], client)
    return replace(inputs, embeddings=extended, arrived=arrived, stores=stores)


def _append_client(
    split: Embedded, z: NDArray[np.float32], logits: NDArray[np.float32], y: NDArray[np.int64]
) -> Embedded:
    """Return a split of embeddings with the samples (n, d) of one more client."""
    return Embedded(
        np.concatenate([split.z, z]),
        np.concatenate([split.logits, logits]),
        np.concatenate([split.y, y]),
        np.append(split.offsets, split.offsets[-1] + len(y)),
    )


def _append_store(stores: Stores, datastore: Artifact, train: Embedded, client: int) -> Stores:
    """Return the stores with that of one more client, built from the same request."""
    stored = StoredEmbeddings(train.z, train.logits, train.y, train.offsets, np.arange(len(train.y)))
    blob, samples = build_store(datastore.manifest.request, stored, client)
    return Stores(
        np.concatenate([stores.blob, blob]),
        np.append(stores.bytes, stores.bytes[-1] + len(blob)),
        np.concatenate([stores.y, samples.y]),
        np.append(stores.offsets, stores.offsets[-1] + len(samples.y)),
        stores.threads,
    )
