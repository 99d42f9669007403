"""pFedGP on a quantity: its exact regression against scikit-learn and dense algebra, a step by hand, and its gain."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor, kernels
from torch.nn.functional import normalize

import pflcli
import worlds
from by_hand import minibatches
from pflcli.core.errors import UnsuitedError
from pflcli.methods.parts import gaussian_process_regression as gp

LENGTH = 0.7


def make_samples(count, seed=0):
    draw = np.random.default_rng(seed)
    z = draw.normal(size=(count, 3))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    return z, np.sin(2 * z[:, 0]) + 0.5 + 0.2 * draw.normal(size=count)


def covariance(z, scale, noise):
    """The covariance (n, n) of labels: that of a level, of the process, and of noise."""
    apart = np.square(z[:, None] - z).sum(axis=2)
    return scale * (1 + np.exp(-apart / (2 * LENGTH**2)) + noise * np.eye(len(z)))


def fit_with_scikit_learn(z, y, scale, noise):
    kernel = scale * (1 + kernels.RBF(LENGTH)) + kernels.WhiteKernel(scale * noise)
    return GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(z, y)


def test_predictions_and_noise_are_those_of_scikit_learn():
    z, y = make_samples(30)
    queries, _ = make_samples(9, 1)
    noise, scale = gp.choose_noise(gp.kernel(*[torch.from_numpy(z)] * 2, LENGTH), torch.from_numpy(y))
    likelihoods = {}
    for each in gp.NOISE:
        own = y @ np.linalg.solve(covariance(z, 1, each), y) / len(y)
        likelihoods[each, own] = fit_with_scikit_learn(z, y, own, each).log_marginal_likelihood()
    assert (noise, pytest.approx(scale, rel=1e-9)) == max(likelihoods, key=likelihoods.get)
    assert noise not in {gp.NOISE[0], gp.NOISE[-1]}
    found = gp.predict(LENGTH, *map(torch.from_numpy, (z, y, queries)))
    np.testing.assert_allclose(found, fit_with_scikit_learn(z, y, scale, noise).predict(queries), rtol=1e-6)


def compute_loss(z, y):
    """The loss of samples (n, 3) by SciPy: the mean of -log p of every second label given the others."""
    noise, scale = gp.choose_noise(gp.kernel(*[torch.from_numpy(z[::2])] * 2, LENGTH), torch.from_numpy(y[::2]))
    losses = []
    for at in range(1, len(z), 2):
        c = covariance(np.concatenate([z[::2], z[[at]]]), scale, noise)
        weights = np.linalg.solve(c[:-1, :-1], c[:-1, -1])
        losses.append(-stats.norm(weights @ y[::2], np.sqrt(c[-1, -1] - weights @ c[:-1, -1])).logpdf(y[at]))
    return np.mean(losses)


def test_losses_and_gradients_match_dense_algebra_for_each_client(monkeypatch):
    (z, y), (other, labels) = make_samples(11), make_samples(7, 1)
    stack = torch.zeros(3, 11, 3, dtype=torch.float64)
    stack[0], stack[1, :7] = torch.from_numpy(z), 5 * torch.from_numpy(other)  # embeddings of any length
    y_stack = torch.zeros(3, 11, dtype=torch.float64)
    y_stack[0], y_stack[1, :7] = torch.from_numpy(y), torch.from_numpy(labels)
    losses, _ = gp.losses_and_gradients(LENGTH, stack, y_stack, [11, 7, 3])
    np.testing.assert_allclose(losses[:2], [compute_loss(z, y), compute_loss(other, labels)], rtol=1e-9)
    assert losses[2] == 0
    monkeypatch.setattr(gp, "choose_noise", lambda k, y: (0.1, 0.5))  # gradients take both as constants
    _, grads = gp.losses_and_gradients(LENGTH, stack, y_stack, [11, 7, 3])
    assert not grads[2].any()
    assert not grads[1, 7:].any()
    step = 1e-6
    for row, column in ((0, 1), (1, 0), (6, 2)):
        moved = [stack.clone(), stack.clone()]
        for sign, each in zip((1, -1), moved, strict=True):
            each[1, row, column] += sign * step
        up, down = (float(gp.losses_and_gradients(LENGTH, each, y_stack, [11, 7, 3])[0][1]) for each in moved)
        assert float(grads[1, row, column]) == pytest.approx((up - down) / (2 * step), rel=1e-3, abs=1e-6)


def test_a_round_moves_bodies_by_their_gradients_and_averages_them():
    data = worlds.quantities()
    run = worlds.run("pfedgp", rounds=1, participation=1.0, lr=0.1, options={"steps": 1}, data=data)
    state = worlds.play("pfedgp", run)
    bodies, able = [], [client for client in worlds.ABLE if len(data.rows(client, "train")) >= 4]
    for client in able:
        (rows,) = minibatches(data, client, ("sgd", 0), batch=512)
        w = {name: value.clone().requires_grad_() for name, value in run.init.items() if name.startswith("body.")}
        hidden = torch.relu(data.x[rows] @ w["body.1.weight"].T + w["body.1.bias"])
        z = torch.relu(hidden @ w["body.3.weight"].T + w["body.3.bias"])
        y = ((data.y[rows] - data.task.mean) / data.task.deviation)[None]
        _, by_z = gp.losses_and_gradients(1.0, z.detach()[None], y, [len(rows)])
        grads = torch.autograd.grad(z, list(w.values()), by_z[0])
        bodies.append({name: (v - 0.1 * g).detach() for (name, v), g in zip(w.items(), grads, strict=True)})
    worlds.close(state["body"], worlds.mean(bodies, [1] * len(bodies)), atol=1e-5)
    assert len(able) == 5  # one of the clients with training samples has one


def test_clients_predict_by_their_own_samples_in_the_unit_of_labels():
    data = worlds.quantities()
    run = worlds.run("pfedgp", rounds=1, data=data)
    state = worlds.play("pfedgp", run)
    model = {**run.init, **state["body"]}

    def embed(rows):
        hidden = torch.relu(data.x[rows] @ model["body.1.weight"].T + model["body.1.bias"])
        return normalize(torch.relu(hidden @ model["body.3.weight"].T + model["body.3.bias"]), dim=1)

    train, test = data.rows(0, "train"), data.rows(0, "test")
    y = (data.y[train] - data.task.mean) / data.task.deviation
    expected = data.task.mean + data.task.deviation * gp.predict(1.0, embed(train), y, embed(test))
    answered = worlds.answers("pfedgp", run, state, np.asarray([0, 5]))["test"]  # client 5 has no samples
    np.testing.assert_allclose(answered[:, 0], expected, rtol=1e-3)
    assert gp.predict(1.0, torch.zeros(0, 3), torch.zeros(0), torch.ones(2, 3)).tolist() == [0, 0]


def test_pfedgp_follows_clients_whose_quantities_differ():
    draw, client = np.random.default_rng(0), np.repeat(np.arange(8), 40)
    x = draw.normal(size=(320, 4)).astype(np.float32)
    line = x[:, 0] + (2 * (client % 2) - 1) * x[:, 1]
    federation = pflcli.Federation.from_arrays(x, 200 + 30 * line + 3 * draw.normal(size=320), client, task="quantity")
    how = {"model": "mlp", "rounds": 10, "participation": 1.0, "batch_size": 16, "lr": 0.05, "quiet": True}
    score = {name: pflcli.simulate(name, federation, **how).score() for name in ("fedavg", "pfedgp", "constant")}
    assert score["pfedgp"] > score["fedavg"] + 0.1
    assert score["pfedgp"] > 0.7
    counts = pflcli.Federation.from_arrays(x, draw.poisson(np.exp(line)), client, task="count")
    with pytest.raises(UnsuitedError, match="pfedgp learns classes and quantity, and the task is count"):
        pflcli.simulate("pfedgp", counts, **how)
