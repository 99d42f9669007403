"""``pfl update-datastore``: add new samples to stores, and evict old ones, without rebuilding them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import client_blocks, codebook
from pflcli.artifacts.kinds import datastore, embeddings, read_labels
from pflcli.artifacts.kinds.embeddings import StoredEmbeddings
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.open_by_path import Chosen, open_one
from pflcli.artifacts.reader import Artifact, require_ancestor
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import sources
from pflcli.core.errors import InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.knn import capacity as capacities
from pflcli.core.knn import indexes
from pflcli.options.function import command
from pflcli.plugins.knn_tools.update_datastore_options import UpdateDatastore
from pflcli.workflow.training import run_request


@dataclass(frozen=True)
class Rows:
    """Samples of a store, the oldest first: ``z`` (n, d), ``y`` and ``sample`` (n,)."""

    z: NDArray[np.float32]
    y: NDArray[Any]
    sample: NDArray[np.int64]

    def __getitem__(self, rows: slice | NDArray[Any]) -> Rows:
        """Return the samples of these rows."""
        return Rows(self.z[rows], self.y[rows], self.sample[rows])

    def __add__(self, later: Rows) -> Rows:
        """Return these samples, followed by ``later`` ones."""
        return Rows(
            np.concatenate([self.z, later.z]),
            np.concatenate([self.y, later.y]),
            np.concatenate([self.sample, later.sample]),
        )


@command(UpdateDatastore)
def update_datastore(asked: UpdateDatastore) -> Outcome:
    """Add samples of the embeddings ``arriving`` to the stores of ``source``.

    Samples arrive in the order in which stores of growing capacity keep them; those between the fractions ``first`` and
    ``last`` of each client's training samples are added. ``fifo`` evicts as many of the oldest samples as arrive,
    ``concatenate`` keeps all, ``fixed`` adds none (kNN-Per, section 5, distribution shift). A sample that is already
    stored is not added again. Validation samples are added and evicted in the same way and stored beside the stores, so
    that lambda is tuned on those that have arrived. ``personalize`` predicts for the test samples of ``arriving``.
    Raises UsageError for values out of range, InputError if the two artifacts do not match.

    >>> from pflcli import build_datastore, extract, partition, train_global, update_datastore
    >>> trained = train_global(partition("writers", "runs/p", clients=6), "runs/g", model="mlp", rounds=2)
    >>> newer = partition("writers", "runs/p2", clients=6, fractions=(0.5, 0.25, 0.25))
    >>> arriving = extract(trained, "runs/e2", partition=newer)
    >>> update_datastore(build_datastore(extract(trained, "runs/e"), "runs/d"), arriving, "runs/d2").kind
    'datastore'
    """
    execution = asked.execution
    if not 0 <= asked.first <= asked.last <= 1:
        raise UsageError(f"--from {asked.first:g} --to {asked.last:g} are not fractions in order", "--from 0 --to 0.5")
    chosen = Chosen(seed=asked.seed, draws=True)
    old, new = (
        open_one(place, kind, chosen=chosen)
        for place, kind in ((asked.source, "datastore"), (asked.arriving, "embeddings"))
    )
    _require_match(old, new)
    seed = run_request.choose_seed(asked.seed, new)
    request = {"index": indexes.EXACT, "policy": asked.policy, "from": asked.first, "to": asked.last, "seed": seed}
    # The embeddings come first: ``ancestor`` would otherwise find those from which the stores were first built.
    inputs = (new.as_input("embeddings", Path(asked.out)), old.as_input("datastore", Path(asked.out)))
    spec = ArtifactSpec("datastore", request, inputs, {"stores": sources.module_hash("core.knn.capacity")})
    job = _Job(old, new, asked.policy, asked.first, asked.last, seed)
    return make(asked.out, spec, execution, lambda writer: _build(job, writer, execution))


@dataclass(frozen=True)
class _Job:
    """The arguments of ``update_datastore``: ``old`` is the datastore, ``new`` the arriving embeddings."""

    old: Artifact
    new: Artifact
    policy: str
    first: float
    last: float
    seed: int


def _require_match(old: Artifact, new: Artifact) -> None:
    """Raise InputError unless embeddings of ``new`` can be added to the stores ``old``."""
    if require_ancestor(old, "backbone").manifest.fingerprint != require_ancestor(new, "backbone").manifest.fingerprint:
        raise InputError(
            f"{old.path} and {new.path} were made by different backbones, so their distances are not comparable",
            f"pfl extract {require_ancestor(old, 'backbone').path} --partition "
            f"{require_ancestor(new, 'partition').path} -o DIR",
        )
    if old.manifest.request["index"] != indexes.EXACT:
        raise InputError(
            f"{old.path} has stores of type {old.manifest.request['index']}, whose vectors cannot be restored exactly",
            f"pfl build-datastore {new.path} --index {old.manifest.request['index']} -o DIR",
        )
    codebook.require_same(old, new, "clients", *codebook.INPUTS)


def _build(job: _Job, writer: ArtifactWriter, execution: Execution) -> Built:
    """Update and write the stores of all clients, and the validation samples beside them."""
    splits = embeddings.read(job.new)
    dimension, classes = splits["train"].z.shape[1], splits["train"].logits.shape[1]
    packed = datastore.read_stores(job.old, classes, dimension, exact=True)
    is_distinct = _dataset_hash(job.old) == _dataset_hash(job.new)
    count = len(packed.offsets) - 1
    old_validation, validation = _read_validation(job.old), []
    stores: list[Rows] = []
    added: list[int] = []
    evicted: list[int] = []
    with execution.reporter.progress("update-datastore", count) as advance:
        for client in range(count):
            stored = _read_store(packed, client)
            train, others = (
                _arrivals_between(splits, split, client, job.first, job.last, job.seed)
                for split in ("train", "validation")
            )
            store, number = merge(stored, train, job.policy, distinct=is_distinct)
            validation.append(merge(old_validation[client], others, job.policy, distinct=is_distinct)[0])
            added.append(number)
            evicted.append(len(stored.y) + number - len(store.y))
            stores.append(store)
            advance(1, "")
    sizes = [len(store.y) for store in stores]
    lengths: list[int] = []

    def pieces() -> Iterator[memoryview]:
        for store in stores:
            index, _ = indexes.build(indexes.EXACT, store.z, {})
            lengths.append(len(index))
            yield index.data

    writer.stream(datastore.INDEXES, pieces())
    ends = client_blocks.offsets(lengths)
    datastore.write_labels(
        writer,
        y=np.concatenate([store.y for store in stores]),
        sample=np.concatenate([store.sample for store in stores]),
        offsets=client_blocks.offsets(sizes),
        bytes=ends,
    )
    datastore.write_arrived(writer, _join_clients(validation, splits["validation"].z.shape[1]))
    names = codebook.read(job.new)
    codebook.write(writer, names)
    counts = list(zip(added, evicted, sizes, strict=True))
    writer.write("clients.csv", codebook.clients_csv(names, ["added", "evicted", "samples"], counts))
    execution.reporter.say(f"{count} stores: {sum(added)} samples added, {sum(evicted)} evicted, {sum(sizes)} stored")
    changes = {"added": sum(added), "evicted": sum(evicted)}
    facts = read_labels(job.new.manifest, 0).facts()
    return Built({"clients": count, "samples": sum(sizes), "bytes": int(ends[-1]), **changes, **facts}, {})


def merge(stored: Rows, arriving: Rows, policy: str, *, distinct: bool) -> tuple[Rows, int]:
    """Return the samples of a store after the arrival of others, and how many of these were added.

    ``distinct`` means that both have sample ids of the same dataset; samples that are already stored are then skipped.
    """
    if policy == "fixed":
        return stored, 0
    if distinct:
        arriving = arriving[~np.isin(arriving.sample, stored.sample)]
    both = stored + arriving
    return (both[len(both.y) - len(stored.y) :] if policy == "fifo" else both), len(arriving.y)


def _read_store(packed: datastore.Packed, client: int) -> Rows:
    """Return a client's training samples in its store."""
    span = slice(packed.offsets[client], packed.offsets[client + 1])
    z = indexes.flat_vectors(packed.blob[packed.bytes[client] : packed.bytes[client + 1]])
    assert z is not None  # `datastore.read_stores` has checked it
    return Rows(z, packed.y[span], packed.sample[span])


def _rows(part: StoredEmbeddings, client: int, split: str) -> Rows:
    """Return a client's samples; for validation samples, each row is an embedding followed by the logits."""
    span = slice(part.offsets[client], part.offsets[client + 1])
    z = part.z[span] if split == "train" else np.concatenate([part.z[span], part.logits[span]], axis=1)
    return Rows(z, part.y[span], part.sample[span])


def _arrivals_between(
    splits: Mapping[str, StoredEmbeddings], split: str, client: int, first: float, last: float, seed: int
) -> Rows:
    """Return the samples of a client that arrive between two fractions of a split."""
    rows = _rows(splits[split], client, split)
    order = capacities.arrival_order(seed, split, client, len(rows.y))
    begin, end = (capacities.count_kept_rows(share, len(order)) for share in (first, last))
    return rows[np.sort(order[begin:end])]


def _read_validation(old: Artifact) -> list[Rows]:
    """Return the validation samples of each client that have arrived; before the first update, by the capacity."""
    arrived = datastore.read_arrived(old)
    if arrived is not None:
        return [_rows(arrived, client, "validation") for client in range(len(arrived.offsets) - 1)]
    splits, request = embeddings.read(require_ancestor(old, "embeddings")), old.manifest.request
    count, seed = len(splits["validation"].offsets) - 1, request["seed"]
    capacity = capacities.draw_capacities(
        request.get("capacity", 1.0), request.get("capacity_spread", 0.0), count, seed
    )
    return [
        _arrivals_between(splits, "validation", client, 0.0, float(capacity[client]), seed) for client in range(count)
    ]


def _join_clients(rows: list[Rows], dimension: int) -> StoredEmbeddings:
    """Return the validation samples of all clients as one split."""
    z, y, sample = (np.concatenate([getattr(row, name) for row in rows]) for name in ("z", "y", "sample"))
    return StoredEmbeddings(
        z[:, :dimension], z[:, dimension:], y, client_blocks.offsets([len(row.y) for row in rows]), sample
    )


def _dataset_hash(artifact: Artifact) -> Any:
    """Return the hash of the dataset to which the sample ids belong."""
    return require_ancestor(artifact, "partition").manifest.request.get("content")
