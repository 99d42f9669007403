"""Present verdicts on claims as tables: a row per claim, or a row per claim, setting and pair of methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pflcli.core.metrics import catalogue
from pflcli.core.wording import as_typed, counted
from pflcli.evaluation.metrics import gains
from pflcli.evaluation.presentation.tables import Table

_SIZES = {"clients": "client", "samples": "sample", "rounds": "round", "seeds": "seed"}

_MIN_WHOLE = 1000
"""Numbers from this one on have no decimals."""


def build_table(claims: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a table with a row per claim: the verdict, in how many settings it holds, and what decided it."""
    heading = ["claim", "says", "where", "condition", "verdict", "holds in", "decided by"]
    heading += ["warnings", "seeds", "options", "size"]
    rows = [
        [
            name,
            claim["says"],
            claim["where"],
            _describe_condition(claim),
            describe_verdict(claim),
            _describe_settings(claim),
            describe_difference(claim["decided_by"]),
            "; ".join(dict.fromkeys(warning for cell in claim["cells"] for warning in cell.get("warnings", ()))),
            ", ".join(map(str, claim["decided_by"]["seeds"])),
            _describe_options(claim["cells"]),
            _describe_sizes(claim["cells"]),
        ]
        for name, claim in claims.items()
    ]
    return Table(heading, rows, ["says", "size", "where", "options", "condition", "seeds"])


def describe_verdict(claim: Mapping[str, Any]) -> str:
    """Return the verdict; one on the best of several methods counts only if all of them were tuned, and says so."""
    untuned = claim.get("ranks_first") and not all("tuned" in cell for cell in claim["cells"])
    return f"{claim['verdict']}, not tuned" if untuned else str(claim["verdict"])


def _describe_options(cells: Iterable[Mapping[str, Any]]) -> str:
    """Return the options of each method that differ from the defaults: ``ditto@weak lam=0.1; panm k=3``."""
    named = (f"{name} {values}" for cell in cells for name, values in cell.get("options", {}).items())
    return "; ".join(dict.fromkeys(named))


def _describe_settings(claim: Mapping[str, Any]) -> str:
    """Return in how many settings a claim holds, and, if it holds only in some, which these are."""
    text = f"{claim['holds']} of {counted(claim['settings'], 'setting')}"
    if not 0 < claim["holds"] < claim["settings"]:
        return text
    return f"{text}: {'; '.join(describe_setting(cell) for cell in claim['cells'] if cell['verdict'] == 'confirmed')}"


def _describe_condition(claim: Mapping[str, Any]) -> str:
    """Return the condition on each difference: ``higher``, ``higher by over 1.0``, ``level up to 1.0``."""
    if not claim["margin"]:
        return str(claim["direction"])
    margin = format_value(claim["decided_by"]["metric"], claim["margin"]).removeprefix("+")
    return f"{claim['direction']} {'by over' if claim['direction'] in ('higher', 'lower') else 'up to'} {margin}"


def describe_difference(item: Mapping[str, Any]) -> str:
    """Return a difference in words: ``knn-per - fedavg on writers: accuracy +3.6 [+2.3, +4.9]``."""
    against = item["against"] if isinstance(item["against"], str) else f"{item['against']:g}"
    text = f"{item['method']} - {against} on {describe_setting(item)}: {item['metric']}"
    if item["difference"] is not None:
        text += f" {format_value(item['metric'], item['difference'])}"
    if item["interval"] is not None:
        text += f" [{', '.join(format_value(item['metric'], bound) for bound in item['interval'])}]"
        level = item.get("level") or gains.LEVEL
        text += f" ({100 * level:.3g} % interval)" * (level > gains.LEVEL)
        text += " (ties: the error is that of one test sample)" * ("floor" in item)
    return f"{text} ({item['reason']})" if item["reason"] else text


def describe_setting(item: Mapping[str, Any]) -> str:
    """Return the experiment, and the values of the grid: ``writers, knn-per.k 5``."""
    return ", ".join([item["experiment"], *(f"{key} {as_typed(value)}" for key, value in item["at"].items())])


def format_value(metric: str, value: float) -> str:
    """Return a difference with its sign, in percentage points unless tables show the metric in another unit."""
    entry = catalogue.METRICS.get(metric)
    if entry is not None and (entry.percent or (entry.unit == "fraction" and not entry.heading)):
        return f"{100 * value:+.1f}"
    return f"{value:+,.0f}" if abs(value) >= _MIN_WHOLE else f"{value:+.3g}"


def _describe_sizes(cells: Iterable[Mapping[str, Any]]) -> str:
    """Return the size of each experiment, and what the paper has instead."""
    by_experiment = {cell["experiment"]: cell for cell in cells}
    return "; ".join(f"{name}: {describe_size(cell)}" for name, cell in by_experiment.items())


def describe_size(cell: Mapping[str, Any]) -> str:
    """Return the size of an experiment, and what the paper has instead: ``20 clients, 3 seeds (paper: rounds 200)``.

    Tuning is named too.
    """
    used = ", ".join(counted(cell["size"][key], noun) for key, noun in _SIZES.items() if key in cell["size"])
    if "tuned" in cell:
        used += f", each method tuned by {counted(cell['tuned']['trials'], 'trial')}"
    paper = ", ".join(
        f"{key} {'default' if value is None else as_typed(value)}" for key, value in cell["paper"].items()
    )
    return f"{used} (paper: {paper})" if paper else used


def list_settings(claims: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return the heading and a row per claim, setting and pair of methods, with numbers in the unit of the metric."""
    heading = [
        *("claim", "setting", "comparison", "verdict", "metric", "method", "against", "direction", "margin", "seeds"),
        *("difference", "low", "high", "level", "floor"),
    ]
    rows = []
    for name, claim in claims.items():
        for cell in claim["cells"]:
            for item in cell["differences"]:
                low, high = item["interval"] or (None, None)
                holds = {True: "holds", False: "does not hold", None: "undecided"}[item["holds"]]
                sides = [item["metric"], item["method"], item["against"], claim["direction"], claim["margin"]]
                used = " ".join(map(str, item["seeds"]))
                values = [used, item["difference"], low, high, item.get("level"), item.get("floor")]
                rows.append([name, describe_setting(cell), cell["comparison"], holds, *sides, *values])
    return heading, rows
