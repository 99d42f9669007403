"""``compare --until-decided``: add seeds until the best method is shown to be better than every other one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.kinds import evaluation
from pflcli.artifacts.make import Outcome
from pflcli.artifacts.reader import open_artifact
from pflcli.core.errors import UsageError
from pflcli.core.metrics import catalogue
from pflcli.evaluation.presentation import tables
from pflcli.evaluation.presentation.conclusion import Conclusion, Marks, name_baseline
from pflcli.options.compare import Compare
from pflcli.workflow.comparison.table import NAME

FIRST = 3
"""The number of seeds at the first look, unless seeds are given or there already."""
MAX_SEEDS = 1000
"""The largest number of seeds: with more, the first look would have a level at which nothing is ever decided."""


def compare_until_decided(asked: Compare, most: int, make: Callable[[Compare], Outcome]) -> Outcome:
    """Make the comparison with the seeds that are given, and add one after the other until it is decided.

    ``make`` makes a comparison. A dry run previews it with all ``most`` seeds. Raises UsageError for options that leave
    no seed to add.
    """
    if most > MAX_SEEDS:
        raise UsageError(f"--until-decided {most} is above the maximum of {MAX_SEEDS}", "--until-decided 10")
    if asked.only is not None:
        raise UsageError(
            "--until-decided looks at the whole table, which --only does not make", "leave out one of them"
        )
    if len(asked.sources) > 1:
        raise UsageError(
            "--until-decided adds seeds on a single partition, and cannot draw further partitions", "give one partition"
        )
    earlier = _read_request(Path(asked.out))
    seeds = sorted({*earlier.get("seeds", ()), *(asked.seeds or ())}) or [*range(min(FIRST, most))]
    if len(seeds) > most and "looks" not in earlier:  # a comparison with looks refuses another MAX and more seeds
        raise UsageError(
            f"--until-decided {most} leaves no seed to add: there are {len(seeds)}", f"--until-decided {len(seeds) + 1}"
        )
    reporter = asked.execution.reporter
    if asked.execution.dry_run:
        reporter.say(f"seeds are added up to {most}: this is the most that will be needed")
        return make(replace(asked, seeds=_extend(seeds, most)))
    while True:
        outcome = make(replace(asked, seeds=seeds))
        is_decided, words = _look(outcome)
        reporter.say(f"look after {len(seeds)} of at most {most} seeds: {words}")
        if is_decided or len(seeds) >= most:
            return outcome
        seeds = _extend(seeds, len(seeds) + 1)


def _read_request(out: Path) -> Mapping[str, Any]:
    """Return the request of the comparison that is in a folder already; empty if there is none."""
    if not manifests.is_artifact(out / NAME):
        return {}
    manifest = manifests.read(out / NAME)
    return manifest.request if manifest.kind == NAME else {}


def _extend(seeds: list[int], count: int) -> list[int]:
    """Return ``count`` seeds: these, and those that follow the largest one."""
    return [*seeds, *range(seeds[-1] + 1, seeds[-1] + 1 + count - len(seeds))]


def _look(outcome: Outcome) -> tuple[bool, str]:
    """Return whether the best method of a comparison is shown to be better than every other one, and say so."""
    metrics = evaluation.read(open_artifact(outcome.path))
    name = metrics.get("metric", catalogue.DEFAULT)[0]
    marks = Marks.read(metrics, [name])[name]
    if not marks.best:
        return True, "there are no two methods to decide between"
    best, others = ", ".join(sorted(marks.best)), ", ".join(sorted(marks.not_worse))
    level = tables.format_level(metrics)
    if len(marks.best) == 1 and not marks.not_worse:
        conclusion = Conclusion.read(metrics)
        if best in conclusion.judged and best not in conclusion.better:
            return False, f"{best} is not shown to gain over {name_baseline(metrics['baseline'])}, at the level {level}"
        return True, f"{best} is shown to be better than every other method, at the level {level}"
    return False, f"{best} is not shown to be better than {others or 'the others'}, at the level {level}"
