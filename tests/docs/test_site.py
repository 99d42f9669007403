"""The site of the documentation builds without network, and its pages have a size that one reads."""

import html
import re
import subprocess
import sys
from pathlib import Path

import browser
import pytest

pytest.importorskip("properdocs", reason="pip install '.[docs]'")

WIDTH = 1_280
MAX_HEIGHT = 8_000
MEASURED = 12
"""So many pages are opened of those with the greatest estimated height, and of those with the greatest width."""
SIZES = """({
  height: document.documentElement.scrollHeight,
  width: Math.max(0, ...[...document.querySelectorAll("article table")].map((table) => table.scrollWidth)),
  aligned: [...new Set([...document.querySelectorAll("article :is(p, li, h1, h2, h3)")].map(
    (text) => getComputedStyle(text).textAlign))],
})"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "properdocs", "build", "--strict", "-d", str(folder)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def articles(site):
    """The content of each page of the site, in HTML."""
    pages = {str(path.relative_to(site)): path.read_text() for path in site.rglob("index.html")}
    return {name: text.split("<article")[1].split("</article>")[0] for name, text in pages.items()}


def test_documentation_site_builds_without_warnings(site):
    assert "Which personalization method works best" in (site / "index.html").read_text()


def test_pages_of_the_site_load_nothing_from_elsewhere(site):
    tags = [
        tag for page in site.rglob("*.html") for tag in re.findall(r"<(?:link|script|img)\b[^>]*>", page.read_text())
    ]
    assert any("stylesheet" in tag for tag in tags)
    assert [tag for tag in tags if re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag)] == []


def test_long_pages_are_in_parts_that_links_reach(site):
    """Links to a heading of a long page lead to its part, and the parts have the tables of CSV files."""
    claim = site / "claims-details" / "knn-per-k-does-not-matter" / "index.html"
    assert "Figure 5" in claim.read_text()
    assert (
        "claims-details/knn-per-k-does-not-matter/"
        in (site / "claims" / "knn-per-marfoq-et-al-2022" / "index.html").read_text()
    )
    assert "all-methods-writers.csv" in (site / "results" / "every-method" / "index.html").read_text()


def test_no_page_of_the_site_is_too_long_to_scroll_through(articles):
    """Holds without a browser, as it estimates heights; where there is Chromium, the last test measures them."""
    heights = {name: estimate_height(article) for name, article in articles.items()}
    assert max(heights.values()) > MAX_HEIGHT / 2
    assert [name for name, height in heights.items() if height > MAX_HEIGHT] == []


def test_no_table_of_the_site_is_wider_than_a_screen(articles):
    """Holds without a browser, too."""
    widths = {name: estimate_width(article) for name, article in articles.items()}
    assert max(widths.values()) > 1_000
    assert [name for name, width in widths.items() if width > WIDTH] == []


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium is installed")
def test_largest_pages_fit_and_are_left_aligned_in_chromium(site, articles):
    measured = {
        name
        for estimate in (estimate_height, estimate_width)
        for name in sorted(articles, key=lambda name: estimate(articles[name]))[-MEASURED:]
    }
    with browser.browser() as tab:
        for name in sorted(measured):
            tab.open(site / name, WIDTH)
            sizes = tab.run(SIZES)
            assert sizes["height"] <= MAX_HEIGHT, name
            assert sizes["width"] <= WIDTH, name
            assert sizes["aligned"] == ["start"], name
        assert [url for url in tab.requests if not url.startswith("file:")] == []


def estimate_height(article):
    """Return the pixels that a page takes without its pictures and without what one must click to see.

    The numbers were fitted to 294 pages in Chromium, and come within 1,000 pixels of each that has no large picture.
    """
    shown = re.sub(r"<details.*?</details>", "", article, flags=re.S)
    code = "".join(re.findall(r"<pre.*?</pre>", shown, flags=re.S)).count("\n")
    headings = len(re.findall(r"<h[1-6]", shown))
    words = len(re.sub(r"<[^>]*>", " ", shown).split())
    rows = shown.count("<tr>") + shown.count("<li>")
    return 350 + 0.7 * words + 33 * rows + 98 * shown.count("<p>") + 56 * headings + 14 * code


def estimate_width(article):
    """Return the pixels of the widest table: a table is as wide as the longest words of its columns and their margins.

    In Chromium, the ten widest tables had within 100 pixels of 7 per letter and 18 per column.
    """
    widths = [0]
    for table in re.findall(r"<table>.*?</table>", article, flags=re.S):
        rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, flags=re.S) for row in table.split("<tr>")[1:]]
        shown = [[html.unescape(re.sub(r"<[^>]*>", "", cell)) for cell in row] for row in rows]
        longest = [
            max(len(word) for cell in column for word in re.split(r"[\s-]", cell))
            for column in zip(*shown, strict=False)
        ]
        widths.append(sum(7 * letters + 18 for letters in longest))
    return max(widths)
