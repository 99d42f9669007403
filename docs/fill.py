"""Renew the tables of measurements: CSV files in docs/results, and the rows of them that pages show.

    python docs/fill.py               # the rows that pages show
    python docs/fill.py all-methods   # before that, the CSV files whose commands contain all-methods

docs/results/commands.toml has the commands, which run in the folder that one types this in. If one fails, its files
stay as they are, and it is named at the end. Rows of claims that were not judged again also stay. A page shows rows
between two comments. The first names one or several CSV files, each after a label, then the rows by their first cells
and the columns (all if there are none):

    <!-- rows of writers=results/a.csv, fashion=results/b.csv | fedavg; local | accuracy %; gain (points) -->
    <!-- end -->

Verdicts of ``pfl verify`` are shown in three ways: the claims of a paper, and the sizes of their experiments; claims
without a place in a paper, which are questions of ours; and how often each section has each verdict, also in the tables
that were typed:

    <!-- claims of results/verdicts-a.csv -->
    <!-- questions of kNN-Per=results/verdicts-a.csv, PANM=results/verdicts-b.csv -->
    <!-- verdicts -->
"""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_SHOWN = re.compile(r"(<!-- rows of (?P<files>.+?) \|(?P<rows>.*?)\|(?P<columns>.*?)-->\n).*?<!-- end -->", flags=re.S)
_JUDGED = re.compile(r"(<!-- (?P<kind>claims|questions) of (?P<files>.+?) -->\n).*?<!-- end -->", flags=re.S)
_COUNTED = re.compile(r"(<!-- verdicts -->\n).*?<!-- end -->", flags=re.S)

VERDICTS = ("confirmed", "in part", "not confirmed", "undecided", "not testable")
_COLUMNS = ("says", "verdict", "decided by", "condition", "holds in", "where", "claim")
"""The columns of claims on a page; the size of an experiment is in a table of its own."""

Rows = list[list[str]]


def main() -> int:
    """Rewrite files and pages; return 1 if a command failed."""
    failed = run_commands(sys.argv[1]) if len(sys.argv) > 1 else []
    for page in PAGES:
        page.write_text(fill(page.read_text(encoding="utf-8"), page.parent), encoding="utf-8")
    for line in failed:
        print(f"not filled: {line}", file=sys.stderr)
    return int(bool(failed))


def run_commands(word: str) -> list[str]:
    """Write the CSV files of all commands that contain a word; return those that failed, with the reason."""
    failed = []
    for command, names in tomllib.loads((RESULTS / "commands.toml").read_text(encoding="utf-8")).items():
        if word not in command:
            continue
        ran = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        tables = parse_tables(ran.stdout)
        if ran.returncode or len(tables) < len(names):
            failed.append(f"{command}: {(ran.stderr.strip().splitlines() or ['too few tables printed'])[-1]}")
            continue
        for name, table in zip(names, tables, strict=False):
            if name:
                text, path = io.StringIO(), RESULTS / f"{name}.csv"
                rows = keep_rows(read(path), table) if name.startswith("verdicts-") and path.exists() else table
                csv.writer(text, lineterminator="\n").writerows(rows)
                path.write_text(text.getvalue(), encoding="utf-8")
    return failed


def keep_rows(old: Rows, new: Rows) -> Rows:
    """Return the old rows, each replaced by the new row with the same first cell, then the other new rows.

    Tables of verdicts are renewed so, because ``pfl verify --only`` judges some of the claims. If the columns differ,
    only the new rows are left.
    """
    if old[0] != new[0]:
        return new
    return [*({row[0]: row for row in old} | {row[0]: row for row in new}).values()]


def parse_tables(text: str) -> list[Rows]:
    """Return the tables of a text in Markdown, without the marks of code."""
    tables: list[Rows] = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            tables[-1].append([cell.strip().replace("`", "") for cell in line.strip()[1:-1].split("|")])
        elif tables[-1]:
            tables.append([])
    return [[heading, *rows] for heading, _, *rows in filter(None, tables)]


def fill(page: str, folder: Path) -> str:
    """Return a page of a folder with the rows that its comments name."""

    def read_all(block: re.Match[str]) -> tuple[dict[str, Rows], str]:
        files = dict(re.findall(r"(?:([^=,]+)=)?([^=,\s]+)", block["files"]))
        links = ", ".join(f"[{Path(path).stem}]({path})" for path in files.values())
        return {label.strip(): read(folder / path) for label, path in files.items()}, f"CSV: {links}\n<!-- end -->"

    def show(block: re.Match[str]) -> str:
        tables, end = read_all(block)
        names, columns = (
            [item.strip() for item in block[part].split(";") if item.strip()] for part in ("rows", "columns")
        )
        return f"{block[1]}{to_markdown(select(tables, names, columns))}\n\n{end}"

    def show_judged(block: re.Match[str]) -> str:
        tables, end = read_all(block)
        listed = [list_questions(tables)] if block["kind"] == "questions" else [list_claims(tables), list_sizes(tables)]
        return block[1] + "\n\n".join([*map(to_markdown, listed), end])

    page = _JUDGED.sub(show_judged, _SHOWN.sub(show, page))
    counted = to_markdown(count_verdicts(page, folder)) if _COUNTED.search(page) else ""
    return _COUNTED.sub(lambda block: f"{block[1]}{counted}\n<!-- end -->", page)


def _judged(tables: dict[str, Rows], kind: str) -> list[tuple[str, dict[str, str]]]:
    """Return the claims of papers, or the questions without a place in one, each with the label of its table."""
    rows = ((label, dict(zip(table[0], row, strict=True))) for label, table in tables.items() for row in table[1:])
    return [(label, row) for label, row in rows if bool(row["where"]) is (kind == "claims")]


def list_claims(tables: dict[str, Rows]) -> Rows:
    """Return the claims of a paper with their verdicts; in how many settings one holds, but not in which."""
    rows = [row | {"holds in": row["holds in"].partition(":")[0]} for _, row in _judged(tables, "claims")]
    return [[*_COLUMNS], *([row[name] for name in _COLUMNS] for row in rows)]


def list_questions(tables: dict[str, Rows]) -> Rows:
    """Return the questions that no paper answers, with their verdicts and the method that they are about."""
    columns = [name for name in _COLUMNS if name != "where"]
    rows = [
        (label, row | {"holds in": row["holds in"].partition(":")[0]}) for label, row in _judged(tables, "questions")
    ]
    return [["about", *columns], *([label, *(row[name] for name in columns)] for label, row in rows)]


def list_sizes(tables: dict[str, Rows]) -> Rows:
    """Return the experiments of all rows, with their size and what the paper has instead."""
    rows = (dict(zip(table[0], row, strict=True)) for table in tables.values() for row in table[1:])
    parts = dict.fromkeys(part for row in rows for part in row["size"].split("; "))
    cells = [re.fullmatch(r"(.+?): (.+?)(?: \(paper: (.*)\))?", part) for part in parts]
    return [["experiment", "size", "the paper has"], *([cell[1], cell[2], cell[3] or "-"] for cell in cells if cell)]


def count_verdicts(page: str, folder: Path) -> Rows:
    """Return how often a page has each verdict, by section: those of ``pfl verify`` + those of its tables by hand."""
    counts = list[list[str]]()
    for section in re.split(r"^(?=## )", page, flags=re.M):
        blocks = [*_JUDGED.finditer(section)]
        if not blocks:
            continue
        title = section.splitlines()[0].removeprefix("## ")
        judged = [
            row["verdict"]
            for block in blocks
            for _, path in re.findall(r"(?:([^=,]+)=)?([^=,\s]+)", block["files"])
            for _, row in _judged({"": read(folder / path)}, block["kind"])
        ]
        typed = [
            re.sub(r"[*]", "", row[table[0].index("verdict")])
            for table in parse_tables(_JUDGED.sub("", section))
            if "verdict" in table[0]
            for row in table[1:]
        ]
        by_hand = [next(name for name in VERDICTS if text.startswith(name)) for text in typed]
        counts.append([title, *(f"{judged.count(name)} + {by_hand.count(name)}" for name in VERDICTS)])
    return [["", *VERDICTS], *counts]


def read(path: Path) -> Rows:
    """Return the rows of a CSV file, its heading first."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def select(tables: dict[str, Rows], names: list[str], columns: list[str]) -> Rows:
    """Return rows of one table, or of several side by side, where the label of a table precedes its columns.

    Raises ValueError for a row or a column that no table has.
    """
    if unknown := {*names} - {row[0] for rows in tables.values() for row in rows}:
        raise ValueError(f"no row {', '.join(sorted(unknown))}")
    parts = {label: _choose(table, names, columns) for label, table in tables.items()}
    if len(parts) == 1:
        return next(iter(parts.values()))
    first = next(iter(parts.values()))
    joined = [[first[0][0], *(f"{label}: {title}" for label, part in parts.items() for title in part[0][1:])]]
    for key in names or [row[0] for row in first[1:]]:
        cells = ({row[0]: row[1:] for row in part}.get(key, ["-"] * (len(part[0]) - 1)) for part in parts.values())
        joined.append([key, *(cell for row in cells for cell in row)])
    return joined


def _choose(table: Rows, names: list[str], columns: list[str]) -> Rows:
    """Return the named rows and columns of a table, all if none are named."""
    heading, *rows = table
    places = [0, *(heading.index(column) for column in columns or heading[1:])]
    chosen = [row for name in names for row in rows if row[0] == name] if names else rows
    return [[row[place] for place in places] for row in [heading, *chosen]]


def to_markdown(rows: Rows) -> str:
    """Return rows as a table in Markdown, names of methods as code."""
    heading, *body = rows
    if heading[0] == "method":
        body = [[f"`{first}`" if re.fullmatch(r"[a-z][\w@.-]*", first) else first, *rest] for first, *rest in body]
    is_number = [2 * sum(map(_is_number, cells)) > len(cells) for cells in zip(*body, strict=True)]
    lines = [heading, ["---", *("---:" if right else "---" for right in is_number[1:])], *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _is_number(cell: str) -> bool:
    """Whether a cell is a number, also with an interval or a unit, or empty: a column of them is right-aligned."""
    return not re.search(r"[^\W\d]{4}", cell) and bool(re.match(r"[*\[(~<>=]*([+±-]?[\d.]|-?$|nan)", cell.strip()))


if __name__ == "__main__":
    raise SystemExit(main())
