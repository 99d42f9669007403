"""FedAMP: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import worlds
from pflcli.core import parameters
from pflcli.core.engine import model_algebra
from pflcli.evaluation.metrics import client_relations
from pflcli.methods import fedamp

FORMS = ("heuristic", "attention")


@pytest.mark.parametrize("form", FORMS)
def test_fedamp_with_lambda_0_equals_local_training(form):
    run = worlds.run("fedamp", options={"lam": 0.0, "form": form, "start": "own"})
    state, alone = worlds.play("fedamp", run), worlds.run()
    models = alone.table(alone.initial_model())
    for t in range(3):
        cohort = alone.cohort(t)
        for part in alone.local_sgd(cohort, models[cohort], t=t):
            models[part.clients] = part.params
    assert worlds.same(state["model"], models)


@pytest.mark.parametrize("form", FORMS)
def test_fedamp_models_get_closer_as_lambda_grows(form):
    """An implementation is known whose proximal term has no gradient, so that it trains alone whatever lambda is."""
    heads = []
    for lam in (0.0, 0.1, 1.0):
        run = worlds.run("fedamp", participation=1.0, options={"lam": lam, "form": form, "start": "own"})
        state = worlds.play("fedamp", run)
        heads.append(state["model"][worlds.ABLE]["head.weight"])
    assert not torch.equal(heads[0], heads[1])
    spread = [float(models.var(dim=0).sum()) for models in heads]
    assert spread[0] > spread[1] > spread[2]  # the stronger the pull, the nearer to each other


def test_fedamp_models_are_closer_when_training_starts_from_the_cloud_model():
    """Where the pull is weak, the start carries what others have learned; by default it is the client's own model."""
    models = []
    for options in ({}, {"start": "own"}, {"start": "cloud"}):
        run = worlds.run("fedamp", participation=1.0, options={"lam": 1e-4, **options})
        models.append(worlds.play("fedamp", run)["model"])
    assert worlds.same(models[0], models[1])
    spread = [float(model[worlds.ABLE]["head.weight"].var(dim=0).sum()) for model in models]
    assert spread[2] < 0.8 * spread[1]


def test_fedamp_with_self_weight_1_gives_equal_models_for_both_starts():
    """The cloud model is then the client's own, so that both starts are one, and without a pull training alone."""
    runs = [worlds.run("fedamp", options={"self_weight": 1.0, "start": start}) for start in ("own", "cloud")]
    models = [worlds.play("fedamp", run)["model"] for run in runs]
    for i in worlds.ABLE:
        worlds.close(parameters.pick(models[0][[i]], 0), parameters.pick(models[1][[i]], 0))


def test_fedamp_with_self_weight_1_ignores_other_clients():
    """Clients are held by their own last models alone: what the others have does not matter."""
    states = []
    for flip in (False, True):
        data = worlds.federation()
        if flip:
            data.y[data.block(3, "train")] = 2 - data.y[data.block(3, "train")]
        run = worlds.run("fedamp", participation=1.0, data=data, options={"self_weight": 1.0})
        states.append(worlds.play("fedamp", run)["model"])
    for i in worlds.ABLE:
        assert worlds.same(states[0][[i]], states[1][[i]]) == (i != 3)


def reference_weights(cfg, w, known, origin):
    """The definitions, pair by pair."""
    n = len(w)
    xi = np.zeros((n, n))
    others = [[j for j in range(n) if j != i and known[j]] for i in range(n)]
    if cfg.form == "attention":
        distance = [[float(((a - b) ** 2).sum()) for b in w] for a in w]
        sigma = cfg.sigma or np.median([distance[i][j] for i in range(n) for j in others[i]])
        slope = [{j: np.exp(-distance[i][j] / sigma) / sigma for j in others[i]} for i in range(n)]
        alpha = cfg.alpha or 1 / max(sum(row.values()) for row in slope)
        for i in range(n):
            for j in others[i]:
                xi[i, j] = alpha * slope[i][j] / max(1, alpha * sum(slope[i].values()))
            xi[i, i] = 1 - xi[i].sum()
        return xi
    v = w - origin if cfg.centred else w
    for i in range(n):
        e = {j: np.exp((cfg.sigma or 10) * cosine_similarity(v[i], v[j])) for j in others[i]}
        xi[i, i] = 1 / (len(e) + 1) if cfg.self_weight is None else cfg.self_weight
        for j in others[i]:
            xi[i, j] = (1 - xi[i, i]) * e[j] / sum(e.values())
    return xi


def cosine_similarity(a, b):
    size = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / size) if size else 0.0


WEIGHTS = {
    "heuristic": {},
    "heuristic of models": {"centred": False, "sigma": 3.0, "self_weight": 0.4},
    "attention": {"form": "attention"},
    "attention with its own scale": {"form": "attention", "sigma": 20.0, "alpha": 2.0},
    "attention that leaves nothing": {"form": "attention", "sigma": 20.0, "alpha": 1e4},
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_fedamp_weights_match_the_definitions_pair_by_pair(name):
    draw = np.random.default_rng(0)
    w, origin = draw.normal(size=(5, 9)), draw.normal(size=9)
    cfg, known = fedamp.Config(**WEIGHTS[name]), np.asarray([True, True, False, True, True])
    rows = w - origin if cfg.form == "heuristic" and cfg.centred else w
    actual = fedamp.weights(cfg, rows @ rows.T, known)
    np.testing.assert_allclose(actual, reference_weights(cfg, w, known, origin), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(actual.sum(axis=1), 1)
    assert (actual >= 0).all()
    assert not actual[np.arange(5) != 2, 2].any()  # who has sent nothing is given nothing
    if name == "attention":
        assert np.diag(actual).min() == pytest.approx(0, abs=1e-12)  # alpha is as large as it can be
    if name == "attention that leaves nothing":
        assert np.diag(actual).max() < 1e-12


def test_fedamp_weights_are_the_identity_in_the_first_round():
    for form in FORMS:
        actual = fedamp.weights(fedamp.Config(form=form), np.ones((3, 3)), np.zeros(3, dtype=bool))
        np.testing.assert_array_equal(actual, np.eye(3))


@pytest.mark.parametrize("form", FORMS)
def test_fedamp_gives_clients_with_equal_models_equal_cloud_models(form):
    """Equal models with equal weight on both: their means are the same."""
    rows = np.asarray([[1.0, 2.0], [1.0, 2.0], [-1.0, 0.5]])
    cfg = fedamp.Config(form=form, sigma=2.0, self_weight=0.5)
    xi = fedamp.weights(cfg, rows @ rows.T, np.ones(3, dtype=bool))
    np.testing.assert_allclose((xi @ rows)[0], (xi @ rows)[1])
    assert xi[0, 1] > xi[0, 2]


@pytest.mark.parametrize("start", ["own", "cloud"])
@pytest.mark.parametrize("options", [{}, {"form": "attention"}, {"form": "attention", "alpha": 0.5, "sigma": 9.0}])
def test_fedamp_rounds_match_hand_computed_models(options, start):
    run = worlds.run("fedamp", participation=0.7, rounds=3, options={"lam": 0.3, "start": start, **options})
    state = worlds.play("fedamp", run)
    own, known, cfg = dict.fromkeys(range(7), run.init), set(), run.cfg
    pull = 0.3 / (cfg.alpha or 1)
    for t in range(3):
        cohort = run.cohort(t).tolist()
        ids = sorted(known | set(cohort))
        w = np.stack([torch.cat([v.flatten() for v in own[i].values()]).double().numpy() for i in ids])
        origin = torch.cat([v.flatten() for v in run.init.values()]).double().numpy()
        trained_before = np.asarray([i in known for i in ids])
        xi = reference_weights(cfg, w, trained_before, origin) if known else np.eye(len(ids))
        means = {
            i: worlds.mean([own[j] for j in ids], xi[ids.index(i)].tolist()) if known else run.init for i in cohort
        }
        begin = own if start == "own" else means
        own |= {i: worlds.steps(begin[i], run.federation, i, ("sgd", t), anchor=means[i], pull=pull) for i in cohort}
        known |= set(cohort)
    for i in known:
        worlds.close(parameters.pick(state["model"][[i]], 0), own[i], atol=1e-4)
    sent_bytes = sum(len(run.cohort(t)) for t in range(3)) * parameters.size(run.init)
    assert run.traffic == {"up": sent_bytes, "down": sent_bytes, "peer": 0}


def test_fedamp_gives_clients_of_the_same_cluster_more_weight():
    data = worlds.clustered()
    run = worlds.run("fedamp", data=data, rounds=6, participation=1.0, epochs=3, batch_size=10)
    state = worlds.play("fedamp", run)
    products = model_algebra.gram_matrix(state["model"], run.clients, run.engine.parameters, 99, run.init)
    xi = fedamp.weights(run.cfg, products, np.ones(12, dtype=bool))
    same = client_relations.share_cluster(data.cluster)
    assert xi[same].min() > 3 * xi[~same & ~np.eye(12, dtype=bool)].max()
