"""Gaussian head: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special
from scipy.stats import multivariate_normal

import pflcli
import worlds
from by_hand import CLIENT, class_frequencies, training_embeddings
from pflcli.core.errors import UnsuitedError


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


def test_gaussian_head_of_a_quantity_matches_the_normal_equations():
    run = worlds.run(
        "gaussian-head", options={"kappa": 4.0, "ridge": 0.3, "temperature": 3.0}, data=worlds.quantities()
    )
    state = worlds.play("gaussian-head", run)

    def with_constant(z):
        return np.column_stack([z, np.ones(len(z))])

    z, y = training_embeddings(run, worlds.ABLE)
    mean, deviation, spread = y.mean(), y.std(), z.var(axis=0).mean()
    precision = spread * np.eye(z.shape[1] + 1)
    precision[-1, -1] = 0  # the constant of all clients is not shrunk
    moment, product = with_constant(z).T @ with_constant(z) / len(z), with_constant(z).T @ ((y - mean) / deviation)
    common = np.linalg.solve(moment + 0.3 * precision, product / len(z))
    precision[-1, -1] = 1
    own, labels = training_embeddings(run, [CLIENT])
    own = with_constant(own)
    inverse = np.linalg.inv(own.T @ own / 3.0 + 4.0 * precision)
    head = inverse @ (own.T @ ((labels - mean) / deviation) / 3.0 + 4.0 * precision @ common)
    test = with_constant(run.embeddings["test"].take(np.asarray([CLIENT])).z.astype(np.float64))
    actual = worlds.answers("gaussian-head", run, state, np.asarray([CLIENT]))["test"]
    np.testing.assert_allclose(actual[:, 0], mean + deviation * test @ head, rtol=1e-4)
    size = z.shape[1] + 1
    assert run.traffic == dict.fromkeys(("up", "down"), 6 * 4 * (size * size + size)) | {"peer": 0}


def test_gaussian_head_of_a_quantity_chooses_the_temperature_of_smallest_squared_error():
    run = worlds.run("gaussian-head", options={"grid": (1.0, 10.0, 100.0)}, data=worlds.quantities())
    state = worlds.play("gaussian-head", run)
    chosen = worlds.tuned("gaussian-head", run, state)["temperature"]
    for client in (0, 2, 6):
        errors, y = {}, run.embeddings["validation"].take(np.asarray([client])).y
        for temperature in (1.0, 10.0, 100.0):
            run.cfg = type(run.cfg)(temperature=temperature)
            p = worlds.answers("gaussian-head", run, state, np.asarray([client]))["validation"]
            errors[temperature] = ((p[:, 0] - y) ** 2).sum()
        assert chosen[client] == min(errors, key=errors.get)
    assert chosen[1] == 10  # has no validation samples


def test_gaussian_heads_follow_clients_whose_quantities_differ():
    draw, client = np.random.default_rng(0), np.repeat(np.arange(8), 60)
    x = draw.normal(size=(480, 4)).astype(np.float32)
    y = 200 + 30 * (x[:, 0] + (2 * (client % 2) - 1) * x[:, 1] + client) + 3 * draw.normal(size=480)
    federation = pflcli.Federation.from_arrays(x, y, client, task="quantity")
    how = {"model": "logistic", "rounds": 5, "participation": 1.0, "batch_size": 16, "lr": 0.05, "quiet": True}
    score = {name: pflcli.simulate(name, federation, **how).score() for name in ("fedavg", "gaussian-head")}
    assert score["gaussian-head"] > 0.95 > score["fedavg"] + 0.5
    with pytest.raises(UnsuitedError, match="gaussian-head learns classes and quantity, and the task is count"):
        pflcli.simulate(
            "gaussian-head", pflcli.Federation.from_arrays(x, y.round() - y.min().round(), client, task="count"), **how
        )


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
