"""The server's part: one table from the summaries of all sites, or all that keeps them from one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pflcli.artifacts.codebook import NO_DIALECT
from pflcli.core.errors import InputError, closest
from pflcli.core.tasks import CLASSES
from pflcli.core.wording import listed
from pflcli.data.formats import sort_words, spellings
from pflcli.plugins.sites.columns import measures, summary
from pflcli.plugins.sites.columns.summary import ROLES, ColumnSummary, Summary
from pflcli.plugins.sites.columns.table import Table, TableColumn

_MAX_PROBLEMS = 30
"""Problems in a message."""
_PER_MILLIMETRE = {"mm": 1.0, "cm": 10.0, "m": 1000.0, "in": 25.4, "inch": 25.4}
_PER_GRAM = {"mg": 0.001, "g": 1.0, "kg": 1000.0, "lb": 453.59237, "oz": 28.349523}
_PER_DAY = {"days": 1.0, "weeks": 7.0, "months": 30.4375, "years": 365.25}
"""Units between which a factor is certain."""


def agree(found: Sequence[Summary], given: Table | None = None) -> tuple[Table, list[str]]:
    """Return the table of the summaries of all sites, and remarks.

    Columns, kinds, units and words are those of the table that is ``given``, otherwise those of most sites. Means and
    deviations are those of all training samples, missing values filled in, if ``missing`` is median, by the median that
    ``measures.pool_medians`` estimates. Raises InputError with all that does not fit.
    """
    merger = _Merger(_in_order(found), given)
    columns = merger.find_columns()
    merged = {name: merger.merge_column(name, kind) for name, kind in columns.items()}
    classes = merger.classes
    if merger.problems:
        most = merger.problems[:_MAX_PROBLEMS]
        more = len(merger.problems) - len(most)
        what = "1 difference" if len(merger.problems) == 1 else f"{len(merger.problems)} differences"
        raise InputError(
            f"the tables of the sites do not fit: {what}", *most, *([f"... and {more} more"] if more else [])
        )
    first, reading = merger.found[0], merger.reading
    agreed = Table(
        columns=merged,
        label=reading.label,
        classes=classes,
        missing=reading.missing,
        standardize=reading.standardize,
        seed=first.seed,
        fractions=first.fractions,
        sites={each.site: each.train for each in merger.found},
    )
    return agreed, merger.remarks


def _in_order(found: Sequence[Summary]) -> list[Summary]:
    """Return one summary per site in the order of their sites; raises InputError if one lacks, or they know others."""
    first, by_site = found[0], {each.site: each for each in found}
    for each in found:
        if by_site[each.site] != each:
            raise InputError(f"there are two different summaries of '{each.site}'", "give the newest one of each site")
        for what in ("sites", "seed", "fractions"):
            own, other = getattr(each, what), getattr(first, what)
            if own != other:
                words = [listed(value) if what == "sites" else str(value) for value in (own, other)]
                remedy = {
                    "sites": "type the same --sites, in the same order, at every site",
                    "seed": "type the same --seed at every site",
                    "fractions": "either all tables have a --split-column with the same splits, or none",
                }[what]
                raise InputError(
                    f"'{each.site}' was summarized with other {what} than '{first.site}': {words[0]} against"
                    f" {words[1]}",
                    remedy,
                )
    if lacking := [site for site in first.sites if site not in by_site]:
        raise InputError(
            f"there is no summary of {listed(lacking)}", f"pfl site columns DATASET --client '{lacking[0]}' ... there"
        )
    return [by_site[site] for site in first.sites]


@dataclass
class _Merger:
    """Merges summaries column by column, and collects all ``problems``, and ``remarks`` for the coordinator."""

    found: Sequence[Summary]
    given: Table | None
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    classes: tuple[str, ...] = ()

    @property
    def reading(self) -> summary.Reading:
        """How tables are read: as the given table says, otherwise as at most sites."""
        most: summary.Reading = _most(each.reading for each in self.found)
        if self.given is None:
            return most
        label = self.given.label or self.given.names_of("target")[0]
        return summary.Reading(label, self.given.missing, self.given.standardize)

    def find_columns(self) -> dict[str, summary.Kind]:
        """Return the kind of each column, in their order; notes columns that a site lacks, or alone has."""
        reading = self.reading
        for each in self.found:
            for what in ("label", "missing", "standardize"):
                own, agreed = getattr(each.reading, what), getattr(reading, what)
                if own != agreed:
                    self._note(each.site, "", f"was imported with --{what} {own}, not {agreed}", f"--{what} '{agreed}'")
        order = list(dict.fromkeys(column.name for each in self.found for column in each.columns))
        times = Counter(column.name for each in self.found for column in each.columns)
        names = [name for name in order if 2 * times[name] >= len(self.found)]
        if self.given is not None:
            names = list(self.given.columns)
        for each in self.found:
            self._compare_names(each, names, times)
        return {name: self._require_kind(name) for name in names}

    def _compare_names(self, each: Summary, names: Sequence[str], times: Mapping[str, int]) -> None:
        """Note the columns that a site lacks, or calls by another name, and those that no other site has."""
        own = [column.name for column in each.columns]
        extra = [name for name in own if name not in names]
        for name in [name for name in names if name not in own]:
            accepted = () if self.given is None else self.given.columns[name].names
            other = next((word for word in extra if word in accepted or _key(word) == _key(name)), None)
            if other is not None:
                extra.remove(other)
                accept = f', or names = ["{other}"] below [columns."{name}"] of the coordinator\'s table'
                units = ""
                if (left := _unit_in_name(other)) != (right := _unit_in_name(name)) and left and right:
                    units = f", which is in {right} and not in {left}: convert its values, and"
                self._note(each.site, other, f"is '{name}' at the others{units}", f"rename it to '{name}'{accept}")
                continue
            near = closest(name, extra) if extra else ""
            have = [summary.site for summary in self.found if summary.find(name)]
            where = f", as {listed(have, 4)} have" if have else ", as the coordinator's table has"
            hint = f" ({near})" if near.startswith("did") else ""
            ways = [] if self.given is not None else [f"--leave-out '{name}' at the others"]
            if self.reading.missing == "median":
                features = ",".join(each for each in names if self._find_kind(each) not in ROLES)
                like = f"--features '{features}'" if self.given is None else "--like TABLE"
                ways = [f"add an empty column, and import it with {like}", *ways]
            fix = ", or ".join(ways) or f"take '{name}' out of the coordinator's table"
            self._note(each.site, "", f"has no column '{name}'{where}{hint}", fix)
        for name in extra:
            column = each.find(name)
            assert column is not None
            who = "the coordinator's table has not" if self.given is not None else "most other sites have not"
            way = f"--{ROLES[column.kind]}" if column.kind in ROLES else "--leave-out"
            fix = f"import without {way} '{name}'" if column.kind in ROLES else f"{way} '{name}'"
            self._note(each.site, name, f"is a column that {who}", fix)

    def _find_kind(self, name: str) -> summary.Kind:
        """Return the kind of a column in the given table, otherwise at most sites."""
        if self.given is not None:
            return self.given.columns[name].kind
        most: summary.Kind = _most(column.kind for each in self.found if (column := each.find(name)))
        return most

    def _require_kind(self, name: str) -> summary.Kind:
        """Return the kind of a column; notes sites where it is another one."""
        columns = {each.site: column for each in self.found if (column := each.find(name))}
        kind = self._find_kind(name)
        for site, column in columns.items():
            if column.kind != kind:
                fix = {
                    "words": f"--categorical '{name}' if its numbers are codes of these words",
                    "number": "write numbers; --na WORD reads a word as a missing value, and --decimal , a comma",
                }.get(kind, f"--{ROLES.get(kind, '')} '{name}'")
                if column.kind in ROLES:
                    fix = f"import without --{ROLES[column.kind]} '{name}'"
                self._note(site, name, f"is a column of kind {column.kind}, and {kind} at the others", fix)
        return kind

    def merge_column(self, name: str, kind: summary.Kind) -> TableColumn:
        """Return the agreed column; notes other units, words and classes than the others have."""
        columns = {each.site: column for each in self.found if (column := each.find(name)) and column.kind == kind}
        given = TableColumn(kind) if self.given is None else self.given.columns[name]
        unit = given.unit or _most([column.unit for column in columns.values() if column.unit], "")
        for site, column in columns.items():
            if column.unit and _key(column.unit) != _key(unit):
                self._note(site, name, f"is in {column.unit}, and in {unit} at the others", _convert(column.unit, unit))
        base = replace(given, kind=kind, unit=unit)
        if kind == "target":
            return self._merge_target(name, base, columns)
        if kind not in ("words", "number"):
            return base
        base = replace(base, has_missing=any(column.has_missing for column in columns.values()))
        if kind == "words":
            return replace(base, words=self._merge_words(name, "word", given.words, columns))
        return self._merge_numbers(name, base, columns)

    def _merge_target(self, name: str, base: TableColumn, columns: Mapping[str, ColumnSummary]) -> TableColumn:
        """Return the agreed target, with its scale if it is a number; notes sites with another task."""
        task = base.task if self.given is not None else _most(column.task for column in columns.values())
        if wrong := {site: column for site, column in columns.items() if column.task != task}:
            for site, column in wrong.items():
                own, agreed = (each or CLASSES for each in (column.task, task))
                self._note(site, name, f"is a target of the task {own}, and {agreed} at the others", f"--task {agreed}")
            return base
        base = replace(base, task=task)
        if task:
            agreed = self._merge_numbers(name, base, columns)
            if not agreed.deviation:
                self._note("", name, "has no deviation at all sites together", "choose another --label")
            return replace(agreed, median=None)
        self.classes = self._merge_words(name, "class", () if self.given is None else self.given.classes, columns)
        return base

    def _merge_words(
        self, name: str, noun: str, given: Sequence[str], columns: Mapping[str, ColumnSummary]
    ) -> tuple[str, ...]:
        """Return the words of all sites in order, or the ``given`` ones; notes sites that have others.

        Where spellings differ by case or spaces alone, that of most rows stands for all.
        """
        rows: Counter[str] = Counter()
        for column in columns.values():
            rows.update({each.word: each.rows for each in column.words})
        by_key: dict[Any, list[str]] = {}
        for word in sorted(rows, key=lambda word: (word not in given, -rows[word], word)):
            by_key.setdefault(spellings.find_key(word, NO_DIALECT), []).append(word)
        same_site = any(
            len({spellings.find_key(each.word, NO_DIALECT) for each in column.words}) < len(column.words)
            for column in columns.values()
        )
        chosen = {word: word if same_site else same[0] for same in by_key.values() for word in same}
        of_site = {site: {chosen[each.word] for each in column.words} for site, column in columns.items()}
        for site, column in columns.items():
            others = {word for other, words in of_site.items() if other != site for word in words} | {*given}
            own = of_site[site]
            for word in [each.word for each in column.words if chosen[each.word] != each.word]:
                self.remarks.append(
                    f"'{site}' writes the {noun} '{chosen[word]}' of '{name}' as '{word}': --fold-case there"
                )
            strange = [word for word in sorted(own) if word not in given] if given else sorted(own - others)
            map_to = " or ".join(["--label-map OLD=NEW"] if noun == "class" else ["write it so", "--na WORD"])
            if given and strange:
                self._note(site, name, f"has the {noun} {_quote(strange)}, which the coordinator's table lacks", map_to)
            elif len(columns) > 1 and own and not own & others:
                self._note(
                    site,
                    name,
                    f"has no {noun} that another site has: {_quote(strange)} against {_quote(sorted(others))}",
                    map_to,
                )
            elif strange and len(columns) > 1:
                self.remarks.append(f"'{site}' alone has the {noun} {_quote(strange)} of '{name}'")
        if not given and not rows and columns:
            self._note(
                "",
                name,
                f"has no {noun} of {measures.BASE} rows at any site",
                f"list its {noun} names in the coordinator's table",
            )
        if noun == "class" and not given and len(set(chosen.values())) == 1:
            self._note(
                "", name, f"has one class at all sites: {_quote(sorted(chosen.values()))}", "choose another --label"
            )
        return tuple(given) or tuple(sort_words(chosen.values()))

    def _merge_numbers(self, name: str, base: TableColumn, columns: Mapping[str, ColumnSummary]) -> TableColumn:
        """Return the column with the moments of all sites; remarks on sites that may have another unit."""
        train = {each.site: each.train for each in self.found}
        parts = {site: part for site, column in columns.items() if (part := column.moments(train[site]))}
        for site, why in measures.describe_outliers(parts).items():
            self.remarks.append(f"WARNING: '{name}' of '{site}' {why}")
        if not parts and columns:
            self.remarks.append(f"WARNING: '{name}' has no mean at any site, and will be 0")
        known, median = [*parts.values()], measures.pool_medians([*parts.values()])
        lacking = sum(column.lacking for column in columns.values()) if self.reading.missing == "median" else 0
        mean, deviation = measures.pool(known, lacking, median)
        return replace(base, mean=mean, deviation=deviation, median=median)

    def _note(self, site: str, name: str, problem: str, fix: str) -> None:
        where = ", ".join([*([f"site '{site}'"] if site else []), *([f"column '{name}'"] if name else [])])
        self.problems.append(f"{where}: {problem}: {fix}")


def _quote(words: Sequence[str]) -> str:
    return listed([f"'{word}'" for word in words], 4)


def _most(values: Iterable[Any], default: Any = None) -> Any:
    """Return the most frequent value, the first of several."""
    return next((value for value, _ in Counter(values).most_common(1)), default)


def _key(name: str) -> str:
    """Return what spellings of a name have in common: no case, spaces, hyphens, or unit in brackets."""
    short = re.sub(r"[\W_]+", "", re.sub(r"[\[(][^\])]*[\])]\s*$", "", name)).casefold()
    return short or name


def _unit_in_name(name: str) -> str:
    """Return the unit in brackets at the end of a name, such as mm in ``height (mm)``; empty if there is none."""
    found = re.search(r"[\[(]([^\])]*)[\])]\s*$", name)
    return found[1].strip() if found else ""


def _convert(own: str, agreed: str) -> str:
    """Return how to convert a unit, with the factor if it is known."""
    for units in (_PER_MILLIMETRE, _PER_GRAM, _PER_DAY):
        if own.casefold() in units and agreed.casefold() in units:
            factor = units[own.casefold()] / units[agreed.casefold()]
            return f"multiply it by {factor:.6g} in the table"
    return f"convert it to {agreed} in the table"
