"""What docs/choosing.md and README say of methods follows from the tables that they link."""

from __future__ import annotations

import csv
import re
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest
from test_atlas import write_scores

from pflcli.core import registry

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def evidence():
    """docs/evidence.py as a module."""
    sys.path.insert(0, str(ROOT / "docs"))
    import evidence

    sys.path.remove(str(ROOT / "docs"))
    return evidence


def test_pages_are_up_to_date(evidence):
    for path, text in evidence.write_files().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python docs/reference.py"


def test_scores_of_the_atlas_are_read_by_kind_of_shift(evidence, tmp_path, monkeypatch):
    found = evidence.atlas.Atlas.read(write_scores(tmp_path, ["one", "three"]))
    tables = {shift: [table.name for table in of_shift] for shift, of_shift in evidence.list_tables(found).items()}
    assert tables["labels"] == ["atlas-one"]
    assert tables["features"] == ["atlas-three"]
    assert tables["concept"] == tables["none"] == []
    first, second, *_ = evidence.list_evidence(found)
    assert "best mean rank over 2 federations" in first
    assert "2 of 3 federations" in first
    assert "costs least" in second
    for path in evidence.fill.RESULTS.glob("*.csv"):
        shutil.copy(path, tmp_path)
    for name in ("one", "three"):
        shutil.copy(tmp_path / "all-methods-writers.csv", tmp_path / f"atlas-{name}.csv")
    monkeypatch.setattr(evidence.fill, "RESULTS", tmp_path)
    rows = evidence.choose(found).splitlines()
    assert [row for row in rows if "data one" in row and "(results/atlas-one.csv)" in row]
    assert not [row for row in rows if "have **different classes**" in row and "Fashion-MNIST" in row]


def test_every_kind_of_shift_is_described(evidence):
    found = evidence.atlas.Atlas.read()
    shifts = {shift for federation in found.federations for shift in federation.shift}
    assert shifts <= {*evidence.atlas._KINDS}
    assert shifts <= {*evidence._CLIENTS}


def read_cells(path):
    """Return the names and the numbers of a stored table; a name is the first cell of a row or of a column."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    names = {name.partition(":")[0].removesuffix(" (reference)") for name in [*rows[0], *(row[0] for row in rows)]}
    cells = (cell for row in rows for cell in row)
    return names, {float(number.replace(",", "")) for cell in cells for number in re.findall(r"-?\d[\d,]*\.?\d*", cell)}


def find_unfounded(text, folder):
    """Return the sentences of a text whose methods or figures are in none of the tables that they link."""
    known, unfounded = {*registry.names("methods")}, []
    for line in text.splitlines():
        if not re.search(r"`|\d\.\d", line):
            continue
        tables = [read_cells(folder / path) for path in re.findall(r"\]\(([^)]+\.csv)\)", line)]
        names, numbers = (set().union(*parts) for parts in zip(*tables, strict=True)) if tables else (set(), set())
        line = re.sub(r"\]\([^)]*\)|Dirichlet 0\.\d", "]", line)
        figures = {float(number.replace(",", "")) for number in re.findall(r"-?\d[\d,]*\.\d+", line.replace("+", " "))}
        methods = {name for name in re.findall(r"`([\w@-]+)`", line) if name in known | {"stack"}}
        if not tables or not methods <= names or not figures <= numbers:
            unfounded.append((line, methods - names, figures - numbers))
    return unfounded


def test_no_sentence_of_choosing_lacks_its_row():
    page = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    found = page.partition("<!-- evidence -->\n")[2].partition("<!-- end -->")[0]
    assert found.count("](results/") > 10
    assert find_unfounded(found, ROOT / "docs") == []
    by_hand = page.replace(found, "")
    assert re.findall(r"\d+\.\d", by_hand) == [], "figures come from tables"
    assert {*re.findall(r"`([\w-]+)`", by_hand)} & {*registry.names("methods")} == set()


@pytest.mark.parametrize(
    "line",
    [
        "| `knn-per` 94.9 |",
        "| `knn-per` 99.9 | [table](results/all-methods-writers.csv) |",
        "| `fedbn` | [table](results/rivals-writers.csv) |",
    ],
)
def test_sentences_without_their_row_are_found(line):
    assert find_unfounded(line, ROOT / "docs")


def test_counts_of_choosing_follow_from_their_tables():
    page = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    rows = re.findall(r"`(alone|local)` ([\d.]+) \| (\d+) of (\d+) methods \| \[table\]\((\S+)\)", page)
    assert rows
    for alone, accuracy, below, every, path in rows:
        table = pd.read_csv(ROOT / "docs" / path, index_col=0)
        own = table.loc[[name for name in table.index if name.removesuffix(" (reference)") == alone]].iloc[0]
        column = next(name for name, cell in own.items() if str(cell).startswith(f"{accuracy} "))
        others = [
            float(re.match(r"[\d.]+", cell)[0]) for name, cell in table[column].items()
            if "@" not in name and "(reference)" not in name and name not in ("oracle", "local", "alone", "stack")
        ]  # fmt: skip
        assert len(others) == int(every)
        assert sum(other < float(accuracy) for other in others) == int(below)
