"""APFL, Per-FedAvg, pFedMe, SCAFFOLD, FedHealth: local objectives of their own, against plain autograd."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

import worlds
from helpers import set_own_products
from pflcli import parameters, rng
from pflcli.engine import gradients, linear_chain
from pflcli.engine.local_sgd import steps_per_epoch
from pflcli.methods import fedhealth, per_fedavg, pfedme


@pytest.fixture(params=["loop", "stacked", "compiled"])
def mode(request, monkeypatch):
    """A mode of the engine, or the compiled loops, which otherwise only networks of 100,000 weights use."""
    set_own_products(monkeypatch, request.param == "compiled")
    monkeypatch.setattr(linear_chain, "LARGE", 0)
    return "auto" if request.param == "compiled" else request.param


def loss_of(w, data, rows):
    return functional.cross_entropy(worlds.logits(w, data.inputs(rows)), data.y[rows])


def gradient(w, data, rows):
    """The gradient of the loss at ``w`` on some rows, by name."""
    at = {name: value.detach().clone().requires_grad_() for name, value in w.items()}
    return dict(zip(at, torch.autograd.grad(loss_of(at, data, rows), list(at.values())), strict=True))


def moved(w, direction, by):
    return {name: value - by * direction[name] for name, value in w.items()}


def minibatches(data, client, key, *, epochs=1, size=4):
    """The rows of each of a client's minibatches."""
    rows, draw = torch.from_numpy(data.rows(client, "train")), rng.generator(0, *key, client)
    for _ in range(epochs):
        yield from (part for part in rows[torch.from_numpy(draw.permutation(len(rows)))].split(size) if len(part))


def weights(run, cohort):
    return run.federation.sizes("train")[cohort].tolist()


def apfl_steps(v, w, alpha, data, client, key, epochs=1, lr=0.1):
    """Both models move at once, v by the chain rule at the mixture of weights."""
    for rows in minibatches(data, client, key, epochs=epochs):
        mixed = {name: alpha * v[name] + (1 - alpha) * w[name] for name in v}
        at_mixture, at_global = gradient(mixed, data, rows), gradient(w, data, rows)
        v, w = moved(v, at_mixture, lr * alpha), moved(w, at_global, lr)
    return v, w


@pytest.mark.parametrize("adaptive", [False, True])
def test_apfl_rounds_by_hand(mode, adaptive, monkeypatch):
    run = worlds.run("apfl", mode=mode, epochs=2, options={"alpha": 0.3, "adaptive": adaptive, "alpha_lr": 5.0})
    two_clients = 4 * parameters.size(run.init)
    monkeypatch.setattr("pflcli.engine.engine._CHUNK_BYTES", {"cpu": two_clients})
    state = worlds.play("apfl", run)
    data, w, alpha = run.federation, run.init, np.full(7, 0.3)
    v = dict.fromkeys(range(7), w)
    for t in range(3):
        cohort, trained = run.cohort(t).tolist(), []
        for c in cohort:
            if adaptive:
                mixed = {name: alpha[c] * v[c][name] + (1 - alpha[c]) * w[name] for name in w}
                grad = gradient({n: x.float() for n, x in mixed.items()}, data, torch.from_numpy(data.rows(c, "train")))
                slope = sum(((v[c][name] - w[name]) * grad[name]).sum().item() for name in w)
                alpha[c] = min(max(alpha[c] - 5.0 * slope, 0), 1)
            v[c], local = apfl_steps(v[c], w, float(alpha[c]), data, c, ("sgd", t), epochs=2)
            trained.append(local)
        w = worlds.mean(trained, weights(run, cohort))
    worlds.close(state["global"], w, atol=1e-5)
    np.testing.assert_allclose(state["alpha"].numpy(), alpha, atol=1e-4)
    assert (np.ptp(alpha) > 0.01) == adaptive
    for c, expected in v.items():
        worlds.close(parameters.pick(state["local"][[c]], 0), expected, atol=1e-4)
    c = 0
    assert c in state["local"].written
    mixed = {name: (alpha[c] * v[c][name] + (1 - alpha[c]) * w[name]).float() for name in w}
    actual = worlds.answers("apfl", run, state, np.asarray([c]))["test"]
    np.testing.assert_allclose(actual, worlds.probabilities(mixed, data, c), atol=1e-4)


def test_apfl_leaves_the_global_model_to_fedavg():
    runs = [worlds.run(name) for name in ("fedavg", "apfl")]
    expected, actual = (worlds.play(*args)["global"] for args in zip(("fedavg", "apfl"), runs, strict=True))
    worlds.close(actual, expected)
    assert runs[0].traffic == runs[1].traffic


def test_apfl_at_zero_answers_as_fedavg():
    run = worlds.run("apfl", options={"alpha": 0.0})
    state = worlds.play("apfl", run)
    actual = worlds.answers("apfl", run, state)["test"]
    np.testing.assert_allclose(actual, worlds.answers("fedavg", run, state)["test"], atol=1e-6)


def test_apfl_at_one_is_training_alone():
    run = worlds.run("apfl", participation=1.0, options={"alpha": 1.0})
    state = worlds.play("apfl", run)
    for c in worlds.ABLE:
        expected = run.init
        for t in range(3):
            expected = worlds.steps(expected, run.federation, c, ("sgd", t))
        worlds.close(parameters.pick(state["local"][[c]], 0), expected)


def test_alpha_never_leaves_its_range():
    run = worlds.run("apfl", participation=1.0, options={"adaptive": True, "alpha_lr": 1e4})
    alpha = worlds.play("apfl", run)["alpha"]
    assert alpha.min() >= 0
    assert alpha.max() <= 1
    assert len(alpha.unique()) > 1


def test_a_newcomer_of_apfl_begins_at_the_global_model():
    run = worlds.run("apfl", options={"alpha": 0.3, "newcomer_epochs": 2})
    state = worlds.play("apfl", run)
    new = next(c for c in worlds.ABLE if c not in state["local"].written and run.federation.sizes("test")[c])
    w = state["global"]
    v, _ = apfl_steps(w, w, 0.3, run.federation, new, ("sgd", "newcomer"), epochs=2)
    mixed = {name: 0.3 * v[name] + 0.7 * w[name] for name in w}
    actual = worlds.answers("apfl", run, state, np.asarray([new]))["test"]
    np.testing.assert_allclose(actual, worlds.probabilities(mixed, run.federation, new), atol=1e-5)


def test_per_fedavg_round_by_hand(mode):
    run = worlds.run("per-fedavg", mode=mode, participation=1.0, epochs=2, options={"alpha": 0.2})
    actual = worlds.play("per-fedavg", run, last=1)["global"]
    data, trained = run.federation, []
    for c in worlds.ABLE:
        w = run.init
        for rows in minibatches(data, c, ("sgd", 0), epochs=2, size=8):
            first, second = (rows[::2], rows[1::2]) if len(rows) >= 4 else (rows, rows)
            w = moved(w, gradient(moved(w, gradient(w, data, first), 0.2), data, second), 0.1)
        trained.append(w)
    worlds.close(actual, worlds.mean(trained, weights(run, worlds.ABLE)), atol=1e-5)
    assert run.traffic["up"] == run.traffic["down"] == 6 * parameters.size(run.init)


def test_the_outer_gradient_is_of_other_samples_than_the_inner():
    def halves(weights):
        weight = torch.tensor(weights)
        places = torch.arange(weight.shape[1]).expand(len(weight), -1)
        return per_fedavg._halves(gradients.StackedBatch(places.double(), places, weight, {}, {}))

    first, second = halves([[0.1] * 10])
    assert sorted([*first.y[0].tolist(), *second.y[0].tolist()]) == list(range(10))
    first, second = halves([[1 / 7] * 7 + [0.0] * 3])
    assert first.y[first.weight > 0].tolist() == [0, 2, 4, 6]
    assert second.y[second.weight > 0].tolist() == [1, 3, 5]
    torch.testing.assert_close(first.weight.sum(dim=1), torch.ones(1))
    torch.testing.assert_close(second.weight.sum(dim=1), torch.ones(1))
    # Fewer than four samples are not cut, alone or beside a client that has enough.
    few, enough = [1 / 3] * 3 + [0.0] * 5, [1 / 8] * 8
    for half in halves([few]):
        assert half.y[half.weight > 0].tolist() == [0, 1, 2]
    for first_place, half in enumerate(halves([few, enough])):
        assert half.y[0][half.weight[0] > 0].tolist() == [0, 1, 2]
        assert half.y[1][half.weight[1] > 0].tolist() == list(range(first_place, 8, 2))
        torch.testing.assert_close(half.weight.sum(dim=1), torch.ones(2))


def test_per_fedavg_fine_tunes_at_rate_alpha():
    run = worlds.run("per-fedavg", options={"alpha": 0.2, "epochs": 2})
    state = worlds.play("per-fedavg", run)
    actual = worlds.answers("per-fedavg", run, state, np.asarray([0]))
    model = worlds.steps(state["global"], run.federation, 0, ("sgd", "fine-tune"), epochs=2, lr=0.2)
    np.testing.assert_allclose(actual["test"], worlds.probabilities(model, run.federation, 0), atol=1e-6)


def test_scaffold_rounds_by_hand(mode, monkeypatch):
    run = worlds.run("scaffold", mode=mode, epochs=2, options={"server_lr": 0.7}, momentum=0.9)
    two_clients = 6 * parameters.size(run.init)
    monkeypatch.setattr("pflcli.engine.engine._CHUNK_BYTES", {"cpu": two_clients})
    state = worlds.play("scaffold", run)
    data, x = run.federation, run.init
    zero = {name: torch.zeros_like(value) for name, value in x.items()}
    c, own, total = zero, dict.fromkeys(range(7), zero), data.sizes("train").sum()
    for t in range(3):
        cohort, trained, change = run.cohort(t).tolist(), [], zero
        for i in cohort:
            y, met, count = x, zero, 0
            for rows in minibatches(data, i, ("sgd", t), epochs=2):
                grad = gradient(y, data, rows)
                y = {n: v - 0.1 * (grad[n] - own[i][n] + c[n]) for n, v in y.items()}
                met, count = {n: met[n] + grad[n] for n in met}, count + 1
            mean_gradient = {n: v / count for n, v in met.items()}
            share = len(data.rows(i, "train")) / total
            change = {n: change[n] + share * (mean_gradient[n] - own[i][n]) for n in change}
            own[i] = mean_gradient
            trained.append(y)
        mean = worlds.mean(trained, weights(run, cohort))
        x = {n: v + 0.7 * (mean[n] - v) for n, v in x.items()}
        c = {n: v + change[n] for n, v in c.items()}
    worlds.close(state["global"], x, atol=1e-5)
    worlds.close(state["control"], c, atol=1e-4)
    for i, expected in own.items():
        worlds.close(parameters.pick(state["controls"][[i]], 0), expected, atol=1e-4)
    drawn = sum(len(run.cohort(t)) for t in range(3))
    assert run.traffic["up"] == run.traffic["down"] == 2 * drawn * parameters.size(x)


def test_scaffold_divides_by_the_steps_that_are_counted():
    run = worlds.run("scaffold", steps=5, participation=1.0)
    state = worlds.play("scaffold", run, last=1)
    for part in run.local_sgd(run.cohort(0), run.init, t=0):  # without control variates yet, plain steps
        met = {name: (run.init[name] - part.params[name]) / (5 * 0.1) for name in run.engine.parameters}
        worlds.close(state["controls"][part.clients], met, atol=1e-5)


def test_scaffold_begins_as_fedavg():
    """Control variates of zero correct nothing."""
    runs = [worlds.run(name) for name in ("fedavg", "scaffold")]
    expected, actual = (worlds.play(*args, last=1) for args in zip(("fedavg", "scaffold"), runs, strict=True))
    worlds.close(actual["global"], expected["global"])


def test_steps_are_counted_as_they_are_cut():
    sizes = np.asarray([0, 1, 3, 4, 5, 8, 9])
    assert steps_per_epoch(sizes, 4, join_single=False).tolist() == [0, 1, 1, 1, 2, 2, 3]
    assert steps_per_epoch(sizes, 4, join_single=True).tolist() == [0, 1, 1, 1, 1, 2, 2]


def test_pfedme_rounds_by_hand(mode):
    options = {"lam": 2.0, "inner_steps": 3, "inner_lr": 0.05, "lr": 0.2, "beta": 0.6}
    run = worlds.run("pfedme", mode=mode, options=options)
    actual = worlds.play("pfedme", run)["global"]
    data, shared = run.federation, run.init
    for t in range(3):
        cohort, trained = run.cohort(t).tolist(), []
        for c in cohort:
            w = shared
            for rows in minibatches(data, c, ("sgd", t)):
                theta = w
                for _ in range(3):
                    grad = gradient(theta, data, rows)
                    theta = {n: v - 0.05 * (grad[n] + 2.0 * (v - w[n])) for n, v in theta.items()}
                w = {n: v - 0.2 * 2.0 * (v - theta[n]) for n, v in w.items()}
            trained.append(w)
        mean = worlds.mean(trained, weights(run, cohort))
        shared = {n: v + 0.6 * (mean[n] - v) for n, v in shared.items()}
    worlds.close(actual, shared, atol=1e-5)


def test_one_small_step_towards_theta_is_a_step_of_fedavg():
    """theta = w - inner_lr grad F(w), so w moves by lr lambda inner_lr grad F(w): lr 0.1 in all."""
    run = worlds.run("pfedme", options={"lam": 4.0, "inner_steps": 1, "inner_lr": 0.05, "lr": 0.5})
    worlds.close(worlds.play("pfedme", run)["global"], worlds.play("fedavg", worlds.run("fedavg"))["global"])


@pytest.mark.parametrize("options", [{"lam": 4.0}, {"lam": 0.3, "inner_lr": 0.2}, {}])
def test_one_inner_step_is_fedavg_whatever_lambda_is(options):
    """By default the global model moves as fast as that of FedAvg; by five steps too, where they are short."""
    expected = worlds.play("fedavg", worlds.run("fedavg"))["global"]
    run = worlds.run("pfedme", options={"inner_steps": 1, **options})
    worlds.close(worlds.play("pfedme", run)["global"], expected, atol=1e-5)
    many = worlds.play("pfedme", worlds.run("pfedme", options={**options, "inner_lr": 1e-3}))["global"]
    moved, meant = (sum(float((w[n] - run.init[n]).norm()) for n in w) for w in (many, expected))
    assert moved == pytest.approx(meant, rel=0.05)


def test_a_share_of_the_way_that_overshoots_counts_as_all_of_it():
    assert pfedme._share(pfedme.Config(lam=2.0, inner_lr=0.1, inner_steps=2)) == pytest.approx(0.36)
    assert pfedme._share(pfedme.Config(lam=15.0, inner_lr=0.13, inner_steps=4)) == 1


def test_pfedme_answers_with_theta():
    run = worlds.run("pfedme", options={"epochs": 2, "lam": 15.0})
    state = worlds.play("pfedme", run)
    actual = worlds.answers("pfedme", run, state, np.asarray([0]))
    plan = {"epochs": 2, "lr": 0.05}
    shared = state["global"]
    model = worlds.steps(shared, run.federation, 0, ("sgd", "theta"), anchor=shared, pull=15.0, **plan)
    np.testing.assert_allclose(actual["test"], worlds.probabilities(model, run.federation, 0), atol=1e-6)


def test_the_public_set_is_a_tenth_of_every_clients_training_samples_and_is_paid_for():
    run = worlds.run("fedhealth", options={"public": 0.3}, rounds=0)
    rows = fedhealth._draw_public_rows(run, run.federation.seen_clients)
    for c in run.clients:
        own_rows = run.federation.rows(int(c), "train")
        assert np.isin(rows, own_rows).sum() == math.ceil(0.3 * len(own_rows))
    assert len(set(rows.tolist())) == len(rows)
    worlds.play("fedhealth", run)
    assert run.traffic["up"] == len(rows) * (4 * worlds.FEATURES + 8)
    assert run.traffic["down"] == len(rows) * 4 * worlds.FEATURES * 7
    other = worlds.run("fedhealth", options={"public": 0.3}, rounds=0, seed=1)
    assert not np.array_equal(rows, fedhealth._draw_public_rows(other, other.federation.seen_clients))


def test_the_cloud_model_is_trained_on_the_public_set(mode):
    run = worlds.run("fedhealth", mode=mode, options={"cloud_epochs": 3}, rounds=0)
    actual = worlds.play("fedhealth", run)["global"]
    data = run.federation.pooled(fedhealth._draw_public_rows(run, run.federation.seen_clients))
    worlds.close(actual, worlds.steps(run.init, data, 0, ("server", "cloud"), epochs=3))


def test_fedhealth_rounds_are_fedavg_from_the_cloud_model():
    run = worlds.run("fedhealth")
    start = worlds.play("fedhealth", run, last=0)
    actual = worlds.play("fedhealth", run, state=start)["global"]
    assert worlds.same(actual, worlds.play("fedavg", worlds.run("fedavg"), state=start)["global"])


def test_fedhealth_transfer_by_hand(mode):
    options = {"weight": 30.0, "aligned": 3, "epochs": 2, "lr": 0.05, "public": 0.2}
    run = worlds.run("fedhealth", mode=mode, options=options, rounds=1)
    state = worlds.play("fedhealth", run)
    actual = worlds.answers("fedhealth", run, state, np.asarray([0, 6]))["test"]
    data, public = run.federation, fedhealth._draw_public_rows(run, run.federation.seen_clients)
    public = data.x[public[run.rng("aligned").permutation(len(public))[:3]]]
    expected = []
    for c in (0, 6):
        w = dict(state["global"])
        for rows in minibatches(data, c, ("sgd", "transfer"), epochs=2):
            at = {name: value.clone().requires_grad_(not name.startswith("body.1.")) for name, value in w.items()}
            z, far = (features(at, x) for x in (data.x[rows], public))
            apart = (covariance(z) - covariance(far)).pow(2).sum() / (4 * 200**2)
            loss = loss_of(at, data, rows) + 30.0 * apart
            chosen = [name for name, value in at.items() if value.requires_grad]
            grads = torch.autograd.grad(loss, [at[name] for name in chosen])
            w |= {name: w[name] - 0.05 * grad for name, grad in zip(chosen, grads, strict=True)}
        expected.append(worlds.probabilities(w, data, c))
    np.testing.assert_allclose(actual, np.concatenate(expected), atol=1e-5)


def features(w, x):
    h = torch.relu(x @ w["body.1.weight"].T + w["body.1.bias"])
    return torch.relu(h @ w["body.3.weight"].T + w["body.3.bias"])


def covariance(z):
    return torch.cov(z.T, correction=0)


def test_fedhealth_without_alignment_is_fine_tuning_of_the_upper_layers():
    run = worlds.run("fedhealth", options={"weight": 0.0, "upper": 1, "epochs": 2})
    state = worlds.play("fedhealth", run)
    actual = worlds.answers("fedhealth", run, state, np.asarray([0]))["test"]
    plan = {"epochs": 2, "trainable": "head."}
    model = worlds.steps(state["global"], run.federation, 0, ("sgd", "transfer"), **plan)
    np.testing.assert_allclose(actual, worlds.probabilities(model, run.federation, 0), atol=1e-6)


@pytest.mark.parametrize("method", ["apfl", "fedhealth", "per-fedavg", "pfedme", "scaffold"])
def test_ways_agree_under_batch_norm(method):
    states = []
    for mode in ("loop", "stacked"):
        run, _ = worlds.normalized(method, mode)
        state = worlds.play(method, run)
        states.append((state, worlds.answers(method, run, state)["test"]))
    worlds.close(states[0][0]["global"], states[1][0]["global"], atol=1e-5)
    np.testing.assert_allclose(states[0][1], states[1][1], atol=1e-5)
    statistics = states[0][0]["global"]["body.2.running_mean"]
    assert statistics.abs().sum() > 0
    if method == "apfl":
        local = parameters.pick(states[0][0]["local"][[0]], 0)
        assert not torch.equal(local["body.2.running_mean"], statistics)
        assert local["body.2.running_mean"].abs().sum() > 0
