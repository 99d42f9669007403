"""Prior correction: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

import worlds
from by_hand import CLIENT, class_frequencies


@pytest.mark.parametrize("kappa", [0.5, 10.0])
def test_prior_matches_hand_computed_probabilities(kappa):
    run = worlds.run("prior", options={"kappa": kappa, "strength": 0.7})
    state = worlds.play("prior", run)
    common, own = class_frequencies(run, kappa)
    part = run.embeddings["test"].take(np.asarray([CLIENT]))
    expected = special.softmax(part.logits.astype(np.float64), axis=1) * (own / common) ** 0.7
    expected /= expected.sum(axis=1, keepdims=True)
    actual = worlds.answers("prior", run, state, np.asarray([CLIENT]))["test"]
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    assert run.traffic == {"up": 6 * 3 * 4, "down": 6 * 3 * 4, "peer": 0}


def test_prior_with_strength_0_or_a_huge_kappa_equals_the_global_model():
    expected = None
    for options in ({"strength": 0.0}, {"kappa": 1e9}):
        run = worlds.run("prior", options=options)
        actual = worlds.answers("prior", run, worlds.play("prior", run))["test"]
        expected = special.softmax(run.embeddings["test"].logits.astype(np.float64), axis=1)
        np.testing.assert_allclose(actual, expected, atol=1e-5)
