"""Aggregators: the one place where the server makes a model of uploads, for every method that averages."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import worlds
from pflcli import aggregators, methods, parameters, registry
from pflcli.errors import UsageError

SEND_MORE = {"fedamp", "fedattn", "fedham", "fedhealth"}
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
def test_every_average_is_taken_by_the_aggregator(method):
    plain, recorded = worlds.run(method, rounds=2), worlds.run(method, rounds=2)
    recorded.aggregator = record = Recorded()
    assert worlds.same(worlds.play(method, plain), worlds.play(method, recorded))
    assert record.begun > 0
    assert record.uploads >= len(recorded.trained)


@pytest.mark.parametrize("method", AVERAGING)
def test_the_mean_by_its_name_is_the_default_to_the_bit(method):
    plain, by_name = worlds.run(method, rounds=1), worlds.run(method, rounds=1)
    by_name.aggregator = aggregators.load("mean")
    assert worlds.same(worlds.play(method, plain), worlds.play(method, by_name))


def test_the_mean_follows_from_sums_over_parts():
    draw = np.random.default_rng(0)
    uploads, weights = {"w": torch.from_numpy(draw.normal(size=(7, 3)))}, draw.random(7)
    mean = aggregators.load("mean")
    assert mean.separable
    average = mean.begin({"w": torch.zeros(3)})
    for rows in ([0, 1, 2], [3], [4, 5, 6]):
        average.add({"w": uploads["w"][rows]}, weights[rows])
    np.testing.assert_allclose(average.value()["w"], np.average(uploads["w"], axis=0, weights=weights), rtol=1e-12)


@pytest.mark.parametrize(("text", "words"), [("meen", "unknown aggregator 'meen'"), ("mean:2", "mean has no option")])
def test_an_aggregator_that_cannot_be_is_refused(text, words):
    with pytest.raises(UsageError, match=words):
        aggregators.load(text)
