"""``--until-decided``: add seeds until the best method is shown to be best, or until claims are decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.kinds import evaluation
from pflcli.artifacts.make import Outcome
from pflcli.artifacts.reader import open_artifact
from pflcli.core.errors import UsageError
from pflcli.core.metrics import catalogue
from pflcli.core.wording import counted
from pflcli.evaluation.presentation import tables
from pflcli.evaluation.presentation.conclusion import Conclusion, Marks, name_baseline
from pflcli.options.compare import Compare
from pflcli.workflow.comparison.table import NAME

Asked = TypeVar("Asked", bound=Any)
"""The options of a command with ``seeds`` and ``execution``."""
FIRST = 3
"""The number of seeds at the first look, unless seeds are given or there already."""
MAX_SEEDS = 1000
"""The largest number of seeds: with more, the first look would have a level at which nothing is ever decided."""


def compare_until_decided(asked: Compare, most: int, make: Callable[[Compare], Outcome]) -> Outcome:
    """Make the comparison with the seeds that are given, and add one after the other until it is decided.

    ``make`` makes a comparison. A dry run previews it with all ``most`` seeds. Raises UsageError for options that leave
    no seed to add.
    """
    if asked.only is not None:
        raise UsageError(
            "--until-decided looks at the whole table, which --only does not make", "leave out one of them"
        )
    if len(asked.sources) > 1:
        raise UsageError(
            "--until-decided adds seeds on a single partition, and cannot draw further partitions", "give one partition"
        )
    earlier = _read_request(Path(asked.out))
    seeds = sorted({*earlier.get("seeds", ()), *(asked.seeds or ())})
    has_looks = "looks" in earlier  # it refuses another MAX and more seeds itself
    return add_seeds(asked, seeds, most, make, look, may_exceed=has_looks)


def add_seeds(
    asked: Asked,
    seeds: list[int],
    most: int,
    make: Callable[[Asked], Outcome],
    look: Callable[[Outcome], tuple[bool, str]],
    *,
    may_exceed: bool = False,
) -> Outcome:
    """Make an artifact with these ``seeds``, by default the first three, and add seeds until a look decides it.

    A dry run previews it with all ``most`` seeds. Raises UsageError if there is no seed to add, unless ``may_exceed``.
    """
    if most > MAX_SEEDS:
        raise UsageError(f"--until-decided {most} is above the maximum of {MAX_SEEDS}", "--until-decided 10")
    seeds = seeds or [*range(min(FIRST, most))]
    if len(seeds) > most and not may_exceed:
        raise UsageError(
            f"--until-decided {most} leaves no seed to add: there are {len(seeds)}", f"--until-decided {len(seeds) + 1}"
        )
    reporter = asked.execution.reporter
    if asked.execution.dry_run:
        reporter.say(f"seeds are added up to {most}: this is the most that will be needed")
        return make(replace(asked, seeds=_extend(seeds, most)))
    while True:
        outcome = make(replace(asked, seeds=seeds))
        is_decided, words = look(outcome)
        reporter.say(f"look after {len(seeds)} of at most {most} seeds: {words}")
        if is_decided or len(seeds) >= most:
            return outcome
        seeds = _extend(seeds, len(seeds) + 1)


def keep_looks(kept: list[int] | None, most: int | None, seeds: int, artifact: Path) -> list[int] | None:
    """Return the first and the largest number of seeds with a look: those ``kept`` by an artifact, or new ones.

    Raises UsageError for another largest number, on which the levels of earlier looks depend, and for more seeds: the
    looks up to the largest number may err as often as all of them may.
    """
    if kept is None:
        return None if most is None else [seeds, most]
    if most is not None and most != kept[1]:
        raise UsageError(
            f"{artifact} was made with --until-decided {kept[1]}, which sets the levels of its looks",
            f"--until-decided {kept[1]}, or another folder for --out",
        )
    if seeds > kept[1]:
        raise UsageError(
            f"{artifact} was made with --until-decided {kept[1]}: its intervals allow no more than "
            f"{counted(kept[1], 'seed')}, and this would make {seeds}",
            "another folder for --out",
        )
    return kept


def _read_request(out: Path) -> Mapping[str, Any]:
    """Return the request of the comparison that is in a folder already; empty if there is none."""
    if not manifests.is_artifact(out / NAME):
        return {}
    manifest = manifests.read(out / NAME)
    return manifest.request if manifest.kind == NAME else {}


def _extend(seeds: list[int], count: int) -> list[int]:
    """Return ``count`` seeds: these, and those that follow the largest one."""
    return [*seeds, *range(seeds[-1] + 1, seeds[-1] + 1 + count - len(seeds))]


def look(outcome: Outcome) -> tuple[bool, str]:
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
