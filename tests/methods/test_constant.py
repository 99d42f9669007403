"""Constant: frequencies counted by hand."""

from __future__ import annotations

import numpy as np

import worlds


def test_constant_predicts_the_class_frequencies_of_each_client():
    run = worlds.run("constant")
    data, expected = run.federation, []
    for client in run.clients:
        labels = data.y[data.block(client, "train")].tolist()
        if not labels:
            labels = [y for able in worlds.ABLE for y in data.y[data.block(able, "train")].tolist()]
        own = [labels.count(c) / len(labels) for c in range(worlds.CLASSES)]
        expected += [own] * len(data.y[data.block(client, "test")])
    actual = worlds.answers("constant", run, {})["test"]
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    assert run.traffic == {"up": 0, "down": 0, "peer": 0}
