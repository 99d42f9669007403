"""Output of ``pfl new`` and ``pfl check``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pflcli.cli import console, results
from pflcli.cli.from_options import Terminal
from pflcli.core.errors import ComputationError
from pflcli.core.wording import counted

if TYPE_CHECKING:
    from pflcli.core.execution import Execution
    from pflcli.plugins.checks.laws import Verdict


_show_path = results.show_path(lambda path: {"path": str(path)})


def show_new(path: Path, asked: Mapping[str, Any], execution: Execution, *, as_json: bool, quiet: bool) -> None:
    """Print the path of a new file, and how to check it."""
    word = path if "/" in str(path) else f"./{path}"
    execution.reporter.say(f"to check it: pfl check {word}")
    _show_path(path, asked, execution, as_json=as_json, quiet=quiet)


def show_verdicts(
    verdicts: Iterable[Verdict], asked: Mapping[str, Any], execution: Execution, *, as_json: bool, quiet: bool
) -> None:
    """Print each verdict as soon as it is known; raises ComputationError in the end if a law does not hold."""
    judged, first_laws = [], dict[str, str]()
    for verdict in verdicts:
        judged.append(verdict)
        first = first_laws.setdefault(verdict.reason, verdict.law.name)
        lines = [verdict.reason] if verdict.reason else []
        if verdict.reason and first != verdict.law.name:
            lines = [f"for the same reason as {first}"]
        elif verdict.result in ("failed", "warning"):
            lines += [verdict.law.statement, verdict.law.reason]
        if not as_json and not (quiet and verdict.result != "failed"):
            console.lines([f"{verdict.result:<14}  {verdict.law.name}", *(f"{'':<16}{line}" for line in lines)])
    if as_json:
        console.data([_facts(verdict) for verdict in judged])
    broken = [verdict.law.name for verdict in judged if verdict.result == "failed"]
    if broken:
        raise ComputationError(f"{asked['word']} breaks {len(broken)} of {len(judged)} laws: {', '.join(broken)}")
    if not as_json:
        passed = sum(verdict.result == "passed" for verdict in judged)
        warnings = sum(verdict.result == "warning" for verdict in judged)
        more = f", {counted(warnings, 'warning')}" if warnings else ""
        execution.reporter.say(f"{counted(passed, 'law')} passed, none failed{more}")


def _facts(verdict: Verdict) -> dict[str, Any]:
    return {
        "law": verdict.law.name,
        "result": verdict.result,
        "reason": verdict.reason,
        "statement": verdict.law.statement,
        "seconds": round(verdict.seconds, 3),
    }


NEW, CHECK = Terminal(show_new), Terminal(show_verdicts)
