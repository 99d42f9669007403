"""FedEM, against a few lines of plain autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

import pflcli
import worlds
from pflcli.core import models, parameters, rng
from pflcli.core.engine.engine import Engine
from pflcli.core.engine.federation import Federation


def compute_losses(models, data, rows):
    """The loss of each model on each sample, (n, K)."""
    return torch.stack([worlds.losses(worlds.logits(w, data.x[rows]), data.y[rows], data) for w in models], dim=1)


def compute_responsibility(pi, models, data, rows, variance=0.5):
    """q by Bayes' rule, literally; the likelihood is exp(-loss), or Gaussian of a variance."""
    joint = pi * torch.exp(-compute_losses(models, data, rows) / (2 * variance))
    return (joint / joint.sum(dim=1, keepdim=True)).detach()


@pytest.mark.parametrize("mode", ["loop", "stacked"])
@pytest.mark.parametrize("data", [worlds.federation, worlds.quantities], ids=["classes", "quantities"])
def test_fedem_rounds_match_hand_computed_models(mode, data, monkeypatch):
    run = worlds.run("fedem", mode=mode, epochs=2, options={"components": 2}, data=data())
    two_clients = 4 * parameters.size(run.init)
    monkeypatch.setattr("pflcli.core.engine.engine._CHUNK_BYTES", {"cpu": two_clients})
    state = worlds.play("fedem", run)
    data, n = run.federation, run.federation.sizes("train")
    current, pi, is_quantity = [run.init, run.draw_model(1)], [torch.full((2,), 0.5)] * 7, data.task.kind == "quantity"
    variance = 1.0 if is_quantity else 0.5
    for t in range(3):
        cohort, trained, errors = run.cohort(t).tolist(), [], []
        for c in cohort:
            own = [{name: value.clone().requires_grad_() for name, value in model.items()} for model in current]
            rows, draw = torch.from_numpy(data.rows(c, "train")), rng.generator(0, "sgd", t, c)
            for _ in range(2):
                for part in rows[torch.from_numpy(draw.permutation(len(rows)))].split(4):
                    loss = (
                        (compute_responsibility(pi[c], current, data, part, variance) * compute_losses(own, data, part))
                        .sum(dim=1)
                        .mean()
                    )
                    grads = torch.autograd.grad(loss, [value for model in own for value in model.values()])
                    with torch.no_grad():
                        for value, grad in zip((v for model in own for v in model.values()), grads, strict=True):
                            value -= 0.1 * grad
            q = compute_responsibility(pi[c], current, data, rows, variance)
            errors.append((q * compute_losses(current, data, rows)).sum().item() / len(rows))
            pi[c] = q.mean(dim=0)
            trained.append([{name: value.detach() for name, value in model.items()} for model in own])
        current = [worlds.mean([client[k] for client in trained], n[cohort].tolist()) for k in range(2)]
        variance = np.average(errors, weights=n[cohort]) if is_quantity else variance
    for k in range(2):
        worlds.close(parameters.pick(state["components"], k), current[k], atol=1e-5)
    np.testing.assert_allclose(state["shares"], torch.stack(pi), atol=1e-5)
    drawn = sum(len(run.cohort(t)) for t in range(3))
    assert run.traffic["up"] == run.traffic["down"] == drawn * (2 * parameters.size(run.init) + 4 * is_quantity)
    c = 0
    share = compute_responsibility(pi[c], current, data, data.rows(c, "train"), variance).mean(dim=0).numpy()
    outputs = [worlds.logits(model, data.inputs(data.block(c, "test"))) for model in current]
    expected = sum(share[k] * data.task.predict(outputs[k]) for k in range(2))
    actual = worlds.answers("fedem", run, state, np.asarray([c]))["test"]
    np.testing.assert_allclose(actual, expected, rtol=1e-4 if is_quantity else 0, atol=1e-5)


@pytest.mark.parametrize("kind", ["quantity", "count"])
def test_fedem_responsibilities_are_those_of_gaussian_and_poisson_distributions(kind):
    from pflcli.methods.fedem import _responsibilities

    data = worlds.counts() if kind == "count" else worlds.quantities()
    run = worlds.run("fedem", data=data, options={"components": 2})
    shares, sent = torch.tensor([[0.3, 0.7]]), {"scale": torch.tensor([0.2])} if kind == "quantity" else {}
    models = [run.init, run.draw_model(1)]
    (q,), _ = _responsibilities(run, np.asarray([0]), parameters.stack(models), shares, sent)
    rows = data.rows(0, "train")
    p = np.stack([data.task.predict(worlds.logits(model, data.x[rows]))[:, 0] for model in models], axis=1)
    y = data.y.numpy()[rows, None]
    density = stats.poisson.pmf(y, p) if kind == "count" else stats.norm.pdf(y, p, data.task.deviation * 0.2**0.5)
    joint = density * shares.numpy()
    np.testing.assert_allclose(q, joint / joint.sum(axis=1, keepdims=True), rtol=1e-3)


def test_fedem_finds_two_ways_in_which_a_quantity_depends_on_features():
    draw, client = np.random.default_rng(0), np.repeat(np.arange(8), 60)
    x = draw.normal(size=(480, 3)).astype(np.float32)
    y = 200 + 30 * (2 * (client % 2) - 1) * x[:, 0] + 3 * draw.normal(size=480)
    run = worlds.run(
        "fedem",
        data=pflcli.Federation.from_arrays(x, y, client, task="quantity"),
        options={"components": 2}, rounds=15, participation=1.0, batch_size=16,
    )  # fmt: skip
    state = worlds.play("fedem", run)
    assert state["shares"].max(dim=1).values.min() > 0.9
    assert (state["shares"].argmax(dim=1)[:2] != state["shares"].argmax(dim=1)[1:3]).all()
    assert 0 < float(state["scale"]) * run.task.deviation**2 < 2 * 3**2


def test_fedem_round_loss_is_the_responsibility_weighted_mean_over_samples():
    """One step over all samples of each client: each component's loss is that of the components which were sent."""
    run = worlds.run("fedem", rounds=1, participation=1.0, batch_size=100, options={"components": 2})
    worlds.play("fedem", run)
    data, components = run.federation, [run.init, run.draw_model(1)]
    total = counted = 0.0
    for c in worlds.ABLE:
        each = compute_losses(components, data, data.rows(c, "train"))
        share = compute_responsibility(torch.full((2,), 0.5), components, data, data.rows(c, "train"))
        total, counted = total + (share * each).sum().item(), counted + share.sum().item()
    values, weights = np.transpose(run.notes.losses)
    assert weights.sum() == pytest.approx(counted)
    assert np.average(values, weights=weights) == pytest.approx(total / counted, rel=1e-5)


def test_fedem_with_one_component_equals_fedavg():
    runs = [worlds.run(name, options=o) for name, o in (("fedavg", {}), ("fedem", {"components": 1}))]
    expected, actual = (worlds.play(*args) for args in zip(("fedavg", "fedem"), runs, strict=True))
    worlds.close(parameters.pick(actual["components"], 0), expected["global"])
    assert runs[0].traffic == runs[1].traffic
    assert (actual["shares"] == 1).all()


def test_fedem_components_start_different_and_shares_sum_to_1():
    run = worlds.run("fedem")
    start = worlds.play("fedem", run, last=0)
    assert worlds.same(parameters.pick(start["components"], 0), run.init)
    assert not torch.equal(*start["components"]["head.weight"][1:])
    shares = worlds.play("fedem", run)["shares"]
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(7))
    assert torch.equal(shares[5], torch.full((3,), 1 / 3))  # client 5 has no samples


def test_fedem_shares_separate_clients_of_two_distributions():
    """Half of the clients have names of their own for the classes: no model serves both halves."""
    run = worlds.run("fedem", participation=1.0, rounds=15, options={"components": 2})
    draw = np.random.default_rng(0)
    y = draw.integers(0, worlds.CLASSES, 8 * 20)
    x = draw.normal(size=(len(y), worlds.FEATURES)) + 4.0 * np.eye(worlds.FEATURES)[y]
    labels = np.where(np.arange(len(y)) < 80, y, (y + 1) % worlds.CLASSES)
    run.federation = Federation.from_blocks(
        x.astype(np.float32), labels, np.append(0, 20 * (np.arange(24) // 3 + 1)), worlds.CLASSES
    )
    run.engine = Engine(models.create("mlp", (worlds.FEATURES,), worlds.CLASSES, 0), run.federation, seed=0)
    shares = worlds.play("fedem", run)["shares"]
    assert shares.max(dim=1).values.min() > 0.9
    assert len(set(shares[:4].argmax(dim=1).tolist())) == 1
    assert (shares[:4].argmax(dim=1) != shares[4:].argmax(dim=1)).all()


def test_fedem_client_without_training_samples_keeps_its_shares():
    from pflcli.methods.fedem import _update_shares

    q = [torch.tensor([[0.25, 0.75], [0.75, 0.25], [0.75, 0.25]]), torch.zeros(0, 2)]
    shares = _update_shares(torch.tensor([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]]), np.asarray([2, 1]), q)
    torch.testing.assert_close(shares, torch.tensor([[0.5, 0.5], [0.9, 0.1], [1.75 / 3, 1.25 / 3]]))


def test_fedem_responsibility_is_finite_when_losses_are_extreme():
    from pflcli.methods.fedem import _responsibility

    q = _responsibility(torch.tensor([0.0, 1.0]), torch.tensor([[0.0, 1e4], [1e5, 1e5]]))
    assert q.isfinite().all()
    torch.testing.assert_close(q, torch.tensor([[1.0, 0.0], [0.0, 1.0]]))


def test_fedem_loop_and_stacked_agree_with_batch_norm():
    states = []
    for mode in ("loop", "stacked"):
        run, net = worlds.normalized("fedem", mode)
        draws = [torch.randn_like(net.head.weight) for _ in range(3)]
        run.draw_model = lambda number, draws=draws, init=run.init: {**init, "head.weight": draws[number]}
        torch.manual_seed(1)
        draws[:] = [torch.randn_like(net.head.weight) for _ in range(3)]
        states.append(worlds.play("fedem", run)["components"])
    worlds.close(states[0], states[1], atol=1e-5)
    assert states[0]["body.2.running_mean"].abs().sum() > 0
