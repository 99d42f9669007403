"""The pages of docs/methods: a card for each method, and what files of methods call."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

import pytest

from pflcli.core import registry

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "methods"
METHODS = registry.names("methods")


@pytest.fixture(scope="module")
def cards():
    """docs/cards.py as a module."""
    sys.path.insert(0, str(ROOT / "docs"))
    import cards

    sys.path.remove(str(ROOT / "docs"))
    return cards


def test_each_method_has_a_card():
    assert {path.stem for path in FOLDER.glob("*.md")} == {*METHODS, "calls"}


def test_cards_are_up_to_date(cards):
    for path, text in cards.write_files().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python docs/reference.py"


def test_cards_have_every_row_of_the_tables_of_all_methods():
    for name in ("all-methods-writers", "all-methods-fashion-mnist"):
        with (ROOT / "docs" / "results" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            rows = [*csv.DictReader(file)]
        for row in rows:
            method = re.split("[@ ]", row["method"])[0]  # also of references
            if method in METHODS:
                card = (FOLDER / f"{method}.md").read_text(encoding="utf-8")
                line = f"[{name}](../results/{name}.csv) | `{row['method']}` | {row['accuracy %']} |"
                assert line in card, row["method"]


def test_cards_name_what_gains_are_over_unless_it_is_fedavg():
    card = (FOLDER / "prior.md").read_text(encoding="utf-8")
    assert re.search(r"knn-peers-parts-emnist\.csv\).* over `knn-peers` \|", card)
    assert not re.search(r"atlas-emnist\.csv\).* over ", card)


def test_page_of_calls_has_all_that_methods_use_of_a_run_and_says_what_it_is():
    page = (FOLDER / "calls.md").read_text(encoding="utf-8")
    source = "".join(path.read_text(encoding="utf-8") for path in registry.folder("methods").rglob("*.py"))
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \| \d+ \|$", page, flags=re.M)
    assert {*re.findall(r"(?<![\w.])run\.(\w+)", source)} == {
        name.split(".")[1] for name, _ in rows if name.startswith("run.")
    }
    assert all(meaning for _, meaning in rows)
    imported = {
        name.strip()
        for block in re.findall(r"^ *from pflcli\.method import (\([^)]*\)|.*)$", source, flags=re.M)
        for name in block.strip("()").split(",")
        if name.strip()
    }
    assert imported == {name.split(".")[0] for name, _ in rows if not name.startswith("run.")}
