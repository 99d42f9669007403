"""Rules that have compiled loops: their steps against double precision, whatever the chain, the batch and the stack."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import worlds
from pflcli import models
from pflcli.accelerated import products, steps
from pflcli.accelerated.chains import layer_arrays, layer_table, trained_mask
from pflcli.accelerated.steps import Chain, Minibatches
from pflcli.engine import engine as engines
from pflcli.engine import linear_chain, strategy
from pflcli.engine.engine import Engine
from pflcli.engine.local_sgd import LocalSGD
from pflcli.engine.strategy import WorkerNet
from pflcli.methods import feddbe, fedproto, fedrod, pfedme

CHAINS = {
    "two layers": ((12, 7, True), (7, 3, False)),
    "three layers": ((12, 7, True), (7, 5, True), (5, 3, False)),
    "no ReLU": ((12, 7, False), (7, 5, False), (5, 3, False)),
    "one layer": ((12, 3, False),),
}
LAM, RATE, KAPPA = 2.0, 0.1, 3.0


def chain_of(kind, bias):
    """The layers of a network, and the names of its parameters."""
    last = len(CHAINS[kind]) - 1
    names = [
        f"head.{tensor}" if i == last else f"body.{i}.{tensor}"
        for i in range(last + 1)
        for tensor in ("weight", "bias")
    ]
    shapes = {
        name: (sizes[1], sizes[0]) if name.endswith("weight") else (sizes[1],)
        for name, sizes in zip(names, np.repeat(np.asarray(CHAINS[kind])[:, :2], 2, axis=0).tolist(), strict=True)
        if bias or name.endswith("weight") or name == "head.bias"
    }
    layers = [
        linear_chain.Layer(names[2 * i], names[2 * i + 1] if names[2 * i + 1] in shapes else None, relu=relu)
        for i, (_, _, relu) in enumerate(CHAINS[kind])
    ]
    return layers, shapes


def outputs(layers, w, x):
    """Representations and logits of one model, see ``linear_chain.outputs``."""
    for layer in layers:
        z = x
        x = x @ w[layer.weight].T + (w[layer.bias] if layer.bias else 0)
        x = x.relu() if layer.relu else x
    return z, x


def descend(w, loss, names, rate):
    grads = torch.autograd.grad(loss, [w[name] for name in names]) if names else ()
    for name, grad in zip(names, grads, strict=True):
        w[name] = (w[name] - rate * grad).detach().requires_grad_()


def envelope(layers, w, trained, x, y, weight, rate, count):
    """A step of pFedMe in double precision: its loss, and w afterwards."""
    theta = {name: value.clone().requires_grad_() for name, value in w.items()}

    def loss():
        each = functional.cross_entropy(outputs(layers, theta, x)[1], y, reduction="none")
        return (each * weight).sum() + LAM / 2 * sum((theta[name] - w[name]).square().sum() for name in trained)

    for _ in range(count):
        descend(theta, loss(), trained, RATE)
    value = loss().item()
    return value, {name: w[name] + rate * LAM * (theta[name] - w[name]).detach() for name in w}


def with_memory(layers, w, trained, x, y, weight, rate, consensus):
    """A step of FedDBE in double precision."""
    leaves = {name: value.clone().requires_grad_() for name, value in w.items()}
    z = outputs(layers, leaves, x)[0]
    logits = (z + leaves["memory"]) @ leaves["head.weight"].T + leaves["head.bias"]
    pull = KAPPA / 2 * ((weight[:, None] * z).sum(dim=0) - consensus).square().mean()
    loss = (functional.cross_entropy(logits, y, reduction="none") * weight).sum() + pull
    descend(leaves, loss, [*trained, "memory"], rate)
    return loss.item(), {name: value.detach() for name, value in leaves.items()}


def with_own_head(layers, w, trained, x, y, weight, rate, offsets):
    """A step of FedRoD in double precision."""
    leaves = {name: value.clone().requires_grad_() for name, value in w.items()}
    z, generic = outputs(layers, leaves, x)
    personal = generic.detach() + z.detach() @ leaves["own:head.weight"].T + leaves.get("own:head.bias", 0)
    each = [functional.cross_entropy(logits, y, reduction="none") for logits in (generic + offsets, personal)]
    loss = ((each[0] + each[1]) * weight).sum()
    descend(leaves, loss, [*trained, *(name for name in w if name.startswith("own:"))], rate)
    return loss.item(), {name: value.detach() for name, value in leaves.items()}


def with_prototypes(layers, w, trained, x, y, weight, rate, prototypes, known):
    """A step of FedProto in double precision."""
    leaves = {name: value.clone().requires_grad_() for name, value in w.items()}
    z, logits = outputs(layers, leaves, x)
    pull = LAM * (weight * known[y] * (z - prototypes[y]).square().mean(dim=1)).sum()
    loss = (functional.cross_entropy(logits, y, reduction="none") * weight).sum() + pull
    descend(leaves, loss, trained, rate)
    return loss.item(), {name: value.detach() for name, value in leaves.items()}


def batches(n, draw):
    """Six minibatches of three clients: of ``n`` samples, one with an unused sample and padding, one of one sample."""
    weight = (torch.rand(6, n, generator=draw) + 0.1) / n
    weight[1, :] = 0
    weight[1, : max(1, n // 2)] = 1 / max(1, n // 2)
    weight[4, 1:] = 0
    weight[5, 0] = weight[5, 0] if n == 1 else 0
    place = torch.tensor([0, 0, 0, 2, 2, 1])
    x, y = torch.randn(6, n, 12, generator=draw), torch.randint(3, (6, n), generator=draw)
    return place, x, y, weight, torch.tensor([0.3, 0.2, 0.1, 0.3, 0.1, 0.2])


def after_steps(rule, layers, models_, trained, minibatches, own_constants, shared):
    """The losses of steps by a rule, and the models that these leave."""
    own = {name: value.clone() for name, value in models_.items()}
    like = {name: value[0] for name, value in own.items()}
    chain = Chain(
        layer_table(layers, like), layer_arrays(layers, own), trained_mask(layers, trained), own, own_constants, shared
    )
    losses = steps.STEPS[steps.registered_name(rule)](
        rule, chain, Minibatches(*(value.numpy() for value in minibatches))
    )
    return losses, own


@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("prefix", ["", "head.", "body."])
@pytest.mark.parametrize(
    ("method", "n", "count"),
    [("pfedme", n, k) for n in (1, 4, 40) for k in (1, 4)]
    + [("feddbe", 4, 0), ("fedrod", 4, 0)]
    + [("fedproto", n, 0) for n in (1, 4, 40)],
)
def test_steps_are_those_in_double_precision(kind, bias, prefix, method, n, count):
    layers, shapes = chain_of(kind, bias)
    trained, draw = [name for name in shapes if name.startswith(prefix)], torch.Generator().manual_seed(n)
    start = {name: torch.randn(3, *shape, generator=draw) / shape[-1] ** 0.5 for name, shape in shapes.items()}
    consensus, offsets = torch.randn(CHAINS[kind][-1][0], generator=draw), torch.randn(3, 3, generator=draw)
    if method == "feddbe":
        start["memory"] = torch.randn(3, len(consensus), generator=draw)
    if method == "fedrod":
        start |= {f"own:{name}": value + 0.1 for name, value in start.items() if name.startswith("head.")}
        if not bias:
            del start["own:head.bias"]
    rules = {"feddbe": feddbe._Rule(), "fedproto": fedproto._Rule(), "fedrod": fedrod._Rule()}
    rule = rules.get(method, pfedme._Envelope(LAM, count, RATE))
    prototypes, known = torch.randn(3, len(consensus), generator=draw), torch.tensor([1.0, 0.0, 1.0])
    shared = {"consensus": consensus, "kappa": torch.tensor(KAPPA)}
    shared |= {"mean": prototypes, "known": known, "lam": torch.tensor(LAM)}
    minibatches = batches(n, draw)
    losses, actual = after_steps(rule, layers, start, trained, minibatches, {"offsets": offsets}, shared)
    expected = {name: value.double() for name, value in start.items()}
    for s, (client, x, y, weight, rate) in enumerate(zip(*minibatches, strict=True)):
        own = {name: value[client] for name, value in expected.items()}
        batch = layers, own, trained, x.double(), y, weight.double(), float(rate)
        if method == "pfedme":
            loss, own = envelope(*batch, count)
        elif method == "feddbe":
            loss, own = with_memory(*batch, consensus.double())
        elif method == "fedproto":
            loss, own = with_prototypes(*batch, prototypes.double(), known)
        else:
            loss, own = with_own_head(*batch, offsets[client].double())
        assert losses[s] == pytest.approx(loss, rel=2e-5)
        for name, value in own.items():
            expected[name][client] = value
    for name, value in expected.items():
        torch.testing.assert_close(actual[name].double(), value, rtol=1e-4, atol=1e-5)
        changes = name in trained or name not in shapes
        assert torch.equal(actual[name], start[name]) != changes
    # A client's bits depend on no other, nor on padding.
    alone = [value[3:5] for value in minibatches]
    alone[0] = torch.zeros_like(alone[0])
    alone[1:4] = [torch.cat([value, value[:, :1]], dim=1) for value in alone[1:4]]
    alone[3][:, -1] = 0
    last = {name: value[2:] for name, value in start.items()}
    one, left = after_steps(rule, layers, last, trained, alone, {"offsets": offsets[2:]}, shared)
    assert (one == losses[3:5]).all()
    assert all(torch.equal(left[name][0], actual[name][2]) for name in left)


@pytest.mark.parametrize("method", ["pfedme", "feddbe", "fedrod", "fedproto"])
def test_rounds_have_the_same_bytes_with_any_number_of_workers(method, monkeypatch):
    """By compiled loops where the CPU has them, also in processes."""
    small = worlds.federation()
    data = replace(small, x=torch.rand(len(small.y), 400, generator=torch.Generator().manual_seed(0)))
    states = []
    for stacks, workers in ((1, {}), (4, {"threads": 3}), (4, {"jobs": 2})):
        monkeypatch.setattr(engines, "_MIN_STACKS", stacks)
        run, explained = worlds.run(method, participation=1.0, rounds=2, data=data), []
        run.engine = Engine(models.create("mlp", data.in_shape, worlds.CLASSES, 0), data, seed=0, **workers)
        run.engine.explain = explained.append
        states.append(worlds.play(method, run))
        run.engine.close()
        assert explained[-1].startswith("compiled linear chain" if products.COMPILED else "linear chain")
    assert worlds.same(*states[:2])
    assert worlds.same(*states[1:])


def test_representations_may_have_two_layers_above_them(monkeypatch):
    """Prototypes pull the body alone."""
    torch.manual_seed(0)
    data, trained = worlds.federation(), []
    head = nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, worlds.CLASSES))
    net = models.Net(nn.Sequential(nn.Flatten(), nn.Linear(worlds.FEATURES, 7), nn.ReLU()), head)
    shared = {"mean": torch.randn(worlds.CLASSES, 7), "known": torch.ones(worlds.CLASSES), "lam": torch.tensor(LAM)}
    plan = LocalSGD(2, 4, np.full(2, 0.1), gradient=fedproto._Rule(), shared=shared)
    start = {name: value.expand(2, *value.shape) for name, value in net.state_dict().items()}
    for own in (False, True):
        monkeypatch.setattr(products, "COMPILED", own)
        monkeypatch.setattr(linear_chain, "LARGE", 0)
        engine, explained = Engine(net, data, seed=0, mode="stacked"), []
        engine.explain = explained.append
        trained += engine.local_sgd([0, 2], start, plan, ("sgd", 0))
        assert explained[-1].startswith("compiled linear chain") == own
    worlds.close(trained[1].params, trained[0].params, atol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}, {"prox": ({}, 1.0)}, {"precision": "bfloat16"}])
def test_compiled_loops_take_plain_steps_alone(settings, monkeypatch):
    monkeypatch.setattr(products, "COMPILED", True)
    monkeypatch.setattr(linear_chain, "LARGE", 0)
    net = models.Net(nn.Sequential(nn.Flatten(), nn.Linear(5, 4), nn.ReLU()), nn.Linear(4, 3))
    plan = LocalSGD(1, 4, np.full(1, 0.1), gradient=pfedme._Envelope(LAM, 1, RATE), **settings)
    chosen = strategy.choose(WorkerNet.compile(net, (5,)), plan, "stacked", 3)
    assert chosen.in_place == (settings == {})
