"""Charts are data: their rows are the numbers of the comparison, and no name is part of an expression."""

from __future__ import annotations

import base64
import json
import re

import pytest
import synthetic

from helpers import chart_rows as rows
from pflcli.artifacts.reader import open_artifact
from pflcli.evaluation.charts import vega
from pflcli.evaluation.page import charts, lineage, runs
from pflcli.evaluation.page.comparison import metric_value, read_comparison


def drawn(artifact):
    comparison = read_comparison(artifact)
    charted = charts.draw(comparison, runs.read(comparison, lineage.trace(artifact)))
    return comparison, {chart.key: chart for chart in charted}


def expressions(node, key=""):
    """Every text of a specification in which an expression stands."""
    if isinstance(node, dict):
        for name, item in node.items():
            if name not in ("data", "values"):
                yield from expressions(item, name)
    elif isinstance(node, list):
        for item in node:
            yield from expressions(item, key)
    elif key in ("test", "filter", "expr", "calculate", "signal"):
        yield node


def test_the_charts_of_a_comparison(compared):
    comparison, charted = drawn(open_artifact(compared.path))
    assert [*charted][:5] == ["ranked", "cost", "dumbbell", "curves", "tuned-0"]
    assert "holdings" in charted
    for chart in charted.values():
        assert {"method", "client"} <= {item["name"] for item in chart.spec["params"]}
        assert chart.caption.endswith(".")
        assert rows(chart.spec)
    gains = [row for row in rows(charted["dumbbell"].spec) if row["method"] == "knn-per"]
    scores = dict(zip(comparison.clients.names, comparison.clients.scores["knn-per"], strict=True))
    assert {row["client"]: row["score"] for row in gains} == pytest.approx(scores, abs=1e-4)
    assert [row["place"] for row in gains] == sorted(row["place"] for row in gains)
    megabytes = {row["method"]: row["MB"] for row in rows(charted["cost"].spec) if "MB" in row}
    assert megabytes["knn-per"] == pytest.approx(metric_value(comparison.row("knn-per"), "megabytes"), rel=1e-4)


def test_no_name_is_part_of_an_expression(hostile):
    comparison, charted = drawn(hostile)
    for chart in charted.values():
        for expression in expressions(chart.spec):
            assert not any(name in expression for name in (*comparison.clients.names, *comparison.methods))


def test_what_is_thinned_says_so(tmp_path):
    names = [f"c{number}" for number in range(1000)]
    _, charted = drawn(synthetic.comparison(tmp_path / "comparison", ["fedavg", "local"], names))
    assert "Curves go through 201 quantiles." in charted["ranked"].caption
    assert "200 of 1000 clients" in charted["dumbbell"].caption
    assert len([row for row in rows(charted["ranked"].spec) if "client" not in row]) <= 2 * 201 + 1


def test_a_specification_is_json_and_the_same_again(compared):
    one, two = (drawn(open_artifact(compared.path))[1] for _ in range(2))
    assert {key: json.dumps(chart.spec, allow_nan=False) for key, chart in one.items()} == {
        key: json.dumps(chart.spec, allow_nan=False) for key, chart in two.items()
    }


def test_a_picture_that_stands_in_is_an_svg_without_foreign_addresses(hostile):
    _, charted = drawn(hostile)
    url = charts.render_still(charted["cost"])
    assert url.startswith("data:image/svg+xml;base64,")
    svg = base64.b64decode(url.partition(",")[2]).decode()
    assert "&lt;b&gt;knn&lt;/b&gt;" in svg
    assert "<b>" not in svg
    assert {*re.findall(r'https?://[^"]+', svg)} <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def luminance(colour):
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_stand_out_from_their_background():
    """Graphics need a contrast of 3 to 1 (WCAG 2.2, 1.4.11)."""
    for background, names in ((vega.PAPER, vega.dark_colours()), (vega.NIGHT, vega.dark_colours().values())):
        for colour in names:
            light, dark = sorted((luminance(colour), luminance(background)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 3, colour


def test_each_of_40_methods_has_a_style_of_its_own():
    styles = vega.method_styles([f"m{number}" for number in range(40)], None)
    assert len({*styles.values()}) == 40
