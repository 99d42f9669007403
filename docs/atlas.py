"""Write docs/atlas.md: which of fifteen methods is ahead on which federation, from stored scores.

    python docs/reference.py      # docs/choosing.md and README's evidence too (docs/evidence.py)

docs/results/atlas.toml lists the federations and methods, and docs/results/scores has the scores of those that
examples/atlas.sh has finished. Ranks and their comparison follow Demšar (2006),
https://jmlr.org/papers/v7/demsar06a.html: mean ranks over federations, Friedman's test, and the critical difference of
Nemenyi (his equation in section 3.2.2). Federations of one source, such as MNIST, are not independent. An interval of a
mean over federations is therefore cluster-robust (Liang & Zeger, 1986, by source), Friedman's test permutes the methods
of a whole source, and the critical difference counts sources.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import fill
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit
from scipy.stats import rankdata, studentized_range

from pflcli.evaluation.charts import vega
from pflcli.evaluation.metrics import gains

TABLE = fill.RESULTS / "atlas.toml"
PAGE = fill.ROOT / "docs" / "atlas.md"
PICTURE = fill.ROOT / "docs" / "pictures" / "atlas.svg"
RANKS = fill.RESULTS / "ranks-atlas.csv"
WRITTEN = "<!-- written by docs/atlas.py, which a test compares with this page -->\n"
ALONE, FEDAVG, STACK = "alone", "fedavg", "stack"
_LEVEL = 0.95
_DRAWS = 9_999
"""Permutations of Friedman's test."""

Array = NDArray[np.float64]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Federation:
    """A federation of the table, with the scores of its runs and of their clients if they are stored."""

    name: str
    about: str
    shift: tuple[str, ...]
    """the kinds of shift between its clients"""
    source: str
    shaped: bool
    """whether defaults of methods were chosen on this data"""
    variants: tuple[str, ...]
    """our own methods of which variants were compared on such data"""
    runs: pd.DataFrame | None
    clients: pd.DataFrame | None

    @property
    def title(self) -> str:
        """Its name, with a mark if its data shaped defaults."""
        return f"{self.name}*" if self.shaped else self.name

    @cached_property
    def accuracies(self) -> Mapping[str, float]:
        """The test accuracy of each method in percent, averaged over seeds."""
        if self.runs is None:
            return {}
        means = self.runs.groupby("method")["accuracy"].mean()
        return {str(method): 100 * float(value) for method, value in means.items()}

    @cached_property
    def shape(self) -> tuple[int, int]:
        """The number of clients and of test samples under one seed."""
        assert self.clients is not None
        first = self.clients[self.clients["method"] == self.clients["method"].iloc[0]]
        first = first[first["seed"] == first["seed"].iloc[0]]
        return len(first), int(first["n_test"].sum())

    def list_marked(self, *columns: str) -> set[str]:
        """Return the methods with a run that one of these columns of the scores marks."""
        assert self.runs is not None
        marks = [self.runs[name] == 1 for name in columns if name in self.runs]
        return {*self.runs.loc[np.any(marks, axis=0), "method"]} if marks else set()

    def gain(self, method: str, over: str, *, joint: bool = False) -> tuple[float, Interval]:
        """Return the mean gain of a method over another in points, and its interval, ``joint`` for all methods.

        It is that of ``pfl compare``, paired by client, over the seeds that both have; a client has the same number
        under every seed.
        """
        references = self.list_marked("reference")
        apart = self.list_marked("reference", "repeats_baseline") if over == FEDAVG else set()
        assert self.clients is not None
        differences, samples, clients = [], [], []
        means: dict[str, list[float]] = {}
        for _, part in self.clients[self.clients["n_test"] > 0].groupby("seed"):
            scores = part.pivot(index="client", columns="method", values="accuracy").reindex(columns=[*self.accuracies])
            if scores[[method, over]].isna().any(axis=None):
                continue  # one of them has no run with this seed
            n = part.groupby("client")["n_test"].first().to_numpy(float)
            differences.append((scores[method] - scores[over]).to_numpy(float))
            samples.append(n)
            clients.append(scores.index.to_numpy())
            for name in scores.columns:
                means.setdefault(str(name), []).append(float(np.average(scores[name] - scores[over], weights=n)))
        pool = gains.share_variance({name: values for name, values in means.items() if name not in apart})
        shared = None if pool is None or method in apart else pool.of_difference(method, over)
        estimate = gains.mean_gain(differences, samples, clients, shared)
        if estimate is None:
            return 100 * means[method][0], (-100.0, 100.0)
        compared = len({*self.accuracies} - references - {FEDAVG}) if joint else 1
        low, high = estimate.interval_at(1 - (1 - _LEVEL) / compared)
        return 100 * estimate.mean, (100 * low, 100 * high)


@dataclass(frozen=True)
class Atlas:
    """The federations of the table, of which some have scores, and its methods."""

    methods: tuple[str, ...]
    """those that are ranked"""
    own: tuple[str, ...]
    """inventions of this project"""
    federations: tuple[Federation, ...]

    @classmethod
    def read(cls, path: Path = TABLE) -> Atlas:
        """Read the table, and the scores in the folder ``scores`` beside it.

        Raises ValueError for a federation that lacks a method, as ranks need all.
        """
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        methods, federations = tuple(table["methods"]), []
        for name, row in table["federations"].items():
            runs, clients = (_find(path.parent / "scores", f"atlas-{name}.{part}.csv") for part in ("runs", "clients"))
            if runs is not None and (missing := {*methods} - {*runs["method"]}):
                raise ValueError(f"atlas-{name} has no scores of {', '.join(sorted(missing))}")
            variants = tuple(row.get("variants", ()))
            facts = (name, row["about"], tuple(row["shift"]), row["source"], row["shaped"], variants)
            federations.append(Federation(*facts, runs, clients))
        return cls(methods, tuple(table["own"]), tuple(federations))

    @property
    def measured(self) -> list[Federation]:
        """The federations with scores."""
        return [federation for federation in self.federations if federation.runs is not None]

    @property
    def sources(self) -> list[str]:
        """The source of each measured federation."""
        return [federation.source for federation in self.measured]

    @cached_property
    def table(self) -> Array:
        """The accuracy of each method on each measured federation, in percent: (n, k)."""
        return np.array([[federation.accuracies[name] for name in self.methods] for federation in self.measured])

    @cached_property
    def ranks(self) -> Array:
        """The rank of each method on each federation, 1 the best; equal ones share the mean of theirs: (n, k)."""
        return rank(self.table)

    @cached_property
    def regrets(self) -> Array:
        """By how many points a method is behind the best one of each federation: (n, k)."""
        behind: Array = self.table.max(axis=1, keepdims=True) - self.table
        return behind

    @property
    def by_rank(self) -> list[str]:
        """The methods by their mean rank, the best first."""
        return [self.methods[place] for place in np.argsort(self.ranks.mean(axis=0), kind="stable")]

    def column(self, table: Array, method: str) -> Array:
        """Return what a table (n, k) has of a method: (n,)."""
        values: Array = table[:, self.methods.index(method)]
        return values


def _find(folder: Path, name: str) -> pd.DataFrame | None:
    """Return a file of scores, plain or compressed; None if it is not there."""
    paths = [folder / f"{name}{ending}" for ending in ("", ".gz")]
    return next((pd.read_csv(path) for path in paths if path.exists()), None)


# Statistics over federations.


def rank(table: Array) -> Array:
    """Return the ranks within each row, 1 for the largest value; equal ones share the mean of theirs."""
    ranks: Array = rankdata(-table.round(6), axis=1)
    return ranks


def mean_interval(values: Array, sources: Sequence[str]) -> tuple[float, Interval | None]:
    """Return the mean over federations, and its interval at 95 %; None with fewer than two sources.

    Deviations of federations of one source are summed before they are squared. With G sources, the variance has the
    factor G / (G - 1), and Student's t has G - 1 degrees of freedom. With each federation a source of its own, this is
    the usual interval.
    """
    groups = sorted({*sources})
    mean, count = float(values.mean()), len(groups)
    if count < 2:
        return mean, None
    sums = [sum(v - mean for v, source in zip(values, sources, strict=True) if source == group) for group in groups]
    error = math.sqrt(count / (count - 1) * sum(each**2 for each in sums)) / len(values)
    reach = error * float(stdtrit(count - 1, (1 + _LEVEL) / 2))
    return mean, (mean - reach, mean + reach)


def critical_difference(methods: int, blocks: int) -> float:
    """Return by how much two mean ranks over so many blocks must differ at 5 % (Nemenyi; Demšar, section 3.2.2)."""
    quantile = float(studentized_range.ppf(_LEVEL, methods, math.inf)) / math.sqrt(2)
    return quantile * math.sqrt(methods * (methods + 1) / (6 * blocks))


def friedman(ranks: Array, sources: Sequence[str], draws: int = _DRAWS) -> float:
    """Return the p-value for methods that are all alike, whose ranks each source has in any order.

    The statistic is Friedman's: the sum of squared deviations of mean ranks. A permutation gives the methods of all
    federations of a source one and the same other order.
    """
    rng = np.random.default_rng(0)
    rows = np.array([ranks[[source == group for source in sources]].sum(axis=0) for group in dict.fromkeys(sources)])
    totals = np.zeros((draws, ranks.shape[1]))
    for row in rows:
        totals += rng.permuted(np.tile(row, (draws, 1)), axis=1)
    observed = float(((rows.sum(axis=0) - rows.sum() / ranks.shape[1]) ** 2).sum())
    statistics = ((totals - rows.sum() / ranks.shape[1]) ** 2).sum(axis=1)
    return (1 + int((statistics >= observed - 1e-9).sum())) / (1 + draws)


def list_cliques(means: Sequence[float], difference: float) -> list[Interval]:
    """Return the first and last mean rank of each largest group whose members differ by less than ``difference``.

    ``means`` are sorted. Groups of one are left out.
    """
    ends = [max(place for place, mean in enumerate(means) if mean - first < difference) for first in means]
    return [
        (means[start], means[end])
        for start, end in enumerate(ends)
        if end > start and (start == 0 or end > ends[start - 1])
    ]


# The page.


def write_files() -> dict[Path, str]:
    """Return the page, and the picture and the table of its ranks if at least two sources are measured."""
    atlas = Atlas.read()
    files = {PAGE: write_page(atlas)}
    if has_ranks(atlas):
        files[PICTURE] = vega.render(draw_ranks(atlas), "svg").decode()
        files[RANKS] = fill.to_csv(list_ranks(atlas))
    return files


def has_ranks(atlas: Atlas) -> bool:
    """Whether federations of at least two sources are measured."""
    return len({*atlas.sources}) > 1


def write_page(atlas: Atlas) -> str:
    """Return the text of docs/atlas.md."""
    measured, every = atlas.measured, len(atlas.federations)
    missing = [federation.name for federation in atlas.federations if federation.runs is None]
    parts = [
        "# Which method where\n",
        WRITTEN,
        f"{_count(len(atlas.methods))} methods on {_count(every).lower()} federations, each tuned by at most eight "
        "trials on validation samples, trained until twice as many rounds would gain less than a point, and run with "
        "three seeds of initial weights and training on one partition, by `bash examples/atlas.sh`."
        + (f" **Measured so far: {len(measured)} of {every}**; missing: {', '.join(missing)}.\n" if missing else "\n"),
    ]
    if measured:
        parts += [
            "## Answers\n",
            "\n".join(f"- {line}" for line in answer(atlas)),
            "\n## Accuracy\n",
            *_show_table(atlas),
        ]
        if has_ranks(atlas):
            parts += ["\n## Ranks and regret\n", *_show_ranks(atlas)]
        parts += ["\n## By kind of shift\n", *_show_shifts(atlas)]
        parts += ["\n## Our own methods, on data that shaped no default\n", *_show_own(atlas)]
    parts += ["\n## The federations\n", _show_federations(atlas)]
    parts += ["\n## What this cannot say\n", "\n".join(f"- {line}" for line in list_limits(atlas))]
    if measured:
        links = ", ".join(f"[atlas-{each.name}](results/atlas-{each.name}.csv)" for each in measured)
        parts.append(f"\nCSV: {links}")
    return "\n".join([*parts, "\n<!-- end -->", ""])


def answer(atlas: Atlas) -> list[str]:
    """Return the plain answers, each a sentence or two of which every number follows from the scores."""
    measured, n = atlas.measured, len(atlas.measured)
    best = [atlas.methods[place] for place in atlas.table.argmax(axis=1)]
    lines = []
    if has_ranks(atlas):
        first = atlas.by_rank[0]
        _, reach = _rank_interval(atlas, first)
        means = atlas.ranks.mean(axis=0)
        others = len(atlas.methods) - 1
        apart = int((means - means.min() >= _difference(atlas)).sum())
        many, ranked = (_count(number).lower() for number in (len({*best}), len(atlas.methods)))
        lines.append(
            (f"**No method is best everywhere**: {many} of {ranked} are best somewhere. " if len({*best}) > 1 else "")
            + f"{_show_name(atlas, first)} has the best mean rank over {n} federations, {means.min():.1f} of "
            f"{len(atlas.methods)} "
            f"{_bounds(reach)}. It is shown to be ahead of {apart or 'none'} of the {others} others."
        )
    regrets = atlas.regrets.mean(axis=0)
    least, second = (atlas.methods[place] for place in np.argsort(regrets, kind="stable")[:2])
    lines.append(
        f"**If you always take one method**, {_show_name(atlas, least)} costs least: {_show_regret(atlas, least)}. "
        f"Next is {_show_name(atlas, second)}: {_show_regret(atlas, second)}."
    )
    alone, fedavg = (atlas.column(atlas.table, name) for name in (ALONE, FEDAVG))
    over_alone = [
        each.name
        for each, name in zip(measured, best, strict=True)
        if name != ALONE and each.gain(name, ALONE, joint=True)[1][0] > 0
    ]
    lines.append(
        f"**Training alone** with scikit-learn (`alone`) is ahead of FedAvg on {int((alone > fedavg).sum())} of {n} "
        f"federations, shown on {sum(_is_shown(ALONE, each) for each in measured)}, and ahead of every method on "
        f"{best.count(ALONE) or 'none'}. "
        f"On {len(over_alone) or 'none'} the best method is shown to be ahead of it{_in_brackets(over_alone)}."
    )
    for shift in dict.fromkeys(shift for each in measured for shift in each.shift):
        of_shift = [each for each in measured if shift in each.shift]
        count = f"{_count(len(of_shift)).lower()} federation{'s' * (len(of_shift) > 1)}"
        leading = [name for name, _ in _list_leading(atlas, of_shift)]
        ahead = {name: sum(_is_shown(name, each) for each in of_shift) for name in leading}
        shown = ", ".join(f"`{name}` on {number}" for name, number in ahead.items() if number)
        named = ", ".join(f"`{name}`" for name in leading)
        lines.append(
            f"**{_KINDS[shift].capitalize()}** ({count}): {named}; shown to be ahead of FedAvg: {shown or 'none'}."
        )
    for each in measured:
        if not each.shaped:
            placed = sorted(atlas.methods, key=lambda name: -each.accuracies[name])
            own = [name for name in atlas.own if name in each.accuracies]
            places_of = [f"`{name}` {placed.index(name) + 1}" for name in own if name in placed]
            gains_of = {name: each.gain(name, FEDAVG)[1] for name in own}
            ahead = ", ".join(f"`{name}`" for name, (low, _) in gains_of.items() if low > 0)
            behind = ", ".join(f"`{name}`" for name, (_, high) in gains_of.items() if high < 0)
            lines.append(
                f"**Our own methods on {each.name}**, which shaped no default{_list_variants(each)}, are in the places "
                f"{', '.join(places_of)} of {len(placed)}; shown to be ahead of FedAvg: {ahead or 'none'}; "
                f"behind it: {behind or 'none'}."
            )
    if STACK in {name for each in measured for name in each.accuracies}:
        lines.append(f"**Several methods together**: {compare_stack(atlas)}.")
    return lines


def compare_stack(atlas: Atlas) -> str:
    """Return how the stack of methods does against the best of them by test, on each measured federation."""
    found = [each for each in atlas.measured if STACK in each.accuracies]
    best = [max(atlas.methods, key=each.accuracies.__getitem__) for each in found]
    gained = {each.name: each.gain(STACK, name) for each, name in zip(found, best, strict=True)}
    ahead = [name for name, (_, (low, _)) in gained.items() if low > 0]
    behind = [name for name, (_, (_, high)) in gained.items() if high < 0]
    positive = sum(round(gain, 2) > 0 for gain, _ in gained.values())
    return (
        f"`{STACK}` is ahead of the best single method by test on {positive} of {len(found)} federations, "
        f"shown on {len(ahead)}{_in_brackets(ahead)}, and shown to be behind on {len(behind)}{_in_brackets(behind)}"
    )


def _in_brackets(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _list_variants(federation: Federation) -> str:
    """Return of which own methods variants were compared on a federation, as a part of a sentence."""
    names = " and ".join(f"`{name}`" for name in federation.variants)
    return f" (but variants of {names} were compared on data like {federation.name})" if names else ""


def _show_regret(atlas: Atlas, method: str) -> str:
    """Return how many points a method is behind the best ones: on average, and at worst."""
    regrets = atlas.column(atlas.regrets, method)
    worst = int(regrets.argmax())
    return (
        f"{regrets.mean():.1f} points behind the best method on average, and at worst {regrets[worst]:.1f} "
        f"({atlas.measured[worst].name})"
    )


def _show_name(atlas: Atlas, method: str) -> str:
    """Return the name of a method, with a mark of our own ones."""
    return f"`{method}`{' (our own)' if method in atlas.own else ''}"


def _list_leading(atlas: Atlas, federations: Sequence[Federation]) -> list[tuple[str, float]]:
    """Return the methods that are fewest points behind the best ones of federations, on average, and these points."""
    mean = atlas.regrets[[atlas.measured.index(each) for each in federations]].mean(axis=0)
    return [(atlas.methods[place], float(mean[place])) for place in np.argsort(mean, kind="stable")[:_LEADING]]


def _is_shown(method: str, federation: Federation) -> bool:
    """Whether a method is shown to be ahead of FedAvg on a federation, as one of all that are compared."""
    return method != FEDAVG and federation.gain(method, FEDAVG, joint=True)[1][0] > 0


_LEADING = 3
"""So many methods are named for a kind of shift."""
_COUNTS = (
    *("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight"),
    *("Nine", "Ten", "Eleven", "Twelve", "Thirteen", "Fourteen", "Fifteen"),
)
_KINDS = {
    "labels": "different classes",
    "features": "the same classes in different forms",
    "concept": "other names for the same input",
    "few samples": "few samples",
    "quantity": "different numbers of samples alone",
    "none": "clients that are alike",
}
"""What the kinds of shift are."""


def _show_table(atlas: Atlas) -> list[str]:
    """Return the table of accuracies, the best of each federation in bold."""
    names = atlas.by_rank if has_ranks(atlas) else [atlas.methods[p] for p in np.argsort(atlas.regrets.mean(axis=0))]
    rows = [["method", *(federation.title for federation in atlas.measured)]]
    for name in names:
        cells = zip(atlas.column(atlas.table, name), atlas.table.max(axis=1), strict=True)
        rows.append([name, *(f"**{value:.1f}**" if value == most else f"{value:.1f}" for value, most in cells)])
    extra = sorted({name for each in atlas.measured for name in each.accuracies} - {*atlas.methods})
    for name in extra:
        values = (each.accuracies.get(name) for each in atlas.measured)
        rows.append([name, *("-" if value is None else f"{value:.1f}" for value in values)])
    note = "Test accuracies in percent, means over seeds. \\* Defaults of methods were chosen on this data."
    if extra:
        note += f" {', '.join(f'`{name}`' for name in extra)} combines the others, and is not ranked."
    return [note + "\n", fill.to_markdown(rows)]


def list_ranks(atlas: Atlas) -> list[list[str]]:
    """Return the rows of ranks and regrets with their intervals, the best method first."""
    rows = [["method", "mean rank", "95 % of ranks", "points behind the best", "95 % of points", "at worst"]]
    for name in atlas.by_rank:
        mean, interval = _rank_interval(atlas, name)
        regret, reach = mean_interval(atlas.column(atlas.regrets, name), atlas.sources)
        most = int(atlas.column(atlas.regrets, name).argmax())
        worst = f"{atlas.column(atlas.regrets, name)[most]:.1f} ({atlas.measured[most].name})"
        low = None if reach is None else (max(0.0, reach[0]), reach[1])
        rows.append([name, f"{mean:.1f}", _bounds(interval), f"{regret:.1f}", _bounds(low), worst])
    return rows


def _show_ranks(atlas: Atlas) -> list[str]:
    """Return the diagram of ranks, and the table of ranks and regrets."""
    sources = len({*atlas.sources})
    p = friedman(atlas.ranks, atlas.sources)
    text = (
        f"![Mean ranks; a line joins methods that are not shown to differ.](pictures/{PICTURE.name})\n\n"
        f"Two methods whose mean ranks differ by less than {_difference(atlas):.1f} are not shown to differ: Nemenyi's "
        f"critical difference for {len(atlas.methods)} methods and {sources} sources "
        f"([Demšar, 2006](https://jmlr.org/papers/v7/demsar06a.html)). That all are alike has p = {p:.4f} by "
        "Friedman's statistic, with methods permuted within sources. Intervals are over federations.\n"
    )
    return [text, fill.to_markdown(list_ranks(atlas)), f"\nCSV: [ranks-atlas](results/{RANKS.name})"]


def _show_shifts(atlas: Atlas) -> list[str]:
    """Return for each kind of shift the methods with the smallest regret, and those of FedAvg and of training alone."""
    rows = [["shift", "federations", "first", "second", "third", f"`{FEDAVG}`", f"`{ALONE}`"]]
    for shift in dict.fromkeys(shift for each in atlas.measured for shift in each.shift):
        of_shift = [each for each in atlas.measured if shift in each.shift]
        leading = [f"`{name}` {behind:.1f}" for name, behind in _list_leading(atlas, of_shift)]
        places = [atlas.measured.index(each) for each in of_shift]
        others = [f"{atlas.column(atlas.regrets, name)[places].mean():.1f}" for name in (FEDAVG, ALONE)]
        rows.append([shift, ", ".join(each.title for each in of_shift), *leading, *others])
    return ["Points behind the best method of each federation, on average.\n", fill.to_markdown(rows)]


def _show_own(atlas: Atlas) -> list[str]:
    """Return how inventions of this project do on the data that shaped no default."""
    untouched = [each for each in atlas.measured if not each.shaped]
    planned = [each.name for each in atlas.federations if not each.shaped]
    names = " and ".join(planned)
    if not untouched:
        return [f"Neither {' nor '.join(planned)} is measured yet."]
    variants = "".join(map(_list_variants, untouched))
    rows = [["federation", "method", "accuracy %", "rank", "over FedAvg", "over training alone"]]
    for each in untouched:
        ranks = dict(zip(atlas.methods, atlas.ranks[atlas.measured.index(each)], strict=True))
        for name in filter(each.accuracies.__contains__, atlas.own):
            cells = []
            for over in (FEDAVG, ALONE):
                gain, reach = each.gain(name, over)
                cells.append(f"{_show(gain, '+.1f')} {_bounds(reach, '+.1f')}")
            place = f"{ranks[name]:g} of {len(atlas.methods)}" if name in ranks else "-"
            rows.append([each.name, f"`{name}`", f"{each.accuracies[name]:.1f}", place, *cells])
    return [
        f"Defaults were chosen on other data than {names}{variants}. Each interval is that of one gain.\n",
        fill.to_markdown(rows),
    ]


def _show_federations(atlas: Atlas) -> str:
    """Return the table of all federations."""
    rows = [["federation", "samples and clients", "shift", "source", "clients", "test samples"]]
    for each in atlas.federations:
        sizes = ("-", "-") if each.runs is None else tuple(map(str, each.shape))
        rows.append([each.title, each.about, ", ".join(each.shift), each.source, *sizes])
    return fill.to_markdown(rows)


def list_limits(atlas: Atlas) -> list[str]:
    """Return what the federations of the table cannot say."""
    sources = {each.source for each in atlas.federations}
    counts = {words: sum(shift in each.shift for each in atlas.federations) for shift, words in _KINDS.items()}
    rare = [shift for shift, count in counts.items() if count == 1]
    never = [shift for shift, count in counts.items() if count == 0]
    shaped = sum(each.shaped for each in atlas.federations)
    lines = [
        f"{_count(len(atlas.federations))} federations of {len(sources)} sources were chosen by us, not drawn "
        "from those that there are. Intervals over them assume that yours is like them. A mean rank also depends on "
        "which methods are ranked.",
        f"These are in one federation each, which shows what can happen, not what does: {', '.join(rare)}."
        + (f" In none: {', '.join(never)}." if never else ""),
        f"On {shaped} of them (\\*) defaults of methods, ours among them, were chosen. Methods are tuned on each, but "
        "only within grids that contain their defaults.",
        "Three seeds vary initial weights and training on one partition: options are tuned on its validation samples, "
        "some of which would be test samples of another partition. The stations and the roles are split by time, which "
        "leaves no other.",
        "Federations are small, networks have few layers, and time, bytes and privacy are not ranked. The best method "
        "of a federation is the best on its test samples, so that points behind it are slightly too many.",
    ]
    return lines


def _difference(atlas: Atlas) -> float:
    return critical_difference(len(atlas.methods), len({*atlas.sources}))


def _rank_interval(atlas: Atlas, method: str) -> tuple[float, Interval | None]:
    """Return the mean rank of a method and its interval, which ends at the first and the last rank."""
    mean, interval = mean_interval(atlas.column(atlas.ranks, method), atlas.sources)
    if interval is None:
        return mean, None
    return mean, (max(1.0, interval[0]), min(float(len(atlas.methods)), interval[1]))


def _bounds(interval: Interval | None, form: str = ".1f") -> str:
    return "-" if interval is None else f"[{_show(interval[0], form)}, {_show(interval[1], form)}]"


def _show(number: float, form: str) -> str:
    """Return a number as text, without a minus before 0."""
    return f"{round(number, 1) + 0.0:{form}}"


def _count(number: int) -> str:
    """Return a number as a word at the beginning of a sentence, from 16 on as digits."""
    return _COUNTS[number] if number < len(_COUNTS) else str(number)


def draw_ranks(atlas: Atlas) -> vega.Spec:
    """Return the critical-difference diagram as a Vega-Lite specification.

    Each method is a point at its mean rank with its interval; bars below join those that are not shown to differ.
    """
    names, places = atlas.by_rank, {}
    rows: list[dict[str, Any]] = []
    for name in names:
        mean, interval = _rank_interval(atlas, name)
        assert interval is not None
        places[name] = mean
        low, high = interval
        rows.append({"method": f"{name} {mean:.1f}", "rank": mean, "low": low, "high": high})
    labels = [row["method"] for row in rows]
    bars = [
        {"low": low, "high": high, "method": f"not shown to differ {number}"}
        for number, (low, high) in enumerate(list_cliques(list(places.values()), _difference(atlas)), start=1)
    ]
    bars.append({"low": 1, "high": 1 + _difference(atlas), "method": f"critical difference {_difference(atlas):.1f}"})
    order = [*labels, *(bar["method"] for bar in bars)]
    y = vega.channel("method", "nominal", sort=order, title=None)
    scale = {"domain": [1, max(len(names), math.ceil(1 + _difference(atlas)))], "nice": False}
    x = {"scale": scale, "title": f"mean rank over {len(atlas.measured)} federations (1 is best)"}
    layers = [
        vega.layer({"type": "rule", "color": vega.GREY}, rows, x=vega.channel("low", **x), x2={"field": "high"}, y=y),
        vega.layer(
            {"type": "point", "filled": True, "color": vega.LIGHT[0], "size": 60},
            rows,
            x=vega.channel("rank", **x),
            y=y,
        ),
        vega.layer({"type": "rule", "strokeWidth": 4}, bars, x=vega.channel("low", **x), x2={"field": "high"}, y=y),
    ]
    return vega.figure({"layer": layers, "width": 560, "height": {"step": 18}})
