"""Gaussian head: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special
from scipy.stats import multivariate_normal

import worlds
from by_hand import CLIENT, class_frequencies, training_embeddings


@pytest.mark.parametrize("kappa", [0.5, 10.0])
def test_gaussian_head_matches_hand_computed_probabilities(kappa):
    run = worlds.run("gaussian-head", options={"kappa": kappa, "ridge": 0.3, "temperature": 7.0})
    state = worlds.play("gaussian-head", run)
    z, y = training_embeddings(run, worlds.ABLE)
    common = np.stack([z[y == c].mean(axis=0) for c in range(worlds.CLASSES)])
    within = (z - common[y]).T @ (z - common[y]) / len(z)
    within += 0.3 * np.trace(within) / len(within) * np.eye(len(within))
    own, labels = training_embeddings(run, [CLIENT])
    _, prior = class_frequencies(run, kappa)
    part = run.embeddings["test"].take(np.asarray([CLIENT]))
    densities = []
    for c in range(worlds.CLASSES):
        mean = (own[labels == c].sum(axis=0) + kappa * common[c]) / ((labels == c).sum() + kappa)
        densities.append(multivariate_normal(mean, within).logpdf(part.z.astype(np.float64)))
    expected = special.softmax((np.stack(densities, axis=1) + np.log(prior)) / 7.0, axis=1)
    actual = worlds.answers("gaussian-head", run, state, np.asarray([CLIENT]))["test"]
    np.testing.assert_allclose(actual, expected, atol=1e-3)
    size = run.embeddings["train"].z.shape[1]
    classes = sum(len(np.unique(training_embeddings(run, [c])[1])) for c in worlds.ABLE)
    down = 6 * 4 * (3 + size * size + 3 * size)
    assert run.traffic == {"up": 4 * (6 * (3 + size * size) + classes * size), "down": down, "peer": 0}


def test_gaussian_head_chooses_the_temperature_of_lowest_validation_loss():
    run = worlds.run("gaussian-head", options={"grid": (1.0, 4.0, 16.0, 64.0)})
    state = worlds.play("gaussian-head", run)
    chosen = worlds.tuned("gaussian-head", run, state)["temperature"]
    losses = {}
    for grid in (1.0, 4.0, 16.0, 64.0):
        run.cfg = type(run.cfg)(temperature=grid)
        part = run.embeddings["validation"].take(np.asarray([CLIENT]))
        p = worlds.answers("gaussian-head", run, state, np.asarray([CLIENT]))["validation"]
        losses[grid] = -np.log(np.maximum(p[np.arange(len(part.y)), part.y], 1e-30)).mean()
    assert chosen[CLIENT] == min(losses, key=losses.get)
    assert chosen[1] == 10  # has no validation samples
