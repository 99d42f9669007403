"""Renew the tables of measurements: CSV files in docs/results, and the rows of them that pages show.

    python docs/fill.py               # the rows that pages show
    python docs/fill.py all-methods   # before that, the CSV files whose commands contain all-methods

docs/results/commands.toml has the commands, which run in the folder that one types this in. If one fails, its files
stay as they are, and it is named at the end. Rows of claims that were not judged again also stay. Beside the table, the
scores from which it follows are stored in docs/results/scores: those of the artifact that the table [scores] of
commands.toml names, compressed where they are large. A page shows rows
between two comments. The first names one or several CSV files, each after a label, then the rows by their first cells
and the columns (all if there are none):

    <!-- rows of writers=results/a.csv, fashion=results/b.csv | fedavg; local | accuracy %; gain (points) -->
    <!-- end -->

Verdicts, those of ``pfl verify`` and those by hand in a file with a column ``paper``, are shown in four ways: a line
per claim of a paper, which leads to the details; a line per claim without a place in a paper, which is a question of
ours; all that is stored about each of them; and how often each section has each verdict:

    <!-- claims of kNN-Per=results/verdicts-a.csv, kNN-Per=results/claims-by-hand.csv -->
    <!-- questions of kNN-Per=results/verdicts-a.csv, PANM=results/verdicts-b.csv -->
    <!-- details of kNN-Per=results/verdicts-a.csv, kNN-Per=results/claims-by-hand.csv -->
    <!-- verdicts -->

A cell of a file by hand names cells of other tables in braces, and shows what they contain. A difference of two, which
are means with their standard deviations over three seeds, is shown with the interval of two independent samples:

    {frozen-cifar10[local; gain (points)]}
    {knn-per-seen[cifar10; knn-per; 2] - knn-per-seen[cifar10; fedrep; 2]}    (the second number of each cell)
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
SCORES = RESULTS / "scores"
STORED = ("runs.csv", "clients.csv", "settings.csv")
"""The files of an artifact that are stored as scores; only verdicts have the last one."""
_MAX_PLAIN = 200_000
"""Most bytes of a file of scores that is not compressed."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_SHOWN = re.compile(r"(<!-- rows of (?P<files>.+?) \|(?P<rows>.*?)\|(?P<columns>.*?)-->\n).*?<!-- end -->", flags=re.S)
_JUDGED = re.compile(r"(<!-- (?P<kind>claims|questions|details) of (?P<files>.+?) -->\n).*?<!-- end -->", flags=re.S)
_COUNTED = re.compile(r"(<!-- verdicts -->\n).*?<!-- end -->", flags=re.S)

VERDICTS = ("confirmed", "in part", "not confirmed", "undecided", "not testable")
_DETAILS = "claims-details.md"
_CELL = re.compile(r"([\w-]+)\[([^;\]]+); ([^;\]]+)(?:; (\d))?\]")
_T = 4.303
"""Student's t at 97.5 % for three seeds."""

Claim = dict[str, str]
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
    failed, commands = [], tomllib.loads((RESULTS / "commands.toml").read_text(encoding="utf-8"))
    artifacts = commands.pop("scores")
    for command, names in commands.items():
        if word not in command:
            continue
        ran = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        tables = parse_tables(ran.stdout)
        if ran.returncode or len(tables) < len(names):
            failed.append(f"{command}: {(ran.stderr.strip().splitlines() or ['too few tables printed'])[-1]}")
            continue
        for name, table in zip(names, tables, strict=False):
            if name:
                store_table(name, table)
                if name in artifacts and not store_scores(name, Path(artifacts[name])):
                    failed.append(f"{name}: {artifacts[name]} has no scores; make it again with --force")
    return failed


def store_table(name: str, table: Rows, folder: Path = RESULTS) -> None:
    """Store a table; rows of verdicts that were not judged again stay."""
    path = folder / f"{name}.csv"
    rows = keep_rows(read(path), table) if name.startswith("verdicts-") and path.exists() else table
    path.write_text(to_csv(rows), encoding="utf-8")


def store_scores(name: str, artifact: Path, folder: Path = SCORES) -> bool:
    """Store the scores of an artifact for the table ``name``, unless it has none; return whether it has.

    Scores of verdicts that were not judged again stay.
    """
    if not (artifact / STORED[0]).exists():
        return False
    folder.mkdir(exist_ok=True)
    for file in filter(lambda file: (artifact / file).exists(), STORED):
        rows = read(artifact / file)
        plain, packed = (folder / f"{name}.{file}{ending}" for ending in ("", ".gz"))
        for old in (plain, packed):
            if old.exists() and name.startswith("verdicts-"):
                rows = keep_rows(read(old), rows)
            old.unlink(missing_ok=True)
        content = to_csv(rows).encode()
        if len(content) > _MAX_PLAIN:
            packed.write_bytes(gzip.compress(content, mtime=0))
        else:
            plain.write_bytes(content)
    return True


def keep_rows(old: Rows, new: Rows) -> Rows:
    """Return the old rows, those with the first cell of new rows replaced by these, then the other new rows.

    Tables of verdicts and their scores are renewed so, because ``pfl verify --only`` judges some of the claims. A row
    without a column of the others has an empty cell.
    """
    groups: dict[str, list[dict[str, str]]] = {}
    for rows in (old, new):
        named: dict[str, list[dict[str, str]]] = {}
        for row in rows[1:]:
            named.setdefault(row[0], []).append(dict(zip(rows[0], row, strict=True)))
        groups |= named
    heading = [*dict.fromkeys([*new[0], *old[0]])]
    return [heading, *([row.get(key, "") for key in heading] for rows in groups.values() for row in rows)]


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

    def show(block: re.Match[str]) -> str:
        files = dict(_list_files(block["files"]))
        names, columns = (
            [item.strip() for item in block[part].split(";") if item.strip()] for part in ("rows", "columns")
        )
        tables = {label: read(folder / path) for label, path in files.items()}
        return f"{block[1]}{to_markdown(select(tables, names, columns))}\n\n{_lead(files.values())}<!-- end -->"

    def show_judged(block: re.Match[str]) -> str:
        claims = read_claims(block["files"], folder, block["kind"])
        if block["kind"] == "details":
            files = dict.fromkeys(path for _, path in _list_files(block["files"]))
            return f"{block[1]}{describe_claims(claims)}\n\n{_lead(files)}<!-- end -->"
        return f"{block[1]}{to_markdown(list_claims(claims, block['kind']))}\n<!-- end -->"

    page = _JUDGED.sub(show_judged, _SHOWN.sub(show, page))
    counted = to_markdown(count_verdicts(page, folder)) if _COUNTED.search(page) else ""
    return _COUNTED.sub(lambda block: f"{block[1]}{counted}\n<!-- end -->", page)


def _list_files(text: str) -> list[tuple[str, str]]:
    """Return the labels and paths that a comment names, such as ``label=path, path``."""
    return [(label.strip(), path) for label, path in re.findall(r"(?:([^=,]+)=)?([^=,\s]+)", text)]


def _lead(paths: Iterable[str]) -> str:
    """Return the line that leads to CSV files."""
    return f"CSV: {', '.join(f'[{Path(path).stem}]({path})' for path in paths)}\n"


def read_claims(files: str, folder: Path, kind: str = "details") -> list[tuple[str, Claim]]:
    """Return the claims of papers, the questions without a place in one, or both, each with the label of its file.

    Of a file by hand, these are the rows whose paper is the label.
    """
    claims = list[tuple[str, Claim]]()
    for label, path in _list_files(files):
        heading, *rows = read(folder / path)
        for row in (dict(zip(heading, cells, strict=True)) for cells in rows):
            if row.get("paper", label) == label and kind in ("details", "claims" if row["where"] else "questions"):
                claims.append((label, {name: measure(cell, (folder / path).parent) for name, cell in row.items()}))
    return claims


def measure(text: str, folder: Path) -> str:
    """Return a text with what the cells of the tables in a folder contain that it names in braces."""

    def show(named: re.Match[str]) -> str:
        cells = [_look_up(folder, *cell.groups()) for cell in _CELL.finditer(named[0])]
        if len(cells) == 1:
            return cells[0]
        (mean, std), (other, other_std) = (map(float, cell.split(" ± ")) for cell in cells)
        half = _T * math.hypot(std, other_std) / math.sqrt(3)
        return f"{mean - other:+.1f} [{mean - other - half:+.1f}, {mean - other + half:+.1f}]"

    return re.sub(r"\{[\w-]+\[[^}]+\]\}", show, text)


def _look_up(folder: Path, name: str, row: str, column: str, part: str | None) -> str:
    """Return a cell of the table ``name``, or a part of it between slashes, counted from 1."""
    heading, *rows = read(folder / f"{name}.csv")
    cell = next(cells for cells in rows if cells[0] == row)[heading.index(column)]
    return cell if part is None else re.split(r" / | \(", cell)[int(part) - 1]


def list_claims(claims: Sequence[tuple[str, Claim]], kind: str) -> Rows:
    """Return a line per claim: what it says, its place, the verdict, what decided it, and settings and seeds."""
    second = "where" if kind == "claims" else "about"
    listed = [["claim", second, "verdict", "effect", "settings", "seeds"]]
    for label, row in claims:
        name = _title(label, row).lower()
        anchor = re.sub(r"[^\w -]", "", name).replace(" ", "-")
        effect = row.get("effect") or re.sub(r" on .*?: (?=\w+ [+-]|\w+$)", ": ", row.get("decided by", ""))
        is_judged = "holds in" in row
        settings = row["holds in"].partition(" setting")[0] if is_judged else "by hand"
        counted = ", ".join(dict.fromkeys(re.findall(r"(\d+) seeds?\b", row.get("size", ""))))
        seeds = counted if is_judged else row.get("seeds")
        cells = [row["where"] if kind == "claims" else label, row["verdict"], effect, settings, seeds]
        listed.append([f"[{row['says']}]({_DETAILS}#{anchor})", *(cell or "-" for cell in cells)])
    return listed


def describe_claims(claims: Sequence[tuple[str, Claim]]) -> str:
    """Return a section for each claim with all that is stored about it."""
    return "\n\n".join(
        f"### {_title(label, row)}\n\n{row['says']}: **{row['verdict']}**.\n\n"
        + "\n".join(
            f"- {name}: {cell}"
            for name, cell in row.items()
            if cell and name not in ("paper", "claim", "says", "verdict")
        )
        for label, row in claims
    )


def _title(label: str, row: Claim) -> str:
    return f"{label}: {row['claim']}"


def count_verdicts(page: str, folder: Path) -> Rows:
    """Return how often a page has each verdict, by section: those of ``pfl verify`` + those by hand."""
    counts = list[list[str]]()
    for section in re.split(r"^(?=## )", page, flags=re.M):
        blocks = [*_JUDGED.finditer(section)]
        if not blocks:
            continue
        title = section.splitlines()[0].removeprefix("## ")
        claims = [row for block in blocks for _, row in read_claims(block["files"], folder, block["kind"])]
        judged, by_hand = ([row["verdict"] for row in claims if ("paper" in row) is typed] for typed in (False, True))
        counts.append([title, *(f"{judged.count(name)} + {by_hand.count(name)}" for name in VERDICTS)])
    return [["", *VERDICTS], *counts]


def read(path: Path) -> Rows:
    """Return the rows of a CSV file, also of a compressed one, its heading first."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
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


def to_csv(rows: Rows) -> str:
    """Return rows as the text of a CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


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
