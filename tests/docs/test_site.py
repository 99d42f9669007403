"""The site of the documentation can be built without network, and its pages have a length that one reads."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("material", reason="pip install '.[docs]'")


MAX_WORDS = 3_000
"""On a page of this many words, most of them in tables, one scrolls through 8,000 pixels at a width of 1,280."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return folder


def test_documentation_site_builds_without_warnings(site):
    assert "Which personalization method works best" in (site / "index.html").read_text()


def test_long_pages_are_in_parts_that_links_reach(site):
    """Links to a heading of a long page lead to its part, and the parts have the tables of CSV files."""
    claim = site / "claims-details" / "knn-per-k-does-not-matter" / "index.html"
    assert "Figure 5" in claim.read_text()
    assert (
        "claims-details/knn-per-k-does-not-matter/"
        in (site / "claims" / "knn-per-marfoq-et-al-2022" / "index.html").read_text()
    )
    assert "all-methods-writers.csv" in (site / "results" / "every-method" / "index.html").read_text()


def test_no_page_of_the_site_is_too_long_to_scroll_through(site):
    pages = {str(path.relative_to(site)): path.read_text() for path in site.rglob("index.html")}
    shown = {name: text.split("<article")[1].split("</article>")[0] for name, text in pages.items()}
    folded = {name: re.sub(r"<details.*?</details>", "", text, flags=re.S) for name, text in shown.items()}
    words = {name: len(re.sub(r"<[^>]*>", " ", text).split()) for name, text in folded.items()}
    assert max(words.values()) > 1_000
    assert [name for name, count in words.items() if count > MAX_WORDS] == []
