"""Oracle, IFCA, clustered FL and FedAMP: rounds by hand, neutral settings, and the faults of public code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

import worlds
from pflcli import parameters
from pflcli.engine import model_algebra
from pflcli.errors import InputError
from pflcli.evaluation.metrics import client_relations
from pflcli.federation import clusters
from pflcli.methods import clustered_fl, fedamp

ABLE = worlds.ABLE
UNASSIGNED = np.full(7, -1)


def loss(model, data, client):
    rows = data.block(client, "train")
    return float(functional.cross_entropy(worlds.logits(model, data.inputs(rows)), data.y[rows]))


def mean_of(run, models, members):
    return worlds.mean([models[c] for c in members], run.federation.sizes("train")[members].tolist())


def test_oracle_is_fedavg_within_the_true_clusters():
    run = worlds.run("oracle", participation=1.0)
    state = worlds.play("oracle", run, last=2)
    for c in (0, 1):
        members = [i for i in ABLE if worlds.CLUSTER[i] == c]
        model = run.init
        for t in range(2):
            model = mean_of(run, {i: worlds.steps(model, run.federation, i, ("sgd", t)) for i in members}, members)
        worlds.close(parameters.pick(state["models"], c), model)
        actual = worlds.answers("oracle", run, state, np.asarray([members[0]]))["test"]
        np.testing.assert_allclose(actual, worlds.probabilities(model, run.federation, members[0]), atol=1e-5)
    assert run.traffic["up"] == run.traffic["down"] == 2 * 6 * parameters.size(run.init)


def test_oracle_of_one_cluster_is_fedavg():
    one = replace(worlds.federation(), cluster=np.full(7, 5))
    runs = [worlds.run(name, data=one) for name in ("fedavg", "oracle")]
    expected, actual = (worlds.play(name, run) for name, run in zip(("fedavg", "oracle"), runs, strict=True))
    assert worlds.same(expected["global"], parameters.pick(actual["models"], 0))
    assert runs[0].traffic == runs[1].traffic


def test_a_cluster_without_participants_keeps_its_model():
    run = worlds.run("oracle", participation=0.17)  # one client a round
    state = worlds.play("oracle", run, last=1)
    (client,) = run.cohort(0)
    other = 1 - worlds.CLUSTER[client]
    assert worlds.same(parameters.pick(state["models"], other), run.init)
    assert not worlds.same(parameters.pick(state["models"], 1 - other), run.init)


def test_oracle_without_clusters_says_what_to_do():
    run = worlds.run("oracle", data=replace(worlds.federation(), cluster=None))
    with pytest.raises(InputError, match="does not know the true clusters") as caught:
        worlds.play("oracle", run)
    assert "--scheme clusters" in caught.value.fix[0]


def test_ifca_with_one_model_is_fedavg():
    runs = [worlds.run("fedavg"), worlds.run("ifca", options={"k": 1})]
    expected, actual = (worlds.play(name, run) for name, run in zip(("fedavg", "ifca"), runs, strict=True))
    assert worlds.same(expected["global"], parameters.pick(actual["models"], 0))
    assert runs[0].traffic == runs[1].traffic
    first, second = worlds.answers("fedavg", runs[0], expected), worlds.answers("ifca", runs[1], actual)
    np.testing.assert_allclose(first["test"], second["test"], atol=1e-6)


def test_ifca_sends_what_models_share_once():
    run = worlds.run("ifca", options={"k": 3, "shared": "body."})
    for name, value in worlds.play("ifca", run)["models"].items():
        assert torch.equal(value[0], value[1]) == name.startswith("body.")
    body, head = (parameters.size(parameters.part(run.init, prefix)) for prefix in ("body.", "head."))
    count = 3 * len(run.cohort(0))
    assert run.traffic["down"] == count * (body + 3 * head)
    assert run.traffic["up"] == count * (body + head)


@pytest.mark.parametrize("shared", ["", "body."])
def test_ifca_rounds_by_hand(shared):
    run = worlds.run("ifca", participation=1.0, options={"k": 3, "shared": shared})
    state, models = worlds.play("ifca", run), [parameters.pick(run.initial_models(3), c) for c in range(3)]
    for model in models:
        model |= {name: run.init[name] for name in model if shared and name.startswith(shared)}
    data, used = run.federation, set()
    for t in range(3):
        chosen = {i: min(range(3), key=lambda c: loss(models[c], data, i)) for i in ABLE}
        uploads = {i: worlds.steps(models[chosen[i]], data, i, ("sgd", t)) for i in ABLE}
        overall_mean = mean_of(run, uploads, ABLE)
        for c in range(3):
            members = [i for i in ABLE if chosen[i] == c]
            models[c] = mean_of(run, uploads, members) if members else models[c]
            models[c] = models[c] | {n: v for n, v in overall_mean.items() if shared and n.startswith(shared)}
        used |= set(chosen.values())
    assert len(used) > 1
    for c in range(3):
        worlds.close(parameters.pick(state["models"], c), models[c], atol=1e-5)
    assert state["cluster"].tolist() == [chosen.get(i, -1) for i in range(7)]
    if not shared:
        assert run.traffic["down"] == 3 * run.traffic["up"] == 3 * 3 * 6 * parameters.size(run.init)


def test_ifca_models_start_apart():
    """From one common start all losses are equal, and every client takes the first model for ever."""
    models = worlds.play("ifca", worlds.run("ifca"), last=0)["models"]
    assert len({value.item() for value in models["head.weight"].sum(dim=(1, 2))}) == 4
    run = worlds.run("ifca", participation=1.0)
    common = parameters.stack([run.init] * 4)
    assert clusters.find_best(run, common, run.clients, UNASSIGNED).tolist() == [0] * 7


def test_a_client_without_samples_is_given_the_most_common_model():
    run = worlds.run("ifca")
    chosen = clusters.find_best(run, run.initial_models(3), np.asarray([5]), np.asarray([2, -1, 0, 2, -1, -1, -1]))
    assert chosen.tolist() == [2]


def test_ifca_chooses_without_a_look_at_test_samples():
    run = worlds.run("ifca")
    state = worlds.play("ifca", run)
    before = clusters.find_best(run, state["models"], run.clients, UNASSIGNED)
    for client in run.clients:
        for split in ("validation", "test"):
            run.federation.y[run.federation.block(client, split)] = 0
    assert clusters.find_best(run, state["models"], run.clients, UNASSIGNED).tolist() == before.tolist()


def test_ifca_finds_the_clusters():
    data = worlds.clustered()
    run = worlds.run("ifca", data=data, options={"k": 3}, rounds=10, participation=1.0, epochs=2)
    actual = worlds.play("ifca", run)["cluster"].numpy()
    assert len({(int(a), int(b)) for a, b in zip(actual, data.cluster, strict=True)}) == len(set(actual)) == 3


@pytest.mark.parametrize("options", [{"eps1": 0.0}, {"warmup": 9}, {"gamma": 1.0, "warmup": 0, "eps1": 9.0}])
def test_clustered_fl_that_never_splits_is_fedavg(options):
    runs = [worlds.run("fedavg"), worlds.run("clustered-fl", options={"warmup": 0, **options})]
    expected, actual = (worlds.play(name, run) for name, run in zip(("fedavg", "clustered-fl"), runs, strict=True))
    assert worlds.same(expected["global"], parameters.pick(actual["models"], 0))
    assert len(actual["models"]["head.weight"]) == 1
    assert runs[0].traffic == runs[1].traffic


def cut(products, members=ABLE, largest=0.0, t=0, **options):
    """Which of the clients a cluster with updates of these products lets go."""
    run = worlds.run("clustered-fl", options={"warmup": 0, **options})
    values, axes = np.linalg.eigh(np.asarray(products, dtype=float))
    update = run.table({name: torch.zeros_like(run.init[name]) for name in run.engine.parameters})
    stacked = {name: value.repeat(len(members), *[1] * value.ndim) for name, value in update.default.items()}
    stacked["head.weight"].flatten(1)[:, : len(members)] = torch.from_numpy(axes * np.sqrt(np.maximum(values, 0)))
    update[members] = stacked
    far, mean = clustered_fl._split(run, np.asarray(members), update, largest, t)
    return far.tolist(), mean


def test_clustered_fl_thresholds_by_hand():
    """Clients 0, 2 and 3 have 12, 7 and 6 samples; two pull one way, the third the other."""
    updates = np.asarray([[1.0, 0.1], [1.0, -0.1], [-3.0, 0.0]])
    products, members = updates @ updates.T, [0, 2, 3]
    mean, longest = float(np.linalg.norm(np.asarray([12, 7, 6]) @ updates / 25)), 3.0
    split = ([False, False, True], pytest.approx(mean, rel=1e-5))
    unsplit = ([False] * 3, pytest.approx(mean, rel=1e-5))
    assert cut(products, members) == split
    assert cut(products, members, eps1=mean / longest * 1.01) == split
    assert cut(products, members, eps1=mean / longest * 0.99) == unsplit
    assert cut(products, members, largest=2.0, eps2=1.49) == split
    assert cut(products, members, largest=2.0, eps2=1.51) == unsplit
    absolute = {"thresholds": "absolute", "largest": 2.0}
    assert cut(products, members, eps1=mean * 1.01, eps2=2.99, **absolute) == split
    assert cut(products, members, eps1=mean * 0.99, eps2=2.99, **absolute) == unsplit
    assert cut(products, members, eps1=mean * 1.01, eps2=3.01, **absolute) == unsplit
    assert cut(products, members, **absolute) == split  # the authors' 0.4 and 1.6
    assert cut(products, members, warmup=3, t=2) == unsplit
    assert cut(products, members, warmup=3, t=3) == split
    across = -1 / np.sqrt(1.01)
    assert cut(products, members, gamma=np.sqrt((1 - across) / 2) * 0.999) == split
    assert cut(products, members, gamma=min(np.sqrt((1 - across) / 2) * 1.001, 1.0)) == unsplit
    within = 0.99 / 1.01
    assert cut(products, members, gap=(within - across) * 0.999) == split
    assert cut(products, members, gap=min((within - across) * 1.001, 2.0)) == unsplit
    assert cut(products[:2, :2], members[:2], eps1=9.0)[0] == [False] * 2  # two clients stay together


def test_clustered_fl_leaves_noise_together_unless_set_as_in_the_paper():
    noise = np.random.default_rng(0).normal(size=(6, 400))
    assert not any(cut(noise @ noise.T, eps1=9.0)[0])
    assert any(cut(noise @ noise.T, eps1=9.0, gap=0.0)[0])


def test_clustered_fl_lets_ids_go_and_not_positions(monkeypatch):
    """An implementation is known that takes positions within a cluster for the names of clients."""
    data = worlds.clustered(2, 4)
    far = iter([[0, 1, 0, 0, 1, 0, 1, 1], [0, 1, 1, 0], [0, 0, 1, 1]])

    def split(run, members, update, largest, t):
        leaving = np.asarray(next(far), dtype=bool) if len(members) >= 4 else np.zeros(len(members), bool)
        return leaving, 0.0

    monkeypatch.setattr(clustered_fl, "_split", split)
    run = worlds.run("clustered-fl", data=data, rounds=2, participation=1.0)
    state = worlds.play("clustered-fl", run, last=1)
    assert state["cluster"].tolist() == [0, 1, 0, 0, 1, 0, 1, 1]
    halves = [parameters.pick(state["models"], c) for c in (0, 1)]
    assert worlds.same(*halves)  # both go on from the same model
    state = clustered_fl.train_round(run, state, 1)
    # Cluster 0 is 0, 2, 3, 5, of which 2 and 3 leave; cluster 1 is 1, 4, 6, 7, of which 6 and 7 leave.
    assert state["cluster"].tolist() == [0, 1, 2, 2, 1, 0, 3, 3]
    for c, members in ((0, [0, 2, 3, 5]), (1, [1, 4, 6, 7])):
        uploads = {i: worlds.steps(halves[c], data, i, ("sgd", 1)) for i in members}
        expected = mean_of(run, uploads, members)
        worlds.close(parameters.pick(state["models"], c), expected, atol=1e-5)
        worlds.close(parameters.pick(state["models"], 2 + c), expected, atol=1e-5)


def test_clustered_fl_judges_by_the_last_updates_that_it_knows(monkeypatch):
    judged = []

    def split(run, members, update, largest, t):
        judged.append((members.tolist(), model_algebra.gram_matrix(update, members, run.engine.parameters, 99)))
        return np.zeros(len(members), bool), 0.0

    monkeypatch.setattr(clustered_fl, "_split", split)
    run = worlds.run("clustered-fl", participation=0.34, rounds=4)
    worlds.play("clustered-fl", run)
    model, last = run.init, {}
    for t in range(4):
        cohort = run.cohort(t).tolist()
        uploads = {i: worlds.steps(model, run.federation, i, ("sgd", t)) for i in cohort}
        last |= {i: torch.cat([(uploads[i][n] - model[n]).flatten() for n in model]).double() for i in cohort}
        model = mean_of(run, uploads, cohort)
        members, products = judged[t]
        assert members == sorted(last)
        expected = [[float(last[a] @ last[b]) for b in members] for a in members]
        np.testing.assert_allclose(products, expected, rtol=1e-3, atol=1e-5)


def test_clustered_fl_remembers_the_largest_norm_of_a_mean_update():
    run = worlds.run("clustered-fl", participation=1.0, options={"eps1": 0.0})
    before, norms, state = run.init, [], None
    for t in range(3):
        state = worlds.play("clustered-fl", run, t, t + 1, state)
        model = parameters.pick(state["models"], 0)
        norms.append(float(torch.cat([(model[name] - before[name]).flatten() for name in model]).norm()))
        before = model
        assert float(state["largest"]) == pytest.approx(max(norms), rel=1e-4)


def test_a_client_that_joins_after_a_split_takes_the_model_of_the_lowest_loss():
    run = worlds.run("clustered-fl", participation=0.34, rounds=9)
    state = worlds.play("clustered-fl", run, last=1)
    state["models"] = run.initial_models(3)
    (t, new), size = next((t, i) for t in range(1, 9) for i in run.cohort(t) if i not in run.cohort(0)), run.init
    count, before = len(run.cohort(t)), run.traffic["down"]
    arriving = [i for i in run.cohort(t) if state["cluster"][i] < 0]
    after = clustered_fl.train_round(run, state, t)
    models = [parameters.pick(run.initial_models(3), c) for c in range(3)]
    assert after["cluster"][new] == min(range(3), key=lambda c: loss(models[c], run.federation, new))
    assert run.traffic["down"] - before == (count + 2 * len(arriving)) * parameters.size(size)
    stranger = next(i for i in (0, 3, 4, 6) if after["cluster"][i] < 0)
    choice = min(range(3), key=lambda c: loss(parameters.pick(after["models"], c), run.federation, stranger))
    actual = worlds.answers("clustered-fl", run, after, np.asarray([stranger]))["test"]
    expected = worlds.probabilities(parameters.pick(after["models"], choice), run.federation, stranger)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize("linkage", ["complete", "single"])
def test_clustered_fl_finds_three_clusters_by_two_splits(linkage):
    data, options = worlds.clustered(), {"warmup": 5, "linkage": linkage, "gap": 0.4}
    run = worlds.run("clustered-fl", data=data, options=options, rounds=14, participation=1.0, epochs=3, batch_size=10)
    actual = worlds.play("clustered-fl", run)["cluster"].numpy()
    assert len({(int(a), int(b)) for a, b in zip(actual, data.cluster, strict=True)}) == len(set(actual)) == 3


FORMS = ("heuristic", "attention")


@pytest.mark.parametrize("form", FORMS)
def test_fedamp_without_a_pull_is_training_alone(form):
    run = worlds.run("fedamp", options={"lam": 0.0, "form": form, "start": "own"})
    state, alone = worlds.play("fedamp", run), worlds.run()
    models = alone.table(alone.initial_model())
    for t in range(3):
        cohort = alone.cohort(t)
        for part in alone.local_sgd(cohort, models[cohort], t=t):
            models[part.clients] = part.params
    assert worlds.same(state["model"], models)


@pytest.mark.parametrize("form", FORMS)
def test_fedamp_pulls_by_its_gradient(form):
    """An implementation is known whose proximal term has no gradient, so that it trains alone whatever lambda is."""
    heads = []
    for lam in (0.0, 0.1, 1.0):
        run = worlds.run("fedamp", participation=1.0, options={"lam": lam, "form": form, "start": "own"})
        state = worlds.play("fedamp", run)
        heads.append(state["model"][ABLE]["head.weight"])
    assert not torch.equal(heads[0], heads[1])
    spread = [float(models.var(dim=0).sum()) for models in heads]
    assert spread[0] > spread[1] > spread[2]  # the stronger the pull, the nearer to each other


def test_fedamp_that_starts_from_the_cloud_model_keeps_clients_nearer_to_each_other():
    """Where the pull is weak, the start carries what others have learned; by default it is the client's own model."""
    models = []
    for options in ({}, {"start": "own"}, {"start": "cloud"}):
        run = worlds.run("fedamp", participation=1.0, options={"lam": 1e-4, **options})
        models.append(worlds.play("fedamp", run)["model"])
    assert worlds.same(models[0], models[1])
    spread = [float(model[ABLE]["head.weight"].var(dim=0).sum()) for model in models]
    assert spread[2] < 0.8 * spread[1]


def test_fedamp_with_all_weight_on_itself_starts_from_itself():
    """The cloud model is then the client's own, so that both starts are one, and without a pull training alone."""
    runs = [worlds.run("fedamp", options={"self_weight": 1.0, "start": start}) for start in ("own", "cloud")]
    models = [worlds.play("fedamp", run)["model"] for run in runs]
    for i in ABLE:
        worlds.close(parameters.pick(models[0][[i]], 0), parameters.pick(models[1][[i]], 0))


def test_fedamp_with_all_weight_on_itself_ignores_other_clients():
    """Clients are held by their own last models alone: what the others have does not matter."""
    states = []
    for flip in (False, True):
        data = worlds.federation()
        if flip:
            data.y[data.block(3, "train")] = 2 - data.y[data.block(3, "train")]
        run = worlds.run("fedamp", participation=1.0, data=data, options={"self_weight": 1.0})
        states.append(worlds.play("fedamp", run)["model"])
    for i in ABLE:
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
        e = {j: np.exp((cfg.sigma or 10) * cosine(v[i], v[j])) for j in others[i]}
        xi[i, i] = 1 / (len(e) + 1) if cfg.self_weight is None else cfg.self_weight
        for j in others[i]:
            xi[i, j] = (1 - xi[i, i]) * e[j] / sum(e.values())
    return xi


def cosine(a, b):
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
def test_fedamp_weights_by_hand(name):
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


def test_fedamp_weights_of_the_first_round_are_ones_own():
    for form in FORMS:
        actual = fedamp.weights(fedamp.Config(form=form), np.ones((3, 3)), np.zeros(3, dtype=bool))
        np.testing.assert_array_equal(actual, np.eye(3))


@pytest.mark.parametrize("form", FORMS)
def test_fedamp_gives_equal_clients_equal_means(form):
    """Equal models with equal weight on both: their means are the same."""
    rows = np.asarray([[1.0, 2.0], [1.0, 2.0], [-1.0, 0.5]])
    cfg = fedamp.Config(form=form, sigma=2.0, self_weight=0.5)
    xi = fedamp.weights(cfg, rows @ rows.T, np.ones(3, dtype=bool))
    np.testing.assert_allclose((xi @ rows)[0], (xi @ rows)[1])
    assert xi[0, 1] > xi[0, 2]


@pytest.mark.parametrize("start", ["own", "cloud"])
@pytest.mark.parametrize("options", [{}, {"form": "attention"}, {"form": "attention", "alpha": 0.5, "sigma": 9.0}])
def test_fedamp_rounds_by_hand(options, start):
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


def test_fedamp_weighs_its_own_cluster_more():
    data = worlds.clustered()
    run = worlds.run("fedamp", data=data, rounds=6, participation=1.0, epochs=3, batch_size=10)
    state = worlds.play("fedamp", run)
    products = model_algebra.gram_matrix(state["model"], run.clients, run.engine.parameters, 99, run.init)
    xi = fedamp.weights(run.cfg, products, np.ones(12, dtype=bool))
    same = client_relations.share_cluster(data.cluster)
    assert xi[same].min() > 3 * xi[~same & ~np.eye(12, dtype=bool)].max()
