"""Charts contain the numbers of the comparison, and names are never part of an expression."""

from __future__ import annotations

import base64
import json
import re
from itertools import pairwise

import pytest
import synthetic

from helpers import chart_rows as rows
from pflcli.artifacts.reader import open_artifact
from pflcli.evaluation.charts import vega
from pflcli.evaluation.page import charts, lineage, runs
from pflcli.evaluation.page.comparison import metric_value, read_comparison


def draw_charts(artifact):
    comparison = read_comparison(artifact)
    charted = charts.draw(comparison, runs.read(comparison, lineage.trace(artifact)))
    return comparison, {chart.key: chart for chart in charted}


def iterate_expressions(node, key=""):
    """Every text of a specification in which an expression stands."""
    if isinstance(node, dict):
        for name, item in node.items():
            if name not in ("data", "values"):
                yield from iterate_expressions(item, name)
    elif isinstance(node, list):
        for item in node:
            yield from iterate_expressions(item, key)
    elif key in ("test", "filter", "expr", "calculate", "signal"):
        yield node


def test_charts_of_a_comparison_contain_its_numbers(compared):
    comparison, charted = draw_charts(open_artifact(compared.path))
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


def drawn_cost(artifact, megabytes, gains=None):
    """The chart of gains against bytes, if methods sent so many megabytes and had these gains."""
    comparison = read_comparison(artifact)
    for place, row in enumerate(comparison.metrics["methods"]):
        row["metrics"]["megabytes"]["value"] = megabytes[place]
        if gains is not None:
            row["metrics"]["gain"] |= {"value": gains[place], "interval": [gains[place] - 0.01, gains[place] + 0.01]}
    charted = charts.draw(comparison, runs.read(comparison, lineage.trace(artifact)))
    return next(chart for chart in charted if chart.key == "cost")


@pytest.mark.parametrize("megabytes", [[20.0] * 12, [0.0, 1.0, *[1000.0] * 10]])
@pytest.mark.parametrize("gains", [[0.0] * 12, [0.001 * n for n in range(12)], [0, *[0.2] * 11], [0, *[-0.2] * 11]])
def test_labels_beside_points_do_not_overlap_and_are_not_cut(tmp_path, megabytes, gains):
    methods = ["fedavg", *(f"method-{number:02}@variant" for number in range(11))]
    chart = drawn_cost(synthetic.write_comparison(tmp_path / "c", methods, ["a", "b", "c", "d"]), megabytes, gains)
    width = 388  # of the page on a telephone
    svg = vega.render({**chart.spec, "width": width}, "svg").decode()
    shift = float(re.search(r'<g fill="none"[^>]*translate\((\d+)', svg)[1])
    named = [
        (float(x), float(y)) for x, y in re.findall(r"translate\(([\d.]+),([\d.-]+)\)[^>]*>(?:method-|fedavg)", svg)
    ]
    assert len(named) == 12
    for (x, y), (_, below) in pairwise(sorted(named, key=lambda place: place[1])):
        assert below - y > 11
        assert shift + x + 16 * 5.5 < width
        assert 0 <= y < 320


def test_caption_says_logarithmic_only_when_the_axis_is(tmp_path):
    artifact = synthetic.write_comparison(tmp_path / "c", ["fedavg", "m1", "m2"], ["a", "b", "c", "d"])
    for megabytes, is_logarithmic in (
        ([0.0, 100.0, 200.0], False), ([0.0, 10.0, 200.0], True), ([0.0, 0.0, 0.0], False),
    ):  # fmt: skip
        chart = drawn_cost(artifact, megabytes)
        assert ("logarithmic" in chart.caption) == is_logarithmic
        assert ('"symlog"' in json.dumps(chart.spec)) == is_logarithmic


def test_tuned_options_of_the_same_name_have_a_chart_per_method(tmp_path):
    comparison, _ = draw_charts(
        synthetic.write_comparison(tmp_path / "c", ["fedavg", "ditto", "knn-per"], ["a", "b", "c"])
    )
    clients = comparison.clients
    values = clients.tuned["knn-per", "lambda"]
    clients.tuned.update({("ditto", "lambda"): 10 * values})
    charted = [chart for chart in charts.draw(comparison, runs.Runs()) if chart.key.startswith("tuned")]
    assert [chart.title for chart in charted] == [
        "Tuned by clients: lambda of knn-per", "Tuned by clients: lambda of ditto",
    ]  # fmt: skip
    for chart, method in zip(charted, ("knn-per", "ditto"), strict=True):
        assert {row["method"] for row in rows(chart.spec)} == {method}


def test_chart_expressions_contain_no_client_or_method_name(hostile):
    comparison, charted = draw_charts(hostile)
    for chart in charted.values():
        for expression in iterate_expressions(chart.spec):
            assert not any(name in expression for name in (*comparison.clients.names, *comparison.methods))


def test_captions_say_when_curves_or_clients_are_thinned(tmp_path):
    names = [f"c{number}" for number in range(1000)]
    _, charted = draw_charts(synthetic.write_comparison(tmp_path / "comparison", ["fedavg", "local"], names))
    assert "Curves go through 201 quantiles." in charted["ranked"].caption
    assert "200 of 1000 clients" in charted["dumbbell"].caption
    assert len([row for row in rows(charted["ranked"].spec) if "client" not in row]) <= 2 * 201 + 1


def test_chart_specifications_are_deterministic_json(compared):
    one, two = (draw_charts(open_artifact(compared.path))[1] for _ in range(2))
    assert {key: json.dumps(chart.spec, allow_nan=False) for key, chart in one.items()} == {
        key: json.dumps(chart.spec, allow_nan=False) for key, chart in two.items()
    }


def test_still_image_of_a_chart_is_an_svg_without_external_addresses(hostile):
    _, charted = draw_charts(hostile)
    url = charts.render_still(charted["cost"])
    assert url.startswith("data:image/svg+xml;base64,")
    svg = base64.b64decode(url.partition(",")[2]).decode()
    assert "&lt;b&gt;knn&lt;/b&gt;" in svg
    assert "<b>" not in svg
    assert {*re.findall(r'https?://[^"]+', svg)} <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def compute_luminance(colour):
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_chart_colours_have_enough_contrast():
    """Graphics need a contrast of 3 to 1 (WCAG 2.2, 1.4.11)."""
    for background, names in ((vega.PAPER, vega.dark_colours()), (vega.NIGHT, vega.dark_colours().values())):
        for colour in names:
            light, dark = sorted((compute_luminance(colour), compute_luminance(background)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 3, colour


def test_method_styles_are_distinct_for_40_methods():
    styles = vega.method_styles([f"m{number}" for number in range(40)], None)
    assert len({*styles.values()}) == 40
