"""FedHAM: its network by hand and by gradcheck, rounds against an independent reference, and its self-collapse."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from itertools import combinations

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import nn
from torch.func import functional_call
from torch.nn import functional

import worlds
from by_hand import minibatches
from helpers import set_own_products
from pflcli.core import config, methods, models, parameters
from pflcli.core.engine import engine as engines
from pflcli.core.engine import linear_chain
from pflcli.core.engine.engine import Engine
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.gradients import StackedBatch
from pflcli.core.engine.local_sgd import Batch, LocalSGD, Model
from pflcli.core.engine.networks import AutogradNetwork
from pflcli.core.federation import uploads
from pflcli.core.federation.run import RunInputs
from pflcli.core.settings import Settings
from pflcli.core.simulation.create_run import create_run
from pflcli.methods import fedham
from pflcli.methods.parts import clustering, ham, records
from pflcli.methods.parts.ham import CountSketch
from pflcli.workflow.training import state_files

ABLE = [0, 1, 2, 3, 4, 6]


@pytest.fixture(autouse=True)
def allow_one_stack(monkeypatch):
    """Few clients in one stack: a stack of one would be the loop, which it is compared with."""
    monkeypatch.setattr(engines, "_MIN_STACKS", 1)


def weighted_mean(answers, data):
    n = {i: len(data.rows(i, "train")) for i in answers}
    return {k: sum(n[i] * w[k] for i, w in answers.items()) / sum(n.values()) for k in next(iter(answers.values()))}


def unit_vector(v, least=1e-12):
    return v / v.norm().clamp_min(least)


def attend(q, keys):
    return torch.softmax(torch.stack([q @ k for k in keys]) / math.sqrt(len(q)), 0)


def validation_loss(w, data, i):
    rows = data.rows(i, "validation")
    w = {k: v.detach() for k, v in w.items()}
    return float(worlds.loss(worlds.logits(w, data.x[rows]), data.y[rows], data)) if len(rows) else 0.0


def sketch_model(sketch, w):
    """The sketch of one model, which a gradient goes through."""
    sums = torch.zeros(sketch._width, dtype=torch.float64)
    for name, (bucket, sign) in sketch._maps.items():
        sums = sums.index_add(0, bucket, w[name].flatten().double() * sign)
    return sums


def compute_hybrid(theta, cfg, sketches, x, i, g, data, share=None, least=1e-12):
    """Eq. 5 to 9 word by word: the hybrid of client i, its first layer by client, its second layer, and its share."""
    others = [j for j in x if j != i]
    z = {j: unit_vector(sketches[j], least) for j in [*x, "g"]}
    a = attend(theta["q1"] @ z[i], [theta["k1"] @ z[j] for j in others])
    mixed = {k: sum(w * x[j][k] for w, j in zip(a, others, strict=True)) for k in g}
    s = unit_vector(sum(w * sketches[j] for w, j in zip(a, others, strict=True)), least)
    candidates = {"self": (x[i], z[i]), "others": (mixed, s), "global": (g, z["g"])}
    attended_slots = {"ham": ["self", "others", "global"], "aml1": ["others"], "aml2": ["self", "global"]}[cfg.variant]
    if cfg.form == "guarded":
        attended_slots = [slot for slot in attended_slots if slot != "self"]
    b = attend(theta["q2"] @ z[i], [theta["k2"] @ candidates[slot][1] for slot in attended_slots])
    learned = {k: sum(w * candidates[slot][0][k] for w, slot in zip(b, attended_slots, strict=True)) for k in g}
    shares = [0] if share is None else [share]
    if share is None and cfg.form == "guarded" and cfg.variant != "aml1":
        shares = [1 / 3, 0, 2 / 3, 1] if cfg.self_share is None else [cfg.self_share]
    tried = {s: {k: s * x[i][k] + (1 - s) * learned[k] for k in g} for s in shares}
    best = min(tried, key=lambda s: validation_loss(tried[s], data, i))
    return learned, tried[best], dict(zip(others, a, strict=True)), dict(zip(attended_slots, b, strict=True)), best


def reference(run, rounds):
    """FedHAM with full participation as most people would write it; returns the global model, models and attention."""
    data, cfg, g = run.federation, run.cfg, run.initial_model()
    sketch = CountSketch(g, g, cfg.sketch, run.rng("sketch"))
    first = (
        ham.draw_projections(cfg.sketch, run.rng("ham"))
        if cfg.form == "faithful"
        else ham.initial_projections(cfg.sketch, cfg.temperature)
    )
    theta, x, attention = {i: {k: v.clone().requires_grad_() for k, v in first.items()} for i in ABLE}, {}, []
    for t in range(rounds):
        start, also = dict.fromkeys(ABLE, g), dict.fromkeys(ABLE, lambda w, part: 0)
        if t >= cfg.warmup and x:
            centre = sketch({k: v[None] for k, v in g.items()})[0] * (cfg.form != "faithful")
            points = {
                j: (sketch({k: v[None] for k, v in w.items()})[0] - centre).float() for j, w in {**x, "g": g}.items()
            }
            start = {}
            for i in ABLE:
                prior = compute_hybrid(first, cfg, points, x, i, g, data)[2]
                optimizer = torch.optim.Adam(theta[i].values(), lr=cfg.ham_lr)
                for batch in minibatches(data, i, ("ham", t), cfg.ham_epochs):
                    learned, _, a, *_ = compute_hybrid(theta[i], cfg, points, x, i, g, data)
                    loss = worlds.loss(worlds.logits(learned, data.x[batch]), data.y[batch], data)
                    if cfg.form == "guarded":
                        loss = loss + cfg.rho * sum(p * (p / a[j]).log() for j, p in prior.items())
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                with torch.no_grad():
                    _, start[i], a, b, share = compute_hybrid(theta[i], cfg, points, x, i, g, data)
                if cfg.lam:
                    also[i] = partial(hybrid_loss, run, sketch, theta[i], points, centre, x, i, g, share)
                attention.append((i, {j: float(w) for j, w in a.items()}, {slot: float(w) for slot, w in b.items()}))
        x = {i: worlds.steps(start[i], data, i, ("sgd", t), also=also[i]) for i in ABLE}
        g = weighted_mean(x, data)
    return g, x, attention


def hybrid_loss(run, sketch, theta, points, centre, x, i, g, share, w, part):
    """The second term of Eq. 1: lambda times the loss of the hybrid, with w in the place of x_i."""
    own = (sketch_model(sketch, w) - centre).float()
    least = 0.3 * float(torch.stack([points[j].norm() for j in x]).mean())
    changed = {**points, i: own}, {**x, i: w}
    _, mixed, *_ = compute_hybrid(theta, run.cfg, *changed, i, g, run.federation, share, least)
    data = run.federation
    return run.cfg.lam * worlds.loss(worlds.logits(mixed, data.x[part]), data.y[part], data)


CASES = {
    "guarded, Eq. 15 with lambda": {"lam": 2.0},
    "joint, Eq. 15 with lambda": {"form": "joint", "lam": 0.5},
    "faithful, Eq. 15 with lambda": {"form": "faithful", "lam": 2.0, "self_share": 0.0},
    "guarded": {},
    "guarded, fixed share": {"self_share": 0.25},
    "guarded aml2": {"variant": "aml2", "ham_epochs": 0},
    "guarded aml1": {"variant": "aml1"},
    "joint": {"form": "joint"},
    "joint aml2": {"form": "joint", "variant": "aml2"},
    "faithful": {"form": "faithful"},
    "frozen": {"ham_epochs": 0},
}


@pytest.mark.parametrize("mode", ["loop", "stacked"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("data", [worlds.federation, worlds.quantities], ids=["classes", "quantities"])
def test_fedham_rounds_match_an_independent_loop(name, mode, data):
    options = {"warmup": 1, "sketch": 16, **CASES[name]}
    run = worlds.run("fedham", participation=1.0, mode=mode, options=options, data=data())
    state = worlds.play("fedham", run)
    g, x, attention = reference(run, 3)
    for key, value in g.items():
        torch.testing.assert_close(state["global"][key], value, rtol=1e-3, atol=2e-4)
    for i in ABLE:
        for key, value in x[i].items():
            torch.testing.assert_close(state["models"][[i]][key][0], value, rtol=1e-3, atol=5e-4)
    assert state["attention"]["first"].shape == (2, 7, 7)
    for row, (i, a, b) in enumerate(attention):
        t = row // len(ABLE)
        for j, share in a.items():
            assert state["attention"]["first"][t, i, j].item() == pytest.approx(share, abs=2e-3)
        if options.get("form") in {"joint", "faithful"}:
            second = dict(zip(ham.SLOTS, state["attention"]["second"][t, i].tolist(), strict=True))
            for slot, share in b.items():
                assert second[slot] == pytest.approx(share, abs=2e-3)
    assert (state["attention"]["first"].diagonal(dim1=1, dim2=2) == 0).all()


def make_double_precision_case():
    """A tiny network in double precision, four models of it, and a batch; client 1 of four is the target."""
    torch.manual_seed(0)
    net = models.Net(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh()), nn.Linear(3, 2)).double()
    basis = {name: torch.randn(5, *value.shape).double() for name, value in parameters.copy_params(net).items()}
    x, y = torch.randn(6, 4).double(), torch.randint(0, 2, (6,))
    return net, basis, x, y


@pytest.mark.parametrize("slots", [(1, 1, 1), (0, 1, 1), (0, 1, 0), (1, 0, 1)])
def test_gradient_through_the_hybrid_passes_gradcheck(slots):
    net, basis, x, y = make_double_precision_case()
    theta = {name: torch.randn(6, 6).double().requires_grad_() for name in ("q1", "k1", "q2", "k2")}
    me = torch.eye(4).double()[1]
    shared = {"points": torch.randn(5, 6).double(), "slots": torch.tensor(slots).double()}
    shared |= {"rho": torch.tensor(0.3).double()}
    shared |= {f"basis.{name}": value for name, value in basis.items()}
    prior = torch.tensor([0.2, 0.0, 0.5, 0.3]).double()
    a, b = ham.attend(theta, shared["points"], me, shared["slots"])
    hybrid = ham.mix(ham.hybrid_shares(a, b, me), basis)
    positive = prior > 0
    divergence = (prior[positive] * (prior[positive] / a[positive]).log()).sum()
    expected = functional.cross_entropy(functional_call(net, hybrid, x), y) + 0.3 * divergence
    expected_grads = torch.autograd.grad(expected, list(theta.values()), materialize_grads=True)
    network = AutogradNetwork(net, (), "float32")
    own = {"me": me[None], "prior": prior[None]}
    batch = StackedBatch(x[None], y[None], torch.full((1, 6), 1 / 6).double(), own, shared, worlds.TASK)
    losses, actual = ham.gradients(network, {name: value[None] for name, value in theta.items()}, batch)
    torch.testing.assert_close(losses[0], expected.detach())
    grads = [actual[name][0] for name in theta]
    for value, expected_value in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(value, expected_value)
    # A hybrid that is copied into the network cuts the graph: then nothing reaches HAM.
    reached = [bool(grad.abs().max() > 0) for grad in grads]
    chooses = sum(slots) > 1
    assert reached == [True, True, chooses, chooses]


def test_ham_learns_from_the_running_statistics_that_it_mixes():
    """BatchNorm normalizes by mixed statistics; autograd does not differentiate by them, so they are written out."""
    torch.manual_seed(0)
    net = models.Net(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3, eps=0.1)), nn.Linear(3, 2)).double()
    basis = {name: torch.rand(5, *value.shape).double() for name, value in parameters.copy_params(net).items()}
    basis["body.2.num_batches_tracked"] = torch.zeros(5, dtype=torch.int64)
    x, y = torch.randn(6, 4).double(), torch.randint(0, 2, (6,))
    theta = {name: torch.randn(6, 6).double().requires_grad_() for name in ("q1", "k1", "q2", "k2")}
    me, slots, points = torch.eye(4).double()[1], torch.ones(3).double(), torch.randn(5, 6).double()
    mixed = ham.mix(ham.hybrid_shares(*ham.attend(theta, points, me, slots), me), basis)
    layer = {name.removeprefix("body.2."): value for name, value in mixed.items() if name.startswith("body.2.")}
    hidden = x @ mixed["body.1.weight"].T + mixed["body.1.bias"]
    normal = (hidden - layer["running_mean"]) / (layer["running_var"] + 0.1).sqrt() * layer["weight"] + layer["bias"]
    expected = functional.cross_entropy(normal @ mixed["head.weight"].T + mixed["head.bias"], y)
    expected_grads = torch.autograd.grad(expected, list(theta.values()))
    shared = {"points": points, "slots": slots, "rho": torch.tensor(0.0).double(), "eps.body.2": torch.tensor(0.1)}
    shared |= {f"basis.{name}": value for name, value in basis.items()}
    own = {"me": me[None], "prior": torch.full((1, 4), 0.25).double()}
    batch = StackedBatch(x[None], y[None], torch.full((1, 6), 1 / 6).double(), own, shared, worlds.TASK)
    network = AutogradNetwork(net, (), "float32", frozen_norm=True)
    losses, actual = ham.gradients(network, {name: value.detach()[None] for name, value in theta.items()}, batch)
    torch.testing.assert_close(losses[0], expected.detach())
    for name, value in zip(theta, expected_grads, strict=True):
        torch.testing.assert_close(actual[name][0], value, rtol=1e-6, atol=1e-9)


def test_fedham_knows_the_layers_of_batch_norm():
    run, _ = make_batch_norm_run("loop")
    assert fedham._list_norms(run) == {"body.1": 1e-5}
    assert fedham._list_norms(worlds.run("fedham")) == {}


@pytest.mark.parametrize("centred", [0.0, 1.0])
@pytest.mark.parametrize("slots", [(1, 1, 1), (0, 1, 1), (0, 1, 0), (1, 0, 1)])
def test_gradient_with_respect_to_the_client_model_passes_gradcheck(slots, centred):
    """Eq. 15: x_i enters the hybrid as query, key and value."""
    net, basis, x, y = make_double_precision_case()
    like = {name: value[0] for name, value in basis.items()}
    sketch = CountSketch(like, like, 6, np.random.default_rng(0))
    own = {name: torch.randn_like(value, requires_grad=True) for name, value in like.items()}
    me = torch.eye(4).double()[1]
    theta = {name: torch.randn(6, 6).double() for name in ("q1", "k1", "q2", "k2")}
    shared = {"points": sketch(basis), "slots": torch.tensor(slots).double(), "lam": torch.tensor(0.7).double()}
    shared |= {f"basis.{name}": value for name, value in basis.items()}
    shared |= {"centred": torch.tensor(centred).double(), **sketch.constants()}
    shared["points"] = shared["points"] - centred * shared["points"][-1:]
    per_client = {"me": me, "share": torch.tensor([0.2]).double()}
    batch = Batch(
        x, y, None, {**per_client, **{f"theta.{name}": value for name, value in theta.items()}}, shared, worlds.TASK
    )

    def loss(*weights):
        return ham.joint_loss(Model(net), dict(zip(own, weights, strict=True)), batch)

    # With the client's model in its own place the hybrid is that of Eq. 14.
    place = {name: torch.cat([value[:1], own[name][None], value[2:]]) for name, value in basis.items()}
    points = sketch(place) - centred * sketch(basis)[-1:]
    a, b = ham.attend(theta, points, me, shared["slots"])
    mixed = ham.mix(ham.hybrid_shares(a, ham.add_own_share(b, 0.2), me), place)
    both = [functional.cross_entropy(functional_call(net, w, x), y) for w in (own, mixed)]
    torch.testing.assert_close(loss(*own.values()), both[0] + 0.7 * both[1])
    assert torch.autograd.gradcheck(loss, tuple(own.values()))


def test_gradient_near_the_global_model_is_bounded():
    """The direction of x_i - x^g has the derivative 1 / length; below a least length it is not normalized to 1."""
    net, basis, x, y = make_double_precision_case()
    like = {name: value[0] for name, value in basis.items()}
    sketch = CountSketch(like, like, 6, np.random.default_rng(0))
    theta = {f"theta.{name}": torch.eye(6).double() for name in ("q1", "k1", "q2", "k2")}
    shared = {"points": sketch(basis) - sketch(basis)[-1:], "slots": torch.ones(3).double()}
    shared |= {f"basis.{name}": value for name, value in basis.items()} | sketch.constants()
    shared |= {"lam": torch.tensor(1.0).double(), "centred": torch.tensor(1.0).double()}
    own = {"me": torch.eye(4).double()[1], "share": torch.tensor([0.2]).double(), **theta}
    largest = []
    for apart in (1.0, 1e-9):
        torch.manual_seed(1)
        near = {n: (v[-1] + apart * torch.randn_like(v[-1])).requires_grad_() for n, v in basis.items()}
        loss = ham.joint_loss(Model(net), near, Batch(x, y, None, own, shared, worlds.TASK))
        largest.append(max(float(g.abs().max()) for g in torch.autograd.grad(loss, list(near.values()))))
    assert largest[1] < 100 * largest[0]


def test_share_gradient_is_the_inner_product_of_hybrid_gradient_and_model():
    """d loss / d share_j is the inner product of the hybrid's gradient with model j."""
    net, basis, x, y = make_double_precision_case()
    share = torch.rand(5).double().requires_grad_()
    mixed = ham.mix(share, basis)
    (direct,) = torch.autograd.grad(functional.cross_entropy(functional_call(net, mixed, x), y), share)
    fixed = {name: value.detach().requires_grad_() for name, value in mixed.items()}
    first = torch.autograd.grad(functional.cross_entropy(functional_call(net, fixed, x), y), list(fixed.values()))
    second = [sum((g * basis[name][j]).sum() for name, g in zip(fixed, first, strict=True)) for j in range(5)]
    torch.testing.assert_close(direct, torch.stack(second))


def test_first_attention_layer_starts_as_the_softmax_of_cosines():
    points = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    points[-1] = 0  # x^g is the centre
    me, theta = torch.eye(5)[2], ham.initial_projections(8, 5.0)
    a, b = ham.attend(theta, points, me, torch.ones(3))
    cosine = functional.cosine_similarity(points[2], points[[0, 1, 3, 4]])
    torch.testing.assert_close(a[[0, 1, 3, 4]], torch.softmax(5 * cosine, 0))
    assert a[2] == 0
    torch.testing.assert_close(b, torch.full((3,), 1 / 3))
    _, b = ham.attend(theta, points, me, torch.tensor([0.0, 1.0, 1.0]))
    assert b.tolist() == [0, 0.5, 0.5]


def test_single_client_mixes_its_own_and_the_global_model():
    points, me = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.ones(1)
    a, b = ham.attend(ham.initial_projections(2, 5.0), points, me, torch.ones(3))
    assert a.tolist() == [0]
    torch.testing.assert_close(ham.hybrid_shares(a, b, me), torch.tensor([1 / 3, 2 / 3]))


@pytest.mark.parametrize("slots", [(1, 1, 1), (0, 1, 1), (1, 0, 1)])
def test_second_attention_layer_matches_hand_computed_keys(slots):
    """The key of x^a is that of the mixture itself, as if it had been sketched; without others it is that of x^g."""
    draw = np.random.default_rng(0)
    theta = {name: torch.from_numpy(draw.normal(size=(6, 6))) for name in ("q1", "k1", "q2", "k2")}
    points, slots = torch.from_numpy(draw.normal(size=(5, 6))), torch.tensor(slots).double()
    for n in (4, 1):
        candidates = torch.cat([points[:n], points[-1:]])
        me = torch.eye(n).double()[n // 2]
        a, b = ham.attend(theta, candidates, me, slots)
        mixed = sum(a[j] * candidates[j] for j in range(n)) if n > 1 else candidates[-1]
        query = theta["q2"] @ unit_vector(candidates[n // 2])
        keys = [theta["k2"] @ unit_vector(v) for v in (candidates[n // 2], mixed, candidates[-1])]
        present = [place for place in range(3) if slots[place]]
        torch.testing.assert_close(b[present], attend(query, [keys[place] for place in present]))
        assert b.sum() == pytest.approx(1)
        assert a.sum() == pytest.approx(float(n > 1))


def test_hybrid_shares_and_mixtures_match_hand_computed_values():
    a, b, me = torch.tensor([0.25, 0.0, 0.75]), torch.tensor([0.5, 0.4, 0.1]), torch.eye(3)[1]
    share = ham.hybrid_shares(a, b, me)
    torch.testing.assert_close(share, torch.tensor([0.1, 0.5, 0.3, 0.1]))
    basis = {"w": torch.tensor([[10.0], [20.0], [30.0], [40.0]]), "n": torch.tensor([1, 2, 3, 4])}
    assert ham.mix(share, basis)["w"].item() == pytest.approx(1 + 10 + 9 + 4)
    both = ham.mix(torch.stack([share, torch.eye(4)[0]]), basis)
    assert both["w"][1].item() == 10
    assert both["n"].tolist() == [4, 4]
    torch.testing.assert_close(ham.add_own_share(torch.tensor([0.0, 0.75, 0.25]), 0.2), torch.tensor([0.2, 0.6, 0.2]))


def test_count_sketches_are_linear_and_preserve_cosines():
    like = {"a": torch.zeros(40, 50), "b": torch.zeros(300), "buffer": torch.zeros(9)}
    sketch = CountSketch(like, ["b", "a"], 256, np.random.default_rng(0))
    draw = torch.Generator().manual_seed(0)
    stack = {name: torch.randn(60, *value.shape, generator=draw) for name, value in like.items()}
    common = {name: torch.randn(1, *value.shape, generator=draw) for name, value in like.items()}
    stack = {name: value + common[name] for name, value in stack.items()}
    actual = sketch(stack)
    assert actual.shape == (60, 256)
    summed = sketch({name: value[:1].double() + 2 * value[1:2].double() for name, value in stack.items()})
    torch.testing.assert_close(actual[:1] + 2 * actual[1:2], summed)
    torch.testing.assert_close(actual, sketch({**stack, "buffer": stack["buffer"] + 1}))
    flat = torch.cat([stack["a"].flatten(1), stack["b"]], dim=1)
    exact, rough = (v @ v.T for v in (functional.normalize(flat), functional.normalize(actual.float())))
    error = (rough - exact)[~torch.eye(60, dtype=torch.bool)]
    assert error.square().mean().sqrt() < 1.2 / 16  # 1 / sqrt(256)
    assert exact[0, 1] > 0.4
    maps = [CountSketch(like, ["a", "b"], 256, np.random.default_rng(seed)) for seed in range(1, 101)]
    pairs = [functional.cosine_similarity(*sketch({n: v[:2] for n, v in stack.items()}), dim=0) for sketch in maps]
    assert abs(np.mean(pairs) - exact[0, 1]) < 4 * 0.1 / 16  # unbiased: a hundred maps err by a tenth


def test_count_sketch_matches_a_hand_computed_value():
    class Draws:
        def __init__(self):
            self.left = [np.asarray([0, 2, 0]), np.asarray([1, 0, 0])]

        def integers(self, low, high, size):
            return self.left.pop(0)

    sketch = CountSketch({"w": torch.zeros(3)}, ["w"], 4, Draws())
    assert sketch({"w": torch.tensor([[10.0, 20.0, 30.0]])}).tolist() == [[10 - 30, 0, -20, 0]]


def test_fedham_with_self_share_1_equals_local_training():
    run = worlds.run("fedham", participation=1.0, options={"warmup": 0, "self_share": 1.0})
    state = worlds.play("fedham", run)
    for i in ABLE:
        w = run.initial_model()
        for t in range(3):
            w = worlds.steps(w, run.federation, i, ("sgd", t))
        for key, value in w.items():
            torch.testing.assert_close(state["models"][[i]][key][0], value, rtol=1e-4, atol=1e-5)


def test_ftl_variant_is_fedavg_with_the_last_upload_as_personal_model():
    run, plain = worlds.run("fedham", options={"variant": "ftl", "warmup": 1}), worlds.run("fedavg")
    state, before = worlds.play("fedham", run), worlds.play("fedavg", plain, last=2)
    assert worlds.same(state["global"], worlds.play("fedavg", plain)["global"])
    assert run.traffic["down"] == run.traffic["up"] == 9 * parameters.size(run.init)
    for i in run.cohort(2).tolist():
        expected = worlds.steps(before["global"], run.federation, i, ("sgd", 2))
        for key, value in expected.items():
            torch.testing.assert_close(state["models"][[i]][key][0], value, rtol=1e-4, atol=1e-5)


def test_client_that_never_took_part_predicts_with_the_global_model():
    run = worlds.run("fedham", rounds=1, options={"answer": "final"})
    state = worlds.play("fedham", run)
    actual = worlds.answers("fedham", run, state)["test"]
    common = worlds.answers("fedavg", run, {"global": state["global"]})["test"]
    sizes = np.cumsum(run.federation.sizes("test"))[:-1]
    for i, (own, other) in enumerate(zip(np.split(actual, sizes), np.split(common, sizes), strict=True)):
        if len(own):
            assert np.allclose(own, other, atol=1e-6) == (i not in run.cohort(0))


@pytest.mark.parametrize(
    ("options", "received"), [({}, 7), ({"variant": "aml1"}, 7), ({"variant": "aml2"}, 1)], ids=str
)
def test_fedham_traffic_matches_hand_computed_bytes(options, received):
    """After a round of FedAvg each of the six is sent the global model and all six uploads, its own among them."""
    run = worlds.run("fedham", participation=1.0, options={"warmup": 1, **options})
    worlds.play("fedham", run)
    size = parameters.size(run.init)
    assert run.traffic == {"up": 3 * 6 * size, "down": (6 + 2 * 6 * received) * size, "peer": 0}


def test_clusters_limit_the_models_sent_and_attended_to():
    run = worlds.run("fedham", participation=1.0, options={"warmup": 1, "k": 3})
    state = worlds.play("fedham", run)
    first = state["attention"]["first"]
    together = (first > 0) | (first > 0).transpose(1, 2)
    sizes = [1 + together[t, i].sum().item() for t in range(2) for i in ABLE]
    assert run.traffic["down"] == (6 + 2 * 6 + sum(sizes)) * parameters.size(run.init)
    assert sum(sizes) < 2 * 36


def test_cluster_finds_separated_groups_and_numbers_them_in_order():
    draw = np.random.default_rng(0)
    points = np.concatenate([draw.normal(size=(n, 5)) * 0.1 + c for n, c in ((4, 0), (5, 3), (6, -3))])
    points = points[draw.permutation(15)]
    truth = np.sign(np.round(points.mean(axis=1))).astype(int)
    for how in ("k-means", "mean-shift"):
        actual = clustering.cluster(points, how, 3, np.random.default_rng(1))
        assert len({*zip(actual, truth, strict=True)}) == len({*actual}) == 3
        assert actual[0] == 0
        assert (np.diff(np.unique(actual, return_index=True)[1]) > 0).all()
    assert clustering.cluster(points, "k-means", 1, np.random.default_rng(1)).tolist() == [0] * 15
    assert clustering.cluster(points[:2], "k-means", 5, np.random.default_rng(1)).tolist() == [0, 1]
    for how in ("k-means", "mean-shift"):
        equal = clustering.cluster(np.zeros((4, 2)), how, 2, np.random.default_rng(1))
        assert equal.tolist() == [0] * 4
    assert clustering.cluster(points[:1], "mean-shift", 1, np.random.default_rng(1)).tolist() == [0]


def test_select_nearest_matches_hand_computed_neighbours():
    points = np.asarray([[1.0, 0.0], [2.0, 0.1], [0.0, 3.0], [0.2, 1.0], [-1.0, 0.0]])
    received = clustering.select_nearest(points, 2)  # of four others two, and its own
    assert [np.flatnonzero(row).tolist() for row in received] == [[0, 1, 3], [0, 1, 3], [1, 2, 3], [1, 2, 3], [2, 3, 4]]
    assert clustering.select_nearest(points, 3).sum(axis=1).tolist() == [3] * 5  # a third of four, rounded up
    assert clustering.select_nearest(points, 9).sum(axis=1).tolist() == [2] * 5
    assert clustering.select_nearest(points, 1).all()
    assert clustering.select_nearest(points[:1], 2).all()
    equal = clustering.select_nearest(np.zeros((3, 2)), 2)
    assert [np.flatnonzero(row).tolist() for row in equal] == [[0, 1], [0, 1], [0, 2]]
    label = clustering.cluster(points, "k-means", 2, np.random.default_rng(0))
    for members, mask in clustering.group_clients(points, np.arange(5), "k-means", 2, np.random.default_rng(0)):
        np.testing.assert_array_equal(members, np.flatnonzero(mask))
        np.testing.assert_array_equal(mask, label == label[members[0]])


def test_group_equal_rows_groups_clients_that_receive_the_same_models():
    rows = np.asarray([[1, 1, 0], [0, 1, 1], [1, 1, 0]], dtype=bool)
    together = [(places.tolist(), row.tolist()) for places, row in clustering.group_equal_rows(rows)]
    assert together == [([0, 2], [True, True, False]), ([1], [False, True, True])]
    together = clustering.group_equal_rows(rows[1:])
    assert [places.tolist() for places, _ in together] == [[0], [1]]


def test_nearest_clustering_sends_the_nearest_uploads_of_the_previous_round():
    """What a client is sent does not depend on who trained before it: hybrids are mixed of the last uploads."""
    options = {"warmup": 1, "clustering": "nearest", "k": 2, "answer": "hybrid", "form": "joint"}
    run = worlds.run("fedham", participation=1.0, rounds=3, options=options)
    before = worlds.play("fedham", run, last=2)
    uploads = before["models"][range(7)]
    start = {name: value.clone() for name, value in before["global"].items()}
    state = worlds.play("fedham", run, first=2, state=before)
    first, second = state["attention"]["first"][-1], state["attention"]["second"][-1]
    for i in ABLE:
        assert (first[i] > 0).sum() == 3  # half of five others
        assert first[i].sum() == pytest.approx(1, abs=1e-6)
        for name, value in state["hybrids"][[i]].items():
            others = torch.tensordot(first[i], uploads[name], dims=1)
            mixed = second[i, 0] * uploads[name][i] + second[i, 1] * others + second[i, 2] * start[name]
            torch.testing.assert_close(value[0], mixed, rtol=1e-4, atol=1e-5)
    size = parameters.size(run.init)
    assert run.traffic["down"] == (3 * 6 + 2 * 6 * 4) * size  # the global model, its own and three others'


EFFECTS = {
    "form": [{"form": "joint"}, {"form": "faithful"}, {}],
    "variant": [{"variant": "ham"}, {"variant": "aml1"}, {"variant": "aml2"}, {"variant": "ftl"}],
    "warmup": [{"warmup": 1}, {"warmup": 2}],
    "ham_epochs": [{"ham_epochs": 0}, {"ham_epochs": 1}, {"ham_epochs": 2}],
    "ham_lr": [{}, {"ham_lr": 0.1}],
    "ham_split": [
        {"answer": "final", "self_share": 0.3},
        {"ham_split": "validation", "answer": "final", "self_share": 0.3},
    ],
    "lam": [{}, {"lam": 1.0}, {"lam": 2.0}],
    "lam, joint": [{"form": "joint", "lam": lam} for lam in (0.0, 1.0, 2.0)],
    "lam, faithful": [{"form": "faithful", "lam": lam} for lam in (0.0, 1.0, 2.0)],
    "self_share": [{"self_share": 0.0}, {"self_share": 0.4}, {"self_share": 1.0}],
    "rho": [{"rho": 0.0}, {"rho": 5.0}],
    "temperature": [{}, {"temperature": 1.0}],
    "temperature, joint": [{"form": "joint"}, {"form": "joint", "temperature": 1.0}],
    "sketch": [{}, {"sketch": 8}],
    "clustering": [{"k": 2, "clustering": how} for how in ("k-means", "mean-shift", "nearest")],
    "k": [{"k": 1}, {"k": 2}, {"k": 3}],
    "k, nearest": [{"k": k, "clustering": "nearest"} for k in (1, 2, 5)],
    "answer": [{"answer": answer} for answer in ("final", "hybrid", "best")],
    "remember": [{}, {"remember": 2}],
}
"""For each option, values that must differ in what they give."""


def test_effect_cases_cover_every_option_of_fedham():
    assert {name.partition(",")[0] for name in EFFECTS} == {field.name for field in dataclasses.fields(fedham.Config)}


@pytest.mark.parametrize("name", EFFECTS)
def test_fedham_option_changes_the_result(name):
    """By more than float noise: Adam hides the scale of a loss, but for the last digits."""
    states = []
    for options in EFFECTS[name]:
        run = worlds.run("fedham", participation=1.0, options={"warmup": 1, "sketch": 16, **options})
        state = worlds.play("fedham", run)
        parts = [torch.from_numpy(worlds.answers("fedham", run, state)["test"])]
        parts += [*state["models"][ABLE].values(), state["attention"]["first"]]
        states.append(parts)
    for one, other in combinations(states, 2):
        assert any(a.shape != b.shape or (a - b).abs().max() > 1e-4 for a, b in zip(one, other, strict=True))


def clustered_run(**options):
    """Eight clients of two kinds, whose labels contradict each other, with ten noisy samples each."""
    draw, m, n = np.random.default_rng(0), 8, (10, 4, 60)
    y = draw.integers(0, 3, m * sum(n))
    kind = np.repeat(np.arange(m) % 2, sum(n))
    x = draw.normal(size=(len(y), 30)) + 2.0 * np.eye(30)[y]
    data = Federation.from_blocks(x.astype(np.float32), (y + kind) % 3, np.cumsum([0, *n * m]), 3)
    plan = {"model": "logistic", "rounds": 14, "participation": 1.0, "batch_size": 10, "epochs": 2, "lr": 0.3}
    cfg = config.build(fedham.Config, {"warmup": 4, "sketch": 32, **options}, "fedham")
    return create_run(methods.load("fedham"), cfg, data, config.build(Settings, plan, ""), 0)


def compute_accuracy(run, state):
    p = fedham.personalize(run, state, run.clients).answer("test")["p"]
    y = np.concatenate([run.federation.y[run.federation.block(c, "test")] for c in run.clients])
    return (p.argmax(axis=1) == y).mean()


def test_faithful_form_collapses_to_self_attention_and_the_default_does_not():
    accuracies = {}
    for form in ("faithful", "joint", "guarded"):
        run = clustered_run(form=form, ham_lr=0.05)
        state = worlds.play("fedham", run)
        accuracies[form] = compute_accuracy(run, state)
        own_weight = state["attention"]["second"][:, :, 0].mean(dim=1)
        if form == "guarded":
            assert own_weight.max() < 0.6
        else:
            assert own_weight[-1] > 0.95
    first = state["attention"]["first"][-1]
    same = (np.arange(8)[:, None] - np.arange(8)) % 2 == 0
    assert first[torch.from_numpy(same)].sum() / first.sum() > 0.9  # chance is 3 / 7
    assert accuracies["guarded"] > max(accuracies["faithful"], accuracies["joint"]) + 0.08


def test_warm_up_ends_when_the_loss_stops_falling():
    run = worlds.run("fedham", rounds=100)
    state = fedham.setup(run)
    assert fedham._is_warm_up(run, state, 19)
    assert not fedham._is_warm_up(run, state, 20)
    state["warmup"] = {"best": torch.tensor(1.0), "stale": torch.tensor(5)}
    assert not fedham._is_warm_up(run, state, 3)
    fixed = worlds.run("fedham", rounds=100, options={"warmup": 30})
    assert fedham._is_warm_up(fixed, state, 29)
    assert not fedham._is_warm_up(fixed, state, 30)
    options = {"sketch": 8, "ham_epochs": 0}
    still = worlds.play("fedham", worlds.run("fedham", rounds=40, lr=1e-12, participation=1.0, options=options))
    assert still["attention"]["first"].shape[0] == 34  # of 8 rounds at most it takes 6: one, and five that do not fall


def test_warm_up_lasts_at_most_a_fifth_of_the_rounds():
    for rounds, last in ((6, 1), (5, 0), (4, 0), (1, 0)):
        run = worlds.run("fedham", rounds=rounds)
        state = fedham.setup(run)
        assert [fedham._is_warm_up(run, state, t) for t in range(rounds)] == [t <= last for t in range(rounds)]


def test_warm_up_tracks_the_mean_loss_over_samples():
    run = worlds.run("fedham", participation=0.5)
    state = fedham.setup(run)
    cohort, start = run.cohort(0), run.initial_model()
    n = run.federation.sizes("train")[cohort]
    assert len(np.unique(n)) > 1
    (part,) = run.local_sgd(cohort, start, t=0)
    warmup = worlds.play("fedham", run, last=1, state=state)["warmup"]
    assert warmup["best"].item() == pytest.approx(float(part.loss @ n / n.sum()), rel=1e-6)
    assert warmup["stale"].item() == 0
    equal = {**fedham.setup(run), "warmup": {"best": warmup["best"], "stale": torch.tensor(2)}}
    assert worlds.play("fedham", run, last=1, state=equal)["warmup"]["stale"].item() == 3  # it has not fallen


def test_stored_models_and_sketches_are_those_after_the_upload_steps():
    """With an upload step, these are not the models that clients trained."""
    run = worlds.run("fedham", options={"warmup": 1})
    run.uploads = (uploads.load("clip:0.01"),)
    state = worlds.play("fedham", run)
    uploaded = state["models"].written
    torch.testing.assert_close(state["sketches"][uploaded], fedham._sketch(run)(state["models"][uploaded]))


def test_first_upload_of_a_late_client_is_trained_from_the_global_model():
    run = worlds.run("fedham", rounds=3, participation=0.5, options={"warmup": 1, "sketch": 16})
    before = worlds.play("fedham", run, last=1)
    known, start = before["models"].written, before["global"]
    late = np.setdiff1d(run.cohort(1), known)
    assert len(late)
    state = worlds.play("fedham", run, first=1, last=2, state=before)
    for i in late.tolist():
        for key, value in worlds.steps(start, run.federation, i, ("sgd", 1)).items():
            torch.testing.assert_close(state["models"][[i]][key][0], value, rtol=1e-4, atol=1e-5)
        assert not state["attention"]["second"][-1, i].any()


def test_history_records_validation_accuracy_of_hybrids_in_evaluated_rounds():
    """Their validation accuracy before they are trained, in rounds that are validated; elsewhere -1."""
    options = {"warmup": 1, "sketch": 16, "answer": "hybrid"}
    run = worlds.run("fedham", rounds=5, participation=1.0, eval_every=2, lr=0.5, options=options)
    state, expected = None, []
    for t in range(5):
        state = worlds.play("fedham", run, first=t, last=t + 1, state=state)
        right = run.is_correct(np.asarray(ABLE), state["hybrids"][ABLE], "validation") if t in (1, 3) else []
        expected.append(np.mean(right) if len(right) else -1)
    assert state["history"]["hybrid"].tolist() == pytest.approx(expected[1:])
    assert expected[1] != run.is_correct(np.asarray(ABLE), state["hybrids"][ABLE], "train").mean()


def test_mean_shift_bandwidth_matches_a_hand_computed_value():
    """How far each of seven points must go for 30 % of the others, that is two of six; on average."""
    line = np.asarray([0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0])
    distance = np.abs(line[:, None] - line)
    reach = [np.sort(np.delete(row, i))[1] for i, row in enumerate(distance)]
    assert clustering._mean_shift_bandwidth(distance) == pytest.approx(np.mean(reach))
    assert clustering._mean_shift_bandwidth(distance[:2, :2]) == 1.0
    assert clustering._mean_shift_bandwidth(distance[:1, :1]) == 0.0


def test_attention_of_every_round_is_kept_only_when_clients_are_few(monkeypatch):
    def rounds(remember):
        run = worlds.run("fedham", options={"warmup": 1, "remember": remember})
        return [len(attention) for attention in worlds.play("fedham", run)["attention"].values()]

    assert [rounds(remember) for remember in (7, 6)] == [[2, 2], [1, 1]]
    monkeypatch.setattr(records, "MAX_CLIENTS_WITH_ATTENTION", 6)
    assert [rounds(remember) for remember in (7, 6)] == [[2, 2], [0, 0]]


def test_fedham_result_is_the_same_when_clients_train_in_chunks():
    together, in_parts = (worlds.run("fedham", options={"warmup": 1}, participation=1.0) for _ in range(2))
    in_parts.engine.clients_that_fit = lambda size: 2
    expected, actual = worlds.play("fedham", together), worlds.play("fedham", in_parts)
    worlds.close(actual["global"], expected["global"], atol=1e-5)
    torch.testing.assert_close(actual["attention"], expected["attention"], atol=1e-4, rtol=0)
    assert in_parts.traffic == together.traffic


def test_fedham_predicts_only_test_samples_when_ham_learns_from_validation():
    options = {"warmup": 1, "ham_split": "validation", "answer": "final", "self_share": 0.3}
    run = worlds.run("fedham", participation=1.0, options=options)
    state = worlds.play("fedham", run)
    assert set(worlds.answers("fedham", run, state)) == {"test"}
    theta = state["theta"]
    changed = [not torch.equal(theta[[i]]["q1"][0], theta.default["q1"]) for i in ABLE]
    assert changed == [bool(n) for n in run.federation.sizes("validation")[ABLE]]


def test_answer_option_selects_hybrid_or_trained_model():
    answers = {}
    for answer in ("final", "hybrid"):
        run = worlds.run("fedham", participation=1.0, options={"warmup": 1, "answer": answer})
        state = worlds.play("fedham", run)
        answers[answer] = worlds.answers("fedham", run, state)["test"]
    trained_on = run.local_sgd(run.cohort(2), state["hybrids"], t=2)
    (part,) = trained_on
    for key, value in part.params.items():
        torch.testing.assert_close(value, state["models"][part.clients][key])
    assert not np.array_equal(answers["final"], answers["hybrid"])


def test_default_answer_is_the_model_of_lowest_validation_loss():
    """By default the hybrid, the upload or the global model: the least validation loss, word by word.

    For a validation sample, the loss is that of the client's others.
    """
    answers = {}
    for answer in ("final", "hybrid", "best"):
        run = worlds.run("fedham", participation=1.0, lr=0.3, options={"warmup": 1, "answer": answer})
        state = worlds.play("fedham", run)
        answers[answer] = worlds.answers("fedham", run, state)
    answers["global"] = worlds.answers("fedavg", run, {"global": state["global"]})
    default = worlds.run("fedham", participation=1.0, lr=0.3, options={"warmup": 1})
    for split, p in worlds.answers("fedham", default, worlds.play("fedham", default)).items():
        assert np.array_equal(p, answers["best"][split])
    data, chosen = run.federation, []
    at = {split: np.cumsum([0, *data.sizes(split)]) for split in ("validation", "test")}
    for i in run.clients:
        y = data.y[data.block(int(i), "validation")].numpy()
        own = slice(at["validation"][i], at["validation"][i + 1])
        losses = {
            name: -np.log(answers[name]["validation"][own][np.arange(len(y)), y])
            for name in (("final", "hybrid", "global") if i in ABLE else ("global",))  # the first of equal ones
        }
        chosen.append(min(losses, key=lambda name: losses[name].sum()))
        others = [min(losses, key=lambda name: np.delete(losses[name], each).sum()) for each in range(len(y))]
        for split, names in (("validation", others), ("test", chosen[-1:] * data.sizes("test")[i])):
            for row, name in enumerate(names, at[split][i]):
                np.testing.assert_allclose(answers["best"][split][row], answers[name][split][row], rtol=1e-4, atol=1e-6)
    assert set(chosen) == {"hybrid", "final", "global"}


def test_config_refuses_validation_choices_when_ham_learns_from_validation():
    for options in ({}, {"self_share": 0.3}, {"answer": "final"}, {"form": "joint", "answer": "best"}):
        with pytest.raises(ValueError, match="give answer=final and self_share="):
            fedham.Config(ham_split="validation", **options)
    assert fedham.Config(ham_split="validation", form="faithful").predicts_with == "final"


def test_client_losses_match_hand_computed_cross_entropy():
    run = worlds.run("fedham", participation=1.0)
    models = parameters.stack([run.initial_model() for _ in run.clients])
    models["head.weight"][:] = 0
    models["head.bias"][:] = torch.tensor([0.0, 1.0, -60.0])
    p = torch.softmax(torch.tensor([0.0, 1.0, -60.0]), 0).clamp_min(2**-23)
    data = run.federation
    for i, loss in enumerate(run.client_losses(run.clients, models, "test")):
        y = data.y[data.block(i, "test")]
        assert loss == pytest.approx(float(-p.log()[y].mean()) if len(y) else 0.0, rel=1e-5)


OPTIONS = [
    {"form": "faithful"},
    {"warmup": 1},
    {"form": "joint", "variant": "aml2"},
    {"k": 2, "answer": "hybrid"},
    {"clustering": "mean-shift", "variant": "aml1"},
    {"clustering": "nearest", "k": 3, "lam": 1.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_form_resumes_identically_and_agrees_between_loop_and_stacked(options):
    options = {"warmup": 1, "sketch": 32, **options}
    runs = [worlds.run("fedham", mode=mode, rounds=5, options=options) for mode in ("loop", "stacked", "loop")]
    expected, other = (worlds.play("fedham", one) for one in runs[:2])
    for name, value in expected["global"].items():
        torch.testing.assert_close(other["global"][name], value, rtol=1e-3, atol=1e-4)
    stopped = worlds.play("fedham", worlds.run("fedham", mode="loop", rounds=5, options=options), last=3)
    resumed = state_files.nest(load(save(state_files.flatten(stopped))), runs[2])
    assert worlds.same(worlds.play("fedham", runs[2], first=3, state=resumed), expected)
    assert all(np.isfinite(p).all() for p in worlds.answers("fedham", runs[0], expected).values())


def make_batch_norm_run(mode, **options):
    """A run of FedHAM on a network with BatchNorm and small images."""
    draw = np.random.default_rng(0)
    x = draw.integers(0, 255, size=(60, 8, 8), dtype=np.uint8)
    data = Federation.from_blocks(x, draw.integers(0, 2, 60), np.cumsum([0, *(9, 5, 6) * 3]), 2)
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 4, 3, stride=8), nn.BatchNorm2d(4), nn.Flatten())
    net = models.Net(body, nn.Linear(4, 2))
    plan = config.build(Settings, {"rounds": 3, "participation": 1.0, "batch_size": 4}, "")
    cfg = config.build(fedham.Config, {"warmup": 1, "sketch": 8, **options}, "fedham")
    return create_run(
        methods.load("fedham"), cfg, data, plan, 0, RunInputs(draw_network=lambda seed: net), mode=mode
    ), net


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_fedham_loop_and_stacked_agree_with_batch_norm(lam):
    runs = [make_batch_norm_run(mode, lam=lam)[0] for mode in ("loop", "stacked")]
    states = [worlds.play("fedham", run) for run in runs]
    for name, value in states[0]["global"].items():
        torch.testing.assert_close(states[1]["global"][name], value, rtol=1e-3, atol=1e-4)
    for table in ("models", "theta"):
        for name, value in states[0][table][[0, 1, 2]].items():
            torch.testing.assert_close(states[1][table][[0, 1, 2]][name], value, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_frozen_norm_uses_running_statistics_and_does_not_update_them(mode):
    run, net = make_batch_norm_run(mode)
    plan = LocalSGD(epochs=1, batch_size=100, lr=[0.5], frozen_norm=True)
    (part,) = run.engine.local_sgd([1], parameters.copy_params(net), plan, ("sgd", 0))
    net.eval()
    rows = run.federation.rows(1, "train")
    loss = functional.cross_entropy(net(run.federation.inputs(torch.from_numpy(rows))), run.federation.y[rows])
    grads = torch.autograd.grad(loss, list(net.parameters()))
    for (name, value), grad in zip(net.named_parameters(), grads, strict=True):
        torch.testing.assert_close(part.params[name][0], value - 0.5 * grad)
    for name, value in net.named_buffers():
        assert torch.equal(part.params[name][0], value)


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_fedham_gives_the_same_bytes_with_processes_and_threads(lam):
    states = []
    for jobs in (0, 1):
        run = worlds.run("fedham", participation=1.0, options={"warmup": 1, "sketch": 16, "lam": lam})
        run.engine = Engine(models.create("mlp", (5,), 3, 0), run.federation, seed=0, jobs=jobs)
        states.append(worlds.play("fedham", run))
        run.engine.close()
    assert worlds.same(*states)


@pytest.mark.compiled
def test_fedham_in_two_stacks_gives_the_same_bytes_for_any_number_of_threads(monkeypatch):
    """Compiled loops serve the network, and clients share more than a stack may have."""
    monkeypatch.setattr(
        engines, "_MIN_STACKS", 8
    )  # half as many as shared constants are large, and half as steps call Python
    set_own_products(monkeypatch, True)
    monkeypatch.setattr(linear_chain, "LARGE", 0)
    monkeypatch.setattr(engines, "_STACK_BYTES", {"cpu": 1})
    states, stacks = [], []
    for threads in (1, 2, 3):
        run = worlds.run("fedham", threads=threads, participation=1.0, options={"warmup": 1, "sketch": 16})
        trained, counts = run.engine.executor.run, set()
        run.engine.executor.run = lambda tasks, *rest, trained=trained, counts=counts: (
            counts.add((tasks[0].key[0], len(tasks))) or trained(tasks, *rest)
        )
        states.append(worlds.play("fedham", run))
        stacks.append(sorted(count for kind, count in counts if kind == "ham"))
    assert stacks == [[2], [2], [2]]
    assert worlds.same(*states[:2])
    assert worlds.same(*states[1:])


def image_run(threads):
    """Six clients of 9 to 14 images each, whose network has a compiled program."""
    torch.manual_seed(0)
    one, other, pool = nn.Conv2d(1, 4, 5, padding=2), nn.Conv2d(4, 4, 5, padding=2), (nn.ReLU(), nn.MaxPool2d(2))
    body = nn.Sequential(one, *pool, other, *pool, nn.Flatten(), nn.Linear(16, 6), nn.ReLU())
    net, draw, sizes = models.Net(body, nn.Linear(6, 3)), np.random.default_rng(0), np.arange(9, 15)
    ends = np.cumsum(np.concatenate([[0], *([size - 4, 2, 2] for size in sizes)]))
    x = draw.normal(size=(ends[-1], 1, 8, 8)).astype(np.float32)
    data = Federation.from_blocks(x, draw.integers(0, 3, ends[-1]), ends, 3)
    settings = config.build(Settings, {"rounds": 3, "participation": 1.0, "batch_size": 4, "lr": 0.1}, "")
    cfg = config.build(fedham.Config, {"warmup": 1, "sketch": 16}, "fedham")
    method = methods.load("fedham")
    return create_run(
        method, cfg, data, settings, 0, RunInputs(draw_network=lambda seed: net), mode="loop", threads=threads
    )


def test_fedham_by_a_compiled_program_gives_the_same_bytes_for_any_number_of_threads(monkeypatch):
    monkeypatch.setattr(engines, "_MIN_STACKS", 4)
    set_own_products(monkeypatch, True)
    monkeypatch.setattr(engines, "_STACK_BYTES", {"cpu": 1})
    states = [worlds.play("fedham", image_run(threads)) for threads in (1, 2, 5)]
    assert worlds.same(*states[:2])
    assert worlds.same(*states[1:])
    assert states[0]["attention"]["first"].shape == (2, 6, 6)
    torch.testing.assert_close(states[0]["attention"]["first"].sum(dim=2), torch.ones(2, 6))
