"""Intervals of gains have their nominal coverage, and reports state how many clients would gain by chance."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from scipy.stats import t as student
from test_metrics import Y, metrics, store

from pflcli.artifacts import codebook
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.reader import open_artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.commands.evaluate import evaluate
from pflcli.commands.partition import partition
from pflcli.evaluation import client_identity, summary
from pflcli.evaluation.metrics import gains
from pflcli.evaluation.summary import Scored

TRUTH = 0.05


def measure_coverage(
    *, clients, seeds, same, of_clients=0.1, of_seeds=0.0, noise=0.03, assumed_same=None, spread=0.0, tries=600
):
    """How often the interval holds the truth, where clients are the ``same`` under every seed or others."""
    draw = np.random.default_rng(0)
    hits = 0
    for _ in range(tries):
        own = of_clients * np.broadcast_to(draw.normal(size=(1 if same else seeds, clients)), (seeds, clients))
        gain = TRUTH + own + of_seeds * draw.normal(size=(seeds, 1)) + noise * draw.normal(size=(seeds, clients))
        weights = np.exp(spread * draw.normal(size=clients)) * np.ones((seeds, 1))
        ids = np.arange(seeds * clients).reshape(seeds, clients)
        identities = ids % clients if (same if assumed_same is None else assumed_same) else ids
        low, high = gains.mean_gain(list(gain), list(weights), list(identities)).interval
        hits += low <= TRUTH <= high
    return hits / tries


@pytest.mark.parametrize("seeds", [1, 3, 5])
@pytest.mark.parametrize("clients", [6, 60])
def test_interval_has_its_coverage_when_seeds_share_clients(seeds, clients):
    assert measure_coverage(clients=clients, seeds=seeds, same=True) == pytest.approx(0.95, abs=0.025)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_interval_has_its_coverage_when_each_seed_has_other_clients(seeds):
    assert measure_coverage(clients=60, seeds=seeds, same=False) == pytest.approx(0.96, abs=0.025)


@pytest.mark.parametrize("same", [True, False])
def test_interval_has_its_coverage_when_seeds_have_random_effects(same):
    """A seed whose training went badly moves the gains of all its clients."""
    assert measure_coverage(clients=60, seeds=3, same=same, of_seeds=0.03) == pytest.approx(0.95, abs=0.04)


def test_interval_has_its_coverage_when_few_clients_dominate():
    assert measure_coverage(clients=60, seeds=3, same=True, spread=1.0) == pytest.approx(0.95, abs=0.035)


@pytest.mark.parametrize(("seeds", "at_most"), [(3, 0.85), (5, 0.75)])
def test_interval_covers_too_little_when_shared_clients_count_as_new(seeds, at_most):
    """What the interval would promise if clients that come again counted as new ones."""
    assert measure_coverage(clients=60, seeds=seeds, same=True, assumed_same=False) < at_most


def test_interval_of_one_seed_matches_a_hand_computed_one():
    """Four clients of one weight: mean 2, deviation sqrt(2/3), error half of it, and t of 3 degrees 3.182."""
    gain = gains.mean_gain([np.asarray([1.0, 2, 2, 3])], [np.ones(4)], [np.arange(4)])
    assert gain.mean == 2
    assert gain.error == pytest.approx(np.sqrt(2 / 3) / 2)
    assert gain.freedom == pytest.approx(3)
    assert gain.interval == pytest.approx((2 - 3.18245 * gain.error, 2 + 3.18245 * gain.error), rel=1e-4)


def test_variance_of_three_seeds_matches_a_hand_computed_one():
    """The same three clients under each seed, of unequal sizes; seeds differ by more than their clients explain."""
    gain = [[0.1, 0.3, 0.2], [0.5, 0.6, 0.4], [0.0, 0.1, 0.2]]
    weight = [[1, 2, 3], [2, 2, 1], [1, 1, 1]]
    parts = [[w / sum(row) for w in row] for row in weight]
    means = [sum(p * g for p, g in zip(*rows, strict=True)) for rows in zip(parts, gain, strict=True)]
    tells = [
        [p * (g - mean) / (1 - p) ** 0.5 for p, g in zip(part, row, strict=True)]
        for part, row, mean in zip(parts, gain, means, strict=True)
    ]
    products = [[sum(a * b for a, b in zip(one, two, strict=True)) for two in tells] for one in tells]
    of_clients = sum(map(sum, products)) / 9
    own = sum(products[s][s] for s in range(3)) / 3
    common = sum(products[s][t] for s in range(3) for t in range(3) if s != t) / 6
    observed, expected = np.var(means, ddof=1) / 3, (own - common) / 3
    assert observed > expected
    assert 0 < common < own
    of_seeds = observed - expected / 2  # two degrees of freedom
    effective = 1 / sum((sum(part[c] for part in parts) / 3) ** 2 for c in range(3))
    freedom = of_clients**2 * (effective - 1) / (common**2 + (of_clients - common) ** 2)
    assert freedom > 1
    reach = (of_clients * student.ppf(0.975, freedom) ** 2 + of_seeds * student.ppf(0.975, 2) ** 2) ** 0.5
    estimate = gains.mean_gain(*([*map(np.asarray, rows)] for rows in (gain, weight, [[0, 1, 2]] * 3)))
    assert estimate.mean == pytest.approx(sum(means) / 3)
    assert estimate.error == pytest.approx((of_clients + of_seeds) ** 0.5)
    assert estimate.interval == pytest.approx((estimate.mean - reach, estimate.mean + reach))
    assert student.ppf(0.975, estimate.freedom) * estimate.error == pytest.approx(reach)


@pytest.mark.parametrize(("seeds", "same"), [(2, True), (3, True), (3, False), (5, False)])
def test_a_variance_between_seeds_that_is_estimated_as_zero_shortens_no_interval(seeds, same):
    """The interval is longer the more seeds differ, and grows without a jump where chance alone explains the variance.

    The same clients and sampling errors throughout; only the means of seeds move apart, from no difference on.
    """
    draw, clients = np.random.default_rng(0), 60
    own = 0.04 * draw.normal(size=(1 if same else seeds, clients)) + 0.1 * draw.normal(size=(seeds, clients))
    numbers = np.arange(seeds * clients).reshape(seeds, clients)
    apart = own - own.mean(axis=1, keepdims=True)
    lengths = []
    for step in np.linspace(0, 0.1, 2001):
        gain = apart + step * np.linspace(-1, 1, seeds)[:, None]
        low, high = gains.mean_gain(
            [*gain], [np.ones(clients)] * seeds, [*(numbers % clients if same else numbers)]
        ).interval
        lengths.append(high - low)
    growth = np.diff(lengths)
    assert lengths[-1] > 2 * lengths[0]
    assert growth.min() >= -1e-12
    assert growth.max() < 0.2 * lengths[0]


def test_repeating_a_seed_does_not_narrow_the_interval():
    draw = np.random.default_rng(0)
    gain, weight, identities = draw.normal(size=30), draw.integers(5, 20, 30).astype(float), np.arange(30)
    once, twice = (gains.mean_gain([gain] * n, [weight] * n, [identities] * n) for n in (1, 2))
    assert twice.interval == pytest.approx(once.interval)
    others = gains.mean_gain([gain] * 2, [weight] * 2, [identities, identities + 30])
    assert others.error == pytest.approx(once.error / np.sqrt(2))


def scores_of(draw, methods, seeds, deviations=0.02):
    """Mean scores (methods, seeds) that differ by methods and by seeds, and by how each seed goes with each method."""
    own = draw.normal(size=(methods, 1)) + draw.normal(size=seeds)
    return own + np.broadcast_to(deviations, (methods,))[:, None] * draw.normal(size=(methods, seeds))


def by_name(table):
    return {str(row): [*values] for row, values in enumerate(table)}


def test_the_shared_variance_is_that_of_a_method_between_seeds():
    draw = np.random.default_rng(0)
    found = [gains.share_variance(by_name(scores_of(draw, 8, 5))) for _ in range(400)]
    # A tenth of methods are taken for outliers, and take large variances with them.
    assert 0.75 * 0.02**2 < np.mean([shared.variance for shared in found]) < 0.02**2
    assert np.mean([len(shared.outliers) for shared in found]) / 8 == pytest.approx(0.1, abs=0.03)
    assert found[0].of_difference("0", "1") is None or found[0].of_difference("0", "1") == 2 * found[0].variance


def test_a_method_whose_seeds_differ_more_than_those_of_others_shares_nothing():
    draw = np.random.default_rng(0)
    shared = gains.share_variance(by_name(scores_of(draw, 6, 5, [0.02] * 5 + [0.5])))
    assert shared.outliers >= {"5"}
    assert shared.of_difference("5", "0") is None
    assert shared.of_difference("0", "5") is None
    assert shared.variance < 0.06**2


def test_the_shared_variance_ignores_what_a_seed_does_to_all_methods():
    draw = np.random.default_rng(0)
    table = scores_of(draw, 6, 4)
    one, other = (gains.share_variance(by_name(scores)) for scores in (table, table - table[2]))
    assert other.variance == pytest.approx(one.variance)


@pytest.mark.parametrize(("methods", "seeds"), [(3, 5), (4, 2), (1, 1)])
def test_few_methods_or_seeds_share_no_variance(methods, seeds):
    assert gains.share_variance(by_name(np.random.default_rng(0).normal(size=(methods, seeds)))) is None
    unknown = np.full((2, 5), np.nan)
    table = np.concatenate([np.random.default_rng(0).normal(size=(3, 5)), unknown])
    assert gains.share_variance(by_name(table)) is None


def test_methods_without_any_variance_share_none():
    shared = gains.share_variance({name: [0.5, 0.5, 0.5] for name in "abcd"})
    assert (shared.variance, shared.outliers) == (0, frozenset())


def test_intervals_with_a_shared_variance_cover_and_are_shorter():
    """Five methods, three seeds, sixty clients: as benchmarks/intervals.py measures them."""
    draw = np.random.default_rng(0)
    weights, identities = [np.ones(60)] * 3, [np.arange(60)] * 3
    hits, lengths = [], []
    for _ in range(250):
        scores = 0.03 * draw.normal(size=(6, 3, 1)) + 0.02 * draw.normal(size=(6, 3, 60))
        shared = gains.share_variance(by_name(scores.mean(axis=2)))
        for row in range(1, 6):
            difference = [*(scores[row] - scores[0])]
            alone = gains.mean_gain(difference, weights, identities)
            both = gains.mean_gain(difference, weights, identities, shared.of_difference(str(row), "0"))
            hits.append(both.interval[0] <= 0 <= both.interval[1])
            lengths.append([estimate.interval[1] - estimate.interval[0] for estimate in (alone, both)])
    assert np.mean(hits) == pytest.approx(0.95, abs=0.02)
    before, now = np.median(lengths, axis=0)
    assert 0.6 * before < now < 0.75 * before


def test_seeds_that_cancel_each_other_on_every_client_have_an_interval():
    """What seeds have in common is then 0, and a little less by rounding."""
    gain = np.random.default_rng(1).normal(size=4)
    found = gains.mean_gain([gain, 2 * gain.mean() - gain], [np.ones(4)] * 2, [np.arange(4)] * 2)
    assert found.interval == pytest.approx((gain.mean(), gain.mean()), abs=1e-6)


def test_mean_gain_of_one_client_has_no_interval():
    assert gains.mean_gain([np.ones(1)] * 3, [np.ones(1)] * 3, [np.zeros(1)] * 3) is None


def test_holm_matches_hand_computed_p_values():
    assert gains.holm({"a": 0.04, "b": 0.01, "c": 0.03}) == pytest.approx({"b": 0.03, "c": 0.06, "a": 0.06})


def enumerate_swaps(differing):
    """The distribution of the number of clients better off, by going through every swap."""
    counts = []
    for signs in itertools.product([-1, 1], repeat=sum(differing)):
        parts = np.split(np.asarray(signs), np.cumsum(differing)[:-1])
        counts.append(sum(part.sum() > 0 for part in parts))
    return np.asarray(counts) / len(differing)


def test_estimate_chance_equals_enumerating_all_swaps():
    differing = [3, 0, 2, 4, 1, 1]
    every = enumerate_swaps(differing)
    mean, high = gains.estimate_chance([np.asarray(differing)], np.random.default_rng(0), repeated=False)
    assert mean == pytest.approx(every.mean())
    assert high == pytest.approx(np.quantile(every, 0.95, method="higher"))


@pytest.mark.parametrize("repeated", [True, False])
def test_equally_good_methods_seldom_exceed_chance(repeated):
    draw = np.random.default_rng(0)
    exceeded = 0
    for _ in range(150):
        right = draw.random((2, 2, 1 if repeated else 3, 60, 20)) < 0.9
        gain, differing = right[0, 0].sum(-1) - right[0, 1].sum(-1), (right[0, 0] != right[0, 1]).sum(-1)
        gain, differing = (np.broadcast_to(values, (3, 60)) for values in (gain, differing))
        mean, high = gains.estimate_chance(list(differing), draw, repeated=repeated)
        assert 0.3 < mean < 0.45
        exceeded += (gain > 0).mean() > high
    assert 0 < exceeded / 150 <= 0.08


def test_gains_of_ten_thousand_clients_take_less_than_half_a_second():
    draw = np.random.default_rng(0)
    gain, weight, identities = draw.normal(size=(3, 10_000)), np.ones((3, 10_000)), np.arange(10_000)
    began = time.process_time()
    gains.mean_gain(list(gain), list(weight), [identities] * 3)
    gains.estimate_chance(list(draw.integers(0, 30, (3, 10_000))), draw, repeated=True)
    assert time.process_time() - began < 0.5


# In an evaluation


def test_evaluation_reports_shares_expected_by_chance(tmp_path):
    base = store(tmp_path / "base", "fedavg", [0, 0, 0, 0, 1, 0])
    artifact = store(tmp_path / "mine", "mine", [0, 1, 0, 1, 1, 0])  # differs on two samples of the first client
    evaluate([base, artifact], tmp_path / "e")
    scores = metrics(tmp_path / "e")["methods"][0]["metrics"]
    for name, share in (("better_off", 0.5), ("worse_off", 0.0)):
        assert scores[name]["value"] == share
        assert scores[name]["by_chance"] == pytest.approx(0.5 * 0.25)  # one of two clients, with 1 of 4 swaps
        assert scores[name]["by_chance_high"] == 0.5
        assert not scores[name]["exceeds_chance"]
    assert "50.0 (12.5)" in (tmp_path / "e" / "table.md").read_text()


def test_macro_precision_mean_matches_a_hand_computed_value(tmp_path):
    artifact = store(tmp_path / "mine", "mine", [0, 1, 0, 0, 1, 0])
    evaluate([artifact], tmp_path / "e")
    scores = metrics(tmp_path / "e")["methods"][0]["metrics"]
    # First client: class 0 2 of 3, class 1 1 of 1; third: class 0 0 of 1, class 1 1 of 1.
    assert scores["macro_precision_mean"]["value"] == pytest.approx((5 / 6 + 1 / 2) / 2)
    assert scores["macro_precision"]["value"] == pytest.approx((2 / 4 + 1) / 2)


def empty_predictions(out, source, seed, *, has_names=True):
    """Predictions made from a partition, empty but for their place in its lineage."""
    at = open_artifact(source)
    with ArtifactWriter(
        out, ArtifactSpec("predictions", {"seed": seed}, (at.as_input("source", out),))
    ).prepare() as work:
        codebook.write(work, codebook.read(at) if has_names else codebook.Codebook())
        work.commit({}, {})
    return open_artifact(out)


def identify_clients(artifacts, samples):
    """The identities of the clients of runs, whose samples have these digests (m,), by number of the run."""
    runs = [
        Scored(
            label="a", seed=run, artifact=each, names=client_identity.read_names(each),
            n=np.ones(len(samples[run])), samples=np.asarray(samples[run]),
        )
        for run, each in artifacts.items()
    ]  # fmt: skip
    return summary.identify_clients(runs)


@pytest.mark.parametrize(
    ("scheme", "seeds", "shared"),
    [
        ({}, (0, 1), 60),
        ({"clients": 40}, (0, 1), None),  # 40 of 60 writers, drawn anew under each seed: some are the same
        ({"scheme": "dirichlet", "clients": 60, "options": {"alpha": "1"}}, (0, 1), 0),
        ({"scheme": "dirichlet", "clients": 60, "options": {"alpha": "1"}}, (0, 0), 60),  # one partition, two trainings
    ],
)
def test_identify_clients_recognizes_clients_under_another_seed(tmp_path, scheme, seeds, shared):
    artifacts = {}
    for run, seed in enumerate(seeds):
        if not (tmp_path / f"p{seed}").exists():
            partition("writers", tmp_path / f"p{seed}", seed=seed, **scheme)
        artifacts[run] = empty_predictions(tmp_path / f"answers{run}", tmp_path / f"p{seed}", seed)
    identities = identify_clients(artifacts, dict.fromkeys(artifacts, [""] * scheme.get("clients", 60)))
    again = np.intersect1d(identities[0], identities[1])
    assert len(again) == shared if shared is not None else 20 <= len(again) < 40


def test_identify_clients_compares_samples_without_the_partition(tmp_path):
    partition("writers", tmp_path / "p")
    artifacts = {
        run: empty_predictions(tmp_path / f"answers{run}", tmp_path / "p", run, has_names=False) for run in (0, 1, 2)
    }
    (tmp_path / "p").rename(tmp_path.parent / f"{tmp_path.name}-elsewhere")
    samples = {run: [f"{sample + (run == 2)}" for sample in range(60)] for run in artifacts}
    identities = identify_clients(artifacts, samples)
    assert np.array_equal(identities[0], identities[1])
    assert not np.intersect1d(identities[0], identities[2]).size


def test_evaluation_of_repeated_clients_has_the_interval_of_one_seed(tmp_path):
    """Two seeds of the same answers are no more than one: the interval is that of one seed."""
    sources = {}
    for seed in (0, 1):
        sources[seed] = [
            store(tmp_path / f"base{seed}", "fedavg", [0, 0, 0, 0, 1, 0], seed=seed),
            store(tmp_path / f"mine{seed}", "mine", [0, 1, 0, 1, 1, 0], seed=seed),
        ]
    intervals = []
    for out, inputs in (("one", sources[0]), ("two", sources[0] + sources[1])):
        evaluate(inputs, tmp_path / out)
        intervals.append(metrics(tmp_path / out)["methods"][0]["metrics"]["gain"]["interval"])
    assert intervals[0] == pytest.approx(intervals[1])


def test_methods_of_an_evaluation_share_their_variance_between_seeds(tmp_path):
    """The interval of each gain is that of its clients and of the variance that all four methods share."""
    draw = np.random.default_rng(1)
    guesses = {
        (name, seed): draw.integers(0, 2, 6) for name in ("fedavg", "a", "b", "c", "constant") for seed in range(3)
    }
    sources = {
        key: store(tmp_path / f"{key[0]}{key[1]}", key[0], values, seed=key[1]) for key, values in guesses.items()
    }
    evaluate([*sources.values()], tmp_path / "e")
    rows = {row["label"]: row["metrics"]["gain"] for row in metrics(tmp_path / "e")["methods"]}
    n, clients = np.asarray([4.0, 2.0]), {}
    for key, values in guesses.items():
        right = (values == Y).astype(float)
        clients[key] = np.asarray([right[:4].mean(), right[4:].mean()])
    names = ("fedavg", "a", "b", "c")  # a reference shares nothing
    means = {name: [float(clients[name, seed] @ n / 6) for seed in range(3)] for name in names}
    shared = gains.share_variance(means)
    for name in names[1:]:
        gain = [clients[name, seed] - clients["fedavg", seed] for seed in range(3)]
        prior = shared.of_difference(name, "fedavg")
        expected = gains.mean_gain(gain, [n] * 3, [np.asarray([0, 2])] * 3, prior)
        assert rows[name]["interval"] == pytest.approx(np.clip(expected.interval_at(1 - 0.05 / 3), -1, 1))  # of three
        assert rows[name]["degrees_of_freedom"] == pytest.approx(expected.freedom)
    assert len(shared.outliers) < 3
