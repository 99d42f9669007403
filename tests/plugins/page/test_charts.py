"""Charts contain the numbers of the comparison, and names are never part of an expression."""

from __future__ import annotations

import base64
import json
import math
import re
from itertools import combinations, pairwise

import numpy as np
import pytest
import synthetic

from helpers import chart_rows as rows
from pflcli.artifacts.reader import open_artifact
from pflcli.evaluation import lineage
from pflcli.evaluation.charts import vega
from pflcli.evaluation.stored_comparison import metric_value, read_comparison
from pflcli.plugins.page import charts, runs


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
    assert [*charted][:5] == ["ranked", "cost", "dumbbell", "curves-round", "curves-megabytes"]
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


def test_methods_that_look_alike_to_colour_blind_eyes_have_other_dashes():
    """Colours as deutans and protans see them (Machado et al. 2009), compared in CIELAB."""
    seen = {
        "deutan": [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ],
        "protan": [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
    }
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])

    def lab(colour, matrix):
        channels = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        scaled = xyz @ np.clip(np.array(matrix) @ linear, 0, 1) / np.array([0.9505, 1, 1.089])
        x, y, z = np.where(scaled > 0.008856, np.cbrt(scaled), 7.787 * scaled + 16 / 116)
        return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])

    styles = vega.method_styles([f"m{number}" for number in range(40)], None).values()
    for matrix in seen.values():
        for (one, dash), (other, other_dash) in combinations([*styles][:8], 2):
            assert dash != other_dash or np.linalg.norm(lab(one, matrix) - lab(other, matrix)) > 10


def test_learning_curves_say_on_which_samples_they_are_measured_with_a_band(compared):
    comparison, charted = draw_charts(open_artifact(compared.path))
    behind = runs.read(comparison, lineage.trace(open_artifact(compared.path)))
    sizes = behind.validation_samples
    assert sizes > 0
    curves = charted["curves-round"]
    assert f"{sizes:,} validation samples" in curves.caption
    assert "standard error" in curves.caption
    for row in rows({"layer": curves.spec["layer"][:1]}):
        reach = (row["accuracy"] * (1 - row["accuracy"]) / sizes) ** 0.5
        assert row["high"] - row["accuracy"] == pytest.approx(min(reach, 1 - row["accuracy"]), abs=2e-4)
        assert row["accuracy"] - row["low"] == pytest.approx(min(reach, row["accuracy"]), abs=2e-4)


def test_learning_curves_name_the_methods_whose_clients_chose_by_the_same_samples(tmp_path):
    artifact = synthetic.write_comparison(tmp_path / "c", ["fedavg", "ditto", "knn-per"], ["a", "b", "c"])
    comparison = read_comparison(artifact)
    comparison.clients.tuned.update({("ditto", "lambda"): comparison.clients.tuned["knn-per", "lambda"]})
    points = [runs.Point(number, 0.5 + 0.1 * number, math.nan, number, number) for number in (1, 2)]
    curves = dict.fromkeys(("fedavg", "ditto"), runs.Curve(points, points[-1]))
    [chart] = [chart for chart in charts.draw(comparison, runs.Runs(curves)) if chart.key == "curves-round"]
    assert "ditto (lambda)" in chart.caption
    assert "knn-per (" not in chart.caption  # it has no rounds
    assert "standard error" not in chart.caption  # the number of samples is unknown
    assert "area" not in json.dumps(chart.spec)


def test_ticks_of_a_small_range_differ(compared):
    _, charted = draw_charts(open_artifact(compared.path))
    for chart in charted.values():
        assert '".0%"' not in json.dumps(chart.spec)
    spec = {
        "data": {"values": [{"y": 0.901}, {"y": 0.923}]},
        "mark": "point",
        "encoding": {"y": {"field": "y", "type": "quantitative", "scale": {"zero": False}}},
        "height": 300,
    }
    spec["encoding"]["y"]["axis"] = charted["ranked"].spec["layer"][-1]["encoding"]["y"]["axis"]
    labels = re.findall(r">([\d.]+)%<", vega.render(spec, "svg").decode())
    assert len(labels) > 3
    assert len({*labels}) == len(labels)


def test_long_names_of_clients_are_whole_beside_pictures(tmp_path):
    name = "AirTran Airways Corporation of 1993"
    artifact = synthetic.write_comparison(tmp_path / "c", ["fedavg", "knn-per"], [name, "b", "c"])
    _, charted = draw_charts(artifact)
    assert f">{name}<" in vega.render({**charted["dumbbell"].spec, "width": 700}, "svg").decode()


def test_the_chosen_client_is_marked_in_every_picture_of_clients(compared):
    _, charted = draw_charts(open_artifact(compared.path))
    marked = {
        key
        for key, chart in charted.items()
        for layer in chart.spec.get("layer", [])
        if "strokeWidth" in layer.get("mark", {}) and "datum.client == client" in json.dumps(layer)
    } | {"ranked"}  # which draws the client's points
    assert marked == {key for key, chart in charted.items() if any("client" in row for row in rows(chart.spec))}
    assert {"ranked", "dumbbell", "holdings"} <= marked
