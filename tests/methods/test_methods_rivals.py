"""FedRoD, FedALA, FedDBE, FedProto, pFedFDA: rounds by hand, and limits of their options."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special
from torch.nn import functional

import worlds
from helpers import set_own_products
from pflcli import parameters, rng
from pflcli.engine import linear_chain
from pflcli.federation.attendance import Diverged
from pflcli.methods import pfedfda
from pflcli.methods.parts import gaussians


def minibatches(data, client, key, batch=4, epochs=1):
    rows, draw = torch.from_numpy(data.rows(client, "train")), rng.generator(0, *key, client)
    for _ in range(epochs):
        for part in rows[torch.from_numpy(draw.permutation(len(rows)))].split(batch):
            if len(part):
                yield data.inputs(part), data.y[part]


def body(w, x):
    hidden = torch.relu(x @ w["body.1.weight"].T + w["body.1.bias"])
    return torch.relu(hidden @ w["body.3.weight"].T + w["body.3.bias"])


def descend(w, loss, lr):
    """One step of gradient descent on tensors, in place."""
    for value, grad in zip(w, torch.autograd.grad(loss, w), strict=True):
        value.data -= lr * grad


def copied(params):
    return {name: value.clone().requires_grad_() for name, value in params.items()}


def plain(params):
    return {name: value.detach() for name, value in params.items()}


def use_compiled_loops(monkeypatch):
    set_own_products(monkeypatch, True)
    monkeypatch.setattr(linear_chain, "LARGE", 0)


@pytest.mark.parametrize("compiles", [False, True])
def test_fedrod_rounds_by_hand(compiles, monkeypatch):
    if compiles:
        use_compiled_loops(monkeypatch)
    run = worlds.run("fedrod", options={"gamma": 0.5})
    state = worlds.play("fedrod", run)
    data, shared = run.federation, run.init
    zeros = {name: torch.zeros_like(value) for name, value in parameters.part(shared, "head.").items()}
    heads = dict.fromkeys(range(7), zeros)
    for t in range(3):
        cohort, trained = run.cohort(t).tolist(), []
        for c in cohort:
            w, own = copied(shared), copied(heads[c])
            counts = torch.bincount(data.y[data.block(c, "train")], minlength=worlds.CLASSES)
            offsets = 0.5 * torch.log(counts.clamp(min=1e-12))
            for x, y in minibatches(data, c, ("sgd", t)):
                z = body(w, x)
                generic = z @ w["head.weight"].T + w["head.bias"]
                both = generic.detach() + z.detach() @ own["head.weight"].T + own["head.bias"]
                balanced, personal = functional.cross_entropy(generic + offsets, y), functional.cross_entropy(both, y)
                descend(list(w.values()), balanced, 0.1)
                descend(list(own.values()), personal, 0.1)
            heads[c] = plain(own)
            trained.append(plain(w))
        shared = worlds.mean(trained, data.sizes("train")[cohort].tolist())
    worlds.close(state["global"], shared, atol=1e-5)
    for c, expected in heads.items():
        worlds.close(parameters.pick(state["heads"][[c]], 0), expected, atol=1e-5)
    assert 0 in state["heads"].written
    actual = worlds.answers("fedrod", run, state, np.asarray([0]))["test"]
    model = {**shared, **{name: shared[name] + value for name, value in heads[0].items()}}
    np.testing.assert_allclose(actual, worlds.probabilities(model, data, 0), atol=1e-5)
    assert run.traffic["up"] == sum(len(run.cohort(t)) for t in range(3)) * parameters.size(run.init)


def test_the_generic_model_of_fedrod_without_balance_is_that_of_fedavg():
    runs = [worlds.run("fedavg"), worlds.run("fedrod", options={"gamma": 0.0})]
    expected, actual = (worlds.play(*args)["global"] for args in zip(("fedavg", "fedrod"), runs, strict=True))
    worlds.close(actual, expected, atol=1e-5)
    assert runs[0].traffic == runs[1].traffic


def test_a_newcomer_of_fedrod_trains_its_head_on_the_generic_model():
    run = worlds.run("fedrod", options={"newcomer_epochs": 2}, weight_decay=0.0)
    state = worlds.play("fedrod", run)
    new = next(c for c in worlds.ABLE if c not in state["heads"].written and run.federation.sizes("test")[c])
    actual = worlds.answers("fedrod", run, state, np.asarray([new]))["test"]
    # From zeros, own heads on top of the generic one take the steps that this head would take.
    model = worlds.steps(state["global"], run.federation, new, ("sgd", "newcomer"), epochs=2, trainable="head.")
    np.testing.assert_allclose(actual, worlds.probabilities(model, run.federation, new), atol=1e-5)


def test_fedala_rounds_by_hand():
    options = {"eta": 20.0, "first_epochs": 3, "weight_epochs": 2, "newcomer_epochs": 0}
    run = worlds.run("fedala", participation=1.0, rounds=4, options=options)
    state = worlds.play("fedala", run)
    data, shared, local, weights = run.federation, run.init, {}, {}

    def mixture(c, key):
        """The model of a client before it trains, and what it learned of how to mix it."""
        if c not in local:
            return dict(shared), None
        epochs = 2 if c in weights else 3
        w = dict(weights.get(c) or {name: torch.ones_like(value) for name, value in local[c].items()})
        for x, y in minibatches(data, c, key, epochs=epochs):
            mixed = {n: (local[c][n] + (shared[n] - local[c][n]) * w[n]).detach().requires_grad_() for n in local[c]}
            grads = torch.autograd.grad(
                functional.cross_entropy(worlds.logits({**shared, **mixed}, x), y), mixed.values()
            )
            for name, grad in zip(mixed, grads, strict=True):
                w[name] = (w[name] - 20.0 * grad * (shared[name] - local[c][name])).clamp(0, 1)
        return {**shared, **{n: local[c][n] + (shared[n] - local[c][n]) * w[n] for n in local[c]}}, w

    for t in range(4):
        trained = []
        learned = {c: mixture(c, ("weights", t)) for c in worlds.ABLE}
        for c, (start, w) in learned.items():
            trained.append(worlds.steps(start, data, c, ("sgd", t)))
            local[c] = parameters.part(trained[-1], "head.")
            weights |= {c: w} if w else {}
        shared = worlds.mean(trained, data.sizes("train")[worlds.ABLE].tolist())
    worlds.close(state["global"], shared, atol=1e-5)
    for c in worlds.ABLE:
        worlds.close(parameters.pick(state["local"][[c]], 0), local[c], atol=1e-5)
        worlds.close(parameters.pick(state["weights"][[c]], 0), weights[c], atol=1e-4)
    assert any(0 < float(value.min()) < 1 for w in weights.values() for value in w.values())
    assert all(float(value.min()) >= 0 and float(value.max()) <= 1 for w in weights.values() for value in w.values())
    model, _ = mixture(0, ("weights", "personalize"))
    actual = worlds.answers("fedala", run, state, np.asarray([0]))["test"]
    np.testing.assert_allclose(actual, worlds.probabilities(model, data, 0), atol=1e-4)


@pytest.mark.parametrize("upper", [1, 2, 9])
def test_fedala_with_weights_that_stay_is_fedavg(upper):
    runs = [worlds.run("fedavg"), worlds.run("fedala", options={"eta": 0.0, "upper": upper, "newcomer_epochs": 0})]
    states = [worlds.play(*args) for args in zip(("fedavg", "fedala"), runs, strict=True)]
    assert worlds.same(states[0]["global"], states[1]["global"])
    assert runs[0].traffic == runs[1].traffic
    actual = [worlds.answers(*args)["test"] for args in zip(("fedavg", "fedala"), runs, states, strict=True)]
    np.testing.assert_allclose(actual[0], actual[1], atol=1e-6)


def test_fedala_trains_the_last_mixture_if_asked():
    run = worlds.run("fedala", options={"final_epochs": 2, "eta": 0.0})
    state = worlds.play("fedala", run)
    client = int(next(c for c in state["local"].written if run.federation.sizes("test")[c]))
    actual = worlds.answers("fedala", run, state, np.asarray([client]))["test"]
    model = worlds.steps(state["global"], run.federation, client, ("sgd", "final"), epochs=2)
    np.testing.assert_allclose(actual, worlds.probabilities(model, run.federation, client), atol=1e-5)


@pytest.mark.parametrize("method", ["fedrod", "fedala", "feddbe"])
@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_batch_normalization_goes_with_the_global_model(method, mode):
    run, _ = worlds.normalized(method, mode)
    state = worlds.play(method, run)
    assert set(state["global"]) == set(run.init)
    assert not torch.equal(state["global"]["body.2.running_mean"], run.init["body.2.running_mean"])
    p = worlds.answers(method, run, state)["test"]
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("compiles", [False, True])
def test_feddbe_rounds_by_hand(compiles, monkeypatch):
    if compiles:
        use_compiled_loops(monkeypatch)
    run = worlds.run("feddbe", options={"kappa": 3.0})
    data = run.federation
    sizes = data.sizes("train")
    state = worlds.play("feddbe", run)
    trained = [worlds.steps(run.init, data, c, ("consensus", 0)) for c in worlds.ABLE]
    means = [
        body(w, data.inputs(data.block(c, "train"))).mean(dim=0) for c, w in zip(worlds.ABLE, trained, strict=True)
    ]
    consensus = worlds.mean([{"mean": value} for value in means], sizes[worlds.ABLE].tolist())["mean"]
    worlds.close(state["consensus"], {"mean": consensus}, atol=1e-5)
    shared, memories = run.init, {c: torch.zeros(200) for c in range(7)}
    for t in range(3):
        cohort, trained = run.cohort(t).tolist(), []
        for c in cohort:
            w, memory = copied(shared), memories[c].clone().requires_grad_()
            for x, y in minibatches(data, c, ("sgd", t)):
                z = body(w, x)
                out = (z + memory) @ w["head.weight"].T + w["head.bias"]
                loss = functional.cross_entropy(out, y) + 3.0 * (0.5 * (z.mean(dim=0) - consensus) ** 2).mean()
                descend([*w.values(), memory], loss, 0.1)
            memories[c] = memory.detach()
            trained.append(plain(w))
        shared = worlds.mean(trained, sizes[cohort].tolist())
    worlds.close(state["global"], shared, atol=1e-5)
    for c, expected in memories.items():
        worlds.close(parameters.pick(state["memories"][[c]], 0), {"memory": expected}, atol=1e-5)
    assert 0 in state["memories"].written
    actual = worlds.answers("feddbe", run, state, np.asarray([0]))["test"]
    with torch.no_grad():
        z = body(shared, data.inputs(data.block(0, "test"))) + memories[0]
        expected = torch.softmax(z @ shared["head.weight"].T + shared["head.bias"], 1)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_feddbe_sends_a_model_and_a_mean_before_the_rounds():
    run = worlds.run("feddbe", rounds=0)
    worlds.play("feddbe", run)
    size = parameters.size(run.init)
    assert run.traffic == {"up": 6 * 200 * 4, "down": 6 * size, "peer": 0}


@pytest.mark.parametrize("compiles", [False, True])
def test_a_newcomer_of_feddbe_trains_its_memory_alone(compiles, monkeypatch):
    if compiles:
        use_compiled_loops(monkeypatch)
    run = worlds.run("feddbe", options={"newcomer_epochs": 2})
    state = worlds.play("feddbe", run)
    data, shared = run.federation, state["global"]
    new = next(c for c in worlds.ABLE if c not in state["memories"].written and data.sizes("test")[c])
    memory = torch.zeros(200, requires_grad=True)
    for x, y in minibatches(data, new, ("sgd", "newcomer"), epochs=2):
        out = (body(shared, x) + memory) @ shared["head.weight"].T + shared["head.bias"]
        descend([memory], functional.cross_entropy(out, y), 0.1)
    actual = worlds.answers("feddbe", run, state, np.asarray([new]))["test"]
    with torch.no_grad():
        out = (body(shared, data.inputs(data.block(new, "test"))) + memory) @ shared["head.weight"].T
        expected = torch.softmax(out + shared["head.bias"], 1)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_fedproto_rounds_by_hand():
    run = worlds.run("fedproto", options={"lam": 2.0})
    state = worlds.play("fedproto", run)
    data = run.federation
    models, prototypes, sent_bytes = dict.fromkeys(range(7), run.init), {}, {"up": 0, "down": 0, "peer": 0}
    for t in range(3):
        sums, counts = {}, {}
        cohort = run.cohort(t).tolist()
        sent_bytes["down"] += len(cohort) * len(prototypes) * 200 * 4
        for c in cohort:
            w = copied(models[c])
            for x, y in minibatches(data, c, ("sgd", t)):
                z = body(w, x)
                loss = functional.cross_entropy(z @ w["head.weight"].T + w["head.bias"], y)
                apart = [((z[i] - prototypes[k]) ** 2).mean() for i, k in enumerate(y.tolist()) if k in prototypes]
                descend(list(w.values()), loss + 2.0 * sum(apart) / len(y), 0.1)
            models[c] = plain(w)
            y = data.y[data.block(c, "train")]
            z = body(models[c], data.inputs(data.block(c, "train")))
            for k in y.unique().tolist():
                sums[k] = sums.get(k, 0) + z[y == k].sum(dim=0)
                counts[k] = counts.get(k, 0) + int((y == k).sum())
                sent_bytes["up"] += 200 * 4
        prototypes |= {k: total / counts[k] for k, total in sums.items()}
    assert run.traffic == sent_bytes
    for k, expected in prototypes.items():
        torch.testing.assert_close(state["prototypes"]["mean"][k], expected, rtol=1e-4, atol=1e-5)
    for c in range(7):
        worlds.close(parameters.pick(state["models"][[c]], 0), models[c], atol=1e-5)
    assert 0 in state["models"].written
    actual = worlds.answers("fedproto", run, state, np.asarray([0]))["test"]
    z = body(models[0], data.inputs(data.block(0, "test")))
    apart = torch.stack([((z - prototypes[k]) ** 2).sum(dim=1) for k in sorted(prototypes)], dim=1)
    assert sorted(prototypes) == [0, 1, 2]
    np.testing.assert_allclose(actual, torch.softmax(-apart / 2, 1), atol=1e-4)


def test_fedproto_embeds_the_training_samples_of_a_round_by_compiled_loops(monkeypatch):
    run, compiled = worlds.run("fedproto"), []
    state, infer = worlds.play("fedproto", run, last=0), run.engine.executor.infer

    def recorded(tasks, models):
        compiled.extend(task.compiled for task in tasks)
        return infer(tasks, models)

    monkeypatch.setattr(run.engine.executor, "infer", recorded)
    worlds.play("fedproto", run, last=1, state=state)
    assert compiled
    assert all(compiled)


def test_fedproto_without_a_pull_is_training_alone():
    """Its clients train one epoch in each round that they take part in, as ``steps`` does."""
    run = worlds.run("fedproto", options={"lam": 0.0, "answer": "head"}, participation=1.0)
    state = worlds.play("fedproto", run)
    model = run.init
    for t in range(3):
        model = worlds.steps(model, run.federation, 0, ("sgd", t))
    actual = worlds.answers("fedproto", run, state, np.asarray([0]))["test"]
    np.testing.assert_allclose(actual, worlds.probabilities(model, run.federation, 0), atol=1e-5)


def test_fedproto_pulls_to_the_prototypes_that_are_known_while_others_are_not():
    models = []
    for lam in (0.0, 5.0):
        run = worlds.run("fedproto", options={"lam": lam}, participation=1.0)
        state = worlds.play("fedproto", worlds.run("fedproto", participation=1.0), last=1)
        state["prototypes"]["known"][2] = 0
        models.append(worlds.play("fedproto", run, 1, 2, state)["models"][[0]]["body.1.weight"])
    assert not torch.equal(*models)


def test_prototypes_that_no_client_renews_stay():
    """Client 4 has one class: in a round of its own the prototypes of the others stay."""
    run = worlds.run("fedproto")
    state = worlds.play("fedproto", run)
    before = state["prototypes"]["mean"].clone()
    run.cohort = lambda t: np.asarray([worlds.ONE_CLASS])
    after = worlds.play("fedproto", run, first=3, last=4, state=state)["prototypes"]["mean"]
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert not torch.equal(after[1], before[1])


def gaussian(z, means, covariance, prior):
    """Probabilities (n, C) of Gaussian classes by their densities."""
    covariance = (1 - 1e-4) * covariance + 1e-4 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    inverse, apart = np.linalg.inv(covariance), z[:, None] - means
    return special.softmax(
        np.log(prior) - np.einsum("ncd,de,nce->nc", apart, inverse, apart, optimize=True) / 2, axis=1
    )


def estimates(z, y, common):
    means = np.stack([z[y == c].mean(axis=0) if (y == c).any() else common[0][c] for c in range(worlds.CLASSES)])
    return means, (z - means[y]).T @ (z - means[y]) / (len(y) - 1) + np.eye(200)


def mixed(own, common, beta):
    return [beta * a + (1 - beta) * b for a, b in zip(own, common, strict=True)]


def best_beta(data, client, z, y, common, prior, key):
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
            p = gaussian(
                z[test_half], *mixed(estimates(z[fold == 1 - half], y[fold == 1 - half], common), common, beta), prior
            )
            loss -= np.log(p[np.arange(test_half.sum()), y[test_half]]).mean()
        losses.append(loss)
    return (0.0, 0.25, 0.5, 0.75, 1.0)[int(np.argmin(losses))]


@pytest.mark.parametrize("beta", [None, 0.3])
def test_pfedfda_rounds_by_hand(beta):
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
            z = body(trained, data.inputs(rows)).double().numpy()
            usable = len(y) > 1 and max(np.bincount(y)) > 1
            chosen = beta if beta is not None else best_beta(data, c, z, y, common, prior, t) if usable else 0.0
            own = estimates(z, y, common) if len(y) > 1 else (common[0].copy(), np.eye(200))
            if len(y) == 1:
                own[0][y[0]] = z[0]
            adapted.append(mixed(own, common, chosen))
        weights = sizes[worlds.ABLE] / sizes[worlds.ABLE].sum()
        common = [sum(w * a[k] for w, a in zip(weights, adapted, strict=True)) for k in (0, 1)]
        shared = worlds.mean(bodies, sizes[worlds.ABLE].tolist())
    worlds.close(state["body"], shared, atol=1e-4)
    np.testing.assert_allclose(state["statistics"]["means"], common[0], atol=1e-3)
    np.testing.assert_allclose(state["statistics"]["covariance"], common[1], atol=1e-3)
    y = data.y[data.block(0, "train")].numpy()
    z, test_z = (body(shared, data.inputs(data.block(0, split))).double().numpy() for split in ("train", "test"))
    prior = np.bincount(y, minlength=worlds.CLASSES) / len(y) + 1e-4
    prior /= prior.sum()
    chosen = best_beta(data, 0, z, y, common, prior, "personalize") if beta is None else beta
    expected = gaussian(test_z, *mixed(estimates(z, y, common), common, chosen), prior)
    np.testing.assert_allclose(worlds.answers("pfedfda", run, state, np.asarray([0]))["test"], expected, atol=2e-3)
    size = parameters.size(shared) + 4 * (3 * 200 + 200 * 200)
    assert run.traffic == {"up": 2 * 6 * size, "down": 2 * 6 * size, "peer": 0}


@pytest.mark.parametrize("samples", [2, 12, 30])
def test_pfedfda_heads_of_the_grid_are_those_of_the_interpolated_statistics(samples):
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
        mean, of_all = mixed([means, covariance], [common["means"], scatter.T @ scatter / 90], beta)
        expected = mean @ np.linalg.inv((1 - 1e-4) * of_all + 1e-4 * np.trace(of_all) / 40 * np.eye(40))
        np.testing.assert_allclose(weight[place] @ axes.T.to(weight), expected, rtol=1e-3, atol=2e-3)
        np.testing.assert_allclose(bias[place], -(expected * mean).sum(axis=1) / 2, rtol=1e-3)


def fitted(z, y, common, ridge):
    """Means and covariance of features in double precision, as the paper has them; one sample has no covariance."""
    means = np.stack([z[y == c].mean(axis=0) if (y == c).any() else common["means"][c] for c in range(3)])
    apart = z - means[y]
    return [means, apart.T @ apart / max(len(y) - 1, 1) + ridge * np.eye(z.shape[1])]


@pytest.mark.parametrize("sizes", [[0, 1, 2, 9, 17], [0], [1, 1], [70, 3, 12]])
def test_pfedfda_adapts_a_group_as_each_client_alone(sizes):
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
                own = fitted(z[fold == half], y[fold == half], common, cfg.ridge)
                means, covariance = mixed(own, [common["means"], common["covariance"]], candidate)
                queries, true = z[fold == 1 - half], y[fold == 1 - half]
                p = gaussian(queries, means, covariance, prior)[np.arange(len(true)), true]
                losses[index] -= np.log(p).mean() if len(p) else 0
        assert beta == (cfg.grid[int(losses.argmin())] if (fold >= 0).any() else 0.0)
    chosen = np.linspace(0, 1, len(sizes))
    adapted = gaussians.mixed_statistics(samples, chosen, exact, cfg.ridge)
    for place, ((z, y), beta) in enumerate(zip(clients, chosen, strict=True)):
        means, covariance = mixed(fitted(z, y, common, cfg.ridge), [common["means"], common["covariance"]], beta)
        np.testing.assert_allclose(adapted["means"][place], means, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(adapted["covariance"][place], covariance, rtol=1e-4, atol=1e-5)


def test_pfedfda_names_only_the_client_of_a_group_whose_features_overflow(monkeypatch):
    run = worlds.run("pfedfda", participation=1.0, lr=0.01)
    state, features = worlds.play("pfedfda", run, last=1), pfedfda._features

    def overflown(run, clients, models, split, **how):
        embedded = features(run, clients, models, split, **how)
        return [z * (torch.inf if client == 2 else 1) for client, z in zip(clients, embedded, strict=True)]

    monkeypatch.setattr(pfedfda, "_features", overflown)
    with pytest.raises(Diverged) as raised:
        pfedfda.train_round(run, state, 1)
    assert raised.value.clients == [2]
