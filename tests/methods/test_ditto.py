"""Ditto: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest
from torch.nn import functional

import worlds
from pflcli.core import parameters
from pflcli.core.engine.federation import Federation
from pflcli.methods import ditto


def test_ditto_trains_the_global_model_like_fedavg():
    runs = [worlds.run(name) for name in ("fedavg", "ditto")]
    assert worlds.same(worlds.play("fedavg", runs[0])["global"], worlds.play("ditto", runs[1])["global"])
    assert runs[0].traffic == runs[1].traffic  # personal models never travel


def test_ditto_rounds_match_hand_computed_models():
    """Personal models are pulled to the model that was sent, persist, and move only in a client's own rounds."""
    run = worlds.run("ditto", options={"lam": 0.6, "personal_epochs": 2, "lr": 0.05})
    state = worlds.play("ditto", run)
    data, shared, own = run.federation, run.init, dict.fromkeys(range(7), run.init)
    for t in range(3):
        cohort = run.cohort(t).tolist()
        for c in cohort:
            own[c] = worlds.steps(own[c], data, c, ("personal", t), epochs=2, lr=0.05, anchor=shared, pull=0.6)
        shared = worlds.mean(
            [worlds.steps(shared, data, c, ("sgd", t)) for c in cohort], data.sizes("train")[cohort].tolist()
        )
    worlds.close(state["global"], shared)
    assert 0 < len(state["personal"].written) < len(worlds.ABLE)
    for c, expected in own.items():
        worlds.close(parameters.pick(state["personal"][[c]], 0), expected)


def test_ditto_with_lambda_0_equals_local_training():
    run = worlds.run("ditto", participation=1.0, options={"lam": 0.0})
    personal = worlds.play("ditto", run)["personal"]
    for c in worlds.ABLE:
        expected = run.init
        for t in range(3):
            expected = worlds.steps(expected, run.federation, c, ("personal", t))
        worlds.close(parameters.pick(personal[[c]], 0), expected)


def test_ditto_with_a_huge_lambda_equals_the_global_model():
    run = worlds.run("ditto", participation=1.0, lr=1e-6, options={"lam": 1e6})
    state = worlds.play("ditto", run)
    for c in worlds.ABLE:  # lr lambda = 1: each step lands on what was sent, and steps past it by lr times the gradient
        worlds.close(parameters.pick(state["personal"][[c]], 0), state["global"], atol=1e-4)


@pytest.mark.parametrize("epochs", [0, 2])
def test_ditto_trains_a_newcomer_from_the_global_model(epochs):
    run = worlds.run("ditto", options={"lam": 0.6, "newcomer_epochs": epochs})
    state = worlds.play("ditto", run)
    (new,) = [c for c in worlds.ABLE if c not in state["personal"].written and run.federation.sizes("test")[c]][:1]
    actual = worlds.answers("ditto", run, state, np.asarray([new]))["test"]
    shared = state["global"]
    key = ("personal", "newcomer")
    model = worlds.steps(shared, run.federation, new, key, epochs=epochs, anchor=shared, pull=0.6)
    np.testing.assert_allclose(actual, worlds.probabilities(model, run.federation, new), atol=1e-6)


def make_run_with_lambda_grid(mode="auto", **settings):
    """A run of Ditto whose clients choose lambda; clients 1 and 2 have too few validation samples for it."""
    draw = np.random.default_rng(4)
    sizes = np.asarray([(12, 5, 5), (7, 3, 3), (6, 0, 4), (9, 6, 3), (10, 4, 2)])
    y = draw.integers(0, worlds.CLASSES, sizes.sum())
    x = draw.normal(size=(len(y), worlds.FEATURES)) + 0.7 * np.eye(worlds.FEATURES)[y]
    data = Federation.from_blocks(x.astype(np.float32), y, np.cumsum([0, *sizes.ravel()]), worlds.CLASSES)
    options = {"grid": "0.1,3,6", "personal_epochs": 3}
    return worlds.run("ditto", data=data, mode=mode, options=options, participation=0.6, **settings)


def choose_lambda(start, data, client, key, anchor):
    """Return the model of the lowest validation loss over the grid, and its lambda."""
    if len(data.rows(client, "validation")) < 4:
        return worlds.steps(start, data, client, key, epochs=3, anchor=anchor, pull=1.0), 1.0
    tried = []
    for lam in (0.1, 3.0, 6.0):
        model = worlds.steps(start, data, client, key, epochs=3, anchor=anchor, pull=lam)
        rows = data.block(client, "validation")
        tried.append(
            (float(functional.cross_entropy(worlds.logits(model, data.inputs(rows)), data.y[rows])), model, lam)
        )
    return min(tried, key=lambda item: item[0])[1:]


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_ditto_chooses_lambda_by_validation_loss(mode):
    run = make_run_with_lambda_grid(mode, rounds=4)
    state = worlds.play("ditto", run)
    data, shared, own, lambdas = run.federation, run.init, dict.fromkeys(range(5), run.init), {}
    for t in range(4):
        cohort = run.cohort(t).tolist()
        for c in cohort:
            own[c], lambdas[c] = choose_lambda(own[c], data, c, ("personal", t), shared)
        models = [worlds.steps(shared, data, c, ("sgd", t)) for c in cohort]
        shared = worlds.mean(models, data.sizes("train")[cohort].tolist())
    worlds.close(state["global"], shared)
    assert len(set(lambdas.values())) > 2  # not all choose the same
    for c, lam in lambdas.items():
        worlds.close(parameters.pick(state["personal"][[c]], 0), own[c])
        assert state["lambda"][c] == lam
    tuned = ditto.personalize(run, state, np.asarray(sorted(lambdas))).tuned["lambda"]
    np.testing.assert_array_equal(tuned, [lambdas[c] for c in sorted(lambdas)])


def test_ditto_chooses_lambda_for_newcomers():
    run = make_run_with_lambda_grid(rounds=1)
    new, state = run.clients, {**worlds.play("ditto", run), "personal": run.table(run.initial_model())}
    run.cfg = ditto.Config(grid=run.cfg.grid, newcomer_epochs=3)
    predictor = ditto.personalize(run, state, new)
    expected = [
        choose_lambda(state["global"], run.federation, c, ("personal", "newcomer"), state["global"]) for c in new
    ]
    assert len({lam for _, lam in expected}) > 1
    p = np.concatenate([worlds.probabilities(m, run.federation, c) for (m, _), c in zip(expected, new, strict=True)])
    np.testing.assert_allclose(predictor.answer("test")["p"], p, atol=1e-6)
    np.testing.assert_array_equal(predictor.tuned["lambda"], [lam for _, lam in expected])


@pytest.mark.parametrize("grid", [(0.1, 2.0), (2.0, 0.1)])
def test_ditto_takes_the_first_lambda_when_validation_losses_are_equal(grid):
    """One step from the common model: the pull is zero, and every lambda leads to the same model."""
    run = make_run_with_lambda_grid(rounds=1, batch_size=100)
    run.cfg = ditto.Config(grid=grid)
    state = worlds.play("ditto", run)
    for c in run.cohort(0).tolist():
        assert state["lambda"][c] == (grid[0] if c in (0, 3, 4) else 1.0)


def test_ditto_with_a_fixed_lambda_ignores_validation_samples():
    states = {}
    for lam in (None, 1.0):
        for flip in (False, True):
            run = make_run_with_lambda_grid(rounds=4)
            run.cfg = ditto.Config(lam=lam, grid=(0.1, 3.0, 6.0), personal_epochs=3)
            for c in (0, 3, 4) if flip else ():
                rows = run.federation.block(c, "validation")
                run.federation.y[rows] = (run.federation.y[rows] + 1) % worlds.CLASSES
            states[lam, flip] = worlds.play("ditto", run)
    assert worlds.same(states[1.0, False], states[1.0, True])
    assert "lambda" not in states[1.0, False]
    assert not worlds.same(states[None, False]["personal"], states[None, True]["personal"])
    assert worlds.same(states[None, False]["global"], states[None, True]["global"])
