"""pFedFDA: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special

import worlds
from by_hand import representation
from pflcli.core import parameters, rng
from pflcli.core.federation.attendance import Diverged
from pflcli.methods import pfedfda
from pflcli.methods.parts import gaussians


def predict_gaussian(z, means, covariance, prior):
    """Probabilities (n, C) of Gaussian classes by their densities."""
    covariance = (1 - 1e-4) * covariance + 1e-4 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    inverse, apart = np.linalg.inv(covariance), z[:, None] - means
    return special.softmax(
        np.log(prior) - np.einsum("ncd,de,nce->nc", apart, inverse, apart, optimize=True) / 2, axis=1
    )


def estimate_statistics(z, y, common):
    means = np.stack([z[y == c].mean(axis=0) if (y == c).any() else common[0][c] for c in range(worlds.CLASSES)])
    return means, (z - means[y]).T @ (z - means[y]) / (len(y) - 1) + np.eye(200)


def mix_statistics(own, common, beta):
    return [beta * a + (1 - beta) * b for a, b in zip(own, common, strict=True)]


def find_best_beta(data, client, z, y, common, prior, key):
    """Two-fold cross-validation of beta, by densities."""
    draw, fold = rng.generator(0, "folds", key, client), np.full(len(y), -1)
    for c in np.unique(y):
        rows = draw.permutation(np.flatnonzero(y == c))
        fold[rows] = np.arange(len(rows)) % 2 if len(rows) > 1 else -1
    losses = []
    for beta in (0.0, 0.25, 0.5, 0.75, 1.0):
        loss = 0
        for half in (0, 1):
            test_half = fold == half
            p = predict_gaussian(
                z[test_half],
                *mix_statistics(estimate_statistics(z[fold == 1 - half], y[fold == 1 - half], common), common, beta),
                prior,
            )
            loss -= np.log(p[np.arange(test_half.sum()), y[test_half]]).mean()
        losses.append(loss)
    return (0.0, 0.25, 0.5, 0.75, 1.0)[int(np.argmin(losses))]


@pytest.mark.parametrize("beta", [None, 0.3])
def test_pfedfda_rounds_match_hand_computed_models(beta):
    run = worlds.run("pfedfda", participation=1.0, lr=0.01, options={"beta": beta, "ridge": 1.0})
    state = worlds.play("pfedfda", run, last=2)
    data, shared = run.federation, parameters.part(run.init, "body.")
    common = [run.rng("means").random((worlds.CLASSES, 200)), np.eye(200)]
    sizes = data.sizes("train")
    for t in range(2):
        bodies, adapted = [], []
        for c in worlds.ABLE:
            rows = data.block(c, "train")
            y = data.y[rows].numpy()
            prior = np.bincount(y, minlength=worlds.CLASSES) / len(y) + 1e-4
            prior /= prior.sum()
            floored = (1 - 1e-4) * common[1] + 1e-4 * np.trace(common[1]) / 200 * np.eye(200)
            weight = common[0] @ np.linalg.inv(floored)
            bias = np.log(prior) - (weight * common[0]).sum(axis=1) / 2
            head = {"head.weight": torch.tensor(weight).float(), "head.bias": torch.tensor(bias).float()}
            trained = worlds.steps({**shared, **head}, data, c, ("sgd", t), lr=0.01, trainable="body.")
            bodies.append(parameters.part(trained, "body."))
            z = representation(trained, data.inputs(rows)).double().numpy()
            usable = len(y) > 1 and max(np.bincount(y)) > 1
            chosen = beta if beta is not None else find_best_beta(data, c, z, y, common, prior, t) if usable else 0.0
            own = estimate_statistics(z, y, common) if len(y) > 1 else (common[0].copy(), np.eye(200))
            if len(y) == 1:
                own[0][y[0]] = z[0]
            adapted.append(mix_statistics(own, common, chosen))
        weights = sizes[worlds.ABLE] / sizes[worlds.ABLE].sum()
        common = [sum(w * a[k] for w, a in zip(weights, adapted, strict=True)) for k in (0, 1)]
        shared = worlds.mean(bodies, sizes[worlds.ABLE].tolist())
    worlds.close(state["body"], shared, atol=1e-4)
    np.testing.assert_allclose(state["statistics"]["means"], common[0], atol=1e-3)
    np.testing.assert_allclose(state["statistics"]["covariance"], common[1], atol=1e-3)
    y = data.y[data.block(0, "train")].numpy()
    z, test_z = (
        representation(shared, data.inputs(data.block(0, split))).double().numpy() for split in ("train", "test")
    )
    prior = np.bincount(y, minlength=worlds.CLASSES) / len(y) + 1e-4
    prior /= prior.sum()
    chosen = find_best_beta(data, 0, z, y, common, prior, "personalize") if beta is None else beta
    expected = predict_gaussian(test_z, *mix_statistics(estimate_statistics(z, y, common), common, chosen), prior)
    np.testing.assert_allclose(worlds.answers("pfedfda", run, state, np.asarray([0]))["test"], expected, atol=2e-3)
    size = parameters.size(shared) + 4 * (3 * 200 + 200 * 200)
    assert run.traffic == {"up": 2 * 6 * size, "down": 2 * 6 * size, "peer": 0}


@pytest.mark.parametrize("samples", [2, 12, 30])
def test_pfedfda_grid_heads_equal_those_of_the_interpolated_statistics(samples):
    """By the formulas as they are printed, in the original axes and with an inverse, for few samples and for many."""
    draw, cfg = rng.generator(0, "test"), pfedfda.Config()
    z, y = draw.normal(size=(samples, 40)), np.arange(samples) % 2
    scatter = draw.normal(size=(90, 40)) * np.linspace(0.01, 3, 40)
    noise = draw.normal(size=(40, 40))
    common = {"means": draw.normal(size=(3, 40)), "covariance": scatter.T @ scatter / 90 + noise - noise.T}
    exact = pfedfda._to_double({name: torch.from_numpy(value) for name, value in common.items()})
    axes, principal = gaussians.principal_axes(exact)
    # Two clients, of which the second has three samples less than the first, and rows of zeros.
    padded, classes = torch.randn(2, samples + 3, 40).double(), torch.zeros(2, samples + 3, 3).double()
    padded[1], padded[1, :samples] = 0, torch.from_numpy(z)
    classes[0, :, 0], classes[1, range(samples), y] = 1, 1
    (_, weight), (_, bias) = gaussians._heads_of_grid(cfg.grid, cfg.ridge, padded @ axes, classes, principal)
    means = np.stack([z[y == 0].mean(axis=0), z[y == 1].mean(axis=0), common["means"][2]])
    covariance = (z - means[y]).T @ (z - means[y]) / (samples - 1) + 0.1 * np.eye(40)
    for place, beta in enumerate(cfg.grid):
        mean, of_all = mix_statistics([means, covariance], [common["means"], scatter.T @ scatter / 90], beta)
        expected = mean @ np.linalg.inv((1 - 1e-4) * of_all + 1e-4 * np.trace(of_all) / 40 * np.eye(40))
        np.testing.assert_allclose(weight[place] @ axes.T.to(weight), expected, rtol=1e-3, atol=2e-3)
        np.testing.assert_allclose(bias[place], -(expected * mean).sum(axis=1) / 2, rtol=1e-3)


def fit_statistics(z, y, common, ridge):
    """Means and covariance of features in double precision, as the paper has them; one sample has no covariance."""
    means = np.stack([z[y == c].mean(axis=0) if (y == c).any() else common["means"][c] for c in range(3)])
    apart = z - means[y]
    return [means, apart.T @ apart / max(len(y) - 1, 1) + ridge * np.eye(z.shape[1])]


@pytest.mark.parametrize("sizes", [[0, 1, 2, 9, 17], [0], [1, 1], [70, 3, 12]])
def test_pfedfda_adapts_a_group_of_clients_like_each_client_alone(sizes):
    """Clients without samples, with one, with one class, and with more samples than features."""
    draw, cfg = rng.generator(0, "group"), pfedfda.Config(grid=(0.1, 0.35, 0.6, 0.9))
    scatter = draw.normal(size=(90, 20)) * np.linspace(0.3, 2, 20)
    common = {"means": draw.normal(size=(3, 20)), "covariance": scatter.T @ scatter / 90}
    exact = {name: torch.from_numpy(value) for name, value in common.items()}
    clients = [(draw.normal(size=(n, 20)), np.arange(n) % (1 if n == 2 else 3)) for n in sizes]
    samples = [(torch.from_numpy(z).float(), torch.from_numpy(y)) for z, y in clients]
    folds = [pfedfda._draw_folds(y, draw) for _, y in clients]
    priors = draw.random((len(sizes), 3)) + 0.1
    betas = gaussians.cross_validate(
        cfg.grid, cfg.ridge, samples, folds, gaussians.principal_axes(exact), torch.from_numpy(np.log(priors))
    )
    for (z, y), fold, prior, beta in zip(clients, folds, priors, betas, strict=True):
        losses = np.zeros(len(cfg.grid))
        for index, candidate in enumerate(cfg.grid):
            for half in (0, 1):
                own = fit_statistics(z[fold == half], y[fold == half], common, cfg.ridge)
                means, covariance = mix_statistics(own, [common["means"], common["covariance"]], candidate)
                queries, true = z[fold == 1 - half], y[fold == 1 - half]
                p = predict_gaussian(queries, means, covariance, prior)[np.arange(len(true)), true]
                losses[index] -= np.log(p).mean() if len(p) else 0
        assert beta == (cfg.grid[int(losses.argmin())] if (fold >= 0).any() else 0.0)
    chosen = np.linspace(0, 1, len(sizes))
    adapted = gaussians.mixed_statistics(samples, chosen, exact, cfg.ridge)
    for place, ((z, y), beta) in enumerate(zip(clients, chosen, strict=True)):
        means, covariance = mix_statistics(
            fit_statistics(z, y, common, cfg.ridge), [common["means"], common["covariance"]], beta
        )
        np.testing.assert_allclose(adapted["means"][place], means, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(adapted["covariance"][place], covariance, rtol=1e-4, atol=1e-5)


def test_pfedfda_names_only_the_client_whose_features_overflow(monkeypatch):
    run = worlds.run("pfedfda", participation=1.0, lr=0.01)
    state, features = worlds.play("pfedfda", run, last=1), pfedfda._features

    def overflown(run, clients, models, split, **how):
        embedded = features(run, clients, models, split, **how)
        return [z * (torch.inf if client == 2 else 1) for client, z in zip(clients, embedded, strict=True)]

    monkeypatch.setattr(pfedfda, "_features", overflown)
    with pytest.raises(Diverged) as raised:
        pfedfda.train_round(run, state, 1)
    assert raised.value.clients == [2]
