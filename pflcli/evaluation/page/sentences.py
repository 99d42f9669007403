"""State the result of a comparison in sentences: the answer first, each number with its uncertainty."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pflcli.evaluation.metrics import catalogue
from pflcli.evaluation.metrics.catalogue import Metric
from pflcli.evaluation.page.comparison import Comparison, metric_value
from pflcli.evaluation.presentation import conclusion, tables
from pflcli.wording import counted, listed


def answer(comparison: Comparison) -> list[str]:
    """Return the answer, a sentence per fact: gain, worst-served clients, clients better off, cost, harmful methods."""
    label = comparison.chosen
    if comparison.baseline is None or label == comparison.baseline or "gain" not in comparison.row(label)["metrics"]:
        return [_describe_best(comparison), *_describe_cost(comparison, label)]
    facts = [
        _describe_gain(comparison, label),
        *_describe_worst_served(comparison, label),
        *_describe_shares(comparison, label),
        *_describe_cost(comparison, label),
    ]
    return [*facts, *_list_harmful(comparison), *_caution_selection(comparison)]


def small_print(comparison: Comparison) -> list[str]:
    """Return the notes below the table, without the conclusion, which the answer replaces."""
    lines = conclusion.list_notes(comparison.metrics)
    if "conclusion" in comparison.metrics:
        lines = lines[1:]
    failed: Mapping[str, Any] = comparison.metrics.get("failed", {})
    return lines + [f"{name} failed under seed {', '.join(map(str, seeds))}" for name, seeds in failed.items()]


def format_difference(number: float, metric: Metric) -> str:
    """Return a difference of scores in points, or in the unit of the metric, without a sign."""
    return f"{metric.scale * abs(number):.{metric.digits}f}{' points' if metric.percent else ''}"


def _format_interval(gain: Mapping[str, Any], metric: Metric) -> str:
    if not gain.get("interval"):
        return ""
    low, high = (metric.scale * bound for bound in gain["interval"])
    return f" (95 % interval {low:.{metric.digits}f} to {high:.{metric.digits}f})"


def _describe_gain(comparison: Comparison, label: str) -> str:
    gain, metric = comparison.row(label)["metrics"]["gain"], comparison.metric
    measure = "" if metric.name == "accuracy" else f" by {metric.heading}"
    people = counted(tables.count_clients(comparison.row(label)), "client")
    if math.isnan(metric_value(comparison.row(label), "gain")):
        return _describe_best(comparison)
    word = "better" if gain["value"] >= 0 else "worse"
    if comparison.metrics.get("conclusion", {}).get("best") == label:
        return (
            f"{label} serves {people} {format_difference(gain['value'], metric)} better than "
            f"{comparison.baseline_name}{measure}{_format_interval(gain, metric)}."
        )
    compared = comparison.metrics.get("conclusion", {}).get("compared", 1)
    known = {"interval", "p_corrected"} <= gain.keys()  # tables of old versions lack them
    doubt = conclusion.describe_doubt(gain, compared) if known else "no method is shown to be better"
    if gain["value"] < 0 and compared > 1:
        first = f"{label} has the best score of the methods compared, but it is"
    else:
        first = f"{label} is"
    return (
        f"{first} {format_difference(gain['value'], metric)} {word} than {comparison.baseline_name}{measure}"
        f"{_format_interval(gain, metric)}; {doubt}."
    )


def _describe_best(comparison: Comparison) -> str:
    best, metric = comparison.rows[0], comparison.metric
    ranked = [row for row in comparison.rows if not row.get("reference")] or comparison.rows
    number = metric_value(best, metric.name)
    people = counted(tables.count_clients(best), "client")
    result = "an unknown" if math.isnan(number) else f"{metric.heading} {conclusion.format_score(number, metric)} for"
    alone = "" if comparison.baseline else "; the gain is unknown because the baseline was not compared"
    return f"{best['label']} has {result} {people}, the best of {counted(len(ranked), 'method')}{alone}."


def _describe_worst_served(comparison: Comparison, label: str) -> list[str]:
    row, metric = comparison.row(label), comparison.metric
    few = tables.count_clients(row) <= tables.MAX_FEW_CLIENTS
    part = "worst" if few else "bottom_decile"
    before, after = row["metrics"]["gain"].get(f"baseline_{part}"), metric_value(row, catalogue.part(metric.name, part))
    if before is None or math.isnan(after):
        return []
    words = "The worst-served client" if few else "The worst-served tenth (bottom decile)"
    change = metric.sign * (after - before)
    verdict = "is served as well" if abs(change) < 5e-4 else f"{'gains' if change > 0 else 'loses'} "
    size = "" if abs(change) < 5e-4 else format_difference(change, metric)
    now, reference = (conclusion.format_score(score, metric) for score in (after, before))
    return [f"{words} {verdict}{size}: {now} instead of {reference}."]


def _describe_shares(comparison: Comparison, label: str) -> list[str]:
    metrics = comparison.row(label)["metrics"]
    if not {"better_off", "worse_off"} <= {*metrics}:
        return []
    count = tables.count_compared_clients(comparison.row(label), comparison.metric)
    better, worse = (metrics[name] for name in ("better_off", "worse_off"))
    numbers = conclusion.describe_shares(comparison.row(label), count)
    line = f"{numbers[0]} of {counted(count, 'client')} are better off, {numbers[1]} worse off"
    line += conclusion.say_mean(comparison.row(label))
    if "by_chance" in better and "by_chance" in worse:
        chance = [round(side["by_chance"] * count) for side in (better, worse)]
        line += f" (chance alone: {chance[0]} and {chance[1]})"
    return [f"{line}."]


def _describe_cost(comparison: Comparison, label: str) -> list[str]:
    row = comparison.row(label)
    megabytes = metric_value(row, "megabytes")
    if math.isnan(megabytes):
        return []
    line = f"{label} sends {_format_megabytes(megabytes)}"
    if comparison.baseline in comparison.methods and label != comparison.baseline:
        base = metric_value(comparison.row(str(comparison.baseline)), "megabytes")
        if math.isclose(base, megabytes, rel_tol=0.005):
            same = f"{_format_megabytes(megabytes)}, the same as {comparison.baseline_name}"
            line = f"It needs no additional communication: {same}"
        elif base > 0:
            line += f", {_format_number(megabytes / base)} times as much as {comparison.baseline_name}"
    seconds = metric_value(row, "seconds")
    if not math.isnan(seconds):
        line += f"; a run took {_format_number(seconds)} s"
    return [f"{line}."]


def _format_megabytes(number: float) -> str:
    if number == 0:
        return "nothing"
    return f"{_format_number(number / 1000)} GB" if number >= 1000 else f"{_format_number(number)} MB"


def _format_number(number: float) -> str:
    """Return a number with about three digits, without an exponent."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _list_harmful(comparison: Comparison) -> list[str]:
    """Return sentences on the methods shown to be worse, with the number of clients that each would harm."""
    labels = comparison.metrics.get("conclusion", {}).get("worse", ())
    harms = []
    for label in labels:
        row = comparison.row(label)
        worse = metric_value(row, "worse_off")
        count = tables.count_clients(row)
        harms.append(f"{label} ({round(worse * count)} of {count} worse off)" if not math.isnan(worse) else label)
    local = [row for row in comparison.rows if row.get("method") == "local" and row["label"] not in labels]
    lines = [f"Shown to be worse than {comparison.baseline_name}: {listed(harms)}."] if harms else []
    for row in local:
        worse = metric_value(row, "worse_off")
        if row["label"] != comparison.chosen and not math.isnan(worse):
            count = tables.count_clients(row)
            lines.append(f"Training alone ({row['label']}) would leave {round(worse * count)} of {count} worse off.")
    return lines


def _caution_selection(comparison: Comparison) -> list[str]:
    result: Mapping[str, Any] = comparison.metrics.get("conclusion", {})
    if result.get("compared", 0) < 2 or not result.get("better"):
        return []
    count = len(result["better"])
    return [
        f"{count} of {result['compared']} methods {'is' if count == 1 else 'are'} shown to be better, after "
        f"{result.get('correction', 'Holm')}'s correction; the best was chosen among {result['compared']}, so expect "
        "slightly less on new data."
    ]
