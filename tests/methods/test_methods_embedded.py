"""The cheap answers on stored embeddings: prior correction and the Gaussian head, by their formulas."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special
from scipy.stats import multivariate_normal

import worlds

CLIENT = 0


def trained(run, clients):
    """Embeddings and labels of the clients' training samples."""
    part = run.embeddings["train"].take(np.asarray(clients))
    return part.z.astype(np.float64), part.y


def frequencies(run, kappa):
    _, labels = trained(run, worlds.ABLE)
    _, own = trained(run, [CLIENT])
    common = np.bincount(labels, minlength=worlds.CLASSES) / len(labels)
    return common, (np.bincount(own, minlength=worlds.CLASSES) + kappa * common) / (len(own) + kappa)


@pytest.mark.parametrize("kappa", [0.5, 10.0])
def test_prior_by_hand(kappa):
    run = worlds.run("prior", options={"kappa": kappa, "strength": 0.7})
    state = worlds.play("prior", run)
    common, own = frequencies(run, kappa)
    part = run.embeddings["test"].take(np.asarray([CLIENT]))
    expected = special.softmax(part.logits.astype(np.float64), axis=1) * (own / common) ** 0.7
    expected /= expected.sum(axis=1, keepdims=True)
    actual = worlds.answers("prior", run, state, np.asarray([CLIENT]))["test"]
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    assert run.traffic == {"up": 6 * 3 * 4, "down": 6 * 3 * 4, "peer": 0}


def test_prior_without_strength_or_with_a_huge_kappa_is_the_global_model():
    expected = None
    for options in ({"strength": 0.0}, {"kappa": 1e9}):
        run = worlds.run("prior", options=options)
        actual = worlds.answers("prior", run, worlds.play("prior", run))["test"]
        expected = special.softmax(run.embeddings["test"].logits.astype(np.float64), axis=1)
        np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize("kappa", [0.5, 10.0])
def test_gaussian_head_by_hand(kappa):
    run = worlds.run("gaussian-head", options={"kappa": kappa, "ridge": 0.3, "temperature": 7.0})
    state = worlds.play("gaussian-head", run)
    z, y = trained(run, worlds.ABLE)
    common = np.stack([z[y == c].mean(axis=0) for c in range(worlds.CLASSES)])
    within = (z - common[y]).T @ (z - common[y]) / len(z)
    within += 0.3 * np.trace(within) / len(within) * np.eye(len(within))
    own, labels = trained(run, [CLIENT])
    _, prior = frequencies(run, kappa)
    part = run.embeddings["test"].take(np.asarray([CLIENT]))
    densities = []
    for c in range(worlds.CLASSES):
        mean = (own[labels == c].sum(axis=0) + kappa * common[c]) / ((labels == c).sum() + kappa)
        densities.append(multivariate_normal(mean, within).logpdf(part.z.astype(np.float64)))
    expected = special.softmax((np.stack(densities, axis=1) + np.log(prior)) / 7.0, axis=1)
    actual = worlds.answers("gaussian-head", run, state, np.asarray([CLIENT]))["test"]
    np.testing.assert_allclose(actual, expected, atol=1e-3)
    size = run.embeddings["train"].z.shape[1]
    classes = sum(len(np.unique(trained(run, [c])[1])) for c in worlds.ABLE)
    down = 6 * 4 * (3 + size * size + 3 * size)
    assert run.traffic == {"up": 4 * (6 * (3 + size * size) + classes * size), "down": down, "peer": 0}


def test_the_temperature_is_the_one_of_least_validation_log_loss():
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
