"""The notes below a table, after its conclusion: how it was made, what its marks mean, and what went wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pflcli.core.metrics import catalogue
from pflcli.core.wording import as_typed, counted, in_python
from pflcli.evaluation.metrics import gains
from pflcli.evaluation.presentation import further_tables, tables


def _describe_splits(methods: Sequence[Mapping[str, Any]], *, validated: bool) -> list[str]:
    """Return a sentence on the samples that the methods learned from.

    ``validated`` says whether there are validation samples.
    """
    splits = {method["label"]: method["learned_from"] for method in methods}
    more = [label for label, names in splits.items() if "validation" in names]
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


def _describe_given_split(metrics: Mapping[str, Any]) -> list[str]:
    """Return what a split by time means, and that a split that all seeds share hides how results depend on it."""
    lines, given = [], metrics.get("given_split")
    if given == "time":
        lines.append(
            "split by time: validation samples are later than training samples, and test samples are later still, such "
            "as another season. Rounds and options that are better on validation samples may be worse on test samples; "
            "`--test-last N` measures test samples after each of the last N rounds, and the page draws both"
        )
    if metrics.get("same_split"):
        name = "published split" if given == "published" else f"split by {given}"
        lines.append(
            f"every seed has the same {name}: seeds differ in training alone, and intervals say nothing of other splits"
        )
    return lines


def _describe_foreign(methods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence on the methods that another tool trained; empty if there are none."""
    labels = [method["label"] for method in methods if method.get("foreign")]
    if not labels:
        return []
    return [
        f"predicted by another tool: {', '.join(labels)}; pfl does not know what was sent, how long it took, or which "
        "samples it learned from and chose by"
    ]


def _describe_rounds(metrics: Mapping[str, Any]) -> list[str]:
    """Return a sentence on the metric by which rounds were chosen; empty if it is accuracy, or none was chosen."""
    chosen = [words for words in metrics.get("reported", "").split(" or ") if "by validation " in words]
    return [f"the reported round is the {words.replace('best round', 'best one')}" for words in chosen]


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


def describe_border(key: str, value: Any, side: str) -> str:
    """Return a sentence on a value at the border of its range: ``lam=10 is the largest value tried``."""
    return f"{key}={as_typed(value)} is the {side} value tried"


def _describe_tuning(metrics: Mapping[str, Any]) -> list[str]:
    """Return a sentence on the trials of each method and the chosen options, and one per value at a border."""
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
        f"seed {tune['seed']}: {'; '.join(lines)}; in brackets: grid points tried of all",
        *(
            f"{label}: {describe_border(key, facts['values'][key], side)}; beyond it, it might do better"
            for label, facts in tune["methods"].items()
            for key, side in facts.get("borders", {}).items()
        ),
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
        stack, single, bound = (tables.format_score(record["value"], entry) for record in records if record)
        best = ", ".join(dict.fromkeys(beside["best_by_validation"].values()))
        lines.append(
            f"`{label}` pools {', '.join(beside['pool'])}: {entry.heading} {stack}. The best of these on validation "
            f"samples is {best}: {single}. With the best method on each client's own test samples: {bound}, an upper "
            "bound, because it uses test labels"
        )
    return lines


def _describe_these_clients(metrics: Mapping[str, Any]) -> list[str]:
    """Return the intervals of gains for the clients of the table themselves; empty unless these are few."""
    gains_of = {row["label"]: row["metrics"].get("gain", {}).get("these_clients", {}) for row in metrics["methods"]}
    fixed = {label: each for label, each in gains_of.items() if "interval" in each}
    if not fixed:
        return []
    accuracy = catalogue.METRICS["accuracy"]
    known = [f"`{label}` {tables.format_interval(each['interval'], accuracy)}" for label, each in fixed.items()]
    clients = max(each["clients"] for each in fixed.values())
    return [
        f"intervals of the table are for clients like these; for these {clients} clients, with other seeds and splits, "
        f"they are: {', '.join(known)}"
    ]


def list_notes(metrics: Mapping[str, Any]) -> list[str]:
    """Return the notes below the table of stored ``metrics``, without its conclusion."""
    rows = metrics["methods"]
    lines = [
        *_describe_looks(metrics),
        *metrics.get("definitions", ()),
        *_describe_stacks(metrics),
        *_describe_tuning(metrics),
    ]
    own = [row for row in rows if not row.get("foreign")]
    lines += [
        *(_describe_splits(own, validated=not metrics.get("without_validation")) if own else []),
        *_describe_given_split(metrics),
        *_describe_foreign(rows),
        *_describe_rounds(metrics),
        *_describe_references(rows),
        *_describe_transductive(rows),
        *_describe_privacy(rows),
        *further_tables.list_notes(metrics),
    ]
    marks = [m for m in rows if any(m["metrics"].get(n, {}).get("exceeds_chance") for n in ("better_off", "worse_off"))]
    if marks:
        lines.append(f"{tables.MARK} more clients than expected by chance (in brackets: the share expected by chance)")
    judged = sum("p_corrected" in row["metrics"].get("gain", {}) for row in rows)
    if judged > 1:
        lines.append(
            f"intervals: those of the {judged} gains cover the true ones with {tables.format_level(metrics)} together "
            "(Bonferroni's correction), so that a gain is shown if its interval excludes 0"
        )
    lines += _describe_these_clients(metrics)
    if any("interval" in m["metrics"].get("gain", {}) for m in rows) and max(len(m["seeds"]) for m in rows) == 1:
        lines.append(
            "one seed: intervals cover the variation between clients, not between training runs (--seeds 0,1,2)"
        )
    failed: dict[str, list[str]] = {}
    for label, seeds in metrics.get("failed", {}).items():
        failed.setdefault(", ".join(map(str, seeds)), []).append(f"`{label}`")
    lines += [f"{', '.join(labels)} failed under seed {seeds}" for seeds, labels in failed.items()]
    lines += metrics.get("warnings", ())
    return [in_python(line) for line in lines] if metrics.get("in_memory") else lines
