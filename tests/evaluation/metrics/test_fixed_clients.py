"""The interval of a gain for the clients of a table themselves: by hand, by simulation, and in every output."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from scipy.stats import t

import pflcli
from pflcli.artifacts.kinds.predictions import SplitPredictions
from pflcli.evaluation import records
from pflcli.evaluation.metrics import fixed_clients, gains
from pflcli.evaluation.presentation import conclusion, notes, tables
from pflcli.evaluation.presentation.conclusion import NO_GAIN, NOT_OVER_ALONE, PAYS


def mean_gain(differences, owner, samples):
    """The estimate for differences and ids of samples (n,) by seed, which ``owner`` (n,) divides among clients."""
    offsets = np.append(0, np.cumsum(np.bincount(owner)))
    runs = [SplitPredictions({}, np.zeros(len(owner)), each, offsets) for each in samples]
    return fixed_clients.mean_gain(
        np.stack(records.pair(runs, differences, [range(len(offsets) - 1)] * len(runs))).swapaxes(1, 2)
    )


def test_interval_of_two_clients_matches_a_hand_computed_one():
    """Other samples under each of two seeds; within a client they have the deviations +-1 and +-1/2 from its mean."""
    first, second = np.asarray([1.0, -1, 1, 0]), np.asarray([1.0, -1, 0, 1])
    owner = np.asarray([0, 0, 1, 1])
    found = mean_gain([first, second], owner, [np.arange(4), 4 + np.arange(4)])
    # Clients have the means 0 and 1/2 under both seeds, which therefore have the mean 1/4.
    of_seed = (2 * 1 + 2 * 0.25) * 2 / 4**2 / (1 - 1 / 4)  # two samples a client: times 2 / (2 - 1); HC2 of a quarter
    of_samples, freedom = of_seed / 2, (8 - 1) * 1.0  # seeds have nothing in common
    assert found.mean == 0.25
    assert found.error == pytest.approx(of_samples**0.5)
    reach = t.ppf(0.975, freedom) * of_samples**0.5
    assert found.interval == pytest.approx((0.25 - reach, 0.25 + reach))


def test_differences_between_clients_do_not_count():
    """They make the interval for clients like these wide, and shift the mean of these clients only."""
    draw, owner = np.random.default_rng(0), np.repeat(np.arange(4), 50)
    noise = [draw.choice([-1.0, 0, 1], 200) for _ in range(3)]
    samples = [200 * seed + np.arange(200) for seed in range(3)]
    apart = [each + np.asarray([-2.0, -1, 1, 2])[owner] for each in noise]
    for one, other in ((noise, apart),):
        alike, differing = (mean_gain(each, owner, samples) for each in (one, other))
        assert differing.interval == pytest.approx(alike.interval)
    by_client = [np.bincount(owner, weights=each) / 50 for each in apart]
    wide = gains.mean_gain(by_client, [np.ones(4)] * 3, [np.arange(4)] * 3)
    assert wide.interval[0] < -2 < differing.interval[0] < differing.interval[1] < 2 < wide.interval[1]
    # What seeds have in common, the clients, is left with any number of seeds.
    error, freedom = wide.many_seeds
    assert freedom == 3
    assert error == pytest.approx(np.std([-2, -1, 1, 2], ddof=1) / 2, rel=0.1)
    assert gains.mean_gain(by_client[:1], [np.ones(4)], [np.arange(4)]).many_seeds is None


@pytest.mark.parametrize("same_samples", [True, False], ids=["same-samples", "other-splits"])
def test_interval_covers_the_gain_of_these_clients(same_samples):
    """Half of the samples are right or wrong under every seed; seeds also differ as a whole."""
    draw, owner, hits, draws = np.random.default_rng(0), np.repeat(np.arange(4), 40), 0, 400
    for _ in range(draws):
        gain = draw.normal(0, 0.1, 4)
        once, is_kept = draw.random(800), draw.random(800) < 0.5
        split = np.concatenate([200 * client + draw.permutation(200)[:40] for client in range(4)])
        differences, samples = [], []
        for _ in range(5):
            if not same_samples:
                split = np.concatenate([200 * client + draw.permutation(200)[:40] for client in range(4)])
            value = np.where(is_kept, once, draw.random(800))[split]
            better = np.clip((0.4 + gain[owner] + draw.normal(0, 0.03)) / 2, 0, 0.4)
            differences.append(np.where(value < better, 1.0, np.where(value < 0.4, -1.0, 0.0)))
            samples.append(split)
        low, high = mean_gain(differences, owner, samples).interval
        hits += low <= gain.mean() <= high
    assert 0.92 < hits / draws < 0.99


# In tables


def compare(parts, out):
    """Compare two methods on the partitions of several seeds."""
    pflcli.compare(
        [*map(str, parts)], out, methods=["fedavg", "local"], model="logistic", rounds=2, threads=1, references=False
    )


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """Two methods on three splits of the same four hospitals, and on the first of these."""
    folder = tmp_path_factory.mktemp("hospitals")
    parts = [folder / f"partition-{seed}" for seed in range(3)]
    for seed, part in enumerate(parts):
        pflcli.partition("heart-disease", part, seed=seed)
    compare(parts, folder / "c")
    compare(parts[:1], folder / "one")
    return folder


def read(folder, name):
    metrics = json.loads((folder / name / "comparison" / "metrics.json").read_text())
    return metrics, {row["label"]: row for row in metrics["methods"]}


def test_a_table_of_four_hospitals_has_both_intervals(hospitals, pfl):
    metrics, rows = read(hospitals, "c")
    gain = rows["local"]["metrics"]["gain"]
    these = gain["these_clients"]
    assert these["clients"] == 4
    middle = [sum(interval) / 2 for interval in (gain["interval"], these["interval"])]
    assert middle == pytest.approx([gain["value"]] * 2)
    assert np.diff(these["interval"]) < np.diff(gain["interval"])
    entry = conclusion.catalogue.METRICS["accuracy"]
    own = tables.format_interval(these["interval"], entry)
    assert metrics["conclusion"]["scope"].startswith("For clients like these, local has ")
    assert f". For these 4 clients, with other seeds and splits: {own} over fedavg" in metrics["conclusion"]["scope"]
    (note,) = [line for line in notes.list_notes(metrics) if "clients like these" in line]
    assert f"for these 4 clients, with other seeds and splits, they are: `local` {own}" in note
    (row,) = [
        row for row in csv.DictReader((hospitals / "c" / "comparison" / "table.csv").open()) if row["method"] == "local"
    ]
    columns = [float(row[f"gain_{end}_these_clients"]) for end in ("low", "high")]
    assert columns == pytest.approx(these["interval"], abs=1e-4)
    # The same from Python, and on the page.
    runs = {
        label: [str(hospitals / "c" / f"seed-{seed}" / label) for seed in range(3)] for label in ("fedavg", "local")
    }
    frame = pflcli.table(runs)
    assert frame.loc["local", "gain_low_these_clients"] == pytest.approx(these["interval"][0])
    assert metrics["conclusion"]["scope"] in frame.attrs["conclusion"]
    assert pfl("report", hospitals / "c", "-o", hospitals / "page.html").code == 0
    assert "For these 4 clients, with other seeds and splits" in (hospitals / "page.html").read_text()


def test_with_one_seed_the_interval_of_these_clients_is_unknown(hospitals):
    metrics, rows = read(hospitals, "one")
    assert rows["local"]["metrics"]["gain"]["these_clients"] == {"clients": 4}
    assert metrics["conclusion"]["scope"].endswith(": unknown, as one seed does not show how much training varies")
    assert "these_clients" not in (hospitals / "one" / "comparison" / "table.csv").read_text()


def test_other_clients_under_each_seed_are_not_these_clients(tmp_path):
    """Unnamed clients of two partitions are other clients, even if they have the same numbers."""
    parts = [tmp_path / f"p{seed}" for seed in range(2)]
    for seed, part in enumerate(parts):
        pflcli.partition("heart-disease", part, scheme="iid", clients=4, seed=seed)
    compare(parts, tmp_path / "c")
    metrics, rows = read(tmp_path, "c")
    assert "these_clients" not in rows["local"]["metrics"]["gain"]
    assert metrics["conclusion"]["scope"] == ""


# What the conclusion says


def make_row(label, gain, reach, clients_alone, **more):
    """A row whose gain has an interval, and one that many seeds would leave."""
    record = {
        "value": gain, "interval": [gain - reach, gain + reach], "p": 0.5, "n": 12, "unit": "fraction",
        "many_seeds": {"interval": [gain - clients_alone, gain + clients_alone]},
    }  # fmt: skip
    metrics = {"accuracy": {"value": 0.8 + gain, "n": 12}, "gain": record}
    return {"label": label, "method": label, "seeds": [0, 1, 2], "metrics": metrics, **more}


BASE = {"label": "fedavg", "method": "fedavg", "seeds": [0, 1, 2], "metrics": {"accuracy": {"value": 0.8, "n": 12}}}


@pytest.mark.parametrize(
    ("clients_alone", "expected"),
    [
        (0.021, "(More clients may decide it, more seeds cannot: the clients differ too much)"),
        (0.019, "(More seeds may decide it: type --seeds 0,1,2,3,4)"),
    ],
)
@pytest.mark.parametrize("is_over_alone", [False, True], ids=["over-fedavg", "over-alone"])
def test_more_seeds_are_proposed_only_if_they_could_decide(clients_alone, expected, is_over_alone):
    """An interval that includes 0 with any number of seeds needs more clients."""
    row = make_row("ditto", 0.02, 0.03, clients_alone)
    if is_over_alone:
        alone = {"label": "local", **row["metrics"]["gain"]}
        row = make_row("ditto", 0.1, 0.03, 0.01, over_alone=alone)
    found = conclusion.conclude([BASE, row], "fedavg")
    assert found.answer == (NOT_OVER_ALONE if is_over_alone else NO_GAIN)
    assert found.sentence.endswith(expected)


def test_a_gain_that_is_shown_needs_neither():
    found = conclusion.conclude([BASE, make_row("ditto", 0.1, 0.03, 0.2)], "fedavg")
    assert found.answer == PAYS
    assert "More clients" not in found.sentence
