"""``pfl sweep``: kNN-Per's scores over capacities, numbers of neighbours, kernel scales and lambdas, with one search.

Every row of its table equals the result of ``build-datastore --capacity``, ``personalize knn-per`` with
``cross_validate=0`` and ``evaluate``.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from pflcli.artifacts import codebook, csv_file
from pflcli.artifacts.codebook import Codebook
from pflcli.artifacts.kinds import embeddings, read_labels
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.open_by_path import Chosen, open_one
from pflcli.artifacts.reader import Artifact, ancestor
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import config, methods, scores, sources, tasks
from pflcli.core.errors import InputError
from pflcli.core.execution import Execution
from pflcli.core.knn import capacity as capacities
from pflcli.core.knn.spaces import Space
from pflcli.core.knn.stores import call_in_threads
from pflcli.core.metrics import catalogue
from pflcli.core.metrics.metric import Metric
from pflcli.core.settings import Settings
from pflcli.core.simulation.requirements import require_suited
from pflcli.core.tasks import Labels
from pflcli.evaluation import figures
from pflcli.methods import knn_per
from pflcli.methods.parts.knn_grid import Queries, choose_lambdas, count_correct_on_grid
from pflcli.options.function import command
from pflcli.plugins.knn_tools import charts
from pflcli.plugins.knn_tools.numbers_on_grid import Axes, score_client
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
class Points:
    """Scores of clients at the points of a grid: ``test`` and ``validation`` (m, c, k, s, l + 1), tuned lambda last.

    They are numbers of correct predictions of classes, int32, or the metric of numbers, float64. ``weight``
    (m, c, k, s) is the lambda that each client chose, ``stored`` (m, c) the number of training samples in its store,
    and ``n`` its number of samples by split, (m,) each.
    """

    test: NDArray[Any]
    validation: NDArray[Any]
    weight: NDArray[np.float64]
    stored: NDArray[np.int64]
    n: dict[str, NDArray[np.int64]]

    def score(self, split: str, *point: int) -> NDArray[np.float64]:
        """Return the score of each client at a point of the grid, (m,); nan without samples."""
        found: NDArray[Any] = getattr(self, split)[:, *point]
        return scores.ratio(found, self.n[split]) if found.dtype.kind == "i" else found


@dataclass(frozen=True)
class Column:
    """A column of scores: over which ``clients``, by which ``metric`` of the catalogue, and its ``weighting``."""

    clients: str
    metric: Metric
    weighting: str


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
    labels = read_labels(origin.manifest, 0)
    require_suited("knn-per", methods.load("knn-per"), Settings(), labels)
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
        metric = catalogue.METRICS[tasks.find(labels.kind).metrics[0]]
        found = _score_points(splits, points, metric, labels, seed, threads, execution)
        new = _unseen_clients(origin)
        columns = _list_columns(metric, has_unseen=new is not None)
        rows = _grid_rows(found, points, columns, new)
        work.write("metrics.json", (json.dumps(_metrics(found, columns, rows, labels), indent=1) + "\n").encode())
        work.write("table.csv", csv_file.encode_rounded(rows[0], (row.values() for row in rows)))
        work.write("clients.csv", _client_table(found, points, metric, new, codebook.read(origin)))
        shown = metric.in_unit(labels.unit, max((row[metric.name] or 0.0 for row in rows), default=0.0))
        decile = next(name for name in columns if name.endswith("bottom_decile"))
        figures.write(work, "sweep", charts.draw_sweep(rows, points.axes, plot, shown, decile))
        return Built({**_report_best(rows, shown, execution), **labels.facts()}, {"threads": threads})

    return make(asked.out, draft, execution, build)


def _list_columns(metric: Metric, *, has_unseen: bool) -> dict[str, Column]:
    """Return the columns of scores by name; parts of accuracy have names without it."""
    is_accuracy = metric.name == "accuracy"
    decile, worst = (
        ("" if is_accuracy else f"{metric.name}_") + "bottom_decile",
        "worst" if is_accuracy else f"{metric.name}_worst",
    )
    names = [metric.name, f"{metric.name}_mean", decile, worst]
    listed = {name: Column("all", catalogue.METRICS[name], catalogue.METRICS[name].weighting) for name in names}
    if has_unseen:
        took_no_part = "that took no part in training"
        for name, weighting in (
            (metric.name, f"clients {took_no_part}, by samples"),
            (decile, f"(m/10)-th worst client {took_no_part}"),
        ):
            listed[f"{name}_unseen"] = Column("unseen", catalogue.METRICS[name], weighting)
    listed[f"validation_{metric.name}"] = Column("validation", metric, "clients by validation samples")
    return listed


def _metrics(
    found: Points, columns: Mapping[str, Column], rows: Sequence[Mapping[str, Any]], labels: Labels
) -> dict[str, Any]:
    return {
        "split": "test",
        "samples": int(found.n["test"].sum()),
        "clients": int((found.n["test"] > 0).sum()),
        **({"unit": labels.unit} if labels.unit else {}),
        "metrics": {
            name: {"unit": column.metric.unit, "weighting": column.weighting} for name, column in columns.items()
        },
        "rows": rows,
    }


def _report_best(rows: Sequence[Mapping[str, Any]], metric: Metric, execution: Execution) -> dict[str, Any]:
    """Report the point with the best validation score, with lambda tuned per client, and return the summary."""
    tuned_rows = [row for row in rows if row["lambda"] == TUNED]
    known = [math.nan if (score := row[f"validation_{metric.name}"]) is None else score for row in tuned_rows]
    best = tuned_rows[max(range(len(known)), key=lambda at: metric.rank(known[at]))]
    at = {axis: best[axis] for axis in ("capacity", "k", "sigma")}
    words = ", ".join(f"{axis} {value:g}" for axis, value in at.items())
    digits = metric.digits if metric.suffix else 4
    execution.reporter.say(
        f"{len(rows)} rows; best on validation: {words}, where test {metric.heading} is "
        f"{best[metric.name]:.{digits}f}{metric.suffix}"
    )
    return {"rows": len(rows), "best_on_validation": at, metric.name: best[metric.name]}


def _unseen_clients(origin: Artifact) -> NDArray[np.bool_] | None:
    """Return which clients are unseen by the global model, (m,), or None if the partition has no unseen clients."""
    partition = ancestor(origin, "partition")
    return None if partition is None else partitions.read_new_clients(partition)


def _score_points(
    splits: Mapping[str, embeddings.StoredEmbeddings],
    points: Grid,
    metric: Metric,
    labels: Labels,
    seed: int,
    threads: int,
    execution: Execution,
) -> Points:
    """Rank each client's stored samples once, and score predictions at every point of the grid."""
    bounds = {split: part.offsets for split, part in splits.items()}
    m = len(bounds["test"]) - 1
    shape = (m, len(points.capacity), len(points.k), len(points.sigma))
    tune = np.unique(knn_per.Config().grid)
    lambdas = np.union1d(points.weight, tune)
    shared, own = np.searchsorted(lambdas, points.weight), np.searchsorted(lambdas, tune)
    kind = np.int32 if labels.kind == tasks.CLASSES else np.float64
    found = {split: np.zeros((*shape, len(shared) + 1), kind) for split in ("validation", "test")}
    is_stored, weight = _mark_stored(bounds["train"], points, seed), np.zeros(shape)
    score = _count_correct if labels.kind == tasks.CLASSES else partial(_score_numbers, metric=metric, labels=labels)
    axes = Axes(points.k, points.sigma, lambdas)
    lock = threading.Lock()
    with execution.reporter.progress("sweep", m) as advance:

        def work(first: int, last: int) -> None:
            by_split = {split: score(splits, split, first, last, is_stored, axes) for split in found}
            weight[first:last] = choose_lambdas(tune, by_split["validation"][1][..., own])
            chosen = np.searchsorted(lambdas, weight[first:last])[..., None]
            for split, (values, _) in by_split.items():
                by_lambda = [values[..., shared], np.take_along_axis(values, chosen, axis=-1)]
                found[split][first:last] = np.concatenate(by_lambda, axis=-1)
            with lock:
                advance(last - first, "")

        call_in_threads(work, m, threads)
    ends = np.append(np.zeros((len(is_stored), 1), np.int64), is_stored.cumsum(axis=1), axis=1)
    stored = np.diff(ends[:, bounds["train"]], axis=1).T
    n = {split: np.diff(bounds[split]) for split in bounds}
    return Points(found["test"], found["validation"], weight, stored, n)


Scored = tuple[NDArray[Any], NDArray[Any]]
"""Values of clients at the points of a grid, and by which they choose lambda, (m, c, k, s, l) each."""


def _count_correct(
    splits: Mapping[str, embeddings.StoredEmbeddings],
    split: str,
    first: int,
    last: int,
    is_stored: NDArray[np.bool_],
    axes: Axes,
) -> Scored:
    """Return the numbers of correct predictions of the clients from ``first`` to ``last``."""
    train, samples = splits["train"], splits[split]
    rows, span = (slice(part.offsets[first], part.offsets[last]) for part in (train, samples))
    own_bounds = samples.offsets[first : last + 1] - span.start
    queries = Queries(samples.z[span], knn_per.softmax(samples.logits[span]), samples.y[span], own_bounds)
    offsets = train.offsets[first : last + 1] - rows.start
    grid = (axes.ks, axes.sigmas, axes.lambdas)
    counts = count_correct_on_grid(train.z[rows], train.y[rows], offsets, is_stored[:, rows], queries, *grid)
    return counts, counts


def _score_numbers(
    splits: Mapping[str, embeddings.StoredEmbeddings],
    split: str,
    first: int,
    last: int,
    is_stored: NDArray[np.bool_],
    axes: Axes,
    *,
    metric: Metric,
    labels: Labels,
) -> Scored:
    """Return the metric of the clients from ``first`` to ``last``, and the sums of their scores."""
    train, samples, each = splits["train"], splits[split], []
    for client in range(first, last):
        own, queries = (part.take(np.asarray([client])) for part in (train, samples))
        rows = slice(train.offsets[client], train.offsets[client + 1])
        each.append(score_client(own, is_stored[:, rows], queries, axes, metric, labels))
    values, totals = zip(*each, strict=True)
    return np.stack(values), np.stack(totals)


def _mark_stored(offsets: NDArray[np.int64], points: Grid, seed: int) -> NDArray[np.bool_]:
    """Return which training samples are stored at each capacity, (c, n)."""
    is_stored = np.zeros((len(points.capacity), offsets[-1]), np.bool_)
    for client, (first, last) in enumerate(pairwise(offsets.tolist())):
        order = first + capacities.arrival_order(seed, "train", client, last - first)
        for place, capacity in enumerate(points.capacity):
            is_stored[place, order[: capacities.count_kept_rows(capacity, last - first)]] = True
    return is_stored


def _grid_rows(
    found: Points, points: Grid, columns: Mapping[str, Column], new: NDArray[np.bool_] | None
) -> list[dict[str, Any]]:
    """Return one row per point of the grid, with its metrics rounded to six digits."""
    rows = []
    lambdas = (*points.weight, TUNED)
    chosen = np.zeros(len(found.weight), np.bool_) if new is None else new
    for c, i, s, j in np.ndindex(found.test.shape[1:]):
        at = {"capacity": points.capacity[c], "k": points.k[i], "sigma": points.sigma[s], "lambda": lambdas[j]}
        test, known = (found.score(split, c, i, s, j) for split in ("test", "validation"))
        scored = {
            "all": (test, found.n["test"]),
            "unseen": (test[chosen], found.n["test"][chosen]),
            "validation": (known, found.n["validation"]),
        }
        values = {name: _summarize(column.metric, *scored[column.clients]) for name, column in columns.items()}
        rows.append({**at, **{name: None if math.isnan(value) else round(value, 6) for name, value in values.items()}})
    return rows


def _summarize(metric: Metric, scored: NDArray[np.float64], n: NDArray[np.int64]) -> float:
    """Return a metric over clients (m,) of these scores; nan without any."""
    assert metric.over is not None
    return math.nan if np.isnan(scored).all() else metric.over(scored, n)


def _client_table(found: Points, points: Grid, metric: Metric, new: NDArray[np.bool_] | None, known: Codebook) -> bytes:
    """Return ``clients.csv``: the lambda that each client chose, and its score, at every point of the grid."""
    beside = [] if new is None else ["unseen"]
    names = known.client_names(len(found.weight))
    grid = list(product(points.capacity, points.k, points.sigma))
    sizes = found.test.shape[1:4]

    def rows() -> Iterator[list[Any]]:
        for client, name in enumerate(names):
            n = int(found.n["test"][client])
            stored, last = found.stored[client].tolist(), [] if new is None else [int(new[client])]
            own = found.test[client, ..., -1]
            scored = own / n if n and own.dtype.kind == "i" else own
            for place, at in zip(np.ndindex(*sizes), grid, strict=True):
                score = None if n == 0 else round(float(scored[place]), 6)
                yield [client, name, *at, stored[place[0]], n, float(found.weight[client][place]), score, *last]

    heading = ["client", "name", "capacity", "k", "sigma", "n_train", "n_test", "lambda", metric.name, *beside]
    # A generator, because there may be millions of rows.
    return csv_file.encode_rounded(heading, rows())
