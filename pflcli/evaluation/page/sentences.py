"""What a comparison comes to, in words: the answer first, each number with its uncertainty."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pflcli.evaluation.metrics import catalogue
from pflcli.evaluation.metrics.metric import Metric
from pflcli.evaluation.page.content import Content, value
from pflcli.evaluation.presentation import conclusion, tables
from pflcli.wording import counted, listed

_FEW = 10
"""Up to so many clients the bottom decile is the worst client."""


def answer(content: Content) -> list[str]:
    """Return the answer, one sentence per fact: the gain, the worst served, who is better off, the cost, the others."""
    label = content.chosen
    if content.baseline is None or label == content.baseline or "gain" not in content.row(label)["metrics"]:
        return [_without_baseline(content), *_cost(content, label)]
    facts = [_gain(content, label), *_worst_served(content, label), *_shares(content, label), *_cost(content, label)]
    return [*facts, *_harmful(content), *_caution(content)]


def small_print(content: Content) -> list[str]:
    """Return the remarks below the table, without the sentence that the answer replaces."""
    lines = conclusion.list_notes(content.metrics)
    if "conclusion" in content.metrics:
        lines = lines[1:]
    failed: Mapping[str, Any] = content.metrics.get("failed", {})
    return lines + [f"{name} failed under seed {', '.join(map(str, seeds))}" for name, seeds in failed.items()]


def over(content: Content) -> str:
    """Return the baseline in words."""
    return "the global model" if content.baseline == "global" else str(content.baseline)


def amount(number: float, metric: Metric) -> str:
    """Return a difference of scores in points, or in the unit of the metric, without a sign."""
    if metric.percent:
        return f"{100 * abs(number):.1f} points"
    return f"{abs(number):.{metric.digits}f}"


def score(number: float, metric: Metric) -> str:
    """Return a score, in percent where the metric is a fraction."""
    return f"{100 * number:.1f} %" if metric.percent else f"{number:.{metric.digits}f}"


def _interval(gain: Mapping[str, Any], metric: Metric) -> str:
    if not gain.get("interval"):
        return ""
    scale, digits = (100, 1) if metric.percent else (1, metric.digits)
    low, high = (scale * bound for bound in gain["interval"])
    return f" (95 % interval {low:.{digits}f} to {high:.{digits}f})"


def _gain(content: Content, label: str) -> str:
    gain, metric = content.row(label)["metrics"]["gain"], content.metric
    measure = "" if metric.name == "accuracy" else f" by {metric.heading}"
    people = counted(tables.count_clients(content.row(label)), "client")
    if math.isnan(value(content.row(label), "gain")):
        return _without_baseline(content)
    word = "better" if gain["value"] >= 0 else "worse"
    if content.metrics.get("conclusion", {}).get("best") == label:
        return (
            f"{label} serves {people} {amount(gain['value'], metric)} better than {over(content)}{measure}"
            f"{_interval(gain, metric)}."
        )
    compared = content.metrics.get("conclusion", {}).get("compared", 1)
    known = {"interval", "p_corrected"} <= gain.keys()  # tables of old versions lack them
    doubt = conclusion.describe_doubt(gain, compared) if known else "no method is shown to be better"
    if gain["value"] < 0 and compared > 1:
        first = f"{label} has the best score of the methods compared, but it is"
    else:
        first = f"{label} is"
    return (
        f"{first} {amount(gain['value'], metric)} {word} than {over(content)}{measure}"
        f"{_interval(gain, metric)}; {doubt}."
    )


def _without_baseline(content: Content) -> str:
    best, metric = content.rows[0], content.metric
    number = value(best, metric.name)
    people = counted(tables.count_clients(best), "client")
    result = "an unknown" if math.isnan(number) else f"{metric.heading} {score(number, metric)} for"
    alone = "" if content.baseline else "; no gain is known, as the baseline was not compared"
    return f"{best['label']} has {result} {people}, the best of {counted(len(content.rows), 'method')}{alone}."


def _worst_served(content: Content, label: str) -> list[str]:
    row, metric = content.row(label), content.metric
    few = tables.count_clients(row) <= _FEW
    part = "worst" if few else "bottom_decile"
    before, after = row["metrics"]["gain"].get(f"baseline_{part}"), value(row, catalogue.part(metric.name, part))
    if before is None or math.isnan(after):
        return []
    words = "The worst-served client" if few else "The worst-served tenth (bottom decile)"
    change = (before - after) if metric.lower_is_better else (after - before)
    verdict = "is served as well" if abs(change) < 5e-4 else f"{'gains' if change > 0 else 'loses'} "
    size = "" if abs(change) < 5e-4 else amount(change, metric)
    return [f"{words} {verdict}{size}: {score(after, metric)} instead of {score(before, metric)}."]


def _shares(content: Content, label: str) -> list[str]:
    metrics = content.row(label)["metrics"]
    if not {"better_off", "worse_off"} <= {*metrics}:
        return []
    count = tables.count_clients(content.row(label))
    if content.metric.optional:
        count = round(metrics["gain"]["n"] / len(content.row(label)["seeds"]))
    better, worse = (metrics[name] for name in ("better_off", "worse_off"))
    line = f"{round(better['value'] * count)} of {counted(count, 'client')} are better off, "
    line += f"{round(worse['value'] * count)} worse off"
    if "by_chance" in better and "by_chance" in worse:
        chance = [round(side["by_chance"] * count) for side in (better, worse)]
        line += f" (chance alone: {chance[0]} and {chance[1]})"
    return [f"{line}."]


def _cost(content: Content, label: str) -> list[str]:
    row = content.row(label)
    megabytes = value(row, "megabytes")
    if math.isnan(megabytes):
        return []
    line = f"{label} sends {_megabytes(megabytes)}"
    if content.baseline in content.methods and label != content.baseline:
        base = value(content.row(str(content.baseline)), "megabytes")
        if math.isclose(base, megabytes, rel_tol=0.005):
            line = f"It costs no further communication: {_megabytes(megabytes)}, as much as {over(content)}"
        elif base > 0:
            line += f", {_short(megabytes / base)} times as much as {over(content)}"
    seconds = value(row, "seconds")
    if not math.isnan(seconds):
        line += f"; a run took {_short(seconds)} s"
    return [f"{line}."]


def _megabytes(number: float) -> str:
    if number == 0:
        return "nothing"
    return f"{_short(number / 1000)} GB" if number >= 1000 else f"{_short(number)} MB"


def _short(number: float) -> str:
    """Return a number with about three figures, never as a power of ten."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _harmful(content: Content) -> list[str]:
    """Name the methods that are shown to be worse, and how many clients each would harm."""
    labels = content.metrics.get("conclusion", {}).get("worse", ())
    harms = []
    for label in labels:
        row = content.row(label)
        worse = value(row, "worse_off")
        count = tables.count_clients(row)
        harms.append(f"{label} ({round(worse * count)} of {count} worse off)" if not math.isnan(worse) else label)
    local = [row for row in content.rows if row.get("method") == "local" and row["label"] not in labels]
    lines = [f"Shown to be worse than {over(content)}: {listed(harms)}."] if harms else []
    for row in local:
        worse = value(row, "worse_off")
        if row["label"] != content.chosen and not math.isnan(worse):
            count = tables.count_clients(row)
            lines.append(f"Training alone ({row['label']}) would leave {round(worse * count)} of {count} worse off.")
    return lines


def _caution(content: Content) -> list[str]:
    result: Mapping[str, Any] = content.metrics.get("conclusion", {})
    if result.get("compared", 0) < 2 or not result.get("better"):
        return []
    count = len(result["better"])
    return [
        f"{count} of {result['compared']} methods {'is' if count == 1 else 'are'} shown to be better, after "
        f"{result.get('correction', 'Holm')}'s correction; as the best of several was selected, its true gain is "
        "likely a little smaller."
    ]
