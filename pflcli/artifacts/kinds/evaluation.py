"""An evaluation: scores of predictions, by client, method and seed.

``metrics.json``: a row per method with all its metrics, a conclusion in one sentence, and warnings. ``clients.csv``: a
row per method, seed and client. ``runs.csv``: a row per method and seed. ``table.csv`` and ``table.md``: the metrics as
tables, in the units of ``metrics.json`` and formatted for reading. ``accuracy.png``: accuracies by client; with
``--metric auroc``, ``auroc.png``. ``accuracy.vl.json``: the Vega-Lite specification of the picture. With
``--coverage``: ``sets.csv``, a row per method and threshold, and ``sets_clients.csv``, a row per method, seed and
client. With ``--group-scores``: ``groups.csv``, a row per column, method and group of samples.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from annotated_types import Len
from typing_extensions import TypedDict

from pflcli.artifacts.kinds import describe_count, describe_name
from pflcli.artifacts.manifest import Manifest
from pflcli.artifacts.reader import Artifact
from pflcli.core import plugins

SCHEMA = 1
MADE_BY = "pfl evaluate PREDICTIONS... -o DIR"

METRICS = "metrics.json"
_COSTS = ("MB", "s", "bytes")
"""Units of metrics that cannot be negative."""


class _Spread(TypedDict):
    clients: NotRequired[int]
    interval: NotRequired[Annotated[list[float], Len(2, 2)]]
    standard_error: NotRequired[float]
    degrees_of_freedom: NotRequired[float]


class _Metric(TypedDict):
    value: float | None
    n: NotRequired[int]
    of: NotRequired[int]
    unit: NotRequired[str]
    weighting: NotRequired[str]
    std_over_seeds: NotRequired[float | None]
    interval: NotRequired[Annotated[list[float], Len(2, 2)] | None]
    standard_error: NotRequired[float]
    degrees_of_freedom: NotRequired[float]
    many_seeds: NotRequired[_Spread]
    these_clients: NotRequired[_Spread]
    p: NotRequired[float]
    p_corrected: NotRequired[float]
    by_chance: NotRequired[float]
    by_chance_high: NotRequired[float]
    exceeds_chance: NotRequired[bool]
    baseline_worst: NotRequired[float]
    baseline_bottom_decile: NotRequired[float]


class _Privacy(TypedDict):
    epsilon: float
    delta: float


class _Row(TypedDict):
    label: str
    seeds: Annotated[list[int], Len(1)]
    method: NotRequired[str]
    learned_from: list[str]
    privacy: NotRequired[_Privacy]
    transductive: NotRequired[bool]
    reference: NotRequired[bool]
    personal: NotRequired[bool]
    worst_served: NotRequired[_WorstServed]
    unfinished: NotRequired[_Rise]
    paper: NotRequired[str]
    metrics: dict[str, _Metric]


class _Conclusion(TypedDict):
    sentence: str
    scope: NotRequired[str]
    clients: NotRequired[str]
    harm: NotRequired[str]
    cost: NotRequired[str]
    best: NotRequired[str | None]
    shown: NotRequired[str | None]
    better: NotRequired[list[str]]
    worse: NotRequired[list[str]]
    judged: NotRequired[list[str]]


class _Marks(TypedDict):
    best: list[str]
    not_worse: list[str]


class _WorstServed(TypedDict):
    clients: list[str]
    count: int
    value: float
    baseline: NotRequired[float]


class _Rise(TypedDict):
    rise: float
    rounds: int
    advised: int | Literal["flat"]


class _TunedMethod(TypedDict):
    trials: int
    grid: int
    values: dict[str, Any]
    problem: NotRequired[str]
    borders: NotRequired[dict[str, str]]


class _Tune(TypedDict):
    trials: int
    seed: int
    methods: dict[str, _TunedMethod]


class _Stack(TypedDict):
    pool: list[str]
    best_by_validation: dict[str, str]
    single: dict[str, _Metric]
    bound: dict[str, _Metric]


class _MethodSets(TypedDict):
    too_few_samples: dict[str, list[str]]
    chose_on_validation: NotRequired[bool]
    models_tried: NotRequired[int]
    least_coverage: NotRequired[dict[str, float]]
    thresholds: dict[str, dict[str, _Metric]]


class _Sets(TypedDict):
    coverage: float
    score: str
    fewest_samples: int
    pseudo_count: int
    methods: dict[str, _MethodSets]


class _Metrics(TypedDict):
    """The fields that tables and sentences read; others are allowed."""

    split: str
    baseline: str | None
    methods: Annotated[list[_Row], Len(1)]
    target: NotRequired[float]
    link: NotRequired[str]
    metric: NotRequired[list[str]]
    definitions: NotRequired[list[str]]
    without_validation: NotRequired[bool]
    conclusion: _Conclusion
    marks: dict[str, _Marks]
    stacks: NotRequired[dict[str, _Stack]]
    sets: NotRequired[_Sets]
    warnings: list[str]
    tune: NotRequired[_Tune]


def read(artifact: Artifact) -> dict[str, Any]:
    """Return the metrics of an evaluation or a comparison; raises InputError if their file is damaged."""
    metrics: dict[str, Any] = artifact.json(METRICS, _Metrics)
    for name in plugins.added("SCORES"):
        artifact.json(METRICS, plugins.load("SCORES", name, "fields"))
    with artifact.parsing(METRICS):
        for row in metrics["methods"]:
            for name, metric in row["metrics"].items():
                if metric.get("unit") in _COSTS and (metric["value"] or 0) < 0:
                    raise ValueError(f"{name} of {row['label']} is negative")
    return metrics


check = read


def describe(manifest: Manifest) -> list[str]:
    """Return a few facts that distinguish artifacts of this kind, as text."""
    summary = manifest.summary
    return [
        describe_name(manifest.request.get("split"), "split"),
        describe_count(summary.get("methods"), "method"),
        describe_name(summary.get("best"), "best"),
    ]
