"""What a method kept of its rounds, drawn: the right numbers in the right place, and a word where there are none."""

from __future__ import annotations

import csv
import io
import itertools

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image
from safetensors.numpy import load_file

from pflcli.artifacts import codebook
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.show import plot
from pflcli.errors import InputError, UsageError
from pflcli.evaluation.metrics.attention import of_last_round
from pflcli.evaluation.presentation import attention, canvas, collapse, holdings, neighbours, pictures
from pflcli.evaluation.presentation.canvas import Order

CLUSTER = np.asarray([1, 0, 1, 0])
FEW = {"model": "mlp", "rounds": 4, "participation": 0.5}


@pytest.fixture
def axis():
    return canvas.figure((6.4, 4.8)).subplots()


@pytest.fixture(scope="module")
def grouped(tmp_path_factory):
    """Two groups of three clients that call digits by other names."""
    out = tmp_path_factory.mktemp("drawn") / "p"
    partition("writers", out, scheme="clusters", clients=6, options={"groups": 2, "kind": "labels"})
    return out


@pytest.mark.parametrize("count", [1, 5, 30])
def test_every_method_has_a_panel_of_its_own(monkeypatch, count):
    drawn = []
    monkeypatch.setattr(canvas, "png", lambda drawing: drawn.append(drawing) or b"")
    rng = np.random.default_rng(0)
    scores = {f"m{place}": rng.random(40) for place in range(count + 1)}
    scores["m1"][:10] = np.nan
    pictures.ranked(scores, "m0", "Accuracy")
    lines, panels = (part.axes for part in drawn[0].subfigs)
    assert len(lines[0].get_legend_handles_labels()[1]) == count + 1
    used = [panel for panel in panels if panel.collections]
    assert [panel.get_title().split("\n")[0] for panel in used] == [f"m{place}" for place in range(1, count + 1)]
    gains = 100 * (scores["m1"] - scores["m0"])[10:]
    assert f"↑ {100 * np.mean(gains > 0):.0f} %" in used[0].get_title()
    np.testing.assert_allclose(used[0].collections[0].get_offsets()[:, 1], gains)


@pytest.mark.parametrize("gain", [-0.2, 0.0, 0.2])
def test_panels_look_as_if_each_were_drawn_with_its_title_where_there_is_room(monkeypatch, gain):
    """Against Matplotlib's own ways: titles that look for room, zero lines drawn last, and ``savefig``."""
    drawn, rng = [], np.random.default_rng(0)
    scores = {name: np.clip(0.5 + gain * at + 0.1 * rng.random(30), 0, 1) for at, name in enumerate(("a", "b", "c"))}
    png = canvas.png
    monkeypatch.setattr(canvas, "png", lambda drawing: drawn.append(drawing) or b"")
    pictures.ranked(scores, "a", "Accuracy")
    pictures.ranked(scores, "a", "Accuracy")
    for panel in drawn[1].subfigs[1].axes:
        if panel.lines:
            panel.lines[0].remove()
            panel.axhline(0, color="#777777", ls="--", lw=1.0)
            panel.set_title(panel.get_title(), fontsize=8.5)
    usual = io.BytesIO()
    drawn[1].savefig(usual, dpi=130)
    images = [np.asarray(Image.open(file)) for file in (io.BytesIO(png(drawn[0])), usual)]
    assert images[0].std() > 1
    np.testing.assert_array_equal(*images)


def test_without_a_baseline_there_are_lines_alone():
    assert pictures.ranked({"m0": np.asarray([0.1, 0.9])}, None, "Accuracy").startswith(b"\x89PNG")


@pytest.mark.parametrize("method", ["fedham", "panm", "gossip", "oracle", "ifca", "clustered-fl", "fedattn"])
def test_a_picture_of_what_a_method_kept(pfl, grouped, tmp_path, method):
    personalize(method, grouped, tmp_path / "m", settings=FEW)
    ran = pfl("show", tmp_path / "m", "--plot", tmp_path / "m.png")
    assert ran.code == 0
    first = (tmp_path / "m.png").read_bytes()
    assert first.startswith(b"\x89PNG")
    plot(tmp_path / "m", tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == first


def test_the_attention_of_chosen_rounds(pfl, grouped, tmp_path):
    settings = {**FEW, "rounds": 6, "participation": 1.0}
    personalize("fedham", grouped, tmp_path / "m", settings=settings, options={"warmup": 2})
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
            assert weights.get((str(number), names[i], "2", attention.SLOTS[slot]), 0.0) == pytest.approx(weight)
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


def test_rounds_that_are_not_there(pfl, grouped, small, tmp_path):
    personalize("fedham", grouped, tmp_path / "m", settings=FEW, options={"warmup": 2})
    personalize("gossip", grouped, tmp_path / "g", settings=FEW)
    x, y = ("--plot", tmp_path / "x.png"), ("--attention", tmp_path / "x.csv")
    for words, message in [
        ((tmp_path / "m", *x, "--plot-rounds", "2"), "holds no attention of round 2"),
        ((tmp_path / "m", *y, "--plot-rounds", "5"), "it holds that of rounds 3 to 4"),
        ((tmp_path / "m", *x, "--plot-rounds", "last"), "--plot-rounds last are not whole numbers"),
        ((tmp_path / "m", "--plot-rounds", "3"), "--plot-rounds needs --plot or --attention"),
        ((tmp_path / "g", *x, "--plot-rounds", "3"), "holds no attention"),
        ((tmp_path / "g", *y), "holds no attention"),
        ((grouped, *x, "--plot-rounds", "3"), "is a partition, which has no rounds"),
    ]:
        ran = pfl("show", *words)
        assert ran.code == 2
        assert message in ran.err
    assert not (tmp_path / "x.png").exists()
    assert not (tmp_path / "x.csv").exists()


def test_what_holds_nothing_to_draw(pfl, small, tmp_path):
    ran = pfl("show", small.fedavg, "--plot", tmp_path / "x.png")
    assert (ran.code, ran.out) == (2, "")
    assert f"{small.fedavg} holds nothing to draw: fedavg keeps no attention" in ran.err
    assert "pfl evaluate" in ran.err
    assert not (tmp_path / "x.png").exists()
    personalize("fedham", small.p, tmp_path / "warm", settings={**FEW, "rounds": 1})
    with pytest.raises(UsageError, match="no round of fedham went beyond its warm-up"):
        plot(tmp_path / "warm", tmp_path / "x.png")


def test_a_state_that_is_damaged_or_whose_partition_is_gone(small, tmp_path):
    partition("writers", tmp_path / "p", clients=6)
    personalize("gossip", tmp_path / "p", tmp_path / "g", settings=FEW)
    (tmp_path / "p").rename(tmp_path.parent / "elsewhere")
    with pytest.raises(InputError, match="does not exist any more"):
        plot(tmp_path / "g", tmp_path / "x.png")
    state = tmp_path / "g" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-1])
    with pytest.raises(InputError, match="is not what was written"):
        plot(tmp_path / "g", tmp_path / "x.png")


def test_clients_stand_by_group():
    order = Order.of(4, CLUSTER)
    assert order.place.tolist() == [1, 3, 0, 2]
    assert order.group.tolist() == [0, 0, 1, 1]
    assert order.names == ("0", "1")
    assert Order.of(3, None).place.tolist() == [0, 1, 2]


def test_many_groups_are_numbers_and_few_are_words(axis):
    for groups, text in ((2, "group 1"), (6, "1")):
        canvas.name_clients(axis, Order.of(12, np.arange(12) % groups), "client", along="x")
        assert axis.get_xticklabels()[1].get_text() == text
        assert axis.get_xlabel() == ("client" if groups == 2 else "client, by group")


def test_attention_is_that_of_each_clients_last_round():
    first = np.zeros((2, 3, 3))
    first[0, 0], first[1, 1] = [0, 0.5, 0.5], [1, 0, 0]
    took = np.asarray([[True, True, False], [False, True, False]])
    actual = of_last_round(first, took)
    np.testing.assert_array_equal(actual, [[0, 0.5, 0.5], [1, 0, 0], [np.nan] * 3])


def test_means_of_attention_by_hand(axis):
    """Of two clients in the first round and one in the second, weights to the own group are added up."""
    first, second = np.zeros((2, 4, 4)), np.zeros((2, 4, 3))
    first[0, 0], second[0, 0] = [0, 0.2, 0.5, 0.3], [0.5, 0.5, 0]
    first[0, 1], second[0, 1] = [0.1, 0, 0, 0.9], [0.1, 0.2, 0.7]
    first[1, 2], second[1, 2] = [0.4, 0.6, 0, 0], [1, 0, 0]
    attention._means(axis, first, second, second.sum(axis=2) > 0, np.asarray([3, 4]), CLUSTER)
    own, attended, common, group, even = (line.get_ydata() for line in axis.get_lines())
    np.testing.assert_allclose(own, [0.3, 1])
    np.testing.assert_allclose(attended, [0.35, 0])
    np.testing.assert_allclose(common, [0.35, 0])
    np.testing.assert_allclose(group, [(0.5 + 0.9) / 2, 0.4])
    np.testing.assert_allclose(even, 1 / 3)  # one of three others is of one's group
    assert axis.get_lines()[0].get_xdata().tolist() == [3, 4]


GRAPH = np.zeros((4, 4), bool)
GRAPH[0, 2] = GRAPH[2, 0] = GRAPH[1, 0] = True


def test_neighbours_have_the_colour_of_their_group_or_of_a_mistake(axis):
    order = Order.of(4, CLUSTER)
    ordered = GRAPH[np.ix_(order.place, order.place)]
    neighbours._field(axis, ordered, order)
    # 1, 3, 0, 2 from above: 1 has 0 of another group, 0 and 2 have one another.
    assert axis.images[0].get_array().tolist() == [[0, 0, 2, 0], [0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]


def test_a_graph_on_a_circle(axis):
    order = Order.of(4, CLUSTER)
    neighbours._circle(axis, GRAPH[np.ix_(order.place, order.place)], order)
    within, across, *groups = axis.collections
    assert (len(within.get_segments()), len(across.get_segments())) == (1, 1)  # drawn once, whoever has whom
    assert to_hex(across.get_colors()[0]) == "#d55e00"
    at = np.concatenate([group.get_offsets() for group in groups])
    np.testing.assert_allclose(np.hypot(*at.T), 1)
    np.testing.assert_allclose(np.sort(across.get_segments()[0], axis=0), np.sort(at[[0, 2]], axis=0))
    assert [text.get_text() for text in axis.texts] == ["1", "3", "0", "2"]


def test_curves_of_neighbours(axis):
    rows = [
        {"round": 1, "neighbours": 2.0, "precision": 0.5, "recall": 0.1},
        {"round": 2, "neighbours": 3.0, "precision": 1.0, "recall": 0.2},
    ]
    neighbours._curves(axis, rows, known=True)
    assert [line.get_ydata().tolist() for line in axis.get_lines()] == [[0.5, 1.0], [0.1, 0.2]]


@pytest.mark.parametrize("clients", [1, 60, 61])
def test_any_number_of_clients_can_be_drawn(clients):
    graph = np.random.default_rng(0).random((clients, clients)) < 0.2
    for cluster in (None, np.arange(clients) % 9):
        assert neighbours.neighbours(graph, [{"round": 1, "neighbours": 1.0}], "x", cluster).startswith(b"\x89PNG")


def test_a_collapse_into_what_is_not_finite():
    rounds = np.arange(3, 6)
    history = {
        "rho": np.asarray([0.9, 1.5, 9]),
        "largest": np.asarray([0.1, 1e30, np.inf]),
        "validation": np.asarray([0.9, 0.1, -1]),
        "rejected": np.asarray([0, 0, 4.0]),
    }
    assert collapse.collapse(history, rounds, "x").startswith(b"\x89PNG")


def test_few_clients_are_called_by_their_names(axis):
    canvas.name_clients(axis, Order.of(3, None, ["ann", "a name that is long", "bob"]), "client", along="y")
    assert [label.get_text() for label in axis.get_yticklabels()] == ["ann", "a name that is …", "bob"]
    canvas.name_clients(axis, Order.of(3, np.asarray([0, 1, 1]), ["ann", "bea", "bob"]), "client", along="y")
    assert [label.get_text() for label in axis.get_yticklabels()] == ["group 0", "group 1"]


def test_many_clients_are_drawn_together(monkeypatch):
    """A field of several clients shows whom any of them has."""
    images = []
    monkeypatch.setattr("matplotlib.axes.Axes.imshow", lambda self, image, **style: images.append((image, style)))
    graph = np.zeros((2500, 2500), dtype=bool)
    graph[0, 2499] = graph[1200, 1201] = True
    neighbours.neighbours(graph, [{"round": 1, "neighbours": 0.0}], "many", np.arange(2500) // 1250)
    ((image, style),) = images
    assert image.shape == (834, 834)
    assert np.argwhere(image).tolist() == [[0, 833], [400, 400]]
    assert (image[0, 833], image[400, 400]) == (2, 1)
    assert style["extent"] == (-0.5, 2499.5, 2499.5, -0.5)


def test_a_partition_of_many_clients_is_drawn_by_few_artists(monkeypatch):
    from matplotlib.axes import Axes

    monkeypatch.setattr(Axes, "bar", None)  # which draws one by one
    assert holdings.holdings(np.ones((3000, 3), dtype=np.int64), "many", new=np.arange(3000) > 2000).startswith(
        b"\x89PNG"
    )
