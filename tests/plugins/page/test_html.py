"""The page is one file that loads nothing, escapes names, and is reproducible."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import unescape
from html.parser import HTMLParser

import pytest
import synthetic

from helpers import chart_rows
from pflcli.artifacts.kinds import evaluation
from pflcli.artifacts.reader import open_artifact
from pflcli.evaluation.charts import vega
from pflcli.evaluation.lineage import trace
from pflcli.evaluation.presentation.conclusion import DAGGER, Marks
from pflcli.evaluation.stored_comparison import read_comparison
from pflcli.plugins.page import html, runs
from pflcli.plugins.page.report import report


class Page(HTMLParser):
    """The elements of a page with their attributes, and what stands in scripts, styles and elsewhere."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.inside, self.text, self._open = [], {"script": [], "style": []}, "", ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._open = tag
        if tag in self.inside:
            self.inside[tag].append("")

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        if self._open in self.inside:
            self.inside[self._open][-1] += data
        else:
            self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def page_text(hostile, tmp_path, without_vega):
    report([hostile.path], tmp_path / "report.html")
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def test_page_shows_hostile_names_as_text(page_text, hostile):
    page = Page(page_text)
    assert len(page.all("script")) == 3
    assert all(item["src"].startswith("data:image/") for item in page.all("img"))
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    data = json.loads(page.inside["script"][0])
    assert "<" not in page.inside["script"][0]
    specs = data["sections"][0]["specs"]
    names = {row["client"] for spec in specs.values() for row in chart_rows(spec) if "client" in row}
    hostile_names = {vega.escape_name(name) for name in synthetic.HOSTILE}
    assert names == hostile_names
    options = [attributes["value"] for attributes in page.all("option")]
    assert {*options} == {"", *hostile_names}
    assert {"local@</script>", "<b>knn</b>"} <= {attributes.get("data-method") for attributes in page.all("button")}


def test_page_fetches_nothing_and_runs_only_its_own_scripts(page_text):
    page = Page(page_text)
    for _, attributes in page.elements:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            assert attributes.get(name, "#").startswith(("data:", "#"))
        assert "style" not in attributes
    policy = next(item["content"] for item in page.all("meta") if item.get("http-equiv"))
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for text in (*page.inside["script"][1:], *page.inside["style"]):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_page_table_is_accessible_and_sortable(page_text):
    page = Page(page_text)
    heads = [item for item in page.all("th") if item.get("scope") == "col" and "aria-sort" in item]
    assert len(heads) >= 6
    assert len([item for item in page.all("th") if item.get("scope") == "row"]) == 3
    assert all(item["alt"] for item in page.all("img"))
    assert all(item.get("aria-label") for _, item in page.elements if item.get("role") == "img")
    assert page.all("html")[0]["lang"] == "en"
    labels = {item.get("for") for item in page.all("label")}
    assert {item["id"] for item in page.all("select")} == labels


def test_page_marks_the_ranking_column_as_sorted(page_text):
    heads = re.findall(r'<th scope="col" aria-sort="(\w+)"><button type="button">([^<]*)<', page_text)
    assert [title for order, title in heads if order != "none"] == ["accuracy %"]
    assert dict(map(reversed, heads))["accuracy %"] == "descending"


def test_page_marks_the_same_best_scores_as_latex(page_text, hostile):
    metrics = evaluation.read(hostile)
    found = Marks.read(metrics, ["accuracy"])["accuracy"]
    cells = re.findall(
        r'<th scope="row" data-value="([^"]*)">.*?<td data-value="1">1</td><td( class="best")? [^>]*>([^/]*)/',
        page_text,
    )
    assert {unescape(label) for label, best, _ in cells if best} == found.best
    assert {unescape(label) for label, _, cell in cells if DAGGER in cell} == found.not_worse
    assert "Bold: the best score of a column;" in page_text


def test_everything_that_scrolls_has_a_hint(page_text):
    assert page_text.count('<div class="scroll') == page_text.count('class="hint"') > 1


def test_page_shows_the_answer_before_tables_and_charts(page_text):
    places = [
        page_text.index(text) for text in ('class="answer"', "<table", "<figure", "Repeat it", "What it was made")
    ]
    assert places == sorted(places)


def test_page_is_deterministic(compared, tmp_path, without_vega):
    for name in ("a", "b"):
        report([compared.path], tmp_path / name / "report.html")
    one, two = (
        {path.name: path.read_bytes() for path in sorted((tmp_path / name).rglob("*.*"))} for name in ("a", "b")
    )
    assert one == two
    assert str(tmp_path).encode() not in b"".join(one.values())


def test_embed_json_escapes_script_end_tags():
    text = html.embed_json({"a": "</script><!--\u2028"})
    assert "<" not in text
    assert "\u2028" not in text
    assert json.loads(text) == {"a": "</script><!--\u2028"}


def test_page_style_has_the_colours_of_the_charts():
    style = (html._FOLDER / "page.css").read_text()
    assert re.findall(r"\.m\d \{ stroke: (#\w+)", style) == [*vega.LIGHT, *vega.DARK]


def test_counts_of_methods_and_clients_agree_and_methods_that_were_left_out_are_named(compared, tmp_path, without_vega):
    artifact = open_artifact(compared.path)
    comparison = read_comparison(artifact)
    references = sum(bool(row.get("reference")) for row in comparison.rows)
    comparison.metrics["left_out"] = {"fedper": "fedper needs a head", "fedrep": "fedrep needs a head"}
    comparison.metrics["left_out"]["alone"] = "to compare it, type --methods fedavg,alone"
    section = html.Section(comparison, [], [], trace(artifact), runs.Runs())
    text = unescape(html._render_section(section, 0, several=False))
    facts = dict(re.findall(r"<li>(\w+(?: \w+)?) <b>(.*?)</b>", text))
    assert facts["methods"] == f"{len(comparison.rows) - references - 1} and the baseline"
    assert facts.get("references", "0") == str(references)
    assert facts["clients"] == str(len(comparison.clients.names))
    comparison.clients.__dict__["total"] = len(comparison.clients.names) + 1
    assert " of " in html._count_clients(comparison)
    assert "left out: fedper, fedrep (the method needs a head)" in text
    assert "left out: alone (to compare it, type --methods fedavg,alone)" in text
    assert "gain (points)" in text
