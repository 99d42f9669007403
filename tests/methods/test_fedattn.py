"""FedAttn: attention, neighbours and biases by hand, a run against an independent reference, and its collapse."""

from __future__ import annotations

import math
from dataclasses import fields
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import nn
from torch.func import functional_call
from torch.nn import functional

import worlds
from by_hand import representation
from pflcli.core import config, methods, models, parameters, registry
from pflcli.core.engine.engine import Engine
from pflcli.core.engine.federation import Federation
from pflcli.core.errors import ComputationError, UsageError
from pflcli.core.settings import Settings
from pflcli.core.simulation import loop
from pflcli.core.simulation.create_run import create_run
from pflcli.methods import fedattn, fedattn_extended
from pflcli.methods.parts import attention, bias_attention, ham, server_optimizer
from pflcli.methods.parts.bias_attention import BiasAttention, BiasLayout, drop_self, find_nearest_others
from pflcli.workflow.training import state_files

LAYERS = {"body.1.bias": 200, "body.3.bias": 200, "head.bias": worlds.CLASSES}


def flatten_biases(w):
    return torch.cat([w[name] for name in LAYERS]).double()


def split_biases(b):
    return b.split([200, 200, len(b) - 400])


def with_biases(w, b):
    return {**w, **{name: piece.float() for name, piece in zip(LAYERS, split_biases(b), strict=True)}}


def mean_features(w, data, client):
    return representation(w, data.x[data.rows(client, "train")]).mean(dim=0).double()


def reference(run, cfg, theta, rounds):
    """FedAttn as most people would write it: a loop over clients, one tensor at a time; returns the last state."""
    data, g = run.federation, run.initial_model()
    z, m, theta = {}, {}, {name: value.clone().requires_grad_() for name, value in theta.items()}
    optimizer = torch.optim.Adam(theta.values(), lr=cfg.server_lr)
    guarded = cfg.form == "guarded"
    form = (lambda v: (v - v.mean()) / (v.var(unbiased=False) + 1e-5).sqrt()) if guarded else (lambda v: v)
    for t in range(rounds):
        own, cohort, personal, models, anchors = flatten_biases(g), run.cohort(t).tolist(), {}, {}, {}
        before = dict(z)
        for i in cohort:
            query = form(z.get(i, mean_features(g, data, i)))
            distance = {j: float((form(before[j]) - query).norm()) for j in before if j != i}
            near = sorted(distance, key=distance.get)[: cfg.k - 1]
            keys = torch.stack([query, *(form(before[j]) for j in near)])
            values = torch.stack([m.get(i, own * 0 if guarded else own), *(m[j] for j in near)])
            score = (keys @ theta["k"].T) @ (theta["q"] @ query) / math.sqrt(len(theta["q"]))
            attended = torch.softmax(score, 0) @ values
            if "v" in theta:
                attended = theta["v"] @ attended
            if guarded and getattr(cfg, "trust", 0):
                pieces = [split_biases(v) for v in (attended, own)]
                attended = torch.cat(
                    [
                        p * (cfg.trust * o.norm() / p.norm().clamp_min(1e-9)).clamp(max=1)
                        for p, o in zip(*pieces, strict=True)
                    ]
                )
            attended = own + attended if guarded else attended
            personal[i] = attended
            near_mean = values.mean(dim=0) + (own if guarded else 0)
            pull = cfg.mu_g + cfg.mu_n
            anchors[i] = with_biases({}, (cfg.mu_g * own + cfg.mu_n * near_mean) / pull) if pull else None
            models[i] = worlds.steps(
                with_biases(g, attended.detach()), data, i, ("sgd", t), pull=pull, anchor=anchors[i]
            )
        n = {i: len(data.rows(i, "train")) / sum(len(data.rows(j, "train")) for j in cohort) for i in cohort}
        change = {i: n[i] * (personal[i].detach().float().double() - flatten_biases(models[i])) for i in cohort}
        g = {name: sum(n[i] * models[i][name] for i in cohort) for name in g}
        g = with_biases(g, own - sum(change.values()))
        optimizer.zero_grad()
        sum((personal[i] * change[i]).sum() for i in cohort).backward()
        if guarded:
            nn.utils.clip_grad_norm_(theta.values(), 1.0)
        optimizer.step()
        for i in cohort:
            z[i] = mean_features(models[i], data, i)
            m[i] = flatten_biases(models[i]) - (flatten_biases(g) if guarded else 0)
    return SimpleNamespace(g=g, z=z, m=m, theta=theta)


def find_neighbours(run, state, clients, find=fedattn.find_neighbours):
    """The neighbours that the server finds of clients, of which new ones send their representation."""
    weights, _ = fedattn._attention(run).layout.divide(state["global"])
    return find(run, state, clients, fedattn._recall(run, state, clients, state["z"].unwritten(clients), weights))


OWN = {field.name for field in fields(fedattn_extended.Config)} - {field.name for field in fields(fedattn.Config)}
"""Options of fedattn-extended alone."""


def method_with(options):
    return "fedattn-extended" if OWN & options.keys() else "fedattn"


FORMS = {
    "guarded": {},
    "guarded, bounded": {"trust": 2.0},
    "guarded, tight": {"trust": 0.05},
    "guarded, trained values": {"value": "full"},
    "faithful": {"form": "faithful"},
    "faithful, pulled": {"form": "faithful", "mu_g": 0.3, "mu_n": 0.2},
    "guarded, pulled": {"mu_g": 0.1, "mu_n": 0.4},
}


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("data", [worlds.federation, worlds.quantities], ids=["classes", "quantities"])
def test_fedattn_rounds_match_an_independent_loop(name, participation, data):
    method = method_with(FORMS[name])
    run = worlds.run(method, participation=participation, options={"k": 3, **FORMS[name]}, data=data())
    theta = fedattn.setup(run)["attention"]
    state = worlds.play(method, run)
    expected = reference(run, run.cfg, theta, 3)
    for key, value in expected.g.items():
        torch.testing.assert_close(state["global"][key], value, rtol=1e-4, atol=2e-5)
    assert state["z"].written.tolist() == sorted(expected.z)
    for client in expected.z:
        torch.testing.assert_close(state["z"][[client]]["z"][0].double(), expected.z[client], rtol=1e-3, atol=1e-4)
        offsets = state["biases"][[client]]["biases"][0].double()
        torch.testing.assert_close(offsets, expected.m[client].double(), rtol=1e-3, atol=5e-5)
    for key, value in expected.theta.items():
        # Adam makes steps of one size of whatever gradient there is: only where it is not noise do they agree.
        near = (state["attention"][key] - value.detach()).abs() < 1e-3
        assert near.double().mean() > 0.97


@pytest.mark.parametrize("options", [{}, {"form": "faithful", "k": 3}], ids=str)
def test_the_extension_without_its_own_options_is_identical_to_fedattn(options):
    names = ("fedattn", "fedattn-extended")
    runs = [worlds.run(name, options=options) for name in names]
    states = [worlds.play(name, run) for name, run in zip(names, runs, strict=True)]
    assert worlds.same(states[0]["global"], states[1]["global"])
    first, second = (worlds.answers(*each) for each in zip(names, runs, states, strict=True))
    assert first["test"].tobytes() == second["test"].tobytes()
    assert runs[0].traffic == runs[1].traffic


def test_fedattn_without_attention_is_identical_to_fedavg():
    run, plain = worlds.run("fedattn-extended", options={"attention": "none"}), worlds.run("fedavg")
    state, expected = worlds.play("fedattn-extended", run), worlds.play("fedavg", plain)
    assert worlds.same(state["global"], expected["global"])
    assert run.traffic == plain.traffic
    actual, other = worlds.answers("fedattn-extended", run, state), worlds.answers("fedavg", plain, expected)
    assert all(np.array_equal(actual[split], other[split]) for split in other)


def test_fedattn_warm_up_is_identical_to_fedavg():
    run, plain = worlds.run("fedattn", options={"warmup": 3}), worlds.run("fedavg")
    assert worlds.same(worlds.play("fedattn", run)["global"], worlds.play("fedavg", plain)["global"])
    later = worlds.run("fedattn", options={"warmup": 2})
    assert worlds.play("fedattn", later)["history"]["rho"].shape == (1,)


def test_fedattn_with_one_neighbour_equals_fedavg_with_private_biases():
    options = {"form": "faithful", "value": "identity", "k": 1}
    run = worlds.run("fedattn-extended", participation=1.0, options=options)
    state = worlds.play("fedattn-extended", run)
    actual = worlds.answers("fedattn-extended", run, state)["test"]
    data, g, able = run.federation, run.initial_model(), [0, 1, 2, 3, 4, 6]
    private = {i: flatten_biases(g) for i in able}
    n = data.sizes("train")[able] / data.sizes("train").sum()
    for t in range(3):
        uploads = [worlds.steps(with_biases(g, private[i]), data, i, ("sgd", t)) for i in able]
        private = {i: flatten_biases(w) for i, w in zip(able, uploads, strict=True)}
        g = {name: sum(w * model[name] for w, model in zip(n, uploads, strict=True)) for name in g}
    rows = [
        torch.softmax(worlds.logits(with_biases(g, private[i]), data.x[data.block(i, "test")]), 1)
        for i in able
        if data.sizes("test")[i]
    ]
    np.testing.assert_allclose(actual, torch.cat(rows), atol=1e-5)


@pytest.mark.parametrize("options", [{"form": "faithful"}, {"value": "full"}, {"trust": 0.02}], ids=str)
def test_server_gradient_equals_autograd_through_the_whole_chain(options, monkeypatch):
    """A full-batch step of rate r returns r times the gradient: W_Q, W_K and W_V get that of the clients' mean loss."""
    rate, grads = 0.01, {}
    method = method_with(options)
    run = worlds.run(method, participation=1.0, batch_size=1000, lr=rate, options={"k": 3, **options})
    state = worlds.play(method, run, last=2)
    keep = fedattn.adam_step
    monkeypatch.setattr(fedattn, "adam_step", lambda theta, g, *more: grads.update(g) or keep(theta, g, *more))
    before = {name: value.clone().requires_grad_() for name, value in state["attention"].items()}
    cohort, data, start = run.cohort(2), run.federation, state["global"]
    near, own = find_neighbours(run, state, cohort), flatten_biases(start)
    personal = fedattn._attention(run).attend(before, near, own)
    n = data.sizes("train")[cohort] / data.sizes("train")[cohort].sum()
    net = models.create("mlp", data.in_shape, worlds.CLASSES, 0).double()
    loss = 0
    for share, client, b in zip(n, cohort, personal, strict=True):
        pieces = b.split(list(LAYERS.values()))
        w = {**{name: v.double() for name, v in start.items()}, **dict(zip(LAYERS, pieces, strict=True))}
        rows = data.rows(client, "train")
        loss = loss + share * functional.cross_entropy(functional_call(net, w, data.x[rows].double()), data.y[rows])
    expected = torch.autograd.grad(rate * loss, list(before.values()))
    fedattn.train_round(run, state, 2)
    assert list(grads) == list(before)
    for (name, grad), value in zip(grads.items(), expected, strict=True):
        assert value.abs().max() > 0, name
        torch.testing.assert_close(grad, value, rtol=1e-3, atol=3e-3 * float(value.abs().max()))


def test_block_diagonal_value_matrix_stays_block_diagonal():
    run = worlds.run("fedattn-extended", options={"form": "faithful", "value": "blocks"})
    v = worlds.play("fedattn-extended", run)["attention"]["v"]
    outside = fedattn._attention(run).layout.block_mask() == 0
    assert (v[outside] == 0).all()
    assert not torch.equal(v, fedattn.setup(run)["attention"]["v"])


def test_frozen_attention_matrices_do_not_change():
    run = worlds.run("fedattn-extended", options={"attention": "frozen"})
    assert worlds.same(worlds.play("fedattn-extended", run)["attention"], fedattn.setup(run)["attention"])


def test_fedattn_traffic_matches_hand_computed_bytes():
    """A model each way, Z up; a newcomer also sends its first Z and is sent its biases apart from the model."""
    run = worlds.run("fedattn", options={"mu_g": 0.1})
    worlds.play("fedattn", run)
    model, z, b = parameters.size(run.init), 4 * 200, 4 * 403
    cohorts = [run.cohort(t) for t in range(3)]
    count, new = sum(map(len, cohorts)), len(np.unique(np.concatenate(cohorts)))
    assert run.traffic["up"] == count * (model + z) + new * z
    assert run.traffic["down"] == count * (model + b) + new * b  # the pull's anchor for everyone


def test_clients_that_never_took_part_are_not_neighbours_of_others():
    run = worlds.run("fedattn", rounds=1, options={"k": 7})
    state = worlds.play("fedattn", run)
    near = find_neighbours(run, state, run.clients)
    known = np.isin(run.clients, run.cohort(0))
    assert near.exists.sum(dim=1).tolist() == [3 if knows else 4 for knows in known]  # itself, and the known others


def test_client_is_its_own_first_neighbour_unless_include_self_is_false():
    for include in (True, False):
        run = worlds.run("fedattn-extended", participation=1.0, options={"k": 2, "include_self": include})
        state = worlds.play("fedattn-extended", run)
        able = run.cohort(0)
        near = find_neighbours(run, state, able, partial(fedattn_extended._find_neighbours, t=3))
        own = state["biases"][able]["biases"].double()
        assert torch.equal(near.values[:, 0], own) == include
        assert near.exists.shape == (6, 2)


def test_clients_attend_to_five_neighbours_by_default():
    run = worlds.run("fedattn", participation=1.0)
    state = worlds.play("fedattn", run)
    assert find_neighbours(run, state, run.cohort(0)).exists.shape == (6, 5)


def test_random_neighbours_change_every_round_and_exclude_the_client_itself():
    run = worlds.run("fedattn-extended", participation=1.0, options={"k": 3, "neighbours": "random"})
    state = worlds.play("fedattn-extended", run)
    able = run.cohort(0)
    finds = (partial(fedattn_extended._find_neighbours, t=t) for t in (3, 3, 4))
    first, again, later = (find_neighbours(run, state, able, find).values for find in finds)
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    own = state["biases"][able]["biases"].double()
    assert not (first[:, 1:] == own[:, None]).all(dim=2).any()


def make_run_with_overflow(form):
    """The federation, in which client 2's features are so large that its training overflows."""
    run = worlds.run("fedattn", participation=1.0, options={"form": form})
    run.federation.x[run.federation.rows(2, "train")] *= 1e30
    return run


@pytest.mark.parametrize("form", ["guarded", "faithful"])
def test_fedattn_rejects_a_non_finite_upload(form):
    run = make_run_with_overflow(form)
    state = fedattn.setup(run)
    for t in range(3):
        state, row = loop.play_round(run, "fedattn", methods.load("fedattn"), state, t)
        assert row["diverged"] == [2]
    assert state["history"]["rejected"].tolist() == [1, 1, 1]
    assert state["z"].written.tolist() == [0, 1, 3, 4, 6]
    assert all(value.isfinite().all() for value in state["global"].values())


def test_round_with_only_rejected_uploads_ends_the_run_or_keeps_the_state_in_faithful_form():
    """It ends a run, but for the form that shows the collapse."""
    run = worlds.run("fedattn", lr=1e30, options={"form": "faithful"})
    before = fedattn.setup(run)
    after, row = loop.play_round(run, "fedattn", methods.load("fedattn"), before, 0)
    assert after["history"]["rejected"].tolist() == [3]
    assert worlds.same(after["global"], before["global"])
    assert after["z"].written.tolist() == []
    assert row["diverged"] == run.cohort(0).tolist()
    run = worlds.run("fedattn", lr=1e30)
    with pytest.raises(ComputationError, match="all clients that trained became non-finite"):
        loop.play_round(run, "fedattn", methods.load("fedattn"), fedattn.setup(run), 0)


def logistic_run(**options):
    """A convex model with three biases, many rounds and a fast server: what the loop of biases does by itself."""
    data = worlds.federation()
    plan = config.build(Settings, {"model": "logistic", "rounds": 80, "participation": 0.5, "lr": 0.5}, "")
    cfg = config.build(fedattn.Config, {"server_lr": 0.03, **options}, "fedattn")
    return create_run(methods.load("fedattn"), cfg, data, plan, 0)


def test_biases_grow_in_the_faithful_form_and_not_by_default():
    history = worlds.play("fedattn", logistic_run(form="faithful"))["history"]
    assert history["rho"].shape == (80,)
    assert (history["rho"] > 1).all()
    assert history["largest"][60] > 1e3 * history["largest"][30] > 1e5 * history["largest"][0]
    history = worlds.play("fedattn", logistic_run())["history"]
    assert (history["rho"] == 1).all()
    assert history["largest"].max() < 3


def test_mu_g_and_mu_n_slow_the_growth_of_biases():
    history = worlds.play("fedattn", logistic_run(form="faithful", mu_g=0.1, mu_n=0.1))["history"]
    assert history["largest"].max() < 1e3


def test_predictions_stay_probabilities_when_a_model_overflows():
    run = worlds.run("fedattn", options={"form": "faithful"})
    state = worlds.play("fedattn", run)
    state["attention"]["v"] *= 1e37
    actual = worlds.answers("fedattn", run, state)["test"]
    assert ((actual == 1 / worlds.CLASSES) | (actual.max(axis=1, keepdims=True) > 0.99)).all(axis=1).any()
    np.testing.assert_allclose(actual.sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("options", [*FORMS.values(), {"neighbours": "random"}, {"include_self": False}], ids=str)
def test_every_form_resumes_identically_and_agrees_between_loop_and_stacked(options):
    name = method_with(options)
    runs = [worlds.run(name, mode=mode, rounds=4, options=options) for mode in ("loop", "stacked", "loop")]
    expected, other = (worlds.play(name, one) for one in runs[:2])
    for key, value in expected["global"].items():
        torch.testing.assert_close(other["global"][key], value, rtol=1e-3, atol=1e-4)
    stopped = worlds.play(name, worlds.run(name, mode="loop", rounds=4, options=options), last=2)
    resumed = state_files.nest(load(save(state_files.flatten(stopped))), runs[2])
    assert worlds.same(worlds.play(name, runs[2], first=2, state=resumed), expected)


def test_bias_layout_refuses_a_model_without_biases():
    net = models.Net(nn.Flatten(), nn.Linear(5, 3, bias=False))
    with pytest.raises(UsageError, match="has none"):
        BiasLayout(parameters.copy_params(net), ["head.weight"])


def test_bias_layout_includes_biases_of_every_kind_of_layer():
    net = nn.ModuleDict({"c": nn.Conv2d(1, 2, 3), "n": nn.BatchNorm2d(2), "g": nn.GRU(3, 2)})
    names = [name for name, _ in net.named_parameters()]
    assert BiasLayout(parameters.copy_params(net), names).sizes == {
        "c.bias": 2,
        "n.bias": 2,
        "g.bias_ih_l0": 6,
        "g.bias_hh_l0": 6,
    }


def test_bias_layout_flattens_and_unflattens_biases():
    params = {"a.bias": torch.tensor([1.0, 2.0]), "w": torch.zeros(2, 2), "b.bias": torch.tensor([3.0])}
    layout = BiasLayout(params, params)
    vector = layout.flatten(params)
    assert vector.tolist() == [1, 2, 3]
    stacked = layout.unflatten(torch.stack([vector, 2 * vector]))
    assert stacked["b.bias"].tolist() == [[3], [6]]
    assert torch.equal(layout.flatten(stacked), torch.stack([vector, 2 * vector]))
    assert layout.block_mask().tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]


def test_limit_norms_matches_a_hand_computed_trust_region():
    own = torch.tensor([3.0, 4.0, 0.0, 1.0]).double()  # layers of norm 5 and 1
    offsets = torch.tensor([[30.0, 40.0, 1.0, 0.0], [6.0, 8.0, 3.0, 4.0]]).double()
    params = {name: torch.zeros(2) for name in ("a.bias", "b.bias")}
    layout = BiasLayout(params, params)
    actual = fedattn_extended.limit_norms(layout, offsets, own, 2.0)
    torch.testing.assert_close(actual, torch.tensor([[6.0, 8.0, 1.0, 0.0], [6.0, 8.0, 1.2, 1.6]]).double())
    assert fedattn_extended.limit_norms(layout, torch.zeros(1, 4).double(), own, 2.0).tolist() == [[0.0] * 4]


def make_skewed_federation():
    """Six clients, most of whose samples are of one class, which two of them share; classes are balanced over all."""
    draw = np.random.default_rng(3)
    splits = (40, 20, 20)
    y = np.concatenate([np.where(draw.random(80) < 0.8, c % 3, draw.integers(0, 3, 80)) for c in range(6)])
    x = draw.normal(size=(len(y), worlds.FEATURES)) + 0.7 * np.eye(worlds.FEATURES)[y]
    return Federation.from_blocks(x.astype(np.float32), y, np.cumsum([0, *splits * 6]), worlds.CLASSES)


def test_default_offsets_may_exceed_near_zero_global_biases_and_improve_accuracy():
    """Over balanced classes the head's global biases are no measure of what a client's own labels ask for."""
    correct = {}
    for name, options in {"default": {}, "within twice": {"trust": 2.0}, "one": {"attention": "none"}}.items():
        method = method_with(options)
        run = worlds.run(
            method, data=make_skewed_federation(), participation=1.0, rounds=12, options={"k": 2, **options}
        )
        state = worlds.play(method, run)
        p = worlds.answers(method, run, state)["validation"]
        y = np.concatenate([run.federation.y[run.federation.block(c, "validation")] for c in range(6)])
        correct[name] = int((p.argmax(axis=1) == y).sum())
        if name == "default":
            near = find_neighbours(run, state, run.clients)
            own = flatten_biases(state["global"])
            personal = fedattn._attention(run).attend(state["attention"], near, own)
            assert ((personal - own)[:, -3:].norm(dim=1) > 2 * own[-3:].norm()).all()
    assert correct["default"] > correct["within twice"] > correct["one"]


@pytest.mark.parametrize(("is_guarded", "gradient", "expected"), [(False, 1, 5), (True, 0.1, 0.5), (True, 1, 1)])
def test_only_the_guarded_form_clips_the_joint_norm_of_the_gradients(is_guarded, gradient, expected):
    params = {"a.bias": torch.zeros(2)}
    actual = BiasAttention(BiasLayout(params, params), is_guarded, "identity")
    theta = {name: torch.tensor(1.0).double().requires_grad_() for name in ("a", "b")}
    personal = torch.stack([3 * theta["a"], 4 * theta["b"]])[None]
    grads = actual.differentiate(theta, personal, gradient * torch.ones(1, 2).double())
    assert [value.item() for value in grads.values()] == pytest.approx([expected * 0.6, expected * 0.8])


def test_attention_weights_match_hand_computed_values():
    query, keys = torch.tensor([2.0, 0, 0, 0]), torch.tensor([[1.0, 0, 0, 0], [0, 9, 9, 9], [2.0, 0, 0, 0]])
    allowed = torch.tensor([True, True, False])
    e = math.exp(1)
    torch.testing.assert_close(
        attention.compute_weights(query, keys, allowed), torch.tensor([e / (e + 1), 1 / (e + 1), 0])
    )
    assert attention.compute_weights(query, keys, torch.zeros(3, dtype=torch.bool)).tolist() == [0, 0, 0]
    huge = attention.compute_weights(1e4 * query, 1e4 * keys, torch.ones(3, dtype=torch.bool))
    assert huge.tolist() == [0, 0, 1]


def test_divergence_matches_a_hand_computed_value():
    p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.25, 0.5, 0.25])
    assert ham.divergence(p, q).item() == pytest.approx(0.5 * math.log(2))
    assert ham.divergence(p, p).item() == 0


def test_spectral_radius_is_the_largest_absolute_eigenvalue():
    assert bias_attention.spectral_radius(torch.tensor([[0.0, 2.0], [-2.0, 0.0]])) == pytest.approx(2)
    assert bias_attention.spectral_radius(torch.tensor([[0.5, 100.0], [0.0, 0.5]])) == pytest.approx(
        0.5
    )  # its norm is 100


def test_initial_projections_are_orthonormal_rows_or_xavier_draws():
    draw = np.random.default_rng(0)
    rows = bias_attention._draw_orthonormal(3, 8, draw)
    torch.testing.assert_close(rows @ rows.T, torch.eye(3).double())
    assert torch.equal(bias_attention._draw_orthonormal(4, 4, draw), torch.eye(4).double())
    drawn = attention.draw_xavier(300, 300, draw)
    assert drawn.abs().max() <= 0.1
    assert drawn.std().item() == pytest.approx(300**-0.5, rel=0.02)


def test_adam_step_of_the_server_equals_torch_adam():
    theta = {"a": torch.tensor([1.0, -2.0]).double(), "b": torch.tensor(3.0).double()}
    free = [value.clone().requires_grad_() for value in theta.values()]
    optimizer, moments = torch.optim.Adam(free, lr=0.1), server_optimizer.adam_moments(theta)
    for t in range(5):
        grads = {"a": torch.tensor([0.3, -1.0 + t]).double(), "b": torch.tensor(float(t)).double()}
        theta, moments = server_optimizer.adam_step(theta, grads, moments, 0.1)
        for value, grad in zip(free, grads.values(), strict=True):
            value.grad = grad
        optimizer.step()
    for value, expected in zip(theta.values(), free, strict=True):
        torch.testing.assert_close(value, expected.detach())


def test_find_nearest_others_equals_brute_force():
    draw = np.random.default_rng(0)
    known, z = np.asarray([1, 4, 5, 9]), draw.normal(size=(12, 6)).astype(np.float32)
    clients = np.arange(12)
    actual = find_nearest_others(known, z[known], clients, z, 3)
    for client in clients:
        distance = {other: ((z[other] - z[client]) ** 2).sum() for other in known if other != client}
        assert actual[client].tolist() == sorted(distance, key=distance.get)[:3]
    assert find_nearest_others(known[:2], z[known[:2]], known[:1], z[known[:1]], 3).tolist() == [[4, -1, -1]]
    assert find_nearest_others(known[:0], z[:0], clients[:1], z[:1], 2).tolist() == [[-1, -1]]


def test_nearest_others_include_identical_clients_and_never_the_client_itself():
    z = np.zeros((4, 3), np.float32)
    actual = find_nearest_others(np.arange(4), z, np.arange(4), z, 3)
    assert [sorted(row) for row in actual.tolist()] == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]
    assert drop_self(np.asarray([[2, -1, 0]]), np.asarray([0]), 2).tolist() == [[2, -1]]


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_represent_returns_mean_features_of_the_model_of_each_client(mode):
    data = worlds.federation()
    nets = [models.create("mlp", data.in_shape, worlds.CLASSES, seed) for seed in (0, 1, 2)]
    engine = Engine(nets[0], data, seed=0, threads=2, mode=mode)
    clients = np.asarray([6, 5, 1])  # client 5 has no samples
    actual = engine.represent(clients, parameters.stack([parameters.copy_params(net) for net in nets]), "train")
    for row, client, net in zip(actual, clients, nets, strict=True):
        with torch.no_grad():
            z = net.features(data.inputs(torch.from_numpy(data.rows(client, "train"))))
        torch.testing.assert_close(row, z.mean(dim=0) if len(z) else torch.zeros(200))


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_local_sgd_returns_non_finite_models_when_may_diverge_is_set(mode):
    data = Federation(**vars(worlds.federation()))
    data.x[data.rows(2, "train")] *= 1e30
    run = worlds.run(mode=mode)
    run.federation.x[:] = data.x
    (part,) = run.local_sgd([0, 2], run.initial_model(), t=0, may_diverge=True)
    assert parameters.finite(part.params).tolist() == [True, False]


def test_card_of_fedattn_names_its_authors():
    assert "Luo" in registry.card("methods", "fedattn").doc
