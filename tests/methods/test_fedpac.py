"""FedPAC: rounds worked out by hand, the weights of heads by another solver, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch.nn import functional

import worlds
from by_hand import body_of, head_of, minibatch_samples, representation, sample_counts
from pflcli.core import parameters
from pflcli.methods.fedpac import combination_weights


def solve(h, v, i):
    """The weights of client ``i`` by the coefficients of the paper's programme and a general solver."""
    m = len(v)
    p = np.diag(v) + np.asarray([[np.sum((h[i] - h[j]) * (h[i] - h[k])) for k in range(m)] for j in range(m)])
    p /= np.abs(p).max()
    simplex = {"type": "eq", "fun": lambda a: a.sum() - 1}
    found = minimize(
        lambda a: a @ p @ a,
        np.full(m, 1 / m),
        jac=lambda a: 2 * p @ a,
        bounds=[(0, 1)] * m,
        constraints=[simplex],
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    assert found.success
    return found.x


@pytest.mark.parametrize(("clients", "spread"), [(2, 1.0), (6, 0.3), (9, 3.0)])
def test_weights_of_heads_solve_the_quadratic_programme(clients, spread):
    draw = np.random.default_rng(clients)
    h, v = spread * draw.normal(size=(clients, 12)), draw.random(clients)
    weights = combination_weights(h, v)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    for i in range(clients):
        np.testing.assert_allclose(weights[i], solve(h, v, i), atol=2e-4)


def test_clients_with_equal_means_combine_by_the_inverse_of_their_variances():
    h, v = np.ones((3, 4)), np.asarray([1.0, 2.0, 4.0])
    np.testing.assert_allclose(combination_weights(h, v), np.tile([4 / 7, 2 / 7, 1 / 7], (3, 1)), atol=1e-6)
    np.testing.assert_allclose(combination_weights(h, np.zeros(3)), 1 / 3)  # samples that are all the same
    far = np.eye(3) * 1e4
    np.testing.assert_allclose(combination_weights(far, v), np.eye(3), atol=1e-6)  # nobody is like another
    np.testing.assert_allclose(combination_weights(h[:1], v[:1]), [[1.0]])


def train(w, data, client, key, part, loss, epochs=1):
    """A client's steps on one part of a model, by minibatches."""
    w = {name: value.clone().requires_grad_(name.startswith(part)) for name, value in w.items()}
    own = [value for name, value in w.items() if name.startswith(part)]
    for x, y in minibatch_samples(data, client, key, epochs):
        for value, grad in zip(own, torch.autograd.grad(loss(w, x, y), own), strict=True):
            value.data -= 0.1 * grad
    return {name: value.detach() for name, value in w.items()}


def cross_entropy(w, x, y):
    return functional.cross_entropy(representation(w, x) @ w["head.weight"].T + w["head.bias"], y)


def aligned(centroids):
    def loss(w, x, y):
        z = representation(w, x)
        apart = sum(((z[i] - centroids[k]) ** 2).mean() for i, k in enumerate(y.tolist()) if k in centroids)
        return cross_entropy(w, x, y) + 3.0 * apart / len(y)

    return loss


def test_fedpac_rounds_match_hand_computed_models(mode):
    options = {"lam": 3.0, "head_epochs": 2, "final_epochs": 1}
    run = worlds.run("fedpac", mode=mode, rounds=4, options=options)
    state, data = worlds.play("fedpac", run), run.federation
    body, heads, centroids, sent = body_of(run.init), dict.fromkeys(range(7), head_of(run.init)), {}, [0, 0]
    times, size = np.zeros(7), parameters.size(run.init)
    for t in range(4):
        cohort = run.cohort(t).tolist()
        trained, h, v, sums, counts = {}, [], [], {}, {}
        sent[1] += len(cohort) * (size + 4 * 200 * len(centroids))
        for c in cohort:
            x, y = data.inputs(data.block(c, "train")), data.y[data.block(c, "train")]
            z, classes = representation(body, x), y.unique().tolist()
            own = torch.zeros(worlds.CLASSES, 200)
            for k in classes:
                own[k] = (y == k).float().mean() * z[y == k].mean(dim=0)
            h.append(own.double().numpy().ravel())
            share = [(y == k).float().mean().item() for k in classes]
            second = sum(p * (z[y == k] ** 2).sum(dim=1).mean().item() for p, k in zip(share, classes, strict=True))
            mean = [z[y == k].mean(dim=0).square().sum().item() for k in classes]
            v.append((second - sum(p**2 * m for p, m in zip(share, mean, strict=True))) / len(y))
            w = train({**body, **heads[c]}, data, c, ("head", t), "head.", cross_entropy, epochs=2)
            trained[c] = train(w, data, c, ("body", t), "body.", aligned(centroids))
            z = representation(trained[c], x)
            for k in classes:
                sums[k] = sums.get(k, 0) + z[y == k].sum(dim=0)
                counts[k] = counts.get(k, 0) + int((y == k).sum())
            sent[0] += size + 4 * (2 * 200 * len(classes) + 1)
        body = worlds.mean([body_of(trained[c]) for c in cohort], sample_counts(run, cohort))
        centroids = {**centroids, **{k: total / counts[k] for k, total in sums.items()}}
        weights = {c: solve(np.asarray(h), np.asarray(v), i) for i, c in enumerate(cohort)}
        assert any(0.3 < a.max() < 0.95 for a in weights.values())  # heads are combined
        for c in cohort:
            parts = [head_of(trained[other]) for other in cohort]
            heads[c] = worlds.mean(parts, weights[c].tolist())
        times[cohort] += 1
    assert (times > 1).any()
    assert (times[worlds.ABLE] < 4).all()
    worlds.close(state["body"], body, atol=2e-4)
    for c, expected in heads.items():
        worlds.close(parameters.pick(state["heads"][[c]], 0), expected, atol=2e-4)
    for k, expected in centroids.items():
        torch.testing.assert_close(state["centroids"]["mean"][k], expected, rtol=1e-3, atol=2e-4)
    assert run.traffic == {"up": sent[0], "down": sent[1], "peer": 0}
    client = int(np.flatnonzero(times)[0])
    last = train({**body, **heads[client]}, data, client, ("head", "final"), "head.", cross_entropy)
    actual = worlds.answers("fedpac", run, state, np.asarray([client]))["test"]
    np.testing.assert_allclose(actual, worlds.probabilities(last, data, client), atol=1e-3)


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_fedpac_without_alignment_and_collaboration_has_the_bytes_of_fedrep(mode):
    answers, states = [], []
    for name, options in (("fedrep", {}), ("fedpac", {"lam": 0.0, "collaborate": False})):
        run = worlds.run(name, mode=mode, options={"head_epochs": 2, "final_epochs": 3, **options})
        states.append(worlds.play(name, run))
        seen = states[-1]["heads"].written
        answers.append(worlds.answers(name, run, states[-1], seen)["test"])
    assert worlds.same(states[0]["body"], states[1]["body"])
    assert worlds.same(states[0]["heads"], states[1]["heads"])
    np.testing.assert_array_equal(*answers)


def test_fedpac_keeps_centroids_of_classes_absent_from_the_round():
    run = worlds.run("fedpac")
    state = worlds.play("fedpac", run)
    before = state["centroids"]["mean"].clone()
    run.cohort = lambda t: np.asarray([worlds.ONE_CLASS])
    after = worlds.play("fedpac", run, first=3, last=4, state=state)["centroids"]["mean"]
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert not torch.equal(after[1], before[1])


def test_newcomer_of_fedpac_trains_the_initial_head_on_the_last_body():
    run = worlds.run("fedpac", options={"newcomer_epochs": 2, "final_epochs": 0})
    state = worlds.play("fedpac", run)
    new = next(c for c in worlds.ABLE if c not in state["heads"].written and run.federation.sizes("test")[c])
    start = {**state["body"], **head_of(run.init)}
    model = train(start, run.federation, new, ("head", "newcomer"), "head.", cross_entropy, epochs=2)
    actual = worlds.answers("fedpac", run, state, np.asarray([new]))["test"]
    np.testing.assert_allclose(actual, worlds.probabilities(model, run.federation, new), atol=1e-5)
