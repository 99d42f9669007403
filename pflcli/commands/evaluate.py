"""``pfl evaluate``: score stored predictions per client and over clients, methods and seeds, with NumPy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import read_labels
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.open_by_path import Chosen, open_all
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import tasks
from pflcli.core.errors import UsageError
from pflcli.core.metrics import catalogue
from pflcli.evaluation import added_scores, coverage, round_costs, scoring, summary
from pflcli.options.evaluate import Evaluate
from pflcli.options.function import command


@command(Evaluate)
def evaluate(asked: Evaluate) -> Outcome:
    """Score predictions; the same method with several seeds becomes one row, with its standard deviation.

    ``method`` and ``seed`` choose among the predictions in a folder of ``compare``.
    Gains are measured against ``baseline`` with the same partition and seed or, if that is not among the predictions,
    against the backbone's predictions that are stored beside those of the method. ``target`` is a validation accuracy,
    or a value of the task's first metric, such as an RMSE; the table then says how long each method took to reach it
    (``time_to_target``). ``link``, ``UP:DOWN`` in Mbit/s, adds how long the rounds would take behind such links
    (``round_costs``). The first of ``metrics`` ranks the methods, and gains, conclusion and picture use it; the others
    are computed too. ``positive`` names the positive one of two classes for sensitivity, specificity and average
    precision, by default the last class. ``coverage`` adds prediction sets that contain the true class with this
    probability, calibrated on validation samples. ``group_scores`` are columns by whose values samples are scored in
    groups.

    Raises UsageError for an unknown split, baseline, metric, class or column, a metric that is not defined for the
    classes, and an invalid target, link or coverage; InputError if there are no validation samples to calibrate on.

    >>> from pflcli import evaluate, partition, personalize
    >>> runs = [
    ...     personalize(name, partition("writers", "runs/p", clients=6), f"runs/{name}", model="mlp", rounds=2)
    ...     for name in ("fedavg", "ditto")
    ... ]
    >>> sorted(evaluate(runs, "runs/evaluation").table().index)
    ['ditto', 'fedavg']
    """
    execution = asked.execution
    named = None if asked.metrics is None else catalogue.parse_names(asked.metrics)
    speeds = None if asked.link is None else round_costs.Link.parse(asked.link)
    coverage.check_options(asked.coverage, asked.split)
    added = added_scores.parse(asked)
    artifacts = [
        item
        for source in asked.sources
        for item in open_all(source, "predictions", chosen=Chosen(asked.method, asked.seed))
    ]
    if not artifacts:
        raise UsageError("nothing to evaluate", "pfl evaluate PREDICTIONS... -o DIR")
    twice = {a.manifest.fingerprint: a.path for a in artifacts}
    if len(twice) < len(artifacts):
        raise UsageError("the same predictions are given twice")
    labels = read_labels(artifacts[0].manifest, 0)
    metric_names = named or tasks.find(labels.kind).metrics[:1]
    scoring.require_suited(labels, asked.target, asked.coverage)
    for artifact in artifacts[1:]:
        codebook.require_same(artifacts[0], artifact, "classes")
    inputs = tuple(a.as_input(f"predictions {i}", Path(asked.out)) for i, a in enumerate(artifacts))
    draft = ArtifactSpec("evaluation", _request(asked, metric_names, speeds, added), inputs)

    def build(work: ArtifactWriter) -> Built:
        scored = scoring.score(
            artifacts,
            asked.split,
            asked.baseline,
            metric_names=metric_names,
            positive=asked.positive,
            level=asked.coverage,
        )
        table = scoring.summarize(scored, asked.split, asked.baseline, asked.target, speeds)
        table |= added_scores.summarize(added, scored, table)
        scoring.write(work, scored, table, "evaluation")
        best = table["methods"][0]["label"]
        return Built({"methods": len(table["methods"]), "predictions": len(scored), "best": best}, {})

    return make(asked.out, draft, execution, build)


def _request(
    asked: Evaluate, metric_names: Sequence[str], speeds: round_costs.Link | None, added: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the request; options that are not given are left out, so that older requests still match."""
    request = {"split": asked.split, "baseline": asked.baseline, "statistics": summary.STATISTICS, "seed": 0}
    given = {
        "target": asked.target,
        "link": None if speeds is None else str(speeds),
        "metric": None if metric_names == catalogue.DEFAULT else list(metric_names),
        "positive": asked.positive,
        "coverage": asked.coverage,
    }
    return request | {name: value for name, value in given.items() if value is not None} | dict(added)
