"""``pfl evaluate``: score stored predictions, per client and over clients, methods and seeds. NumPy alone."""

from __future__ import annotations

from collections.abc import Sequence
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


def evaluate(
    sources: Sequence[Path | str],
    out: Path | str,
    *,
    split: str = "test",
    baseline: str = "fedavg",
    target: float | None = None,
    link: str | None = None,
    metrics: Sequence[str] = catalogue.DEFAULT,
    positive: str | None = None,
    method: str | None = None,
    seed: int | None = None,
    execution: Execution | None = None,
) -> Outcome:
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
    execution = execution or Execution()
    time_to_target.check(target)
    metric_names = catalogue.chosen(metrics)
    speeds = None if link is None else simulated_time.Link.of(link)
    if split not in blocks.SPLITS:
        raise UsageError(f"unknown split '{split}'", closest(split, blocks.SPLITS))
    artifacts = [item for source in sources for item in open_all(source, "predictions", method=method, seed=seed)]
    if not artifacts:
        raise UsageError("nothing to evaluate", "pfl evaluate PREDICTIONS... -o DIR")
    twice = {a.manifest.fingerprint: a.path for a in artifacts}
    if len(twice) < len(artifacts):
        raise UsageError("the same predictions are given twice")
    for artifact in artifacts[1:]:
        codebook.require_same(artifacts[0], artifact, "classes")
    request: dict[str, Any] = {"split": split, "baseline": baseline, "statistics": summary.STATISTICS, "seed": 0}
    request |= {} if target is None else {"target": target}
    request |= {} if speeds is None else {"link": str(speeds)}
    request |= {} if metric_names == catalogue.DEFAULT else {"metric": list(metric_names)}
    request |= {} if positive is None else {"positive": positive}
    draft = ArtifactSpec(
        "evaluation",
        request,
        tuple(a.as_input(f"predictions {i}", Path(out)) for i, a in enumerate(artifacts)),
    )

    def build(work: ArtifactWriter) -> Built:
        scored = scoring.score(artifacts, split, baseline, metric_names=metric_names, positive=positive)
        table = scoring.metrics(scored, split, baseline, target, speeds)
        scoring.write(work, scored, table, "evaluation")
        best = max(table["methods"], key=lambda method: summary.rank(method, metric_names))
        return Built({"methods": len(table["methods"]), "predictions": len(scored), "best": best["label"]}, {})

    return make(out, draft, execution, build)
