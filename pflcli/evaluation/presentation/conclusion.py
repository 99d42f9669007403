"""Conclude from a table whether personalization pays, for whom, and what it costs: one value that every output prints.

A method is shown to be better or worse than the baseline if the interval of its gain excludes 0. This interval is the
one in the table. All intervals of a table together have its level, by Bonferroni's correction (``judge_gains``), so
that none needs another test beside it. Personalization pays only if a method is also shown to be better than what
clients reach alone, where the table has such a row (``training_alone``). The marks of a column, bold and †, compare
methods with the best score.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pflcli.core.metrics import catalogue
from pflcli.core.metrics.metric import Metric
from pflcli.core.wording import counted, in_python, listed
from pflcli.evaluation.metrics import gains
from pflcli.evaluation.metrics.gains import Estimate
from pflcli.evaluation.presentation import tables

Row = Mapping[str, Any]
"""A row of the table: ``label``, ``seeds``, ``metrics``, and what is known of its method and its clients."""

PAYS, NO_GAIN, WORSE, UNKNOWN = "pays", "no gain shown", "worse", "unknown"
NOT_OVER_ALONE, ALONE_IS_BETTER = "no gain over training alone", "training alone is better"
"""The answers: a method is shown to be better than the baseline and than training alone, none is better than the
baseline, all are shown to be worse, or none was compared; or there is a gain over the baseline, but none is shown over
training alone, or the best method is shown to be worse than that."""
ALONE = ("alone", "local")
"""The methods by which clients train alone."""
_ANY_ALONE = "training alone"
MAX_NAMED = 3
"""Most clients, or harmful methods, that a conclusion names."""

DAGGER = "†"
"""The mark of a score that is not shown to be worse than the best one of its column."""
_BOLD = "Bold: the best score of a column; only columns that are means over clients are marked."
_NOT_WORSE = (
    f"{DAGGER} not shown to be worse than the best score of the column (RISK, paired by client; a method against the "
    "baseline by the interval of its gain, others by Holm's correction). The test depends on how much clients differ, "
    "so a lower score can have this mark where a higher one has not."
)


@dataclass(frozen=True)
class Conclusion:
    """What a table says. Every output prints ``sentences``, and nothing else words it."""

    sentence: str
    """the decision"""
    scope: str = ""
    """below ten clients, the interval of the gain for clients like these and that for these clients"""
    clients: str = ""
    """for whom: how many clients are better and worse off, and which is served worst"""
    harm: str = ""
    """the methods that are shown to be worse than the baseline"""
    cost: str = ""
    """what the method and the baseline send, and how long they take"""
    answer: str = UNKNOWN
    best: str | None = None
    """the compared method with the highest score"""
    shown: str | None = None
    """the method with the highest score of those that are shown to be better; it may be another one"""
    better: Sequence[str] = ()
    worse: Sequence[str] = ()
    judged: Sequence[str] = ()
    """the methods with an interval against the baseline, best first"""
    excluded: float | None = None
    """the gain that no compared method exceeds, by the upper ends of their intervals"""
    level: float = gains.LEVEL
    """the coverage of all intervals together"""
    unfinished: int | Literal["flat"] | None = None
    """the rounds, or the patience, that are advised as a compared method was still improving"""
    alone: str | None = None
    """the row of training alone that methods were also compared with"""

    @classmethod
    def read(cls, metrics: Mapping[str, Any]) -> Conclusion:
        """Return the conclusion in stored metrics."""
        known = {field.name for field in fields(cls)}
        stored = cls(**{name: value for name, value in metrics["conclusion"].items() if name in known})
        return replace(stored, sentence=in_python(stored.sentence)) if metrics.get("in_memory") else stored

    def record(self) -> dict[str, Any]:
        """Return the entry of ``metrics.json``."""
        return asdict(self)

    def decide_pairs(self, best: str, baseline: str | None) -> dict[str, bool]:
        """Return whether the difference from the ``best`` method is shown, for each pair that a gain has judged."""
        if best == baseline:
            return {label: label in self.worse for label in self.judged}
        return {baseline: best in self.better} if baseline is not None and best in self.judged else {}

    @property
    def sentences(self) -> list[str]:
        """The decision first, then for whom, whom it harms, and the cost."""
        return [text for text in (self.sentence, self.scope, self.clients, self.harm, self.cost) if text]


def judge_gains(rows: Sequence[Mapping[str, Any]], baseline: str | None, level: float = gains.LEVEL) -> None:
    """Give the gains the intervals that decide, in place: together they cover the true gains with this ``level``.

    By Bonferroni's correction, each of k gains has an interval and a p-value for an error of (1 - ``level``) / k.
    References are not compared; their gains have intervals of the same length, but no p-value.
    """
    compared = [row["metrics"]["gain"] for row in rows if is_compared(row, baseline)]
    for metrics, gain in ((row["metrics"], row["metrics"].get("gain", {})) for row in rows):
        set_intervals(gain, 1 - (1 - level) / max(1, len(compared)), is_fraction=gain.get("unit") == "fraction")
        if before := gain.get("baseline_mean"):
            ends: dict[str, Any] = (
                {"interval": [bound / before for bound in gain["interval"]]} if "interval" in gain else {}
            )
            entry = catalogue.METRICS["gain_relative"]
            metrics[entry.name] = entry.record([gain["value"] / before], gain["n"], **ends)
    for gain in compared:
        gain["p_corrected"] = min(1.0, len(compared) * gain["p"])


def set_intervals(gain: dict[str, Any], level: float, *, is_fraction: bool) -> None:
    """Give a gain with a known spread its interval at this ``level``, and those with many seeds and for these clients.

    Intervals of fractions are cut at -1 and 1.
    """
    for spread in (gain, gain.get("many_seeds", {}), gain.get("these_clients", {})):
        if "degrees_of_freedom" in spread:
            estimate = Estimate.by_student(gain["value"], spread["standard_error"], spread["degrees_of_freedom"])
            interval = estimate.interval_at(level)
            spread["interval"] = np.clip(interval, -1, 1).tolist() if is_fraction else [*interval]


def spell_advice(advised: int | str) -> str:
    """Return the option to type for training that is not finished: more rounds, or "flat" as patience."""
    return f"--patience {advised}" if advised == "flat" else f"--rounds {advised}"


def is_compared(row: Row, baseline: str | None) -> bool:
    """Return whether a row is a method with an interval against the baseline."""
    return row["label"] != baseline and not row.get("reference") and "p" in row["metrics"].get("gain", {})


def conclude(
    rows: Sequence[Row],
    baseline: str | None,
    metric: str = "accuracy",
    level: float = gains.LEVEL,
    majority: float | None = None,
    unit: str = "",
) -> Conclusion:
    """Return the conclusion from the rows of a table, whose gains ``judge_gains`` has judged.

    ``baseline`` is the label of its row, ``global`` or None. ``metric`` ranks the methods, and gains are in it.
    ``majority`` is the share of the most frequent class, which a baseline that has learned something exceeds; a row of
    the method ``constant`` takes its place. ``unit`` is that of labels.
    """
    entry = tables.find_entry({"methods": rows, "unit": unit}, metric)
    ranked = sorted((row for row in rows if not row.get("reference")), key=lambda row: -entry.rank(_score(row, metric)))
    compared = {} if baseline is None else {str(row["label"]): row for row in ranked if is_compared(row, baseline)}
    bounds = {label: row["metrics"]["gain"]["interval"] for label, row in compared.items()}
    better = [label for label, (low, _) in bounds.items() if low > 0]
    worse = [label for label, (_, high) in bounds.items() if high < 0]
    advised = {row["unfinished"]["advised"] for row in ranked if "unfinished" in row}
    unfinished = max(advised - {"flat"}, default=None) or max(advised, default=None)
    worth = [label for label in better if _exceeds_alone(compared[label], rows)]
    answer = PAYS if worth else UNKNOWN if not compared else WORSE if len(worse) == len(compared) else NO_GAIN
    answer = answer if worth or not better else ALONE_IS_BETTER if _is_below_alone(ranked) else NOT_OVER_ALONE
    over, by = name_baseline(str(baseline)), "" if metric == "accuracy" else f" by {entry.heading}"
    base = next((row for row in rows if row["label"] == baseline), {})
    label = next((str(row["over_alone"]["label"]) for row in rows if "over_alone" in row), None)
    alone = _name_alone(label, base)
    if answer == UNKNOWN:
        chosen = next((row for row in ranked if row["label"] != baseline), ranked[0] if ranked else rows[0])
        sentence = _describe_unknown(rows, ranked, baseline, entry)
    else:
        chosen = compared[[*worth, *better, *compared][0]]
        if answer == PAYS:
            sentence = f"{_lead(chosen, base)}{by}: {_describe_best(compared, worth, over, alone, entry)}"
        elif better:
            sentence = _describe_alone(answer, ranked, compared, over, alone, by, entry)
        elif answer == NO_GAIN:
            sentence = f"No gain{by} was shown: {_describe_no_gain(compared, over, alone, base, entry)}"
        else:
            sentence = _describe_worse(compared, over, alone, by, base, entry)
        sentence += _describe_baseline(rows, chosen, str(baseline), entry, majority)
    sentence += "" if unfinished is None else f" (Training is not finished: type {spell_advice(unfinished)})"
    return Conclusion(
        sentence=sentence + _propose_seeds(chosen, answer, level),
        scope="" if answer == UNKNOWN else _describe_scope(chosen, over, alone, entry),
        clients=_describe_clients(chosen, over, entry, is_judged=answer != UNKNOWN),
        harm="" if answer == WORSE else _describe_harm(compared, worse, over, entry),
        cost=_describe_cost(rows, dict.fromkeys((str(chosen["label"]), str(baseline)))),
        answer=answer,
        best=next(iter(compared), None),
        shown=next(iter(worth or better), None),
        better=better,
        worse=worse,
        judged=[*compared],
        excluded=max((high for _, high in bounds.values()), default=None),
        level=level,
        unfinished=unfinished,
        alone=label,
    )


def _name_alone(label: str | None, base: Row) -> str:
    """Return the name of training alone, ``label`` if the baseline is another way of it, which has its own name."""
    return _ANY_ALONE if label is None or base.get("method") not in ALONE else label


def _lead(chosen: Row, base: Row) -> str:
    """Return what a gain of one method over the baseline means: personalization pays only over a shared model."""
    is_personal = chosen.get("personal", True) and not base.get("personal")
    return "Personalization pays here" if is_personal else "A gain is shown"


def _exceeds_alone(row: Row, rows: Sequence[Row]) -> bool:
    """Return whether a method is shown to be better than training alone, if any row was compared with it."""
    if "over_alone" in row:
        return bool(row["over_alone"]["interval"][0] > 0)
    return row.get("method") not in ALONE or not any("over_alone" in other for other in rows)


def _is_below_alone(ranked: Sequence[Row]) -> bool:
    """Return whether the best method that is compared with training alone is shown to be worse, or there is none."""
    best = next((row["over_alone"] for row in ranked if "over_alone" in row), None)
    return best is None or bool(best["interval"][1] < 0)


def _advise(baseline: Row, over: str, alone: str, entry: Metric) -> str:
    """Return what to do if no method gains over the baseline: stay with it, unless training alone is better."""
    if "over_alone" not in baseline:
        return f"stay with {over}"
    low, high = baseline["over_alone"]["interval"]
    if high < 0:
        better = "train alone" if alone == _ANY_ALONE else f"take {alone}"
        return f"{better}, over which {over} has {_format_over_alone(baseline, entry)}"
    gain = "" if low <= 0 else f", which has {_format_over_alone(baseline, entry)} over {alone}"
    return f"stay with {over}{gain}"


def _format_over_alone(row: Row, entry: Metric) -> str:
    """Return the gain over training alone with its interval."""
    return _format_gain({"metrics": {"gain": row["over_alone"]}}, entry)


def _describe_alone(
    answer: str, ranked: Sequence[Row], compared: Mapping[str, Row], over: str, alone: str, by: str, entry: Metric
) -> str:
    """Return the sentence if methods gain over the baseline, but none is shown to gain over training alone."""
    best = next((row for row in ranked if "over_alone" in row), None)
    if best is None:  # training alone is the only method
        label, row = next(iter(compared.items()))
        lead = f"{alone.capitalize()} is better here" if alone == _ANY_ALONE else "A gain is shown"
        return f"{lead}{by}: {label}, {_format_gain(row, entry)} over {over}"
    lead = f"{alone.capitalize()} is better here" if answer == ALONE_IS_BETTER else f"No gain over {alone} was shown"
    beside = f", and {_format_gain(best, entry)} over {over}" if best["label"] in compared else ""
    gain = f"{_format_over_alone(best, entry)} over {best['over_alone']['label']}"
    return f"{lead}{by}: {best['label']}, the best method, has {gain}{beside}"


def name_baseline(baseline: str) -> str:
    """Return the name of a baseline in a sentence."""
    return "the global model" if baseline == "global" else baseline


def _score(row: Row, metric: str) -> float:
    value = row["metrics"].get(metric, {}).get("value")
    return math.nan if value is None else float(value)


def _describe_best(compared: Mapping[str, Row], better: Sequence[str], over: str, alone: str, entry: Metric) -> str:
    """Return the best method that is shown to be better, and the one with the best score if that is another one."""
    best, shown = next(iter(compared)), better[0]
    text = f"{shown}, {_format_gain(compared[shown], entry)} over {over}{_say_seeds(compared[shown])}"
    both = ""
    if "over_alone" in compared[shown]:
        both = " over both"
        way = f" ({compared[shown]['over_alone']['label']})" if alone == _ANY_ALONE else ""
        text += f", and {_format_over_alone(compared[shown], entry)} over {alone}{way}"
    if best != shown:
        is_over_baseline = compared[best]["metrics"]["gain"]["interval"][0] > 0
        if is_over_baseline and "over_alone" in compared[best]:
            gain = f"gain over {alone} is not shown, {_format_over_alone(compared[best], entry)}"
        elif is_over_baseline:
            gain = f"clients train alone, {_format_gain(compared[best], entry)}"
        else:
            gain = f"gain is not shown, {_format_gain(compared[best], entry)}{_say_seeds(compared[best])}"
        text += f"; {best} has the best {entry.heading}, but its {gain}"
    if len(compared) > 1:
        text += f"; {len(better)} of {len(compared)} methods {'is' if len(better) == 1 else 'are'} shown to gain{both}"
    return text


def _describe_no_gain(compared: Mapping[str, Row], over: str, alone: str, base: Row, entry: Metric) -> str:
    """Return the gain that is excluded, and that of the method with the best score."""
    best = next(iter(compared.values()))
    most = max(row["metrics"]["gain"]["interval"][1] for row in compared.values())
    baseline = _score(best, entry.name) - best["metrics"]["gain"]["value"]
    is_possible = not entry.percent or baseline + most < 1
    excluded = f"gains above {_format_number(most, entry)} are excluded" if is_possible else "no gain is excluded"
    if most == 0:  # the interval of a tie, which says nothing of other samples
        excluded = "no method differs from it on a scored sample"
    return (
        f"{_advise(base, over, alone, entry)}; {excluded} "
        f"({'highest: ' if len(compared) > 1 else ''}{best['label']}, {_format_gain(best, entry)}{_say_seeds(best)})"
    )


def _describe_worse(compared: Mapping[str, Row], over: str, alone: str, by: str, base: Row, entry: Metric) -> str:
    """Return the sentence if all methods are shown to be worse."""
    best, rest = next(iter(compared.values())), len(compared) - 1
    also = f", and so {'is' if rest == 1 else 'are'} the {counted(rest, 'other method')}" if rest else ""
    gain = f"{_format_gain(best, entry)}{_say_seeds(best)}"
    return f"{best['label']} is shown to be worse than {over}{by}, {gain}{also}: {_advise(base, over, alone, entry)}"


def _describe_unknown(rows: Sequence[Row], ranked: Sequence[Row], baseline: str | None, entry: Metric) -> str:
    """Return the sentence of a table without an interval against a baseline: why, and the best score."""
    first = ranked[0] if ranked else max(rows, key=lambda row: entry.rank(_score(row, entry.name)))
    best = f"{first['label']} has the best {entry.heading}, {tables.format_score(_score(first, entry.name), entry)}"
    if not ranked:
        why = "all rows are references"
    elif baseline is None:
        why = "no baseline was compared"
    elif not any("gain" in row["metrics"] for row in ranked if row["label"] != baseline):
        why = f"no method was compared with {name_baseline(baseline)}"
    else:
        why = "gains have no intervals, which need two clients"
    return f"No gain is known, as {why}: {best}"


def _describe_baseline(rows: Sequence[Row], chosen: Row, baseline: str, entry: Metric, majority: float | None) -> str:
    """Return a clause if the baseline is no better than the most frequent class, or `constant`; empty otherwise."""
    are_classes = "accuracy" in chosen["metrics"]
    name, sign = ("accuracy", 1) if are_classes else (entry.name, entry.sign)
    known = {row["label"]: _score(row, name) for row in rows}
    accuracy = known.get(baseline, math.nan)
    if baseline not in known and entry.name == name:
        accuracy = known[chosen["label"]] - sign * chosen["metrics"]["gain"]["value"]
    constant = next((_score(row, name) for row in rows if row.get("method") == "constant"), majority)
    if constant is None or not sign * accuracy <= sign * constant:
        return ""
    if not are_classes:
        own, other = (tables.format_score(score, entry) for score in (constant, accuracy))
        return (
            f"; but {name_baseline(baseline)} ({other}) is not better than each client's own labels, whatever the "
            f"features (constant, {own}): a gain over it says little"
        )
    return (
        f"; but {name_baseline(baseline)} ({100 * accuracy:.1f} %) is not above the most frequent class "
        f"({100 * constant:.1f} %): it has learned nothing yet, and a gain over it says nothing"
    )


def _describe_scope(row: Row, over: str, alone: str, entry: Metric) -> str:
    """Return the gains of a method with both intervals, for clients like these and for these; empty for many."""
    known = {over: row["metrics"]["gain"], **({alone: row["over_alone"]} if "over_alone" in row else {})}
    fixed = {name: gain["these_clients"] for name, gain in known.items() if "these_clients" in gain}
    if over not in fixed:
        return ""
    alike = [f"{_format_gain({'metrics': {'gain': gain}}, entry)} over {name}" for name, gain in known.items()]
    own = [
        f"{tables.format_interval(item['interval'], entry)} over {name}"
        for name, item in fixed.items()
        if "interval" in item
    ]
    if not own and len(row["seeds"]) == 1:
        own = ["unknown, as one seed does not show how much training varies"]
    elif not own:
        own = ["unknown, as they are computed for accuracy only"]
    these = f"these {fixed[over]['clients']} clients, with other seeds and splits"
    return f"For clients like these, {row['label']} has {' and '.join(alike)}. For {these}: {' and '.join(own)}"


def _describe_clients(row: Row, over: str, entry: Metric, *, is_judged: bool) -> str:
    """Return how many clients a method serves better and worse than the baseline, and its worst-served client."""
    count, metrics = tables.count_compared_clients(row, entry), row["metrics"]
    parts: list[str] = []
    for name, words in (("better_off", "better off"), ("worse_off", "worse off")):
        share = metrics.get(name)
        if share is None or not is_judged:
            continue
        number = f"{round(share['value'] * count, 1):g}"
        of = "" if parts else f" of {counted(count, 'client')}"
        chance = ""
        if "by_chance" in share:
            beyond = "beyond chance" if share["exceeds_chance"] else "not beyond chance"
            chance = f", {beyond} ({share['by_chance'] * count:.1f} expected)"
        parts.append(f"{number}{of} {words}{chance}")
    if parts and len(row["seeds"]) > 1:
        parts[-1] += ", on average over seeds"
    if served := row.get("worst_served"):
        more = served["count"] - len(served["clients"])
        names = listed(served["clients"]) + (f" and {more} more" if more else "")
        before = served.get("baseline")
        against = "" if before is None else f", under {over} {tables.format_score(before, entry)}"
        parts.append(f"worst served: {names} ({tables.format_score(served['value'], entry)}{against})")
    return f"{row['label']}: {'; '.join(parts)}" if parts else ""


def _describe_harm(compared: Mapping[str, Row], worse: Sequence[str], over: str, entry: Metric) -> str:
    """Return the methods that are shown to be worse than the baseline; empty without any."""
    texts = [f"{label}, {_format_gain(compared[label], entry)}" for label in worse]
    return f"Shown to be worse than {over}: {listed(texts, MAX_NAMED, '; ')}" if texts else ""


def _describe_cost(rows: Sequence[Row], labels: Iterable[str]) -> str:
    """Return what methods send and how long they take."""
    known = {row["label"]: row["metrics"] for row in rows}
    texts = []
    for label in labels:
        megabytes, seconds = (known.get(label, {}).get(name) for name in ("megabytes", "seconds"))
        if megabytes is not None:
            sent = tables.format_score(megabytes["value"], catalogue.METRICS["megabytes"])
            took = (
                f" in a run of {tables.format_score(seconds['value'], catalogue.METRICS['seconds'])} s"
                if seconds
                else ""
            )
            texts.append(f"{label} sends {sent} MB{took}")
    return "; ".join(texts)


def _format_gain(row: Row, entry: Metric) -> str:
    """Return a gain with its interval, signed as in the table."""
    gain, before = row["metrics"]["gain"], row["metrics"]["gain"].get("baseline_mean")
    part = f" ({gain['value'] / before:+.1%})".replace("%", " %") if before else ""
    return f"{_format_number(gain['value'], entry, '+')}{part} {tables.format_interval(gain['interval'], entry)}"


def _format_number(value: float, entry: Metric, sign: str = "") -> str:
    return f"{entry.scale * value:{sign}.{entry.digits}f}{' points' if entry.percent else entry.suffix}"


def _say_seeds(row: Row) -> str:
    """Return under how many seeds the gain of a method is positive, if it has several and they are counted."""
    seeds, positive = len(row["seeds"]), row["metrics"]["gain"].get("positive_seeds")
    if positive is None:
        return ""
    return f", positive under {'each' if positive == seeds else positive} of {seeds} seeds"


def _propose_seeds(row: Row, answer: str, level: float) -> str:
    """Return the seeds to type if there is a single one, or if a gain is not shown and more may show it.

    More clients may show it, and no seeds, if the interval that many seeds would leave includes 0. A higher ``level``
    than that of a single look means that ``--until-decided`` adds the seeds.
    """
    seeds = sorted(row["seeds"])
    undecided = {NO_GAIN: row["metrics"].get("gain"), NOT_OVER_ALONE: row.get("over_alone")}.get(answer)
    is_open = undecided is not None and undecided["value"] > 0
    if undecided is not None and is_open and undecided.get("many_seeds", {"interval": (1.0,)})["interval"][0] <= 0:
        return " (More clients may decide it, more seeds cannot: the clients differ too much)"
    if answer == UNKNOWN or level > gains.LEVEL + 1e-9 or not (is_open or len(seeds) == 1):
        return ""
    more = [*seeds, *(seed for seed in range(len(seeds) + 2) if seed not in seeds)][: len(seeds) + 2]
    why = "More seeds may decide it" if is_open else "One seed does not show how much training varies"
    return f" ({why}: type --seeds {','.join(map(str, more))})"


@dataclass(frozen=True)
class Marks:
    """The labels of the best methods of a column, several if their scores are equal, and of those not shown worse."""

    best: frozenset[str] = frozenset()
    not_worse: frozenset[str] = frozenset()

    @classmethod
    def read(cls, metrics: Mapping[str, Any], names: Iterable[str]) -> dict[str, Marks]:
        """Return the marks of the columns ``names`` in stored metrics; a column that was not tested has none."""
        stored = metrics["marks"]
        return {
            name: cls(frozenset(stored[name]["best"]), frozenset(stored[name]["not_worse"]))
            if name in stored
            else cls()
            for name in names
        }

    def record(self) -> dict[str, list[str]]:
        """Return the entry of ``metrics.json``."""
        return {"best": sorted(self.best), "not_worse": sorted(self.not_worse)}


@dataclass(frozen=True)
class ClientScores:
    """The scores of the clients of one run, (m,), nan where undefined, with their weights, samples and identities."""

    values: NDArray[np.float64]
    weights: NDArray[np.float64]
    samples: NDArray[np.int64]
    clients: NDArray[np.int64]


def mark_column(
    runs: Mapping[str, Mapping[int, ClientScores]],
    score: Mapping[str, float],
    metric: Metric,
    level: float,
    conclusion: Conclusion | None = None,
    baseline: str | None = None,
) -> Marks:
    """Return the best methods of a column and those that are not shown to be worse than the best one.

    ``runs`` has the scores of clients by label and seed, and ``score`` the value of each label in the column. Methods
    are compared on the same clients; one with other clients has no mark. In the column that ranks methods, the
    ``conclusion`` has decided about each pair with the ``baseline``.
    """
    best = max(score, key=lambda label: metric.sign * score[label])
    shared = _share_variance({label: runs[label] for label in score})
    p: dict[str, float] = {}
    for label in score:
        pairs = _pair_clients(runs[best], runs[label])
        if label == best or not pairs:
            continue
        variance = None if shared is None else shared.of_difference(best, label)
        differences, weights, clients = zip(*pairs, strict=True)
        estimate = gains.mean_gain(differences, weights, clients, variance)
        p[label] = 1.0 if estimate is None else estimate.p
    equal = {best, *(label for label in p if score[label] == score[best])}
    not_worse = {label for label, value in gains.holm(p).items() if value >= 1 - level}
    decided = {} if conclusion is None else conclusion.decide_pairs(best, baseline)
    not_worse = {label for label in p if not decided.get(label, label not in not_worse)}
    return Marks(frozenset(equal), frozenset(not_worse - equal))


def _pair_clients(
    best: Mapping[int, ClientScores], other: Mapping[int, ClientScores]
) -> list[tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]]:
    """Return the differences of the clients with both scores, their weights and identities, for each common seed.

    Empty if no seed has both methods, or if their clients or numbers of samples differ.
    """
    pairs = []
    for seed in sorted(best.keys() & other.keys()):
        one, two = best[seed], other[seed]
        if not (np.array_equal(one.samples, two.samples) and np.array_equal(one.clients, two.clients)):
            return []
        difference = one.values - two.values
        known = (one.samples > 0) & ~np.isnan(difference)
        if known.any():
            pairs.append((difference[known], one.weights[known], one.clients[known]))
    return pairs


def _share_variance(runs: Mapping[str, Mapping[int, ClientScores]]) -> gains.SeedVariance | None:
    """Return the variance over seeds that the methods of a column share, if all have the same seeds."""
    if len({tuple(sorted(by_seed)) for by_seed in runs.values()}) != 1:
        return None
    means: dict[str, list[float]] = {}
    for label, by_seed in runs.items():
        for _, item in sorted(by_seed.items()):
            known = (item.samples > 0) & ~np.isnan(item.values)
            total = item.weights[known].sum()
            mean = float(item.weights[known] @ item.values[known] / total) if total else math.nan
            means.setdefault(label, []).append(mean)
    return gains.share_variance(means)


def explain_marks(marks: Iterable[Marks], level: float) -> list[str]:
    """Return a sentence for each mark that a table with these columns has."""
    columns = [*marks]
    has_best, has_others = any(column.best for column in columns), any(column.not_worse for column in columns)
    return [_BOLD] * has_best + [_NOT_WORSE.replace("RISK", f"{100 * (1 - level):.3g} %")] * has_others
