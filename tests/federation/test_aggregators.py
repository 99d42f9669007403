"""Aggregators make the server's model from uploads, for every method that averages."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import worlds
from pflcli.core import methods, parameters, registry
from pflcli.core.errors import UnsuitedError, UsageError
from pflcli.core.federation import aggregators
from pflcli.core.federation.aggregators import krum
from pflcli.core.federation.attack import Attack
from pflcli.core.federation.run import RunInputs

SEND_MORE = {
    "alone-pooled",
    "fedamp",
    "fedattn",
    "fedattn-extended",
    "fedham",
    "fedhealth",
    "fedpac",
    "knn-peers",
    "pooled",
}
"""Methods of kind server that do more with uploads than average them."""
AVERAGING = [
    name for name in registry.names("methods") if methods.load(name).KIND == "server" and name not in SEND_MORE
]


class Recorded:
    """An aggregator that takes means and counts what it is given."""

    def __init__(self):
        self.begun, self.uploads = 0, 0

    def begin(self, downloaded):
        self.begun += 1
        return _Recording(self)


class _Recording(parameters.Mean):
    def __init__(self, record):
        super().__init__()
        self.record = record

    def add(self, stacked, weights):
        assert {len(value) for value in stacked.values()} == {len(weights)}
        self.record.uploads += len(weights)
        super().add(stacked, weights)


@pytest.mark.parametrize("method", AVERAGING)
def test_method_averages_only_by_the_aggregator(method):
    plain, recorded = worlds.run(method, rounds=2), worlds.run(method, rounds=2)
    recorded.aggregator = record = Recorded()
    assert worlds.same(worlds.play(method, plain), worlds.play(method, recorded))
    assert record.begun > 0
    assert record.uploads >= len(recorded.notes.trained)


@pytest.mark.parametrize("method", AVERAGING)
def test_mean_aggregator_is_identical_to_the_default(method):
    plain, by_name = worlds.run(method, rounds=1), worlds.run(method, rounds=1)
    by_name.aggregator = aggregators.load("mean")
    assert worlds.same(worlds.play(method, plain), worlds.play(method, by_name))


def test_mean_aggregator_adds_up_over_parts():
    draw = np.random.default_rng(0)
    uploads, weights = {"w": torch.from_numpy(draw.normal(size=(7, 3)))}, draw.random(7)
    mean = aggregators.load("mean")
    assert mean.separable
    average = mean.begin({"w": torch.zeros(3)})
    for rows in ([0, 1, 2], [3], [4, 5, 6]):
        average.add({"w": uploads["w"][rows]}, weights[rows])
    np.testing.assert_allclose(average.value()["w"], np.average(uploads["w"], axis=0, weights=weights), rtol=1e-12)


ROBUST = [name for name in registry.names("aggregators") if name != "mean"]


def make_uploads(n, seed=0):
    """Uploads (n, ...) with one far outlier, the model that was sent, weights (n,), and all numbers as (n, 11)."""
    draw = np.random.default_rng(seed)
    flat = draw.normal(size=(n, 11)).astype(np.float32)
    flat[n // 2] += 50
    counts = draw.integers(0, 9, n)
    stacked = {"w": flat[:, :6].reshape(n, 2, 3), "b": flat[:, 6:], "batches": counts}
    downloaded = {"w": torch.full((2, 3), 0.5), "b": torch.full((5,), -0.5), "batches": torch.tensor(0)}
    start = np.concatenate([np.full(6, 0.5), np.full(5, -0.5)])
    return {k: torch.from_numpy(v) for k, v in stacked.items()}, downloaded, draw.integers(1, 9, n) * 1.0, flat, start


def aggregate_in_numpy(name, flat, start, weights, options):
    """The aggregators in NumPy, written from the papers: the model, and the share of each upload that is left out."""
    flat, n = flat.astype(np.float64), len(flat)
    if name == "median":
        lower, upper = np.quantile(flat, [0.5, 0.5], axis=0, method="lower")[0], np.sort(flat, axis=0)[n // 2]
        return np.median(flat, axis=0), ((flat < lower) | (flat > upper)).mean(axis=1)
    if name == "trimmed-mean":
        trimmed = min(int(np.ceil(options[0] * n)), (n - 1) // 2)
        rank = flat.argsort(axis=0).argsort(axis=0)
        inside = (rank >= trimmed) & (rank < n - trimmed)
        return np.where(inside, flat, 0).sum(axis=0) / inside.sum(axis=0), 1 - inside.mean(axis=1)
    if name == "krum":
        f = int(np.ceil(options[0] * n))
        keep = options[1] or max(1, n - f)
        squared = ((flat[:, None] - flat[None]) ** 2).sum(axis=2)
        scores = [np.sort(np.delete(row, i))[: max(1, n - f - 2)].sum() for i, row in enumerate(squared)]
        remaining = np.isin(np.arange(n), np.argsort(scores)[:keep])
        return np.average(flat[remaining], axis=0, weights=weights[remaining]), 1.0 - remaining
    norms = np.linalg.norm(flat - start, axis=1)
    factor = np.minimum(1, (options[0] or np.median(norms)) / norms)
    return start + np.average((flat - start) * factor[:, None], axis=0, weights=weights), 1 - factor


SETTINGS = [
    *(("median", ()), ("trimmed-mean", (0.25,)), ("trimmed-mean", (0.0,)), ("trimmed-mean", (0.49,))),
    *(("krum", (0.25, 0)), ("krum", (0.25, 1)), ("krum", (0.0, 2)), ("norm-clip", (0.0,)), ("norm-clip", (2.5,))),
]


@pytest.mark.parametrize("n", [1, 2, 7, 12])
@pytest.mark.parametrize(("name", "options"), SETTINGS, ids=str)
def test_aggregator_matches_numpy(name, options, n):
    stacked, downloaded, weights, flat, start = make_uploads(n)
    chosen = aggregators.load(":".join([name, *map(str, options)])).begin(downloaded)
    cut = n // 3
    for rows in (slice(cut), slice(cut, n)):  # as parts, and with an upload that does not count
        chosen.add({k: v[rows] for k, v in stacked.items()}, weights[rows])
    chosen.add({k: v[:1] * 0 + 99 for k, v in stacked.items()}, np.zeros(1))
    model = chosen.value()
    expected, left_out = aggregate_in_numpy(name, flat, start, weights, options)
    np.testing.assert_allclose(np.concatenate([model["w"].flatten(), model["b"]]), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(chosen.left_out, [*left_out, 0], atol=1e-6)
    assert (model["w"].shape, model["w"].dtype) == ((2, 3), torch.float32)
    assert int(model["batches"]) in stacked["batches"].tolist()


@pytest.mark.parametrize("name", ROBUST)
def test_aggregator_without_uploads_is_an_error(name):
    for text in (name, "mean"):
        chosen = aggregators.load(text).begin({"w": torch.zeros(2)})
        with pytest.raises(ValueError, match="not defined"):
            chosen.value()


def test_krum_distances_are_accurate_for_near_uploads_far_from_zero():
    near = {"w": torch.tensor([[4096.0, 1.0], [4096.0, 1.001], [4096.0, 1.003]])}
    squared = krum.squared_distances(near)
    np.testing.assert_allclose(squared[0], [0, 1e-6, 9e-6], rtol=1e-2)
    assert (squared == squared.T).all()


def iterate_tensors(state):
    """The global tensors of a state, whatever the depth; history may lack values."""
    for name, value in state.items():
        if isinstance(value, dict) and name != "history":
            yield from iterate_tensors(value)
        elif isinstance(value, torch.Tensor):
            yield value


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("method", AVERAGING)
def test_averaging_method_runs_with_a_robust_aggregator_and_records_left_out_clients(method, name):
    attack = Attack(np.asarray([1.0, 1, -50, 1, 1, 1, 1]), np.zeros(7), 0)
    run = worlds.run(method, rounds=1, participation=1.0, inputs=RunInputs(attack=attack))
    run.aggregator = aggregators.load(name)
    state = worlds.play(method, run)
    assert all(torch.isfinite(value).all() for value in iterate_tensors(state))
    assert set(run.notes.left_out) <= set(worlds.ABLE)
    assert all(0 <= share <= 1 for shares in run.notes.left_out.values() for share in shares)
    assert run.notes.left_out


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("method", sorted(SEND_MORE))
def test_robust_aggregator_refuses_a_method_that_needs_single_uploads(method, name):
    run = worlds.run(method, rounds=2)
    run.aggregator = aggregators.load(name)
    with pytest.raises(UnsuitedError, match=f"--aggregator {name}.* does not apply"):
        worlds.play(method, run)


@pytest.mark.parametrize("method", [name for name in registry.names("methods") if methods.load(name).KIND == "peer"])
def test_robust_aggregator_refuses_a_peer_method(method):
    run = worlds.run(method, rounds=2)
    run.aggregator = aggregators.load("median")
    with pytest.raises(UnsuitedError, match="does not apply"):
        worlds.play(method, run)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("meen", "unknown aggregator 'meen'"),
        ("mean:2", "mean has no option"),
        ("krum:0.2:1:3", "krum has 2 options"),
        ("trimmed-mean:0.5", "share=0.5 does not fit"),
    ],
)
def test_load_refuses_an_invalid_aggregator(text, words):
    with pytest.raises(UsageError, match=words):
        aggregators.load(text)


@pytest.mark.parametrize("name", ["median", "trimmed-mean", "krum", "norm-clip"])
def test_aggregator_accepts_a_scalar_parameter(name):
    start = {"w": torch.zeros(3), "scale": torch.zeros(())}
    taken = aggregators.load(name).begin(start)
    taken.add({"w": torch.ones(5, 3), "scale": torch.ones(5)}, np.ones(5))
    assert {key: value.shape for key, value in taken.value().items()} == {"w": (3,), "scale": ()}
