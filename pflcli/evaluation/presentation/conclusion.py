"""Conclude from a table: the best method's gain over the baseline, whether it is significant, and further notes.

All sentences about scores are written here: those of a table, of a terminal and of a page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pflcli.evaluation.metrics import catalogue, gains
from pflcli.evaluation.metrics.catalogue import Metric
from pflcli.evaluation.presentation import prediction_sets, tables
from pflcli.wording import as_typed, counted


def conclude(
    methods: Sequence[Mapping[str, Any]], baseline: str | None, metric: str = "accuracy", level: float = gains.LEVEL
) -> dict[str, Any]:
    """Return the conclusion, a sentence and its facts, from the rows of stored metrics.

    A method is shown to be better if its mean gain is above 0 with p < 1 - ``level`` after Holm's correction for the
    number of methods compared with the baseline, and its own interval, of this level, excludes 0. The best of these has
    the best value of ``metric``; all gains are in that metric. Because the best method was selected, its gain is likely
    a little lower than estimated.
    """
    known = {m["label"]: m for m in methods if m["label"] != baseline and "p_corrected" in m["metrics"].get("gain", {})}
    by_sign = {
        sign: [label for label, method in known.items() if _is_shown(method, sign, 1 - level)] for sign in (1, -1)
    }
    result: dict[str, Any] = {
        "correction": "Holm",
        "compared": len(known),
        "better": by_sign[1],
        "worse": by_sign[-1],
        "best": None,
    }
    entry = catalogue.METRICS[metric]
    by = "" if metric == "accuracy" else f" by {entry.heading}"
    if baseline is None:
        result["sentence"] = "no gain is known: the baseline was not compared"
    elif not by_sign[1]:
        result["sentence"] = _describe_no_better(known, name_baseline(baseline), by, entry, 1 - level)
    else:
        best = max(by_sign[1], key=lambda label: entry.sign * known[label]["metrics"][metric]["value"])
        result["best"] = best
        result["sentence"] = f"best{by}: " + _describe_best(
            known[best], name_baseline(baseline), len(known), len(by_sign[1]), entry
        )
    return result


def answer(metrics: Mapping[str, Any], label: str) -> list[str]:
    """Return the conclusion of a page: its clauses, then the cost of the method ``label``, and harmful methods."""
    rows, facts, baseline = (
        {row["label"]: row for row in metrics["methods"]},
        metrics.get("conclusion"),
        metrics["baseline"],
    )
    lines = facts["sentence"].split("; ") if facts and baseline is not None else []
    if not lines:
        entry = catalogue.METRICS[metrics.get("metric", catalogue.DEFAULT)[0]]
        lines = [f"best {entry.heading}: {label}, {_format_value(rows[label], entry.name)}"]
    costs = [
        f"{name} sends {_format_value(rows[name], 'megabytes')} MB in a run of {_format_value(rows[name], 'seconds')} s"
        for name in dict.fromkeys((label, baseline))
        if name in rows and "megabytes" in rows[name]["metrics"]
    ]
    harms = [
        f"{name} is shown to be worse than {name_baseline(str(baseline))}, which serves "
        f"{_describe_shares(rows[name], count)[1]} of {counted(count, 'client')} better"
        for name in (facts or {}).get("worse", ())
        if (count := tables.count_clients(rows[name]))
    ]
    return [*lines, *costs, *harms]


def _format_value(row: Mapping[str, Any], name: str) -> str:
    return _format_score(row["metrics"].get(name, {}).get("value"), catalogue.METRICS[name])


def name_baseline(baseline: str) -> str:
    """Return the name of a baseline in a sentence."""
    return "the global model" if baseline == "global" else baseline


def _is_shown(method: Mapping[str, Any], sign: int, risk: float) -> bool:
    gain = method["metrics"]["gain"]
    return gain["p_corrected"] < risk and all(sign * bound > 0 for bound in gain["interval"])


def _format_gain(gain: Mapping[str, Any], entry: Metric) -> str:
    unit = " points" if entry.percent else ""
    value, low, high = (entry.scale * number for number in (gain["value"], *gain["interval"]))
    return f"{value:+.{entry.digits}f}{unit} [{low:.{entry.digits}f}, {high:.{entry.digits}f}]"


def _describe_no_better(known: Mapping[str, Mapping[str, Any]], over: str, by: str, entry: Metric, risk: float) -> str:
    """Return the sentence if no method is shown to be better: the highest gain, and why it is not significant."""
    if not known:
        return f"no method was compared with {over}{by}"
    label = max(known, key=lambda label: known[label]["metrics"]["gain"]["value"])
    gain, points = known[label]["metrics"]["gain"], _format_gain(known[label]["metrics"]["gain"], entry)
    if gain["value"] > 0:
        better_off, worse_off = _describe_shares(
            known[label], count := tables.count_compared_clients(known[label], entry)
        )
        first = f"{label} has the highest gain over {over}{by}, {points}{_say_seeds(known[label])}; {better_off} of "
        first += f"{counted(count, 'client')} better off, {worse_off} worse{_say_mean(known[label])}"
    elif gain["value"] == 0:
        first = f"no method scores better than {over}{by}; {label} has the same score, {points}"
    elif len(known) == 1:
        first = f"{label} scores worse than {over}{by}, {points}"
    else:
        first = f"all {len(known)} methods score worse than {over}{by}; {label} loses least, {points}"
    return f"{first}; {_describe_doubt(gain, len(known), risk)}{_propose_seeds(known[label], risk)}"


def _describe_doubt(gain: Mapping[str, Any], compared: int, risk: float) -> str:
    """Return a clause on why a gain is not significantly above 0, or that it is significantly below."""
    low, high = gain["interval"]
    p = gain["p_corrected"]
    if math.isnan(low) or math.isnan(high):
        return "too few observations for an interval, so this is not a significant difference"
    if low <= 0 <= high:
        return "the interval includes 0, so this is not a significant difference"
    if p < risk:
        return f"this difference is significant (p = {p:.2g})"
    correction = f" after Holm's correction for {compared} methods" if compared > 1 else ""
    return f"the interval excludes 0, but the difference is not significant{correction} (p = {p:.2g})"


def _describe_best(method: Mapping[str, Any], baseline: str, compared: int, better: int, entry: Metric) -> str:
    metrics, count = method["metrics"], tables.count_compared_clients(method, entry)
    better_off, worse_off = _describe_shares(method, count)
    few = count <= tables.MAX_FEW_CLIENTS
    name, words = ("worst", "worst client") if few else ("bottom_decile", "bottom decile")
    before, after = metrics["gain"][f"baseline_{name}"], metrics[catalogue.part(entry.name, name)]["value"]
    change = f"{100 * before:.0f} to {100 * after:.0f} %" if entry.percent else f"{before:.3f} to {after:.3f}"
    parts = [
        f"{method['label']}, {_format_gain(metrics['gain'], entry)} over {baseline}{_say_seeds(method)}",
        f"{better_off} of {counted(count, 'client')} better off, {worse_off} worse{_say_mean(method)}",
        f"{words} {change}",
    ]
    if compared > 1:
        parts.append(
            f"{better} of {compared} methods shown to be better; it was chosen among {compared}, so expect slightly "
            "less on new data"
        )
    return "; ".join(parts)


def _describe_shares(method: Mapping[str, Any], count: int) -> tuple[str, str]:
    """Return the numbers of ``count`` clients that are better and worse off, with a decimal if they are means."""
    numbers = (method["metrics"][name]["value"] * count for name in ("better_off", "worse_off"))
    better, worse = (f"{round(number, 1):g}" for number in numbers)
    return better, worse


def _say_seeds(method: Mapping[str, Any]) -> str:
    """Return in how many trainings of a method its gain is positive, if it has several and they are counted."""
    seeds, positive = len(method["seeds"]), method["metrics"]["gain"].get("positive_seeds")
    return (
        ""
        if positive is None
        else f" in each of {seeds} seeds"
        if positive == seeds
        else f" in {positive} of {seeds} seeds"
    )


def _propose_seeds(method: Mapping[str, Any], risk: float) -> str:
    """Return a clause with the option that adds seeds, if a positive gain is not significant.

    A smaller ``risk`` than that of a single look means that ``--until-decided`` adds the seeds.
    """
    gain, seeds = method["metrics"]["gain"], sorted(method["seeds"])
    if gain["value"] <= 0 or math.isnan(gain["interval"][0]) or risk < 1 - gains.LEVEL - 1e-9:
        return ""
    more = [*seeds, *(seed for seed in range(len(seeds) + 2) if seed not in seeds)]
    return f"; more seeds may decide it, as by compare --seeds {','.join(map(str, more[: len(seeds) + 2]))}"


def _say_mean(method: Mapping[str, Any]) -> str:
    """Return that numbers of a method are means over its seeds, if it has several."""
    return " on average over seeds" if len(method["seeds"]) > 1 else ""


def _describe_splits(methods: Sequence[Mapping[str, Any]], *, validated: bool) -> list[str]:
    """Return a sentence on the samples that the methods learned from; empty for older rows.

    ``validated`` says whether there are validation samples.
    """
    splits = {method["label"]: method["learned_from"] for method in methods if "learned_from" in method}
    more = [label for label, names in splits.items() if "validation" in names]
    if not splits:
        return []
    if not more and not validated:
        return [
            "methods learned from training samples; there are no validation samples, so no option or round was chosen "
            "for any client: the defaults were used"
        ]
    if not more:
        return ["methods learned from training samples; validation samples were used only to select rounds and options"]
    if len(more) == len(splits):
        return ["methods learned from training and validation samples (--refit)"]
    return [
        f"not a fair comparison: {', '.join(more)} also learned from validation samples, the others only from "
        "training samples; run all with --refit, or none"
    ]


def _describe_transductive(methods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence on the methods that learn from unlabelled test samples; empty without any."""
    labels = [method["label"] for method in methods if method.get("transductive")]
    if not labels:
        return []
    one = len(labels) == 1
    return [
        f"transductive: {', '.join(labels)} {'predicts' if one else 'predict'} a test sample with the help of the "
        f"client's other test samples, without their labels; {'its' if one else 'their'} scores do not hold for a "
        "sample that arrives alone"
    ]


def _describe_references(methods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence on the rows that are not ranked; empty if there are none."""
    labels = [method["label"] for method in methods if method.get("reference")]
    if not labels:
        return []
    return [f"reference, not ranked and not counted among the methods: {', '.join(labels)}"]


def _describe_looks(metrics: Mapping[str, Any]) -> list[str]:
    """Return a sentence on the looks of ``--until-decided``, and the level of intervals; empty without them."""
    looks = metrics.get("looks")
    if not looks:
        return []
    seeds = {seed for method in metrics["methods"] for seed in method["seeds"]}
    return [
        f"a look after {len(seeds)} of at most {looks['most']} seeds, with a look after each seed from "
        f"{looks['first']} on (--until-decided): intervals and tests have the level of this look, "
        f"{tables.format_level(metrics)} (alpha spending), so that all looks together err in about "
        f"{100 * (1 - gains.LEVEL):.0f} % of comparisons"
    ]


def _describe_privacy(methods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence per guarantee of differential privacy; empty without any."""
    labels: dict[tuple[float, float], list[str]] = {}
    for method in methods:
        if "privacy" in method:
            labels.setdefault((method["privacy"]["epsilon"], method["privacy"]["delta"]), []).append(method["label"])
    return [
        f"{', '.join(names)}: user-level differential privacy, epsilon {epsilon:.2f} at delta {delta:g} per run, for "
        "the models that the server sent; it does not cover personal models and predictions, this table, or tuning"
        for (epsilon, delta), names in labels.items()
    ]


def _describe_tuning(metrics: Mapping[str, Any]) -> list[str]:
    """Return a sentence on the trials of each method and the chosen options; empty if no method was tuned."""
    if "tune" not in metrics:
        return []
    tune, lines = metrics["tune"], []
    for label, facts in tune["methods"].items():
        chosen = ", ".join(f"{key}={as_typed(value)}" for key, value in facts["values"].items())
        if not facts["grid"]:
            lines.append(f"{label}: nothing to tune")
        elif facts.get("problem"):
            lines.append(f"{label}: not tuned, {facts['problem']}")
        else:
            lines.append(f"{label}: {chosen} ({facts['trials']} of {facts['grid']})")
    name = metrics.get("metric", catalogue.DEFAULT)[0]
    metric = catalogue.METRICS[name].heading if name in catalogue.METRICS else name
    return [
        f"each method tuned with at most {counted(tune['trials'], 'trial')} by {metric} on validation samples, under "
        f"seed {tune['seed']}: {'; '.join(lines)}; in brackets: grid points tried of all"
    ]


def _describe_stacks(metrics: Mapping[str, Any]) -> list[str]:
    """Return a note per stack: its score, that of the best single method on validation samples, and the upper bound."""
    entry = catalogue.METRICS.get(metrics.get("metric", catalogue.DEFAULT)[0])
    rows = {method["label"]: method["metrics"] for method in metrics["methods"]}
    lines = []
    for label, beside in metrics.get("stacks", {}).items():
        records = [
            values.get(entry.name) if entry else None
            for values in (rows.get(label, {}), beside["single"], beside["bound"])
        ]
        if entry is None or None in records:  # written by a newer version of pfl
            continue
        stack, single, bound = (_format_score(record["value"], entry) for record in records if record)
        best = ", ".join(dict.fromkeys(beside["best_by_validation"].values()))
        lines.append(
            f"`{label}` pools {', '.join(beside['pool'])}: {entry.heading} {stack}. The best of these on validation "
            f"samples is {best}: {single}. With the best method on each client's own test samples: {bound}, an upper "
            "bound, because it uses test labels"
        )
    return lines


def _format_score(score: float | None, metric: Metric) -> str:
    """Return a score, in percent where the metric is a fraction; ``-`` if it is unknown."""
    if score is None or math.isnan(score):
        return "-"
    return f"{metric.scale * score:.{metric.digits}f}{' %' if metric.percent else ''}"


def list_notes(metrics: Mapping[str, Any]) -> list[str]:
    """Return the notes below the table of stored ``metrics``."""
    lines = [metrics["conclusion"]["sentence"]] if "conclusion" in metrics else []
    rows = metrics["methods"]
    lines += [
        *_describe_looks(metrics),
        *metrics.get("definitions", ()),
        *_describe_stacks(metrics),
        *_describe_tuning(metrics),
    ]
    lines += [
        *_describe_splits(rows, validated=not metrics.get("without_validation")),
        *_describe_references(rows),
        *_describe_transductive(rows),
        *_describe_privacy(rows),
        *prediction_sets.notes(metrics),
    ]
    marks = [m for m in rows if any(m["metrics"].get(n, {}).get("exceeds_chance") for n in ("better_off", "worse_off"))]
    if marks:
        lines.append(f"{tables.MARK} more clients than expected by chance (in brackets: the share expected by chance)")
    if any("interval" in m["metrics"].get("gain", {}) for m in rows) and max(len(m["seeds"]) for m in rows) == 1:
        lines.append(
            "one seed: intervals cover the variation between clients, not between training runs (--seeds 0,1,2)"
        )
    failed: Mapping[str, Sequence[int]] = metrics.get("failed", {})
    lines += [f"`{name}` failed under seed {', '.join(map(str, seeds))}" for name, seeds in failed.items()]
    return [*lines, *metrics.get("warnings", ())]
