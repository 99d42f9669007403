"""``pfl build-datastore``: one nearest-neighbour index per client, over its own embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import client_blocks, codebook
from pflcli.artifacts.kinds import datastore, embeddings, read_labels, require_classes
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.open_by_path import Chosen, open_one
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import sources
from pflcli.core.errors import UsageError
from pflcli.core.execution import Execution
from pflcli.core.knn import capacity as capacities
from pflcli.core.knn import indexes
from pflcli.options.build_datastore import BuildDatastore
from pflcli.options.function import command
from pflcli.workflow.training import run_request


@command(BuildDatastore)
def build_datastore(asked: BuildDatastore) -> Outcome:
    """Build each client's store from the embeddings of its training samples.

    ``index`` is a string of FAISS's index factory, and ``parameters`` are its search parameters, such as nprobe. A
    client with too few training samples to train such an index gets the exact one. ``capacity`` is the fraction of a
    client's samples that its store keeps, drawn at random; a smaller store is a subset of a larger one. Half of the
    clients keep ``capacity_spread`` less, the other half that much more. ``prototypes`` replace the kept samples; it
    is their number or, below 1, their fraction of the samples. Validation samples are excluded, because lambda is tuned
    on them; if the backbone was trained with ``refit``, they are training samples. Raises UsageError for values out of
    range.

    >>> from pflcli import build_datastore, extract, partition, train_global
    >>> trained = train_global(partition("writers", "runs/p", clients=6), "runs/g", model="mlp", rounds=2)
    >>> build_datastore(extract(trained, "runs/e"), "runs/d").kind
    'datastore'
    """
    execution = asked.execution
    _check_amounts(asked.capacity, asked.capacity_spread, asked.prototypes)
    source = open_one(asked.source, "embeddings", chosen=Chosen(asked.method, asked.seed, draws=True))
    searched = dict(asked.parameters or {})
    if "dimension" in source.manifest.summary:  # it is unknown while the embeddings are only planned
        indexes.check(asked.index, embeddings.read_dimension(source), searched)
    seed = run_request.choose_seed(asked.seed, source)
    request = {
        "index": asked.index,
        "metric": "squared L2",
        "capacity": asked.capacity,
        "seed": seed,
    }
    # Options that are not used are left out, as those will be that a later version adds.
    optional = {"parameters": searched, "capacity_spread": asked.capacity_spread, "prototypes": asked.prototypes}
    request |= {name: value for name, value in optional.items() if value}
    modules = [
        "core.knn.capacity",
        *(["core.knn.prototypes"] if asked.prototypes else []),
        *(["core.knn.indexes"] if asked.index != indexes.EXACT else []),
    ]
    code = {"stores": sources.module_hash(*modules)}
    spec = ArtifactSpec("datastore", request, (source.as_input("embeddings", Path(asked.out)),), code)
    job = _Job(source, asked.index, searched, asked.capacity, asked.capacity_spread, asked.prototypes, seed)
    values = source.manifest.summary.get("samples", 0) * source.manifest.summary.get("dimension", 0)
    has_known_size = asked.index == indexes.EXACT and asked.prototypes is None
    return make(
        asked.out,
        spec,
        execution,
        lambda writer: _build(job, writer, execution),
        needed_bytes=int(4 * _TRAIN * asked.capacity * values) if has_known_size else 0,
    )


_TRAIN = 0.6
"""Assumed fraction of training samples among all samples, to estimate the size of a datastore."""

_MAX_PROTOTYPES = 1_000_000


def _check_amounts(capacity: float, spread: float, prototypes: float | None) -> None:
    """Raise UsageError for a spread or number of prototypes that is out of range."""
    largest = min(capacity, 1 - capacity)
    if not 0 <= spread <= largest + 1e-9:
        raise UsageError(
            f"--capacity {capacity:g} plus or minus --capacity-spread {spread:g} is outside the range from 0 to 1",
            f"--capacity-spread {largest:g}" if largest else f"--capacity 0.5 --capacity-spread {spread:g}",
        )
    if prototypes is not None and prototypes > _MAX_PROTOTYPES:
        raise UsageError(
            f"--prototypes {prototypes:g} is above the maximum of {_MAX_PROTOTYPES:,}",
            "leave it out to keep the samples themselves",
        )
    if prototypes is not None and not (0 < prototypes < 1 or (prototypes >= 1 and float(prototypes).is_integer())):
        raise UsageError(
            f"--prototypes {prototypes:g} is neither a number of prototypes nor a fraction of the samples",
            "--prototypes 30",
        )


@dataclass(frozen=True)
class _Job:
    """The arguments of ``build_datastore``, checked."""

    source: Artifact
    index: str
    parameters: Mapping[str, str]
    capacity: float
    capacity_spread: float
    prototypes: float | None
    seed: int


def _build(job: _Job, writer: ArtifactWriter, execution: Execution) -> Built:
    """Build the stores of all clients and write them."""
    if job.prototypes is not None:
        require_classes(job.source.manifest, "--prototypes")
    splits = embeddings.read(job.source)
    count = len(splits["train"].offsets) - 1
    capacity = capacities.draw_capacities(job.capacity, job.capacity_spread, count, job.seed)
    labels: list[NDArray[np.int64]] = []
    samples: list[NDArray[np.int64]] = []
    kinds: list[str] = []
    sizes: list[int] = []

    def pieces() -> Iterator[memoryview]:
        # A store is built when it is written, so that only one store is in memory at a time.
        for client in range(count):
            store = datastore.store_samples(splits["train"], client, float(capacity[client]), job.prototypes, job.seed)
            index, kind = indexes.build(job.index, store.z, job.parameters)
            yield index.data
            sizes.append(len(index))
            kinds.append(kind)
            labels.append(store.y)
            samples.append(store.sample)
            advance(1, "")

    with execution.reporter.progress("build-datastore", count) as advance:
        writer.stream(datastore.INDEXES, pieces())
    rows = [len(y) for y in labels]
    datastore.write_labels(
        writer,
        y=np.concatenate(labels),
        sample=np.concatenate(samples),
        offsets=client_blocks.offsets(rows),
        bytes=client_blocks.offsets(sizes),
    )
    names = codebook.read(job.source)
    codebook.write(writer, names)
    table = list(zip([f"{share:.6g}" for share in capacity], rows, kinds, sizes, strict=True))
    writer.write("clients.csv", codebook.clients_csv(names, ["capacity", "samples", "index", "bytes"], table))
    return _summary(job, rows, kinds, sizes, execution)


def _summary(job: _Job, rows: list[int], kinds: list[str], sizes: list[int], execution: Execution) -> Built:
    """Report and return the number and size of the stores; ``rows``, ``kinds`` and ``sizes`` are by client."""
    count, total = len(rows), sum(sizes)
    is_exact = job.index == indexes.EXACT
    replaced = 0 if is_exact else kinds.count(indexes.EXACT)
    execution.reporter.say(
        f"{count} stores of {sum(rows)} {'samples' if job.prototypes is None else 'prototypes'}, {total / 1e6:.1f} MB, "
        f"{total / max(count, 1) / 1e3:.1f} kB per client"
    )
    if replaced:
        execution.reporter.say(
            f"{replaced} of them have too few samples to train {job.index} and use {indexes.EXACT} instead"
        )
    summary = {
        "clients": count,
        "samples": sum(rows),
        "bytes": total,
        "bytes_client": {"mean": round(total / max(count, 1), 1), "min": min(sizes), "max": max(sizes)},
        "capacity": job.capacity,
        **({} if is_exact else {"exact_instead": replaced}),
        **read_labels(job.source.manifest, 0).facts(),
    }
    return Built(summary, {})
