"""Output of ``pfl site columns`` and ``pfl federation columns``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pflcli.cli import results
from pflcli.cli.from_options import Terminal
from pflcli.core.wording import counted, listed

if TYPE_CHECKING:
    from pflcli.core.execution import Execution

_show_path = results.show_path(dict)
_MAX_WIDTH = 24
"""Characters of a name."""


def show_summary(
    facts: Mapping[str, Any], asked: Mapping[str, Any], execution: Execution, *, as_json: bool, quiet: bool
) -> None:
    """Print all that is in a summary, what is not, and the path of the file."""
    for line in () if as_json else _describe(facts):
        execution.reporter.say(line)
    _show_path(facts, asked, execution, as_json=as_json, quiet=quiet)


def _describe(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a summary contains, a column per line."""
    reading, fractions = facts["reading"], ", ".join(f"{part:g}" for part in facts["fractions"])
    yield f"{facts['path']} ({facts['bytes']:,} bytes) has of '{facts['site']}' all that follows, and nothing else:"
    yield f"sites {listed(facts['sites'])}; seed {facts['seed']}; fractions {fractions}"
    yield f"training samples {facts['train']}"
    yield f"label {reading['label']}; missing {reading['missing']}; standardize {reading['standardize']}"
    cells = [["column", "kind", "unit", "missing", "content"]]
    for each in facts["columns"]:
        missing = ""
        if each["kind"] in ("number", "words"):
            missing = f"about {each['lacking']}" if each.get("lacking") else "a few" if each.get("has_missing") else "0"
        content = ", ".join(f"{pair['word']} {pair['rows']}" for pair in each.get("words", ()))
        if "mean" in each:
            numbers = [f"{name} {each[name]:.10g}" for name in ("mean", "deviation", "median") if name in each]
            content = ", ".join([*([each["task"]] if "task" in each else []), *numbers])
        cells.append([each["name"], each["kind"], each.get("unit", ""), missing, content])
    widths = [min(_MAX_WIDTH, max(map(len, column))) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield "counts are rounded to fives, but for training samples; only the remarks below stay here"
    yield from facts["remarks"]


def show_agreement(
    facts: Mapping[str, Any], asked: Mapping[str, Any], execution: Execution, *, as_json: bool, quiet: bool
) -> None:
    """Print what was agreed on, remarks for the coordinator, and the path of the table."""
    if not as_json:
        samples = listed([f"{site} {count}" for site, count in facts["train"].items()], 12)
        execution.reporter.say(f"{counted(facts['columns'], 'column')}; training samples: {samples}")
        for line in facts["remarks"]:
            execution.reporter.say(line)
        execution.reporter.say(f"choose what sites run: pfl federation create {facts['path']} --method NAME -o FED")
        execution.reporter.say(
            "each site joins with the table that it summarized: pfl site join FED --data TABLE -o DIR"
        )
    _show_path(facts, asked, execution, as_json=as_json, quiet=quiet)


SUMMARY, AGREEMENT = Terminal(show_summary), Terminal(show_agreement)
