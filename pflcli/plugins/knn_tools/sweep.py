"""``pfl sweep``: kNN-Per's accuracy over capacities, numbers of neighbours, kernel scales and lambdas, with one search.

Every row of its table equals the result of ``build-datastore --capacity``, ``personalize knn-per`` with
``cross_validate=0`` and ``evaluate``.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise, product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from pflcli.artifacts import codebook, csv_file
from pflcli.artifacts.codebook import Codebook
from pflcli.artifacts.kinds import embeddings, require_classes
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.open_by_path import Chosen, open_one
from pflcli.artifacts.reader import Artifact, ancestor
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import config, scores, sources
from pflcli.core.errors import InputError
from pflcli.core.execution import Execution
from pflcli.core.knn import capacity as capacities
from pflcli.core.knn.spaces import Space
from pflcli.core.knn.stores import call_in_threads
from pflcli.core.metrics import catalogue
from pflcli.evaluation import figures
from pflcli.evaluation.charts import curves
from pflcli.methods import knn_per
from pflcli.methods.parts.knn_grid import Queries, choose_lambdas, count_correct_on_grid
from pflcli.options.function import command
from pflcli.plugins.knn_tools.sweep_options import Sweep
from pflcli.workflow.training import hardware, run_request

TUNED = "tuned"


@dataclass(frozen=True)
class Grid:
    """What to sweep over: kNN-Per's own grids (appendix B)."""

    capacity: tuple[Annotated[float, Ge(0), Le(1)], ...] = tuple(i / 10 for i in range(11))
    """fractions of a client's samples that its store keeps"""
    k: tuple[Annotated[int, Ge(1)], ...] = knn_per.GRID["k"]
    """numbers of neighbours"""
    sigma: tuple[Annotated[float, Ge(1e-100)], ...] = (1.0,)
    """kernel scales"""
    weight: tuple[Annotated[float, Ge(0), Le(1)], ...] = tuple(i / 10 for i in range(11))
    """values of lambda that all clients share"""

    def __post_init__(self) -> None:
        for field in fields(self):
            values = getattr(self, field.name)
            if not values:
                raise ValueError(f"{field.name} is empty")
            # Sorted, without duplicates.
            object.__setattr__(self, field.name, tuple(sorted({*values})))

    @property
    def axes(self) -> dict[str, tuple[float, ...]]:
        """The values along each axis, in the order of the table's columns."""
        return {"capacity": self.capacity, "k": self.k, "sigma": self.sigma, "lambda": self.weight}


@dataclass(frozen=True)
class Counts:
    """Numbers of correct predictions: ``test`` and ``validation`` (m, c, k, s, l + 1), the tuned lambda last.

    ``weight`` (m, c, k, s) is the lambda that each client chose, ``stored`` (m, c) the number of training samples in
    its store, and ``n`` its number of samples by split, (m,) each.
    """

    test: NDArray[np.int32]
    validation: NDArray[np.int32]
    weight: NDArray[np.float64]
    stored: NDArray[np.int64]
    n: dict[str, NDArray[np.int64]]


@command(Sweep)
def sweep(asked: Sweep) -> Outcome:
    """Score kNN-Per at every point of a grid, with each shared lambda and with the lambda that each client tunes.

    The defaults of the grid are those of ``Grid``. Stores keep training samples; lambda is tuned on validation samples.
    ``plot`` is the horizontal axis of the picture, by default the first one with several values. ``representation`` and
    ``distance`` are those of kNN-Per.

    Raises UsageError for invalid values, and InputError if the backbone was trained on validation samples, on which
    lambda can then not be tuned.

    >>> from pflcli import extract, partition, sweep, train_global
    >>> trained = train_global(partition("writers", "runs/p", clients=6), "runs/g", model="mlp", rounds=2)
    >>> sweep(extract(trained, "runs/e"), "runs/sweep", k=[5], sigma=[1.0]).kind
    'sweep'
    """
    execution = asked.execution
    typed = {field.name: getattr(asked, field.name) for field in fields(Grid)}
    points: Grid = config.build(Grid, {name: value for name, value in typed.items() if value is not None}, "sweep")
    plot = asked.plot or next((axis for axis, values in points.axes.items() if len(values) > 1), "capacity")
    origin = open_one(asked.source, "embeddings", chosen=Chosen(asked.method, asked.seed, draws=True))
    require_classes(origin.manifest, "pfl sweep")
    backbone = ancestor(origin, "backbone")
    if backbone is not None and backbone.manifest.request["settings"].get("refit"):
        raise InputError(
            f"{backbone.path} was trained with --refit: no validation samples are left to tune lambda on",
            "sweep the embeddings of a backbone that was trained without --refit",
        )
    seed = run_request.choose_seed(asked.seed, origin)
    chosen = {"representation": asked.representation, "distance": asked.distance}
    space = Space(**chosen)
    if space.representation == "logits" and "layer" in origin.manifest.request:
        raise InputError(
            f"{origin.path} has outputs of the layer {origin.manifest.request['layer']}, of which there are no logits",
            "extract without --layer, or leave out --representation logits",
        )
    draft = ArtifactSpec(
        "sweep",
        {**config.plain(points), "plot": plot, "seed": seed, **({} if space == Space() else chosen)},
        (origin.as_input("embeddings", Path(asked.out)),),
        code={
            "methods/knn-per": sources.code_hash("methods", "knn-per"),
            "stores": sources.module_hash("core.knn.capacity"),
            "scores": sources.module_hash("core.scores"),
        },
    )

    def build(work: ArtifactWriter) -> Built:
        splits = {split: space.embed(part) for split, part in embeddings.read(origin).items()}
        if not len(splits["test"].y):
            raise InputError(f"{origin.path} has no test samples to score")
        threads = hardware.threads(execution.threads)
        counts = _count_correct(splits, points, seed, threads, execution)
        new = _unseen_clients(origin)
        rows = _grid_rows(counts, points, new)
        work.write("metrics.json", (json.dumps(_metrics(counts, rows), indent=1) + "\n").encode())
        work.write("table.csv", csv_file.encode_rounded(rows[0], (row.values() for row in rows)))
        work.write("clients.csv", _client_table(counts, points, new, codebook.read(origin)))
        figures.write(work, "sweep", curves.draw_sweep(rows, points.axes, plot))
        return Built(_report_best(rows, execution), {"threads": threads})

    return make(asked.out, draft, execution, build)


def _metrics(counts: Counts, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "split": "test",
        "samples": int(counts.n["test"].sum()),
        "clients": int((counts.n["test"] > 0).sum()),
        "metrics": catalogue.describe_sweep(rows[0]),
        "rows": rows,
    }


def _report_best(rows: Sequence[Mapping[str, Any]], execution: Execution) -> dict[str, Any]:
    """Report the point with the best validation accuracy, with lambda tuned per client, and return the summary."""
    tuned_rows = [row for row in rows if row["lambda"] == TUNED]
    best = max(tuned_rows, key=lambda row: row["validation_accuracy"] or 0.0)
    at = {axis: best[axis] for axis in ("capacity", "k", "sigma")}
    words = ", ".join(f"{axis} {value:g}" for axis, value in at.items())
    execution.reporter.say(
        f"{len(rows)} rows; best on validation: {words}, where test accuracy is {best['accuracy']:.4f}"
    )
    return {"rows": len(rows), "best_on_validation": at, "accuracy": best["accuracy"]}


def _unseen_clients(origin: Artifact) -> NDArray[np.bool_] | None:
    """Return which clients are unseen by the global model, (m,), or None if the partition has no unseen clients."""
    partition = ancestor(origin, "partition")
    return None if partition is None else partitions.read_new_clients(partition)


def _count_correct(
    splits: Mapping[str, embeddings.StoredEmbeddings], points: Grid, seed: int, threads: int, execution: Execution
) -> Counts:
    """Rank each client's stored samples once, and count correct predictions at every point of the grid."""
    bounds = {split: part.offsets for split, part in splits.items()}
    m = len(bounds["test"]) - 1
    shape = (m, len(points.capacity), len(points.k), len(points.sigma))
    tune = np.unique(knn_per.Config().grid)
    lambdas = np.union1d(points.weight, tune)
    shared, own = np.searchsorted(lambdas, points.weight), np.searchsorted(lambdas, tune)
    right_counts = {split: np.zeros((*shape, len(shared) + 1), np.int32) for split in ("validation", "test")}
    is_stored, weight, train = _mark_stored(bounds["train"], points, seed), np.zeros(shape), splits["train"]
    lock = threading.Lock()
    with execution.reporter.progress("sweep", m) as advance:

        def count_right(split: str, first: int, last: int) -> NDArray[np.int64]:
            rows, span = (slice(bounds[name][first], bounds[name][last]) for name in ("train", split))
            samples = splits[split]
            own_bounds = bounds[split][first : last + 1] - span.start
            queries = Queries(samples.z[span], knn_per.softmax(samples.logits[span]), samples.y[span], own_bounds)
            offsets = bounds["train"][first : last + 1] - rows.start
            grid = (points.k, points.sigma, lambdas)
            return count_correct_on_grid(train.z[rows], train.y[rows], offsets, is_stored[:, rows], queries, *grid)

        def work(first: int, last: int) -> None:
            counts = {split: count_right(split, first, last) for split in right_counts}
            weight[first:last] = choose_lambdas(tune, counts["validation"][..., own])
            chosen = np.searchsorted(lambdas, weight[first:last])[..., None]
            for split, count in counts.items():
                by_lambda = [count[..., shared], np.take_along_axis(count, chosen, axis=-1)]
                right_counts[split][first:last] = np.concatenate(by_lambda, axis=-1)
            with lock:
                advance(last - first, "")

        call_in_threads(work, m, threads)
    ends = np.append(np.zeros((len(is_stored), 1), np.int64), is_stored.cumsum(axis=1), axis=1)
    stored = np.diff(ends[:, bounds["train"]], axis=1).T
    n = {split: np.diff(bounds[split]) for split in bounds}
    return Counts(right_counts["test"], right_counts["validation"], weight, stored, n)


def _mark_stored(offsets: NDArray[np.int64], points: Grid, seed: int) -> NDArray[np.bool_]:
    """Return which training samples are stored at each capacity, (c, n)."""
    is_stored = np.zeros((len(points.capacity), offsets[-1]), np.bool_)
    for client, (first, last) in enumerate(pairwise(offsets.tolist())):
        order = first + capacities.arrival_order(seed, "train", client, last - first)
        for place, capacity in enumerate(points.capacity):
            is_stored[place, order[: capacities.count_kept_rows(capacity, last - first)]] = True
    return is_stored


def _grid_rows(counts: Counts, points: Grid, new: NDArray[np.bool_] | None) -> list[dict[str, Any]]:
    """Return one row per point of the grid, with its metrics rounded to six digits."""
    rows = []
    n, held_out = counts.n["test"], counts.n["validation"]
    lambdas = (*points.weight, TUNED)
    for c, i, s, j in np.ndindex(counts.test.shape[1:]):
        at = {"capacity": points.capacity[c], "k": points.k[i], "sigma": points.sigma[s], "lambda": lambdas[j]}
        accuracy = scores.ratio(counts.test[:, c, i, s, j], n)
        values = {
            "accuracy": scores.weighted_mean(accuracy, n),
            "accuracy_mean": float(np.nanmean(accuracy)),
            "bottom_decile": scores.bottom_decile(accuracy),
            "worst": float(np.nanmin(accuracy)),
        }
        if new is not None:
            values["accuracy_unseen"] = scores.weighted_mean(accuracy[new], n[new])
            values["bottom_decile_unseen"] = scores.bottom_decile(accuracy[new])
        known = scores.ratio(counts.validation[:, c, i, s, j], held_out)
        values["validation_accuracy"] = scores.weighted_mean(known, held_out)
        rounded = {name: None if math.isnan(value) else round(value, 6) for name, value in values.items()}
        rows.append({**at, **rounded})
    return rows


def _client_table(counts: Counts, points: Grid, new: NDArray[np.bool_] | None, known: Codebook) -> bytes:
    """Return ``clients.csv``: the lambda that each client chose, and its accuracy, at every point of the grid."""
    beside = [] if new is None else ["unseen"]
    names = known.client_names(len(counts.weight))
    grid = list(product(enumerate(points.capacity), points.k, points.sigma))

    def rows() -> Iterator[list[Any]]:
        for client, name in enumerate(names):
            n = int(counts.n["test"][client])
            weight, right = counts.weight[client].ravel().tolist(), counts.test[client, ..., -1].ravel().tolist()
            stored, last = counts.stored[client].tolist(), [] if new is None else [int(new[client])]
            for ((c, capacity), k, sigma), own_weight, count in zip(grid, weight, right, strict=True):
                accuracy = None if n == 0 else round(count / n, 6)
                yield [client, name, capacity, k, sigma, stored[c], n, own_weight, accuracy, *last]

    heading = ["client", "name", "capacity", "k", "sigma", "n_train", "n_test", "lambda", "accuracy", *beside]
    # A generator, because there may be millions of rows.
    return csv_file.encode_rounded(heading, rows())
