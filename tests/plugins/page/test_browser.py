"""The page in Chromium: no request, no error, linked charts, a table that sorts, and how large it may be."""

from __future__ import annotations

import re

import browser
import pytest
import synthetic

from pflcli.plugins.page import charts
from pflcli.plugins.page.report import report

pytestmark = pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium is installed")

CHIP = "[...document.querySelectorAll('.chip')].find((chip) => chip.dataset.method === {})"
TOLD = "document.querySelector('.told')"
COLUMN = "[...document.querySelectorAll('table.sortable tbody tr')].map((row) => row.cells[0].dataset.value)"


def test_page_draws_links_and_sorts_without_requests_or_errors(hostile, tmp_path, monkeypatch):
    page = tmp_path / "report.html"
    monkeypatch.setattr(charts, "render_still", lambda chart: "data:image/png;base64,AA==")  # they take seconds
    report([hostile.path], page)
    with browser.browser() as tab:
        tab.open(page, 1280, 3000)
        assert tab.requests == [page.as_uri()]
        assert tab.run("document.querySelectorAll('figure.live').length") == tab.run(
            "document.querySelectorAll('figure').length"
        )
        hostile_label = "'<b>knn</b>'"
        tab.run(CHIP.format(hostile_label) + ".click()")
        assert tab.run(CHIP.format(hostile_label) + ".getAttribute('aria-pressed')") == "true"
        assert tab.run("document.querySelector('tr.lit').dataset.method") == "<b>knn</b>"
        assert tab.run("document.querySelector('[data-shown]').textContent") == "<b>knn</b>"
        tab.run("document.querySelector('tr.lit td').click()")  # a row is clicked like the name in it
        assert tab.run("document.querySelectorAll('tr.lit').length") == 0
        tab.run("document.querySelector('tr[data-method] th button').click()")
        assert tab.run("document.querySelectorAll('tr.lit').length") == 1
        assert tab.run(TOLD + ".hidden")
        client = tab.run("[...document.querySelectorAll('select option')][1].value")
        tab.run(
            "(() => { const list = document.querySelector('select'); list.selectedIndex = 1;"
            " list.dispatchEvent(new Event('change')); })()"
        )
        told = tab.run(TOLD + ".textContent")
        assert told.startswith(f"{client} (")
        assert re.search(r"test samples\), accuracy: fedavg \d+ %, ", told)
        tab.run("document.querySelector('.reset').click()")
        assert tab.run(TOLD + ".hidden")
        ranked, order = tab.run(COLUMN), "document.querySelectorAll('table.sortable th')[2].getAttribute('aria-sort')"
        assert tab.run(order) == "descending"
        tab.run("document.querySelectorAll('table.sortable th button')[2].click()")
        assert tab.run(order) == "ascending"
        assert tab.run(COLUMN) == ranked[::-1]
        tab.open(page, 390, 800, dark=True)
        assert tab.run("document.documentElement.scrollWidth") == 390
        hint = "getComputedStyle(document.querySelector('.scroll + .hint')).display"
        assert tab.run(hint) == "block"  # the table is wider than the page
        tab.run("document.querySelector('.scroll').scrollLeft = 9999")
        tab.run("new Promise((done) => setTimeout(done, 100))")
        assert tab.run(hint) == "none"
        widths = tab.run("[...document.querySelectorAll('figure.wide .chart')].map((chart) => chart.clientWidth)")
        assert widths
        assert min(widths) > 600  # a wide picture scrolls, too
        assert tab.errors == []


@pytest.mark.long
def test_page_of_28_methods_and_10000_clients_opens_in_two_seconds(tmp_path):
    names = [f"client-{number:05}" for number in range(10_000)]
    artifact = synthetic.write_comparison(tmp_path / "comparison", ["fedavg", *(f"m{i}" for i in range(27))], names)
    page = tmp_path / "report.html"
    report([artifact.path], page)
    assert page.stat().st_size < 4e6
    with browser.browser() as tab:
        tab.open(page)  # what Chromium does when it starts is not the page's
        seconds = tab.open(page)
        assert seconds < 2
        assert tab.heap() < 300e6
        assert {*tab.requests} == {page.as_uri()}
        assert tab.errors == []
