"""``pfl evaluate``: score stored predictions, per client and over clients, methods and seeds. NumPy alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pflcli.artifacts import blocks, codebook
from pflcli.artifacts.chosen import open_all
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.errors import UsageError, closest
from pflcli.evaluation import scoring, simulated_time, summary, time_to_target
from pflcli.evaluation.metrics import catalogue
from pflcli.execution import Execution
from pflcli.options.declaration import command
from pflcli.options.evaluate import Evaluate


@command(Evaluate)
def evaluate(asked: Evaluate) -> Outcome:
    """Score predictions; the same method under several seeds becomes one row, with its spread.

    ``method`` and ``seed`` choose among the predictions in a folder of ``compare``.
    Gains are measured against ``baseline`` for the same partition and seed, or, where it was not given, against the
    backbone's own answers stored beside the method's. ``target`` is a validation accuracy: the table then says how long
    each method took (``time_to_target``). ``link``, ``UP:DOWN`` in Mbit/s, adds how long rounds would take behind it
    (``simulated_time``). Methods are ranked by the first of ``metrics``, of which gains, conclusion and picture are
    then made; the others are computed too. ``positive`` names which of two classes is the positive one of
    sensitivity, specificity and average precision, the last without it. Raises UsageError for an unknown split,
    baseline, metric or class, a metric that is not defined for these classes, or a target or link that is none.
    """
    execution = asked.execution or Execution()
    time_to_target.require_share(asked.target)
    metric_names = catalogue.parse_names(catalogue.DEFAULT if asked.metrics is None else asked.metrics)
    speeds = None if asked.link is None else simulated_time.Link.parse(asked.link)
    if asked.split not in blocks.SPLITS:
        raise UsageError(f"unknown split '{asked.split}'", closest(asked.split, blocks.SPLITS))
    artifacts = [
        item
        for source in asked.sources
        for item in open_all(source, "predictions", method=asked.method, seed=asked.seed)
    ]
    if not artifacts:
        raise UsageError("nothing to evaluate", "pfl evaluate PREDICTIONS... -o DIR")
    twice = {a.manifest.fingerprint: a.path for a in artifacts}
    if len(twice) < len(artifacts):
        raise UsageError("the same predictions are given twice")
    for artifact in artifacts[1:]:
        codebook.require_same(artifacts[0], artifact, "classes")
    request: dict[str, Any] = {
        "split": asked.split,
        "baseline": asked.baseline,
        "statistics": summary.STATISTICS,
        "seed": 0,
    }
    request |= {} if asked.target is None else {"target": asked.target}
    request |= {} if speeds is None else {"link": str(speeds)}
    request |= {} if metric_names == catalogue.DEFAULT else {"metric": list(metric_names)}
    request |= {} if asked.positive is None else {"positive": asked.positive}
    draft = ArtifactSpec(
        "evaluation",
        request,
        tuple(a.as_input(f"predictions {i}", Path(asked.out)) for i, a in enumerate(artifacts)),
    )

    def build(work: ArtifactWriter) -> Built:
        scored = scoring.score(
            artifacts, asked.split, asked.baseline, metric_names=metric_names, positive=asked.positive
        )
        table = scoring.summarize(scored, asked.split, asked.baseline, asked.target, speeds)
        scoring.write(work, scored, table, "evaluation")
        best = max(table["methods"], key=lambda method: summary.rank(method, metric_names))
        return Built({"methods": len(table["methods"]), "predictions": len(scored), "best": best["label"]}, {})

    return make(asked.out, draft, execution, build)
