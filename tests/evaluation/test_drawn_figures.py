"""Figures: their values and file formats, for any number of clients and methods and for any names."""

from __future__ import annotations

import base64
import csv
import io
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from helpers import chart_rows
from pflcli.artifacts import codebook
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.show import plot
from pflcli.core.errors import InputError, UsageError
from pflcli.core.metrics import catalogue
from pflcli.evaluation.charts import clients, curves, matrices, vega
from pflcli.evaluation.charts.matrices import Order
from pflcli.evaluation.metrics.client_relations import select_last_round
from pflcli.plugins.audits import charts as attacks

GOLDEN = Path(__file__).parents[1] / "golden"
CLUSTER = np.asarray([1, 0, 1, 0])
FEW = {"model": "mlp", "rounds": 4, "participation": 0.5}
HOSTILE = ("\x00", "\x1b[31m", "\ufffe", "\u2028", "constructor", "__proto__", "toString", "a\nb", "</svg>", "\udcff")
"""Names that end the process that draws them, or break a chart."""


def render(spec):
    """Return the PNG of a chart as an array, which is not one colour."""
    pixels = np.asarray(Image.open(io.BytesIO(vega.render(spec))).convert("RGB"))
    assert pixels.std() > 1
    return pixels


def find_panels(spec, title):
    """Return the panels whose title is or begins with this one."""
    views = [panel for part in spec.values() if isinstance(part, list) for panel in part if isinstance(panel, dict)]
    nested = [panel for part in views for panel in find_panels(part, title)]
    titles = [(part, part.get("title")) for part in views]
    texts = [(part, name["text"] if isinstance(name, dict) else name) for part, name in titles]
    return [part for part, text in texts if (text[0] if isinstance(text, list) else text) == title] + nested


def decode_image(spec):
    """Return the cells of the first matrix of a chart, (h, w, 3), a pixel per cell of ``count`` clients."""
    row = next(row for row in chart_rows(spec) if "url" in row)
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(row["url"].partition(",")[2]))).convert("RGB"))
    return pixels, row


@pytest.fixture(scope="module")
def clustered_partition(tmp_path_factory):
    """Two groups of three clients that call digits by other names."""
    out = tmp_path_factory.mktemp("drawn") / "p"
    partition("writers", out, scheme="clusters", clients=6, options={"groups": 2, "kind": "labels"})
    return out


@pytest.mark.parametrize("method", ["fedham", "panm", "gossip", "oracle", "ifca", "clustered-fl", "fedattn"])
def test_show_plots_the_state_of_a_method(pfl, clustered_partition, tmp_path, method):
    personalize(method, clustered_partition, tmp_path / "m", settings=FEW)
    ran = pfl("show", tmp_path / "m", "--plot", tmp_path / "m.png")
    assert ran.code == 0
    first = (tmp_path / "m.png").read_bytes()
    assert first.startswith(b"\x89PNG")
    plot(tmp_path / "m", tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == first


def test_show_plots_and_writes_attention_of_given_rounds(pfl, clustered_partition, tmp_path):
    settings = {**FEW, "rounds": 6, "participation": 1.0}
    personalize("fedham", clustered_partition, tmp_path / "m", settings=settings, options={"warmup": 2})
    show = ("show", tmp_path / "m", "--plot", tmp_path / "m.png")
    assert pfl(*show).code == 0
    last = (tmp_path / "m.png").read_bytes()
    assert pfl(*show, "--plot-rounds", "3,6", "--attention", tmp_path / "m.csv").code == 0
    assert (tmp_path / "m.png").read_bytes() not in (last, b"")
    with (tmp_path / "m.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["round"] for row in rows} == {"3", "6"}
    state = load_file(tmp_path / "m" / "state.safetensors")
    names = codebook.read(open_artifact(tmp_path / "m")).client_names(6)
    weights = {(row["round"], row["client"], row["layer"], row["attends_to"]): float(row["weight"]) for row in rows}
    for number, place in ((3, 0), (6, 3)):
        for i, j in itertools.permutations(range(6), 2):
            weight = float(state["attention/first"][place, i, j])
            assert weights[str(number), names[i], "1", names[j]] == pytest.approx(weight, rel=1e-6)
        for i, slot in itertools.product(range(6), range(3)):
            weight = float(state["attention/second"][place, i, slot])
            assert weights.get((str(number), names[i], "2", matrices.SLOTS[slot]), 0.0) == pytest.approx(weight)
    assert len({row["client"] for row in rows}) == 6
    pfl("show", tmp_path / "m", "--attention", tmp_path / "all.csv")
    with (tmp_path / "all.csv").open(newline="") as file:
        assert {row["round"] for row in csv.DictReader(file)} == {"3", "4", "5", "6"}
    with (tmp_path / "m" / "attention.csv").open(newline="") as file:
        means = list(csv.DictReader(file))
    assert [row["round"] for row in means] == ["3", "4", "5", "6"]
    assert float(means[0]["own_group_if_even"]) == pytest.approx(2 / 5)
    own = sum(weights["3", names[i], "1", names[j]] for i, j in itertools.permutations(range(6), 2) if (i - j) % 2 == 0)
    assert float(means[0]["own_group"]) == pytest.approx(own / 6, rel=1e-5)


def test_show_refuses_rounds_without_attention(pfl, clustered_partition, small, tmp_path):
    personalize("fedham", clustered_partition, tmp_path / "m", settings=FEW, options={"warmup": 2})
    personalize("gossip", clustered_partition, tmp_path / "g", settings=FEW)
    x, y = ("--plot", tmp_path / "x.png"), ("--attention", tmp_path / "x.csv")
    for words, message in [
        ((tmp_path / "m", *x, "--plot-rounds", "2"), "has no attention of round 2"),
        ((tmp_path / "m", *y, "--plot-rounds", "5"), "it has that of rounds 3 to 4"),
        ((tmp_path / "m", *x, "--plot-rounds", "last"), "--plot-rounds last is not"),
        ((tmp_path / "m", "--plot-rounds", "3"), "--plot-rounds needs --plot or --attention"),
        ((tmp_path / "g", *x, "--plot-rounds", "3"), "has no attention"),
        ((tmp_path / "g", *y), "has no attention"),
        ((clustered_partition, *x, "--plot-rounds", "3"), "is a partition without rounds"),
    ]:
        ran = pfl("show", *words)
        assert ran.code == 2
        assert message in ran.err
    assert not (tmp_path / "x.png").exists()
    assert not (tmp_path / "x.csv").exists()


def test_show_refuses_to_plot_a_method_without_attention(pfl, small, tmp_path):
    ran = pfl("show", small.fedavg, "--plot", tmp_path / "x.png")
    assert (ran.code, ran.out) == (2, "")
    assert f"{small.fedavg} has nothing to draw: fedavg stores no attention" in ran.err
    assert "pfl evaluate" in ran.err
    assert not (tmp_path / "x.png").exists()
    personalize("fedham", small.p, tmp_path / "warm", settings={**FEW, "rounds": 1})
    with pytest.raises(UsageError, match="no round of fedham went beyond its warm-up"):
        plot(tmp_path / "warm", tmp_path / "x.png")


def test_plot_refuses_a_damaged_state_or_a_missing_partition(small, tmp_path):
    partition("writers", tmp_path / "p", clients=6)
    personalize("gossip", tmp_path / "p", tmp_path / "g", settings=FEW)
    (tmp_path / "p").rename(tmp_path.parent / "elsewhere")
    with pytest.raises(InputError, match="no longer exists"):
        plot(tmp_path / "g", tmp_path / "x.png")
    state = tmp_path / "g" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-1])
    with pytest.raises(InputError, match="differs from what was written"):
        plot(tmp_path / "g", tmp_path / "x.png")


def test_select_last_round_takes_attention_of_the_last_round_of_each_client():
    first = np.zeros((2, 3, 3))
    first[0, 0], first[1, 1] = [0, 0.5, 0.5], [1, 0, 0]
    took = np.asarray([[True, True, False], [False, True, False]])
    actual = select_last_round(first, took)
    np.testing.assert_array_equal(actual, [[0, 0.5, 0.5], [1, 0, 0], [np.nan] * 3])


# Charts by hand


@pytest.mark.parametrize("count", [1, 5, 30])
def test_draw_ranked_has_one_panel_per_method(count):
    rng = np.random.default_rng(0)
    scores = {f"m{place}": rng.random(40) for place in range(count + 1)}
    scores["m1"][:10] = np.nan
    spec = clients.draw_ranked(scores, "m0", "Accuracy")
    render(spec)
    (lines,) = find_panels(spec, "Accuracy")
    assert {row["method"] for row in chart_rows(lines) if "method" in row} == {*scores}
    gains = 100 * (scores["m1"] - scores["m0"])[10:]
    for place in range(1, count + 1):
        assert len(find_panels(spec, f"m{place}")) == 1
    (panel,) = find_panels(spec, "m1")
    assert f"↑ {100 * np.mean(gains > 0):.0f} %" in panel["title"]["text"][1]
    dots = {(row["base"], row["gain"]) for row in chart_rows(panel) if "base" in row}
    assert dots == {*zip(scores["m0"][10:].round(4).tolist(), gains.round(4).tolist(), strict=True)}


def test_draw_ranked_thins_dots_of_many_clients():
    rng = np.random.default_rng(0)
    spec = clients.draw_ranked({f"m{place}": rng.random(1000) for place in range(31)}, "m0", "Accuracy")
    dots = [row for row in chart_rows(spec) if "base" in row]
    assert len(dots) == 30 * 100
    assert "100 of 1000 are drawn" in json.dumps(spec)


def test_draw_ranked_without_a_baseline_has_only_lines():
    spec = clients.draw_ranked({"m0": np.asarray([0.1, 0.9])}, None, "Accuracy")
    assert [row["score"] for row in chart_rows(spec) if "score" in row] == [0.1, 0.9]
    render(spec)


def test_draw_ranked_sorts_by_highest_score_when_lower_is_better():
    brier = catalogue.METRICS["brier_score"]
    spec = clients.draw_ranked({"m0": np.asarray([0.1, 0.9, np.nan])}, None, "Brier", brier)
    assert [row["score"] for row in chart_rows(spec) if "score" in row] == [0.9, 0.1]


@pytest.mark.parametrize("count", [0, 1, 19])
def test_draw_clients_sorts_rows_by_the_baseline(count):
    rng = np.random.default_rng(0)
    scores = {f"m{place}": rng.random(count) for place in range(12)}
    if count:
        scores["m1"][0] = np.nan
    names = [f"client {number}" for number in range(count)]
    spec = clients.draw_clients(names, scores, "m0", "Accuracy")
    vega.render(spec)
    order = np.argsort(scores["m0"])
    assert spec["params"][0]["value"] == [names[client] for client in order]
    first = [row for row in chart_rows(spec) if row.get("method") == "m1"]
    expected = [None if np.isnan(score) else round(score, 4) for score in scores["m1"][order]]
    assert [row["score"] for row in first] == expected


@pytest.mark.parametrize("form", vega.FORMATS)
def test_charts_show_hostile_names(form):
    scores = {name: np.linspace(0, 1, len(HOSTILE)) for name in HOSTILE}
    charts = [
        clients.draw_clients(HOSTILE, scores, HOSTILE[0], HOSTILE[1]),
        clients.draw_ranked(scores, HOSTILE[4], HOSTILE[0]),
        matrices.draw_holdings(np.eye(len(HOSTILE), dtype=np.int64), HOSTILE[0], names=HOSTILE, classes=HOSTILE),
        matrices.draw_neighbours(np.eye(len(HOSTILE), dtype=bool), [], HOSTILE[0], names=HOSTILE),
        attacks.draw_roc(
            {HOSTILE[4]: (np.asarray([0, 1.0]), np.asarray([0, 1.0]))}, HOSTILE, np.full((10, 3), 0.5), "\x00"
        ),
    ]
    begins = {"png": b"\x89PNG", "svg": b"<svg", "pdf": b"%PDF"}[form]
    sizes = []
    for spec in charts:
        content = vega.render(spec, form)
        assert content.startswith(begins)
        sizes.append(len(content))
    assert min(sizes) > 1500  # what Vega fails to draw is an empty picture


def test_escape_name_keeps_names_distinct_and_printable():
    texts = [vega.escape_name(name) for name in HOSTILE]
    assert len({*texts}) == len(HOSTILE)
    assert texts == [vega.escape_name(name) for name in texts]
    assert vega.escape_name("Zoë 東京\u3000x") == "Zoë 東京\u3000x"
    assert vega.escape_name("\x00") == "\\x00"


def test_render_refuses_external_data():
    """A specification that somebody else wrote may name an address."""
    spec = {"data": {"url": "http://127.0.0.1:9/a.csv"}, "mark": "text", "encoding": {"text": {"field": "a"}}}
    with pytest.raises(ValueError, match="not allowed"):
        vega.render(spec, "svg")


def test_group_clients_orders_clients_by_group():
    order = Order.group_clients(4, CLUSTER)
    assert order.place.tolist() == [1, 3, 0, 2]
    assert order.group.tolist() == [0, 0, 1, 1]
    assert order.borders.tolist() == [-0.5, 1.5, 3.5]
    assert Order.group_clients(3, None).place.tolist() == [0, 1, 2]


def test_group_ticks_are_words_for_few_groups_and_numbers_for_many():
    title, places, labels = Order.group_clients(12, np.arange(12) % 2).ticks("client")
    assert (title, places, labels) == ("client", [2.5, 8.5], ["group 0", "group 1"])
    title, _, labels = Order.group_clients(12, np.arange(12) % 6).ticks("client")
    assert (title, labels) == ("client, by group", [*"012345"])


def test_client_ticks_are_names_for_few_clients():
    names = ["ann", "a name that is long", "bob"]
    assert Order.group_clients(3, None, names).ticks("client")[2] == ["ann", "a name that is …", "bob"]
    assert Order.group_clients(3, np.asarray([0, 1, 1]), names).ticks("client")[2] == ["group 0", "group 1"]
    assert Order.group_clients(50, None).ticks("client")[2] == ["0", "10", "20", "30", "40"]


def test_draw_attention_matches_hand_computed_means():
    """Of two clients in the first round and one in the second, weights to the own group are added up."""
    first, second = np.zeros((2, 4, 4)), np.zeros((2, 4, 3))
    first[0, 0], second[0, 0] = [0, 0.2, 0.5, 0.3], [0.5, 0.5, 0]
    first[0, 1], second[0, 1] = [0.1, 0, 0, 0.9], [0.1, 0.2, 0.7]
    first[1, 2], second[1, 2] = [0.4, 0.6, 0, 0], [1, 0, 0]
    spec = matrices.draw_attention(first, second, np.asarray([3, 4]), "title", CLUSTER)
    render(spec)
    (panel,) = find_panels(spec, "mean over clients")
    means = {}
    for row in chart_rows(panel):
        means.setdefault(row["curve"], {})[row["round"]] = row["value"]
    assert means["layer 2: own"] == pytest.approx({3: 0.3, 4: 1})
    assert means["layer 2: attended"] == pytest.approx({3: 0.35, 4: 0})
    assert means["layer 2: global"] == pytest.approx({3: 0.35, 4: 0})
    assert means["layer 1: to its own group"] == pytest.approx({3: (0.5 + 0.9) / 2, 4: 0.4})
    assert means["layer 1, if it were even"] == pytest.approx({3: 0.3333, 4: 0.3333})  # one of three others


GRAPH = np.zeros((4, 4), bool)
GRAPH[0, 2] = GRAPH[2, 0] = GRAPH[1, 0] = True


def test_neighbours_are_coloured_by_right_or_wrong_group():
    order = Order.group_clients(4, CLUSTER)
    ordered = GRAPH[np.ix_(order.place, order.place)]
    # 1, 3, 0, 2 from above: 1 has 0 of another group, 0 and 2 have one another.
    kinds = [[0, 0, 2, 0], [0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
    assert matrices.classify_pairs(ordered, order).tolist() == kinds
    pixels, _ = decode_image(matrices.draw_neighbours(GRAPH, [], "title", CLUSTER))
    side = len(pixels) // 4
    cells = pixels[side // 2 :: side, side // 2 :: side]
    colours = {0: [255, 255, 255], 1: [0x88, 0x88, 0x88], 2: [0xD5, 0x5E, 0x00]}
    assert cells.tolist() == [[colours[kind] for kind in row] for row in kinds]


def test_neighbour_curves_show_precision_and_recall_or_counts():
    rows = [
        {"round": 1, "neighbours": 2.0, "precision": 0.5, "recall": 0.1},
        {"round": 2, "neighbours": 3.0, "precision": 1.0, "recall": 0.2},
    ]
    (panel,) = find_panels(matrices.draw_neighbours(GRAPH, rows, "title", CLUSTER), "neighbours against true groups")
    drawn = [(row["curve"], row["round"], row["value"]) for row in chart_rows(panel)]
    assert drawn == [("precision", 1, 0.5), ("precision", 2, 1.0), ("recall", 1, 0.1), ("recall", 2, 0.2)]
    (panel,) = find_panels(matrices.draw_neighbours(GRAPH, rows, "title"), "number of neighbours")
    assert [row["value"] for row in chart_rows(panel)] == [2.0, 3.0]


@pytest.mark.parametrize("count", [1, 60, 61])
def test_matrices_can_be_drawn_for_any_number_of_clients(count):
    graph = np.random.default_rng(0).random((count, count)) < 0.2
    for cluster in (None, np.arange(count) % 9):
        render(matrices.draw_neighbours(graph, [{"round": 1, "neighbours": 1.0}], "x", cluster))
        render(matrices.draw_holdings(graph.astype(np.int64), "x", cluster))


def test_matrix_cells_combine_many_clients():
    """A cell of several clients shows the neighbours that any of them has."""
    graph = np.zeros((2500, 2500), dtype=bool)
    graph[0, 2499] = graph[1200, 1201] = True
    spec = matrices.draw_neighbours(graph, [{"round": 1, "neighbours": 0.0}], "many", np.arange(2500) // 1250)
    pixels, row = decode_image(spec)
    cells = pixels[:: len(pixels) // 834, :: len(pixels) // 834]
    assert cells.shape == (834, 834, 3)
    assert np.argwhere((cells != 255).any(axis=2)).tolist() == [[0, 833], [400, 400]]
    assert cells[0, 833].tolist() == [0xD5, 0x5E, 0x00]
    assert [row[key] for key in ("x", "x2", "y", "y2")] == [-0.5, 2499.5, -0.5, 2499.5]


def test_holdings_of_many_clients_are_drawn_as_an_image():
    counts = np.ones((3000, 3), dtype=np.int64)
    counts[:, 0] = np.arange(3000)
    spec = matrices.draw_holdings(counts, "many", new=np.arange(3000) > 2000)
    assert len(chart_rows(spec)) < 3100
    assert sum(row["kind"].startswith("new") for row in chart_rows(spec) if "kind" in row) == 999
    pixels, _ = decode_image(spec)
    assert pixels.std() > 1


def test_draw_collapse_leaves_out_non_finite_values():
    rounds = np.arange(3, 6)
    history = {
        "rho": np.asarray([0.9, 1.5, 9]),
        "largest": np.asarray([0.1, 1e30, np.inf]),
        "validation": np.asarray([0.9, 0.1, -1]),
        "rejected": np.asarray([0, 0, 4.0]),
    }
    spec = curves.draw_collapse(history, rounds, "x")
    render(spec)
    values = [[row["value"] for row in chart_rows(panel) if "value" in row] for panel in spec["vconcat"]]
    assert values == [[0.9, 1.5, 9], [0.1, 1e30], [0.9, 0.1, 0.0]]


def test_draw_roc_keeps_corners_and_thins_points():
    step = np.repeat(np.arange(5001) / 5000, 2)
    false, true = step[:-1], step[1:]
    spec = attacks.draw_roc(
        {"a": (np.asarray([0, 0, 0, 0.5, 1]), np.asarray([0, 0.2, 1, 1, 1]))}, [], np.empty((0, 3)), "a"
    )
    points = [(row["false"], row["true"]) for row in chart_rows(spec) if row.get("attack") == "a"]
    assert points == [(0.01, 0.01), (0.01, 1), (1, 1)]
    many = attacks.draw_roc({"a": (false, true)}, ["ann"], np.asarray([[0.5, 0.4, 0.6]]), "a")
    assert 500 < len([row for row in chart_rows(many) if row.get("attack") == "a"]) <= 2000
    render(many)


# From artifacts


@pytest.mark.parametrize("form", vega.FORMATS)
def test_show_writes_the_figure_of_an_artifact_in_any_format(pfl, small, tmp_path, form):
    for source in (small.ev, small.au):
        ran = pfl("show", source, "--plot", tmp_path / f"figure.{form}")
        assert ran.code == 0
        content = (tmp_path / f"figure.{form}").read_bytes()
        (png,) = source.glob("*.png")
        assert (content == png.read_bytes()) == (form == "png")
        assert len(content) > 1500


def test_show_refuses_an_unknown_plot_suffix(pfl, small, tmp_path):
    ran = pfl("show", small.p, "--plot", tmp_path / "x.jpg")
    assert ran.code == 2
    assert "--plot" in ran.err
    assert not (tmp_path / "x.jpg").exists()


def test_plot_refuses_a_damaged_specification(small, tmp_path):
    shutil.copytree(small.ev, tmp_path / "ev")
    (tmp_path / "ev" / "accuracy.vl.json").write_text("{}")
    with pytest.raises(InputError, match="differs from what was written"):
        plot(tmp_path / "ev", tmp_path / "x.svg")
