"""Passes of a stack of models: every form of a network against autograd, and rules and sample weights in training."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

import worlds
from helpers import cross_entropy_rule, set_own_products
from pflcli.core import models, parameters, rng
from pflcli.core.engine import backend, gradients, linear_chain, networks, strategy
from pflcli.core.engine import engine as engines
from pflcli.core.engine.engine import Engine
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.local_sgd import LocalSGD
from pflcli.core.engine.optimizer import Optimizer, Update
from pflcli.core.engine.strategy import WorkerNet
from pflcli.core.errors import ComputationError
from pflcli.workflow.admission import small_federation as small

MODES = ("loop", "stacked")


def make_mlp():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU())
    return models.Net(body, nn.Linear(5, 3)), (3, 2, 2)


def make_mobile():
    """A network that has a compiled program."""
    torch.manual_seed(0)
    first = nn.Conv2d(2, 4, 3, padding=1, bias=False)
    depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False)
    body = nn.Sequential(first, nn.BatchNorm2d(4), nn.ReLU6(), depthwise, nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1))
    return models.Net(nn.Sequential(*body, nn.Flatten()), nn.Linear(4, 3)), (2, 6, 6)


def make_cnn():
    """A network of convolutions with pooling, which has a compiled program as well."""
    torch.manual_seed(0)
    one, other = (nn.Conv2d(channels, 4, 5, padding=2) for channels in (2, 4))
    pooled = nn.ReLU(), nn.MaxPool2d(2)
    return models.Net(
        nn.Sequential(one, *pooled, other, *pooled, nn.Flatten(), nn.Linear(8, 4), nn.ReLU()), nn.Linear(4, 3)
    ), (2, 9, 6)


def iterate_forms(kind, net, shape, trained):
    """The forms of a network, with the number of models that each takes."""
    yield networks.AutogradNetwork(copy.deepcopy(net), trained, "float32"), 1
    if kind == "mlp":
        yield networks.VmappedNetwork(copy.deepcopy(net), trained, "float32"), 2
        yield linear_chain.ChainNetwork(linear_chain.layers(net), trained), 2
        if backend.why_off() is None:
            yield backend.part("chains").CompiledChainNetwork(linear_chain.layers(net), trained), 2
    elif backend.why_off() is None:
        own = copy.deepcopy(net)
        yield backend.part("program").CompiledNetwork(own, trained, backend.program(own, shape)), 1


@pytest.mark.parametrize("kind", ["mlp", "mobile", "cnn"])
@pytest.mark.parametrize("prefix", ["", "head.", "body."])
@pytest.mark.parametrize("by_z", [False, True])
def test_backward_from_logits_and_representations_matches_autograd(kind, prefix, by_z):
    net, shape = {"mlp": make_mlp, "mobile": make_mobile, "cnn": make_cnn}[kind]()
    net.train()
    names = [name for name, _ in net.named_parameters()]
    trained = [name for name in names if name.startswith(prefix)]
    draw = torch.Generator().manual_seed(1)
    size = 2 if kind == "mlp" else 1
    stack = parameters.stack([parameters.copy_params(net) for _ in range(size)])
    for name in names:
        stack[name] = stack[name] + 0.1 * torch.randn(stack[name].shape, generator=draw)
    dtype = stack["head.weight"].dtype
    x = torch.rand(size, 4, *shape, generator=draw, dtype=dtype)
    for network, count in iterate_forms(kind, net, shape, trained):
        own = {name: value[:count].clone() for name, value in stack.items()}
        with torch.no_grad():
            outputs = network.forward(own, x[:count])
            by_logits = torch.randn(outputs.logits.shape, generator=torch.Generator().manual_seed(2), dtype=dtype)
            z_grad = torch.randn(outputs.z.shape, generator=torch.Generator().manual_seed(3), dtype=dtype)
            actual = network.backward(outputs, by_logits.clone(), z_grad if by_z else None)
        assert {*actual} == {*trained}
        assert [*network.parameters] == names  # in an order that is the same in every process
        for row in range(count):
            leaves = {name: value[row].clone().requires_grad_(name in names) for name, value in stack.items()}
            body = {n.removeprefix("body."): v for n, v in leaves.items() if n.startswith("body.")}
            z = functional_call(net.body, body, (x[row],))
            head = {n.removeprefix("head."): v for n, v in leaves.items() if n.startswith("head.")}
            logits = functional_call(net.head, head, (z,))
            torch.testing.assert_close(outputs.logits[row], logits, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(outputs.z[row], z, rtol=1e-4, atol=1e-5)
            loss = (logits * by_logits[row]).sum() + ((z * z_grad[row]).sum() if by_z else 0)
            expected = torch.autograd.grad(loss, [leaves[name] for name in trained])
            for name, value in zip(trained, expected, strict=True):
                torch.testing.assert_close(
                    actual[name][row], value, rtol=1e-3, atol=1e-4 * float(value.abs().max() + 1)
                )
            for name in {*stack} - {*names}:  # what BatchNorm counts
                torch.testing.assert_close(own[name][row], leaves[name], rtol=1e-4, atol=1e-5)


def test_backward_returns_gradients_of_the_requested_names():
    net, shape = make_mlp()
    stack, draw = parameters.stack([parameters.copy_params(net)] * 2), torch.Generator().manual_seed(1)
    for network, count in iterate_forms("mlp", net, shape, ()):
        own = {name: value[:count] for name, value in stack.items()}
        outputs = network.forward(own, torch.randn(count, 32, *shape, generator=draw))
        assert network.backward(outputs, torch.ones_like(outputs.logits)) == {}
        outputs = network.forward(own, torch.randn(count, 32, *shape, generator=draw))
        actual = network.backward(outputs, None, torch.ones_like(outputs.z), ["body.1.bias"])
        assert [*actual] == ["body.1.bias"]
        assert actual["body.1.bias"].any()


@pytest.mark.parametrize("prefix", ["", "head.", "body."])
@pytest.mark.parametrize(("lam", "count"), [(0.0, 1), (2.0, 3)])
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_descent_with_an_anchor_agrees_in_every_network_form(kind, prefix, lam, count):
    net, shape = {"mlp": make_mlp, "cnn": make_cnn}[kind]()
    trained = [name for name, _ in net.named_parameters() if name.startswith(prefix)]
    draw = torch.Generator().manual_seed(1)
    start = {name: torch.randn(2, *value.shape, generator=draw) for name, value in parameters.copy_params(net).items()}
    anchor = {name: value + 0.1 for name, value in start.items()}
    x, y = torch.rand(2, 4, *shape, generator=draw), torch.randint(3, (2, 4), generator=draw)
    weight = torch.tensor(
        [[0.25] * 4, [0.0, 0.4, 0.6, 0.0]]
    )  # the second has a sample that does not count, and padding
    for network, _ in iterate_forms(kind, net, shape, trained):
        size = 2
        stack = {name: value[:size].clone() for name, value in start.items()}
        batch = gradients.StackedBatch(x[:size], y[:size], weight[:size], {}, {}, worlds.TASK)
        centres = {name: value[:size] for name, value in anchor.items()}
        with torch.no_grad():
            network.descend(stack, batch, rate=0.1, count=count, anchor=centres, lam=lam)
        for row in range(size):
            model = {name: value[row].clone() for name, value in start.items()}
            for _ in range(count):
                leaves = {name: value.clone().requires_grad_(name in trained) for name, value in model.items()}
                losses = functional.cross_entropy(functional_call(net, leaves, (x[row],)), y[row], reduction="none")
                pull = sum((lam / 2 * (leaves[n] - anchor[n][row]).square().sum() for n in trained), torch.zeros(()))
                steps = torch.autograd.grad((losses * weight[row]).sum() + pull, [leaves[n] for n in trained])
                model |= {name: model[name] - 0.1 * step for name, step in zip(trained, steps, strict=True)}
            for name, value in model.items():
                torch.testing.assert_close(stack[name][row], value, rtol=1e-4, atol=1e-5)


def linear_loss(by_logits, by_z, logits, z, params, batch):
    """Return a loss with these gradients by logits and representations; None is zero."""
    parts = [(output * by).sum(dim=(1, 2)) for output, by in ((logits, by_logits), (z, by_z)) if by is not None]
    return sum(parts)


def take_step(network, models, each, rate, drift=None):
    """Take a step of plain SGD on ``models`` by a pass, and return the losses."""
    optimizer = Optimizer(Update(drift=drift or {}), {name: models[name] for name in network.trained})
    with torch.no_grad():
        optimizer.begin(rate, len(each.batch.x))
        losses = network.step(models, each, optimizer)
        optimizer.step()
    return losses


@pytest.mark.compiled
@pytest.mark.parametrize("way", ["own loss", "loss of the task", "descent"])
def test_compiled_steps_refuse_models_that_they_could_not_change_in_place(way):
    net, shape = make_mlp()
    trained = [name for name, _ in net.named_parameters()]
    network = backend.part("chains").CompiledChainNetwork(linear_chain.layers(net), trained)
    models = {
        name: torch.zeros(1, *value.shape).expand(2, *value.shape)
        for name, value in parameters.copy_params(net).items()
    }
    x, y, weight = torch.zeros(2, 4, *shape), torch.zeros(2, 4, dtype=torch.int64), torch.full((2, 4), 0.25)
    batch = gradients.StackedBatch(x, y, weight, {}, {}, worlds.TASK)
    loss = partial(linear_loss, torch.ones(2, 4, 3), None) if way == "own loss" else None
    move = partial(take_step, network, models, gradients.Pass(models, batch, loss), 0.1)
    if way == "descent":
        move = partial(network.descend, models, batch, rate=0.1, count=2)
    with torch.no_grad(), pytest.raises(AssertionError):
        move()


@pytest.mark.parametrize("prefix", ["", "head.", "body."])
@pytest.mark.parametrize("by", ["logits", "z", "both"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_descent_by_gradients_of_the_same_or_other_models_matches_autograd(prefix, by, elsewhere):
    net, shape = make_mlp()
    trained = [name for name, _ in net.named_parameters() if name.startswith(prefix)]
    draw, rate = torch.Generator().manual_seed(1), torch.tensor([0.1, 0.3])
    start = {name: torch.randn(2, *value.shape, generator=draw) for name, value in parameters.copy_params(net).items()}
    x, counts = torch.rand(2, 4, *shape, generator=draw), [4, 3]
    # The second client has a sample that does not count, and padding.
    weight = torch.tensor([[0.25] * 4, [0.5, 0.0, 0.5, 0.0]])
    for network in (form for form, _ in iterate_forms("mlp", net, shape, trained) if not form.one_at_a_time):
        stack = {name: value.clone() for name, value in start.items()}
        models = {name: torch.ones_like(value) for name, value in start.items()} if elsewhere else stack
        before = {name: value.clone() for name, value in models.items()}
        batch = gradients.StackedBatch(x, torch.zeros(2, 4), weight, {}, {}, worlds.TASK)
        with torch.no_grad():
            outputs = network.forward(stack, x, weight)
        by_logits, by_outputs = (
            torch.randn(value.shape, generator=torch.Generator().manual_seed(2))
            for value in (outputs.logits, outputs.z)
        )
        for row, count in enumerate(counts):
            by_logits[row, count:] = by_outputs[row, count:] = 0
        loss = partial(linear_loss, None if by == "z" else by_logits, None if by == "logits" else by_outputs)
        take_step(network, models, gradients.Pass(stack, batch, loss), rate)
        for row, count in enumerate(counts):
            leaves = {name: value[row].clone().requires_grad_(name in trained) for name, value in start.items()}
            own_z, h = None, x[row, :count].flatten(1)
            for layer in linear_chain.layers(net):
                own_z = h if layer.weight.startswith("head.") else own_z
                h = h @ leaves[layer.weight].T + leaves[layer.bias]
                h = h.relu() if layer.relu else h
            parts = {"logits": h * by_logits[row, :count], "z": own_z * by_outputs[row, :count]}
            loss = sum((part.sum() for name, part in parts.items() if by in (name, "both")), 0 * h.sum())
            steps = torch.autograd.grad(loss, [leaves[name] for name in trained])
            expected = dict(zip(trained, steps, strict=True))
            for name, value in before.items():
                moved = value[row] - rate[row] * expected[name] if name in trained else value[row]
                torch.testing.assert_close(models[name][row], moved, rtol=1e-4, atol=1e-5)
            if elsewhere:
                assert all(torch.equal(stack[name][row], value[row]) for name, value in start.items())


@pytest.mark.parametrize("kind", ["mobile", "cnn"])
@pytest.mark.parametrize("prefix", ["", "head.", "none"])
@pytest.mark.compiled
def test_compiled_networks_descend_like_autograd(kind, prefix):
    net, shape = {"mobile": make_mobile, "cnn": make_cnn}[kind]()
    net.train()
    trained = [name for name, _ in net.named_parameters() if name.startswith(prefix)]
    (by_autograd, _), (network, _) = iterate_forms(kind, net, shape, trained)
    start = parameters.stack([parameters.copy_params(net)])
    x, y = torch.rand(1, 4, *shape), torch.tensor([[0, 2, 1, 1]])
    batch = gradients.StackedBatch(x, y, torch.full((1, 4), 0.25), {}, {}, worlds.TASK)
    models = {name: value + 1 for name, value in start.items()}
    with torch.no_grad():
        expected_losses, expected = by_autograd.gradient({**start}, batch)
        outputs = by_autograd.forward({**start}, x)
        z = torch.ones_like(outputs.z)
        by_z = by_autograd.backward(outputs, None, z)
    losses = take_step(network, models, gradients.Pass({**start}, batch), 0.5)
    take_step(network, models, gradients.Pass({**start}, batch, partial(linear_loss, None, z)), 0.5)
    torch.testing.assert_close(losses, expected_losses)
    for name, _ in net.named_parameters():
        moved = 0.5 * (expected[name] + by_z[name]) if name in trained else 0
        torch.testing.assert_close(models[name], start[name] + 1 - moved, rtol=1e-4, atol=1e-5)


def test_descent_by_the_cross_entropy_of_other_models_matches_autograd():
    net, shape = make_mlp()
    names = [name for name, _ in net.named_parameters()]
    draw, rate, scale = torch.Generator().manual_seed(1), torch.tensor([0.1, 0.3]), torch.tensor([2.0, 0.5])
    start = {name: torch.randn(2, *value.shape, generator=draw) for name, value in parameters.copy_params(net).items()}
    x, y = torch.rand(2, 4, *shape, generator=draw), torch.randint(3, (2, 4), generator=draw)
    weight = torch.tensor([[0.25] * 4, [0.0, 0.4, 0.6, 0.0]])
    for network, _ in iterate_forms("mlp", net, shape, names[1:]):
        if network.one_at_a_time:
            continue
        stack, models = ({name: value + more for name, value in start.items()} for more in (0, 1))
        batch = gradients.StackedBatch(x, y, weight, {}, {}, worlds.TASK)
        losses = take_step(network, models, gradients.Pass(stack, batch, scale=scale), rate)
        for row in range(2):
            leaves = {name: value[row].clone().requires_grad_() for name, value in start.items()}
            each = functional.cross_entropy(functional_call(net, leaves, (x[row],)), y[row], reduction="none")
            loss = (each * weight[row]).sum()
            assert losses[row].item() == pytest.approx(loss.item(), rel=1e-5)
            for name, grad in zip(names, torch.autograd.grad(loss, [leaves[n] for n in names]), strict=True):
                moved = start[name][row] + 1 - (name != names[0]) * rate[row] * scale[row] * grad
                torch.testing.assert_close(models[name][row], moved, rtol=1e-4, atol=1e-5)
                assert torch.equal(stack[name][row], start[name][row])


def test_scale_of_a_loss_does_not_change_the_drift():
    net, shape = make_mlp()
    start = parameters.repeat(parameters.copy_params(net), 2)
    batch = gradients.StackedBatch(
        torch.rand(2, 4, *shape), torch.zeros(2, 4, dtype=torch.int64), torch.full((2, 4), 0.25), {}, {}, worlds.TASK
    )
    drift = {name: torch.ones_like(value) for name, value in start.items()}
    for network, _ in iterate_forms("mlp", net, shape, list(start)):
        models = {name: value.clone() for name, value in start.items()}
        take_step(
            network, models, gradients.Pass(models, batch, scale=torch.zeros(2)), torch.tensor([0.5, 0.25]), drift
        )
        for name, value in start.items():
            rates = torch.tensor([0.5, 0.25]).view(2, *[1] * (value.ndim - 1))
            torch.testing.assert_close(models[name], value - rates)


def test_single_model_network_processes_a_stack_one_by_one():
    """Each with its own scale, without the padding of its batch, but with samples before it that do not count."""
    net, shape = make_mlp()
    names = [name for name, _ in net.named_parameters()]
    draw, scale = torch.Generator().manual_seed(1), torch.tensor([2.0, 0.5, 1.5])
    stack = {name: torch.randn(3, *value.shape, generator=draw) for name, value in parameters.copy_params(net).items()}
    x, y = torch.rand(3, 4, *shape, generator=draw), torch.randint(3, (3, 4), generator=draw)
    weight = torch.tensor([[0.25] * 4, [0.4, 0.6, 0.0, 0.0], [0.0, 0.5, 0.0, 0.5]])
    batch = gradients.StackedBatch(x, y, weight, {}, {}, worlds.TASK)
    one_model, *stacked = (form for form, _ in iterate_forms("mlp", net, shape, names))
    moved, expected = ({name: value.clone() for name, value in stack.items()} for _ in range(2))
    losses = take_step(one_model, moved, gradients.Pass(stack, batch, scale=scale), 0.5)
    expected_losses = take_step(stacked[1], expected, gradients.Pass(stack, batch, scale=scale), 0.5)
    torch.testing.assert_close(losses, expected_losses)
    for name in names:
        torch.testing.assert_close(moved[name], expected[name], rtol=1e-4, atol=1e-5)
        assert not torch.equal(moved[name], stack[name])


def loss_with_representations(logits, z, params, batch):
    """Return the cross-entropy plus the mean squared representation; learns a number as well."""
    return batch.loss(logits) + batch.mean(z.square().sum(dim=2)) + params["number"].square()


def gradient_with_representations(network, params, batch):
    """Return the same loss, and its gradients by hand."""
    outputs = network.forward(params, batch.x, batch.weight)
    losses, grad = batch.task.mean_losses(outputs.logits, batch.y, batch.weight)
    losses = losses + (outputs.z.square().sum(dim=2) * batch.weight).sum(dim=1) + params["number"].square()
    by_z = 2 * outputs.z * batch.weight[..., None]
    return losses, {"number": 2 * params["number"], **network.backward(outputs, grad, by_z)}


@pytest.mark.parametrize("mode", MODES)
def test_loss_is_refused_when_it_is_not_one_number_per_client(mode):
    data, net = worlds.federation(), models.create("mlp", (worlds.FEATURES,), worlds.CLASSES, 0)
    start = parameters.repeat(parameters.copy_params(net), 2)
    plan = LocalSGD(1, 4, [0.1], loss=lambda logits, z, params, batch: batch.loss(logits).mean())
    with pytest.raises(ComputationError, match=r"shape \(\); it must have one number per client"):
        list(Engine(net, data, seed=0, mode=mode).local_sgd([0, 2], start, plan, ("sgd", 0)))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("compiles", [False, True])
def test_gradient_and_loss_rules_train_alike_in_every_mode(momentum, compiles, monkeypatch):
    rules = {"gradient": gradient_with_representations}, {"loss": loss_with_representations}
    if compiles:
        set_own_products(monkeypatch, True)
        monkeypatch.setattr(linear_chain, "LARGE", 0)
    data = worlds.federation()
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(worlds.FEATURES, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU())
    net = models.Net(body, nn.Linear(4, worlds.CLASSES))
    start = parameters.repeat({**parameters.copy_params(net), "number": torch.tensor(2.0)}, 3)
    plan = LocalSGD(epochs=2, batch_size=4, lr=[0.1, 0.05], momentum=momentum)
    clients, parts = [2, 0, 1], []
    for mode, rule in itertools.product(MODES, rules):
        parts += Engine(net, data, seed=0, mode=mode).local_sgd(clients, start, replace(plan, **rule), ("sgd", 0))
    by_hand, *others = parts
    for actual in others:
        for name, value in by_hand.params.items():
            torch.testing.assert_close(actual.params[name], value, rtol=1e-4, atol=1e-5)
            assert not torch.equal(value, start[name])
        np.testing.assert_allclose(actual.loss, by_hand.loss, rtol=1e-4)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["mlp", "compiled mlp", "tanh", "norm"])
def test_sample_weights_multiply_the_losses(kind, mode, monkeypatch):
    monkeypatch.setattr(
        engines, "_MIN_STACKS", 1
    )  # so that clients of a stack stand in another order than they are asked
    if kind == "compiled mlp":
        set_own_products(monkeypatch, True)
        monkeypatch.setattr(linear_chain, "LARGE", 0)
    data = worlds.federation()
    torch.manual_seed(0)
    hidden = {"tanh": [nn.Tanh()], "norm": [nn.BatchNorm1d(6), nn.ReLU()]}.get(kind, [nn.ReLU()])
    body = nn.Sequential(nn.Flatten(), nn.Linear(worlds.FEATURES, 6), *hidden)
    net = models.Net(body, nn.Linear(6, worlds.CLASSES))
    clients = [2, 0, 1]
    sizes = data.sizes("train")[clients]
    drawn = torch.rand(3, int(sizes.max()), generator=torch.Generator().manual_seed(1))
    drawn[0, 0] = 0  # a sample that does not count, which is no padding
    plan = LocalSGD(epochs=2, batch_size=4, lr=np.asarray([0.1, 0.1]), sample_weights=drawn)
    (part,) = Engine(net, data, seed=0, mode=mode).local_sgd(clients, parameters.copy_params(net), plan, ("sgd", 0))
    for place, client in enumerate(clients):
        model, draw, total, steps = copy.deepcopy(net), rng.generator(0, "sgd", 0, client), 0.0, 0
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rows = torch.from_numpy(data.rows(client, "train"))
        for _ in range(2):
            batches = list(torch.from_numpy(draw.permutation(len(rows))).split(4))
            if kind == "norm" and len(batches) > 1 and len(batches[-1]) == 1:
                batches[-2:] = [torch.cat(batches[-2:])]
            for batch in batches:
                model.train(len(batch) > 1 or kind != "norm")
                losses = functional.cross_entropy(
                    model(data.inputs(rows[batch])), data.y[rows[batch]], reduction="none"
                )
                loss = (losses * drawn[place, batch]).sum() / len(batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total, steps = total + loss.item(), steps + 1
        for name, value in parameters.pick(part.params, place).items():
            torch.testing.assert_close(value, parameters.copy_params(model)[name], rtol=1e-4, atol=1e-5)
        assert part.loss[place] == pytest.approx(total / max(steps, 1), rel=1e-4)


@pytest.mark.parametrize("kind", ["cnn", "mobile", "tanh"])
def test_lockstep_training_equals_each_client_alone(kind, monkeypatch):
    """By a compiled program to the bit; by autograd PyTorch's products depend on where samples lie."""
    monkeypatch.setattr(engines, "_MIN_STACKS", 1)
    shape = (2, 9, 6)
    net = make_mobile()[0] if kind == "mobile" else make_cnn()[0]
    if kind == "tanh":
        net = models.Net(nn.Sequential(nn.Flatten(), nn.Linear(108, 4), nn.Tanh()), nn.Linear(4, 3))
    net, draw = net.float(), np.random.default_rng(0)
    sizes = np.asarray([9, 2, 5])  # the batches of a step have sizes of their own
    x = draw.normal(size=(sizes.sum(), *shape)).astype(np.float32)
    offsets = np.cumsum(np.concatenate([[0], *([size, 0, 0] for size in sizes)]))
    data = Federation.from_blocks(x, draw.integers(0, 3, sizes.sum()), offsets, 3)
    start = parameters.stack([parameters.copy_params(net)] * 3)
    plan = LocalSGD(2, 4, [0.1, 0.05], gradient=cross_entropy_rule, frozen_norm=True)
    parts = [
        next(
            Engine(copy.deepcopy(net), data, seed=0, mode="loop", threads=2).local_sgd(
                data.clients, start, replace(plan, lockstep=lockstep), ("sgd", 0)
            )
        )
        for lockstep in (False, True)
    ]
    for name, value in parts[0].params.items():
        tolerance = {} if kind == "tanh" else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(value, parts[1].params[name], **tolerance)
    assert any(not torch.equal(value, start[name]) for name, value in parts[0].params.items())
    np.testing.assert_allclose(parts[0].loss, parts[1].loss, rtol=1e-6)


@pytest.mark.parametrize("mode", ["loop", "lockstep"])
@pytest.mark.compiled
def test_network_keeps_no_weights_of_earlier_models(mode, monkeypatch):
    """Linear weights of a model are read where they lie; the next client trains in the network itself."""
    monkeypatch.setattr(engines, "_MIN_STACKS", 1)
    net, shape = make_cnn()
    draw, ends = np.random.default_rng(0), np.asarray([0, 7, 7, 7, 12, 12, 12])
    x = draw.normal(size=(12, *shape)).astype(np.float32)
    data, net = Federation.from_blocks(x, draw.integers(0, 3, 12), ends, 3), net.float()
    start, plan = parameters.copy_params(net), LocalSGD(1, 4, [0.1])
    ruled = replace(plan, gradient=cross_entropy_rule, frozen_norm=True, lockstep=mode == "lockstep")
    parts = []
    for before in (False, True):
        engine = Engine(copy.deepcopy(net), data, seed=0, mode="loop")
        if before:
            list(engine.local_sgd([0, 1], parameters.stack([start] * 2), ruled, ("sgd", 0)))
            assert not engine._worker_net.program._external
        parts += engine.local_sgd([0, 1], start, plan, ("sgd", 1))
    for name, value in parts[0].params.items():
        assert torch.equal(value, parts[1].params[name])
        assert not torch.equal(value[0], start[name])


@pytest.mark.compiled
def test_frozen_norm_disables_the_compiled_program_only_with_batch_norm():
    plan = LocalSGD(1, 4, [0.1], gradient=cross_entropy_rule, frozen_norm=True, lockstep=True)
    for net, shape in (make_cnn(), make_mobile()):
        worker_net = WorkerNet.compile(net.float(), shape, worlds.TASK)
        assert worker_net.program is not None
        for count, name in ((1, "compiled program"), (2, "lockstep")):
            chosen = strategy.choose(worker_net, plan, "loop", count)
            is_compiled = isinstance(chosen.network(["head.weight"]), backend.part("program").CompiledNetwork)
            assert is_compiled == (not any(net.named_buffers()))
            assert chosen.name == name or (count == 1 and not is_compiled)
        changing = strategy.choose(worker_net, replace(plan, frozen_norm=False), "loop", 2)
        assert changing.name == ("compiled program" if any(net.named_buffers()) else "lockstep")


def test_padding_is_a_sample_of_the_same_client():
    """A sample of weight 0 that overflows would make a minibatch of another client nan."""
    data = small.make_federation()
    data.x[data.rows(0, "train")] = 3e38
    run = small.make_run("fedavg", data=data, mode="stacked", batch_size=8)
    clients = np.asarray([1, 3, 6])  # of 1, 6 and 9 samples
    for part in run.local_sgd(clients, run.init, t=0):
        assert part.finite.all()
