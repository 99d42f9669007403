"""Write what docs/choosing.md and README say of methods: each sentence follows from rows of tables, which it links.

    python docs/reference.py

It stands between ``<!-- evidence -->`` and ``<!-- end -->``. Rows on how clients differ come from the tables of the
atlas (examples/atlas.sh).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import atlas
import fill

CHOOSING, README = fill.ROOT / "docs" / "choosing.md", fill.ROOT / "README.md"
_BEST = 3
"""So many methods are named as those to try first."""
_FEW_BYTES = 0.01
"""A method sends few bytes if it sends less than this share of FedAvg's."""
_WITHOUT_GRADIENTS = ("gaussian-head", "knn-per", "prior")
"""Methods whose clients compute no gradient after the rounds."""
_NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+")


@dataclass(frozen=True)
class Table:
    """A stored table, of which one column has accuracies in percent."""

    name: str
    about: str
    column: str = "accuracy %"

    @cached_property
    def rows(self) -> dict[str, dict[str, str]]:
        """The cells of each method by their columns."""
        heading, *rows = fill.read(fill.RESULTS / f"{self.name}.csv")
        return {row[0].removesuffix(" (reference)"): dict(zip(heading, row, strict=True)) for row in rows}

    @cached_property
    def ranked(self) -> list[str]:
        """The methods, the best first, without references and variants."""
        names = [
            name for name, row in self.rows.items() if name not in _OTHERS and "@" not in name and self._is_method(row)
        ]
        return sorted(names, key=lambda name: -self.number(name))

    def _is_method(self, row: Mapping[str, str]) -> bool:
        return not next(iter(row.values())).endswith(" (reference)")

    def number(self, name: str, column: str = "") -> float:
        """Return the first number of a cell; nan without one."""
        found = _NUMBER.search(self.rows[name][column or self.column])
        return math.nan if found is None else float(found[0].replace(",", ""))

    def show(self, *names: str) -> str:
        """Return methods with their accuracies."""
        return ", ".join(f"`{name}` {self.number(name):.1f}" for name in names)

    def link(self, folder: str = "results") -> str:
        """Return the link to the CSV file."""
        return f"[table]({folder}/{self.name}.csv)"


_OTHERS = {"oracle", "local", "alone", "pooled", "alone-pooled", "constant", "stack"}
"""Rows that are no methods to choose."""
_WRITERS = Table("all-methods-writers", "digits of 60 writers")
_FASHION = Table("all-methods-fashion-mnist", "Fashion-MNIST, Dirichlet 0.1")
_CLIENTS = {
    "labels": "have **different classes**",
    "features": "have the **same classes in different forms**",
    "concept": "form groups that give **other names to the same input**",
    "few samples": "have **few samples**",
    "none": "are **alike**",
}
"""How the row of a kind of shift begins."""


def write_files() -> dict[Path, str]:
    """Return the pages with what they say now."""
    found = atlas.Atlas.read()
    texts = {CHOOSING: choose(found), README: "\n".join(f"- {line}" for line in list_evidence(found))}
    return {page: put(page.read_text(encoding="utf-8"), text) for page, text in texts.items()}


def put(page: str, text: str) -> str:
    """Return a page with the text between its comments; raises ValueError if it has none."""
    before, mark, rest = page.partition("<!-- evidence -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not mark or not end:
        raise ValueError("the page has no comments 'evidence' and 'end'")
    return f"{before}{mark}{text}\n{end}{after}"


def list_tables(found: atlas.Atlas) -> dict[str, list[Table]]:
    """Return the tables of the atlas for each kind of shift."""
    return {
        shift: [Table(f"atlas-{each.name}", each.about) for each in found.measured if shift in each.shift]
        for shift in _CLIENTS
    }


def choose(found: atlas.Atlas) -> str:
    """Return the two tables of docs/choosing.md."""
    rows = [["your clients", "measured on", "first", "FedAvg and training alone", "below training alone", "CSV"]]
    for shift, of_shift in list_tables(found).items():
        rows += [[_CLIENTS[shift], *_describe(table)] for table in of_shift]
    others = [["if", "then", "CSV"], *([*row] for row in list_constraints(found))]
    parts = [
        "## By how your clients differ",
        fill.to_markdown(rows),
        "## By your constraints",
        fill.to_markdown(others),
    ]
    return "\n\n".join(parts) + "\n"


def _describe(table: Table) -> list[str]:
    """Return the cells of a table: the best methods, FedAvg and training alone, and how many are below that."""
    alone = [name for name in (atlas.ALONE, "local") if name in table.rows][:1]
    below = "-"
    if alone:
        count = sum(table.number(name) < table.number(alone[0]) for name in table.ranked)
        below = f"{count} of {len(table.ranked)} methods"
    first = table.show(*table.ranked[:_BEST])
    return [table.about, first, table.show(atlas.FEDAVG, *alone), below, table.link()]


def list_constraints(found: atlas.Atlas) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of what a constraint leaves: the constraint, what was measured, and the tables."""
    both = (_WRITERS, _FASHION)
    links = ", ".join(table.link() for table in both)
    shown = "; ".join(f"{table.about}: {table.show(*_WITHOUT_GRADIENTS, atlas.FEDAVG)}" for table in both)
    yield "clients **cannot train** after the rounds", f"these need no gradient: {shown}", links

    names = [
        name for name in _WRITERS.ranked if all(_sends_little(table, name) for table in both if name in table.rows)
    ]
    parts = []
    for table in both:
        sent = [name for name in (*names, atlas.FEDAVG) if name in table.rows]
        shown = ", ".join(f"`{name}` {table.number(name, 'MB sent'):.1f} MB, {table.number(name):.1f}" for name in sent)
        parts.append(f"{table.about}: {shown}")
    yield "clients **cannot send models**", "; ".join(parts), links

    firsts, count, files = _count_firsts()
    shown = ", ".join(f"`{name}` in {number}" for name, number in firsts.most_common())
    yield "clients **join later**", f"first for clients that were not there before, in {count} columns: {shown}", files

    apart, together = (Table(f"hospitals-standardized-{how}", "", "mean of hospitals") for how in ("apart", "together"))
    gains = {name: row["mean of hospitals"] for name, row in together.rows.items() if name.endswith(": gain")}
    most = max(gains, key=together.number)
    yield (
        "there are **few clients**",
        f"four hospitals: `{atlas.FEDAVG}` has {together.number(atlas.FEDAVG):.1f} with features standardized together "
        f"and {apart.number(atlas.FEDAVG):.1f} with each apart; the largest gain of a method, "
        f"`{most.partition(':')[0]}`, is {gains[most]}",
        f"{together.link()}, {apart.link()}",
    )

    later, adam = Table("rivals-writers", ""), Table("rivals-fedadam", "")
    server, with_adam = (
        f"{table.number(atlas.FEDAVG):.1f} after {table.number(atlas.FEDAVG, 'rounds'):.0f} rounds"
        for table in (later, adam)
    )
    yield (
        "**rounds** are expensive",
        f"digits of 60 writers: `{atlas.FEDAVG}` has {server}, with `--set fedavg.server=adam` {with_adam}",
        f"{later.link()}, {adam.link()}",
    )

    tables = ", ".join(f"[{each.name}](results/atlas-{each.name}.csv)" for each in found.measured)
    yield "**several methods** fit", atlas.compare_stack(found), tables


def _sends_little(table: Table, name: str) -> bool:
    return table.number(name, "MB sent") < _FEW_BYTES * table.number(atlas.FEDAVG, "MB sent")


def _count_firsts() -> tuple[Counter[str], int, str]:
    """Return how often each method is first for unseen clients, in how many columns, and the links of the tables.

    Methods that are level are all first.
    """
    names, firsts = ("knn-per-unseen", "frozen-unseen", "few-samples-unseen"), Counter[str]()
    count = 0
    for name in names:
        heading, *rows = fill.read(fill.RESULTS / f"{name}.csv")
        if heading[0] == "method":
            heading, *rows = map(list, zip(heading, *rows, strict=True))
        for row in rows:
            cells = {
                method: float(found[0])
                for method, cell in zip(heading, row, strict=True)
                if method not in ("dataset", "clients", "method") and (found := _NUMBER.match(cell))
            }
            firsts.update(method for method, value in cells.items() if value == max(cells.values()))
            count += 1
    return firsts, count, ", ".join(f"[{name}](results/{name}.csv)" for name in names)


def list_evidence(found: atlas.Atlas) -> Iterator[str]:
    """Yield what README says: how methods rank, claims, and stored scores."""
    first, *others = atlas.answer(found)[:3]
    count, every = len(found.measured), len(found.federations)
    measured = f": {count} of {every} federations" if count < every else ""
    yield f"{first} ([which method where](docs/atlas.md), [ranks](docs/results/{atlas.RANKS.name}){measured})"
    yield from others
    counts = fill.count_verdicts((fill.ROOT / "docs" / "claims.md").read_text(encoding="utf-8"), fill.ROOT / "docs")
    heading, *sections = counts
    totals = {
        verdict: sum(sum(map(int, row[place].split(" + "))) for row in sections[:-1])
        for place, verdict in enumerate(heading)
        if place
    }
    parts = ", ".join(f"{number} {verdict}" for verdict, number in totals.items())
    links = "[claims](docs/claims.md), [in detail](docs/claims-details.md)"
    stored = {path.name.partition(".")[0] for path in fill.SCORES.glob("*.runs.csv*")}
    yield (
        f"Of {sum(totals.values())} claims of four papers, repeated at a small size: {parts} ({links}). {len(stored)} "
        "[tables](docs/results.md) and sets of verdicts have their scores stored per client, from which the tests "
        "compute them again ([every number defined](docs/measurement.md))."
    )
