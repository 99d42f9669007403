"""The engine against plain PyTorch: torch.optim.SGD on a copied model, one client after the other."""

from __future__ import annotations

import copy
import inspect
import itertools
import os
import subprocess
import sys
import threading
from contextlib import nullcontext, suppress
from dataclasses import replace
from multiprocessing import connection
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import worlds
from helpers import ONE_OF_EACH_KIND, set_own_products
from pflcli.core import models, parameters, rng
from pflcli.core.engine import engine as engines
from pflcli.core.engine import linear_chain, process_settings, strategy
from pflcli.core.engine.engine import Engine
from pflcli.core.engine.executors import processes
from pflcli.core.engine.executors import threads as thread_executor
from pflcli.core.engine.executors.threads import Threads
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.local_sgd import LocalSGD, batches, stacks, widths
from pflcli.core.engine.strategy import WorkerNet
from pflcli.core.engine.tasks.classes import Classification
from pflcli.core.engine.trainer import Worker
from pflcli.core.errors import ComputationError, LostWorkerError, UsageError
from pflcli.core.parameters.model_table import ModelTable
from pflcli.core.parameters.row_storage import InMemoryRows
from pflcli.workflow.training import hardware


def train_by_reference(net, data, client, plan, key, seed):
    """One client's local SGD as most people write it, with the same draw of minibatches."""
    model = copy.deepcopy(net).train()
    rows = torch.from_numpy(data.rows(client, *plan.splits))
    x, y = data.inputs(rows), data.y[rows]
    anchor, rates = plan.prox[0] if plan.prox else None, plan.lr[0] if plan.lr.ndim == 2 else plan.lr
    chosen = [(name, p) for name, p in model.named_parameters() if name.startswith(plan.trainable)]
    optimizer = torch.optim.SGD(
        [p for _, p in chosen], lr=float(rates[0]), momentum=plan.momentum, weight_decay=plan.weight_decay
    )
    draw, steps = rng.generator(seed, *key, client), 0
    for epoch in range(plan.epochs if plan.steps is None else plan.steps):  # no epoch has less than a step
        order = draw.permutation(len(rows))
        for first in range(0, len(order), plan.batch_size):
            if plan.steps is not None and steps == plan.steps:
                break
            optimizer.param_groups[0]["lr"] = float(rates[epoch if plan.steps is None else steps])
            steps += 1
            batch = order[first : first + plan.batch_size]
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x[batch]), y[batch])
            if anchor is not None:
                loss = loss + plan.prox[1] / 2 * sum(((p - anchor[name]) ** 2).sum() for name, p in chosen)
            if plan.adds_own:
                loss = loss + sum((plan.own[name] * p).sum() for name, p in chosen)
            loss.backward()
            optimizer.step()
    return parameters.copy_params(model)


PLANS = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "weight decay": {"weight_decay": 0.1},
    "both": {"momentum": 0.5, "weight_decay": 0.01},
    "decay of the rate": {"lr": [0.1, 0.05, 0.02]},
    "head only": {"trainable": "head."},
    "with validation samples": {"splits": ("train", "validation")},
    "steps": {"steps": 7, "lr": [0.1, 0.1, 0.05, 0.05, 0.02, 0.1, 0.1]},
    "steps with momentum": {"steps": 4, "lr": [0.1] * 4, "momentum": 0.9},
}


MODES = ("loop", "stacked")


@pytest.fixture(autouse=True)
def allow_one_stack(monkeypatch, request):
    """Few clients in one stack: a stack of one would be the loop, which it is compared with."""
    monkeypatch.setattr(engines, "_MIN_STACKS", 1)
    if "callspec" in dir(request.node) and request.node.callspec.params.get("kind") == "compiled chain":
        set_own_products(monkeypatch, True)
        monkeypatch.setattr(linear_chain, "LARGE", 0)


def make_network(kind, data, seed=0):
    """A chain of linear layers, which runs without autograd, or a network that is none."""
    if kind.endswith("chain"):
        return models.create("mlp", data.in_shape, worlds.CLASSES, seed)
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Flatten(), nn.Linear(worlds.FEATURES, 6), nn.Tanh())
    return models.Net(body, nn.Linear(6, worlds.CLASSES))


KINDS = ("chain", "compiled chain", "other")


def test_layers_recognizes_chains_of_linear_layers():
    data = worlds.federation()
    assert [linear_chain.layers(make_network(kind, data)) is None for kind in KINDS] == [False, False, True]
    names = [layer.weight for layer in linear_chain.layers(make_network("chain", data))]
    assert names == ["body.1.weight", "body.3.weight", "head.weight"]
    assert linear_chain.layers(models.create("logistic", (4, 2), 3, 0)) == [
        linear_chain.Layer("head.weight", "head.bias", False)
    ]
    assert linear_chain.layers(models.create("cnn", (1, 28, 28), 3, 0)) is None
    act, layer = nn.ReLU(), nn.Linear(4, 4)
    same_relu = models.Net(nn.Sequential(nn.Flatten(), layer, act, nn.Linear(4, 4), act), nn.Linear(4, 3))
    assert [each.relu for each in linear_chain.layers(same_relu)] == [True, True, False]
    assert linear_chain.layers(models.Net(nn.Sequential(nn.Flatten(), layer, act, layer, act), nn.Linear(4, 3))) is None
    by_rows = models.Net(nn.Sequential(nn.Flatten(2), nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 3))
    assert linear_chain.layers(by_rows) is None


@pytest.mark.parametrize("mode", MODES)
def test_shared_weights_are_trained_as_one_parameter(mode):
    data = worlds.federation()
    torch.manual_seed(0)
    shared, tied = nn.Linear(worlds.FEATURES, worlds.FEATURES), nn.Linear(worlds.FEATURES, worlds.FEATURES)
    tied.weight = shared.weight
    body = nn.Sequential(nn.Flatten(), shared, nn.ReLU(), shared, nn.Tanh(), tied)
    net = models.Net(body, nn.Linear(worlds.FEATURES, worlds.CLASSES))
    names = ["body.1.weight", "body.1.bias", "body.5.bias", "head.weight", "head.bias"]
    assert list(parameters.copy_params(net)) == names
    engine = Engine(net, data, seed=0, mode=mode)
    for objective in (None, plain_loss):
        plan = LocalSGD(epochs=2, batch_size=4, lr=[0.1] * 2, objective=objective)
        start = parameters.repeat(parameters.copy_params(net), 2)
        (part,) = engine.local_sgd([2, 0], start, plan, ("sgd", 0))
        for place, client in enumerate((2, 0)):
            expected = train_by_reference(net, data, client, plan, ("sgd", 0), 0)
            for name in names:
                torch.testing.assert_close(part.params[name][place], expected[name], rtol=1e-5, atol=1e-6)


def plain_loss(model, params, batch):
    return batch.loss(model.head(params, model.features(params, batch.x)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PLANS)
def test_local_sgd_equals_torch_sgd(name, mode, kind):
    data = worlds.federation()
    net = make_network(kind, data)
    plan = LocalSGD(**{"epochs": 3, "batch_size": 4, "lr": [0.1] * 3, **PLANS[name]})
    engine = Engine(net, data, seed=5, threads=2, mode=mode)
    clients = [1, 2, 0, 5, 4, 6]
    (part,) = engine.local_sgd(clients, parameters.copy_params(net), plan, ("sgd", 1))
    assert part.weights.tolist() == data.sizes(*plan.splits)[clients].tolist()
    for place, client in enumerate(clients):
        expected = train_by_reference(net, data, client, plan, ("sgd", 1), 5)
        for key, value in parameters.pick(part.params, place).items():
            torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)


def test_compiled_loops_train_a_single_layer_like_torch_sgd(monkeypatch):
    set_own_products(monkeypatch, True)
    monkeypatch.setattr(linear_chain, "LARGE", 0)
    data = worlds.federation()
    net = models.create("logistic", data.in_shape, worlds.CLASSES, 0)
    plan = LocalSGD(epochs=2, batch_size=4, lr=[0.1] * 2)
    (part,) = Engine(net, data, seed=5).local_sgd([2, 0], parameters.copy_params(net), plan, ("sgd", 0))
    for place, client in enumerate((2, 0)):
        expected = train_by_reference(net, data, client, plan, ("sgd", 0), 5)
        for key, value in parameters.pick(part.params, place).items():
            torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_proximal_term_matches_the_reference(mode, kind):
    data = worlds.federation()
    net = make_network(kind, data)
    anchor = parameters.copy_params(make_network(kind, data, 1))
    engine = Engine(net, data, seed=5, mode=mode)
    plan = LocalSGD(epochs=2, batch_size=4, lr=[0.1] * 2, prox=(anchor, 0.7))
    (part,) = engine.local_sgd([0], parameters.copy_params(net), plan, ("sgd", 0))
    expected = train_by_reference(net, data, 0, plan, ("sgd", 0), 5)
    for key, value in parameters.pick(part.params, 0).items():
        torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("extra", [{}, {"momentum": 0.9}, {"weight_decay": 0.1}], ids=["plain", "momentum", "decay"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_anchors_and_drifts_per_client_match_the_reference(mode, kind, extra):
    data, clients = worlds.federation(), np.asarray([4, 0, 2])
    net, others = (
        make_network(kind, data),
        [parameters.copy_params(make_network(kind, data, seed)) for seed in (1, 2, 3)],
    )
    names, stack = [name for name, _ in net.named_parameters()], parameters.stack(others)
    own, anchor = {name: 0.3 * stack[name].flip(0) for name in names}, {name: stack[name] for name in names}
    plan = LocalSGD(
        epochs=2,
        batch_size=4,
        lr=[[0.1, 0.05], [0.02, 0.2], [0.1] * 2],
        prox=(anchor, 0.7),
        own=own,
        adds_own=True,
        **extra,
    )
    (part,) = Engine(net, data, seed=5, mode=mode).local_sgd(clients, parameters.copy_params(net), plan, ("sgd", 0))
    for place, client in enumerate(clients):
        only = plan.for_clients(np.asarray([place]), parameters.copy_params(net))
        alone = replace(only, own=parameters.pick(only.own, 0), prox=(parameters.pick(only.prox[0], 0), 0.7))
        expected = train_by_reference(net, data, client, alone, ("sgd", 0), 5)
        for name in names:
            torch.testing.assert_close(part.params[name][place], expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_frozen_parameters_do_not_change(mode, kind):
    data = worlds.federation()
    net = make_network(kind, data)
    plan = LocalSGD(epochs=1, batch_size=4, lr=[0.1] * 1, trainable="head.", weight_decay=0.5)
    (part,) = Engine(net, data, seed=0, mode=mode).local_sgd([0], parameters.copy_params(net), plan, ("sgd", 0))
    for key, value in parameters.pick(part.params, 0).items():
        assert torch.equal(value, net.state_dict()[key]) == key.startswith("body.")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_clients_can_start_from_different_models(mode, kind):
    data = worlds.federation()
    nets = [make_network(kind, data, seed) for seed in (0, 1)]
    plan = LocalSGD(epochs=1, batch_size=4, lr=[0.1] * 1)
    engine = Engine(nets[0], data, seed=0, mode=mode)
    (part,) = engine.local_sgd(
        [0, 2], parameters.stack([parameters.copy_params(net) for net in nets]), plan, ("sgd", 0)
    )
    for place, (client, net) in enumerate(zip((0, 2), nets, strict=True)):
        expected = train_by_reference(net, data, client, plan, ("sgd", 0), 0)
        torch.testing.assert_close(part.params["head.weight"][place], expected["head.weight"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_training_from_a_model_table_equals_a_stack_and_does_not_change_the_table(mode, kind, monkeypatch):
    data = worlds.federation()
    net = make_network(kind, data)
    own = parameters.stack([parameters.copy_params(make_network(kind, data, seed)) for seed in (0, 1, 2)])
    table = ModelTable(parameters.copy_params(net), len(data.clients), InMemoryRows())
    table[[0, 2]] = parameters.take(own, np.asarray([1, 2]))  # client 4 has the default
    before, stack = table[data.clients], parameters.take(own, np.asarray([1, 2, 0]))
    engine = Engine(net, data, seed=0, mode=mode)
    monkeypatch.setattr("pflcli.core.engine.engine._CHUNK_BYTES", {"cpu": 2 * parameters.size(table.default)})
    for lr, restore in ((0.1, False), (0.1, True), (1e20, True)):
        plan = LocalSGD(epochs=5, batch_size=4, lr=[lr] * 5)
        training = [engine.local_sgd([0, 2, 4], start, plan, ("sgd", 0), restore=restore) for start in (table, stack)]
        for place, (part, expected) in enumerate(zip(*training, strict=True)):
            assert part.finite.all() == (lr < 1)
            assert worlds.same(part.params, expected.params)
            if lr > 1:
                assert worlds.same(part.params, {n: v[2 * place : 2 * place + 2] for n, v in stack.items()})
    assert worlds.same(table[data.clients], before)


def test_local_sgd_does_not_change_the_given_model():
    data = worlds.federation()
    net = models.create("mlp", data.in_shape, worlds.CLASSES, 0)
    start = parameters.copy_params(net)
    before = copy.deepcopy(start)
    plan = LocalSGD(epochs=1, batch_size=4, lr=[0.1] * 1)
    list(Engine(net, data, seed=0).local_sgd([0, 2], start, plan, ("sgd", 0)))
    assert worlds.same(before, start)
    assert worlds.same(before, parameters.copy_params(net))


def make_batch_norm_case():
    draw = np.random.default_rng(0)
    sizes = [(9, 0, 2), (1, 0, 1)]
    x = draw.integers(0, 255, size=(sum(map(sum, sizes)), 16, 16), dtype=np.uint8)
    y = draw.integers(0, 2, len(x))
    data = Federation.from_blocks(x, y, np.cumsum([0, *[n for row in sizes for n in row]]), 2)
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 4, 3, stride=16), nn.BatchNorm2d(4), nn.Flatten())
    return data, models.Net(body, nn.Linear(4, 2))


@pytest.mark.parametrize("mode", MODES)
def test_batch_norm_buffers_are_updated_and_single_samples_join_a_batch(mode):
    data, net = make_batch_norm_case()
    plan = LocalSGD(epochs=1, batch_size=4, lr=[0.1] * 1)
    engine = Engine(net, data, seed=0, threads=2, mode=mode)
    (part,) = engine.local_sgd([0, 1], parameters.copy_params(net), plan, ("sgd", 0))
    # Nine samples in fours: the ninth joins the second batch, so there are two steps.
    assert part.params["body.1.num_batches_tracked"].tolist() == [2, 0]
    assert not torch.equal(part.params["body.1.running_mean"][0], net.state_dict()["body.1.running_mean"])
    assert torch.equal(part.params["body.1.running_mean"][1], net.state_dict()["body.1.running_mean"])
    assert not torch.equal(part.params["head.weight"][1], net.state_dict()["head.weight"])


@pytest.mark.parametrize("mode", MODES)
def test_batch_norm_statistics_skip_batches_of_one_sample(mode):
    data, _ = make_batch_norm_case()
    torch.manual_seed(0)
    depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False)
    layers = [nn.Conv2d(1, 4, 3, stride=4, bias=False), nn.BatchNorm2d(4), nn.ReLU(), depthwise, nn.BatchNorm2d(4)]
    net = models.Net(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(4, 2))
    plan = LocalSGD(epochs=1, batch_size=1, lr=[0.1])
    engine = Engine(net, data, seed=0, mode=mode)
    (part,) = engine.local_sgd([0, 1], parameters.copy_params(net), plan, ("sgd", 0))
    # Nine samples one by one, the last of which joins the one before: one batch of two moves the statistics.
    assert part.params["body.1.num_batches_tracked"].tolist() == [1, 0]
    assert all(bool(value.isfinite().all()) for value in part.params.values())
    same = copy.deepcopy(net)
    order = rng.generator(0, "sgd", 0, 0).permutation(9)
    for batch in [*order[:7, None], order[7:]]:
        same.train(len(batch) > 1)
        loss = functional.cross_entropy(same(data.inputs(torch.from_numpy(batch))), data.y[batch])
        grads = torch.autograd.grad(loss, list(same.parameters()))
        with torch.no_grad():
            for value, grad in zip(same.parameters(), grads, strict=True):
                value -= 0.1 * grad
    for name, value in parameters.copy_params(same).items():
        torch.testing.assert_close(part.params[name][0], value, rtol=1e-4, atol=1e-5)


def test_loop_and_stacked_agree_with_batch_norm():
    data, net = make_batch_norm_case()
    plan = LocalSGD(epochs=3, batch_size=4, lr=[0.1] * 3, momentum=0.9)
    parts = [
        next(Engine(net, data, seed=0, mode=mode).local_sgd([1, 0], parameters.copy_params(net), plan, ("sgd", 0)))
        for mode in MODES
    ]
    for key, value in parts[0].params.items():
        torch.testing.assert_close(parts[1].params[key], value, rtol=1e-4, atol=1e-5)


def test_loop_and_stacked_agree_with_convolutions():
    data, _ = make_batch_norm_case()
    data = Federation(data.x[:, :, :8, :8].contiguous(), data.y, data.offsets, Classification(2))
    net = models.create("cnn", data.in_shape, 2, 0)
    plan = LocalSGD(epochs=2, batch_size=4, lr=[0.1] * 2, momentum=0.9)
    parts = [
        next(Engine(net, data, seed=0, mode=mode).local_sgd([0, 1], parameters.copy_params(net), plan, ("sgd", 0)))
        for mode in MODES
    ]
    for key, value in parts[0].params.items():
        torch.testing.assert_close(parts[1].params[key], value, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(parts[1].loss, parts[0].loss, rtol=1e-4)


def test_fastest_mode_depends_on_network_and_device():
    data, net = make_batch_norm_case()
    assert Engine(net, data, seed=0).mode == "loop"
    small, large = (models.create(name, (1, 28, 28), 10, 0) for name in ("logistic", "cnn"))
    modes = [strategy.fastest_mode(net, device) for net, device in ((small, "cpu"), (large, "cpu"), (large, "cuda"))]
    assert modes == ["stacked", "loop", "stacked"]


def test_batches_cover_every_sample_once():
    order = torch.randperm(9)
    for join, sizes in ((False, [4, 4, 1]), (True, [4, 5])):
        cut = batches(order, 4, join_single=join)
        assert [len(batch) for batch in cut] == sizes
        assert torch.equal(torch.cat(cut), order)
    assert batches(order[:0], 4, join_single=True) == []


@pytest.mark.parametrize("mode", MODES)
def test_divergence_is_reported_and_the_initial_model_restored(mode):
    data = worlds.federation()
    net = models.create("mlp", data.in_shape, worlds.CLASSES, 0)
    plan = LocalSGD(epochs=5, batch_size=4, lr=[1e20] * 5)
    (part,) = Engine(net, data, seed=0, mode=mode).local_sgd([2], parameters.copy_params(net), plan, ("sgd", 0))
    assert not part.finite.any()
    (part,) = Engine(net, data, seed=0, mode=mode).local_sgd(
        [2], parameters.copy_params(net), plan, ("sgd", 0), restore=True
    )
    assert not part.finite.any()
    assert worlds.same(parameters.pick(part.params, 0), parameters.copy_params(net))


def test_inference_does_not_depend_on_batching():
    data = worlds.federation()
    net = models.create("mlp", data.in_shape, worlds.CLASSES, 0).eval()
    rows = np.resize(np.arange(len(data.y)), 1500)  # tasks of two batches, the last of which is smaller
    logits, z = Engine(net, data, seed=0, threads=2).infer(parameters.copy_params(net), rows, features=True)
    with torch.no_grad():
        torch.testing.assert_close(z, net.features(data.inputs(torch.from_numpy(rows))))
        torch.testing.assert_close(logits, net(data.inputs(torch.from_numpy(rows))))


def test_local_sgd_yields_parts_that_fit_the_memory_limit(monkeypatch):
    data = worlds.federation()
    net = models.create("mlp", data.in_shape, worlds.CLASSES, 0)
    monkeypatch.setattr(
        "pflcli.core.engine.engine._CHUNK_BYTES", {"cpu": 2 * parameters.size(parameters.copy_params(net))}
    )
    engine = Engine(net, data, seed=0)
    plan = LocalSGD(epochs=1, batch_size=4, lr=[0.1] * 1)
    parts = list(engine.local_sgd([0, 2, 3, 4, 6], parameters.copy_params(net), plan, ("sgd", 0)))
    assert [part.clients.tolist() for part in parts] == [[0, 2], [3, 4], [6]]


def make_forty_clients(shape, classes):
    """Forty clients with very different numbers of samples."""
    draw = np.random.default_rng(0)
    sizes = draw.integers(1, 60, 40)
    x = draw.normal(size=(sizes.sum(), *shape)).astype(np.float32)
    offsets = np.cumsum([0, *(n for size in sizes for n in (size, 0, 0))])
    return Federation(
        torch.from_numpy(x), torch.from_numpy(draw.integers(0, classes, len(x))), offsets, Classification(classes)
    )


@pytest.mark.parametrize("batch_size", [7, 10, 32, 1000])
@pytest.mark.parametrize(("model", "shape", "classes"), [("mlp", (2, 9), 3), ("logistic", (13,), 7)])
def test_client_gets_the_same_bytes_in_parts_of_any_size(model, shape, classes, batch_size, monkeypatch):
    data = make_forty_clients(shape, classes)
    net = models.create(model, shape, classes, 0)
    plan = LocalSGD(epochs=1, batch_size=batch_size, lr=[0.1], momentum=0.5)
    engine = Engine(net, data, seed=0, threads=2)
    (together,) = engine.local_sgd(data.clients, parameters.copy_params(net), plan, ("sgd", 0))
    for room in (7, 1):
        monkeypatch.setattr(engines, "_CHUNK_BYTES", {"cpu": room * parameters.size(parameters.copy_params(net))})
        parts = list(engine.local_sgd(data.clients, parameters.copy_params(net), plan, ("sgd", 0)))
        assert [len(part.clients) for part in parts][:-1] == [room] * (len(parts) - 1)
        for name, value in together.params.items():
            assert torch.equal(torch.cat([part.params[name] for part in parts]), value), name


def test_widths_round_up_the_batch_sizes_of_clients():
    sizes = np.asarray([0, 1, 4, 5, 9, 31, 33, 400])
    assert widths(sizes, 32).tolist() == [4, 4, 4, 8, 16, 32, 32, 32]
    assert widths(sizes, 10).tolist() == [4, 4, 4, 8, 12, 12, 12, 12]
    assert widths(np.asarray([0, 33, 65, 78, 97, 129, 400]), 300).tolist() == [4, 64, 80, 80, 112, 160, 300]


def test_engine_does_not_depend_on_free_memory():
    memory_options = [name for name in inspect.signature(Engine).parameters if "memory" in name]
    assert not memory_options
    assert not hasattr(hardware, "memory")


def test_mean_divides_by_the_sum_of_weights():
    mean = parameters.Mean()
    mean.add({"w": torch.tensor([[1.0], [3.0]]), "n": torch.tensor([4, 7])}, np.asarray([1.0, 2.0]))
    mean.add({"w": torch.tensor([[10.0]]), "n": torch.tensor([5])}, np.asarray([5.0]))
    value = mean.value()
    assert value["w"].tolist() == [(1 * 1 + 2 * 3 + 5 * 10) / 8]
    assert value["n"].item() == 7
    assert value["w"].dtype == torch.float32
    with pytest.raises(ValueError, match="no models"):
        parameters.Mean().value()


@pytest.mark.parametrize("count", [1, 2, 7, 32, 77])
def test_mean_has_the_same_bytes_for_any_division_into_parts(count):
    draw = np.random.default_rng(count)
    models = {"w": torch.from_numpy(draw.normal(size=(count, 3, 5)).astype(np.float32)), "n": torch.arange(count)}
    weights = draw.random(count)  # not whole numbers, so that sums of weights round, too

    def mean(*cuts):
        total = parameters.Mean()
        for first, last in itertools.pairwise([0, *cuts, count]):
            total.add({name: value[first:last] for name, value in models.items()}, weights[first:last])
        return total.value()

    def tree(first, size):
        own = {name: value[first : first + size] for name, value in models.items()}
        if size == 1 or first + size // 2 >= count:
            return (
                parameters.WeightedSum.from_models(own, weights[first : first + size])
                if size == 1
                else tree(first, size // 2)
            )
        return tree(first, size // 2).plus(tree(first + size // 2, size // 2))

    expected = mean()
    np.testing.assert_allclose(expected["w"], np.average(models["w"], axis=0, weights=weights), rtol=1e-6, atol=1e-7)
    assert expected["n"].item() == count - 1
    for cuts in ([], range(1, count), range(3, count, 3), sorted(set(draw.integers(1, count, 4))) if count > 1 else []):
        assert worlds.same(mean(*cuts), expected)
    assert worlds.same(tree(0, 128).mean(), expected)


def test_images_become_channels_first_and_unit_range():
    grey = Federation.from_blocks(np.full((2, 4, 5), 255, np.uint8), np.zeros(2, np.int64), np.asarray([0, 2, 2, 2]), 2)
    assert grey.in_shape == (1, 4, 5)
    assert grey.inputs(slice(0, 2)).max().item() == 1
    colour = np.zeros((1, 4, 5, 3), np.uint8)
    colour[0, 1, 2, 0] = 51
    data = Federation.from_blocks(colour, np.zeros(1, np.int64), np.asarray([0, 1, 1, 1]), 2)
    assert data.in_shape == (3, 4, 5)
    assert data.inputs(slice(0, 1))[0, 0, 1, 2].item() == pytest.approx(0.2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_learning_rates_anchors_and_initial_models_can_differ_by_client(mode, kind):
    data = worlds.federation()
    nets = [make_network(kind, data, seed) for seed in (0, 1, 2)]
    stack = parameters.stack([parameters.copy_params(net) for net in nets])
    rates = np.asarray([[0.1, 0.2], [0.3, 0.0], [0.05, 0.02]])
    engine = Engine(nets[0], data, seed=0, threads=2, mode=mode)
    plan = LocalSGD(epochs=2, batch_size=4, lr=rates, prox=({k: v.flip(0) for k, v in stack.items()}, 0.5))
    # The longest client stands last, so that the stacked mode has to sort.
    (part,) = engine.local_sgd([1, 2, 0], stack, plan, ("sgd", 0))
    for place, (client, net) in enumerate(zip((1, 2, 0), nets, strict=True)):
        own = LocalSGD(epochs=2, batch_size=4, lr=rates[place], prox=(parameters.copy_params(nets[2 - place]), 0.5))
        expected = train_by_reference(net, data, client, own, ("sgd", 0), 0)
        for key, value in parameters.pick(part.params, place).items():
            torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_adam_equals_torch_adam(mode, kind):
    data = worlds.federation()
    net = make_network(kind, data)
    plan = LocalSGD(epochs=3, batch_size=4, lr=[0.01] * 3, optimizer="adam")
    (part,) = Engine(net, data, seed=0, mode=mode).local_sgd([0, 2], parameters.copy_params(net), plan, ("sgd", 0))
    for place, client in enumerate((0, 2)):
        model, draw = copy.deepcopy(net), rng.generator(0, "sgd", 0, client)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        rows = torch.from_numpy(data.rows(client, "train"))
        for _ in range(3):
            for batch in rows[torch.from_numpy(draw.permutation(len(rows)))].split(4):
                optimizer.zero_grad()
                functional.cross_entropy(model(data.inputs(batch)), data.y[batch]).backward()
                optimizer.step()
        for key, value in parameters.pick(part.params, place).items():
            torch.testing.assert_close(value, parameters.copy_params(model)[key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_adam_with_learning_rates_per_client_equals_each_client_alone(mode):
    data = worlds.federation()
    engine = Engine(net := make_network("chain", data), data, seed=0, mode=mode)
    start, rates = parameters.repeat(parameters.copy_params(net), 3), np.asarray([[0.01], [0.002], [0.03]])
    plan = LocalSGD(epochs=1, batch_size=4, lr=rates, optimizer="adam")
    (together,) = engine.local_sgd([1, 2, 0], start, plan, ("sgd", 0))
    for place, client in enumerate((1, 2, 0)):
        alone = LocalSGD(epochs=1, batch_size=4, lr=rates[place], optimizer="adam")
        (part,) = engine.local_sgd([client], parameters.copy_params(net), alone, ("sgd", 0))
        for key, value in part.params.items():
            torch.testing.assert_close(together.params[key][place], value[0], rtol=1e-4, atol=1e-5)


def test_stack_size_grows_with_shared_bytes():
    data = worlds.federation()
    engine = Engine(make_network("chain", data), data, seed=0)
    assert engine.stack_size(1 << 20, 100) == 8
    assert engine.stack_size(1 << 20, 100, shared=39 << 20) == 39
    assert engine.stack_size(1 << 20, 10, shared=39 << 20) == 10
    assert engine.stack_size(1 << 20, 100, is_wide=True) == 16
    assert engine.stack_size(1 << 20, 100, shared=39 << 20, is_wide=True) == 39


def test_stacks_group_clients_of_equal_width():
    sizes = np.asarray([70, 33, 20, 9, 8, 5, 0])
    assert [stack.tolist() for stack in stacks(sizes, 2, 32)] == [[0, 1], [2], [3], [4, 5], [6]]
    assert [stack.tolist() for stack in stacks(sizes, 3, None)] == [[0, 1, 2], [3, 4, 5], [6]]


def test_stack_size_doubles_when_clients_share_large_tensors(monkeypatch):
    monkeypatch.setattr(engines, "_MIN_STACKS", 4)
    data = worlds.federation()
    engine = Engine(make_network("chain", data), data, seed=0)
    assert engine.stack_size(1 << 20, 30, shared=39 << 20) == 15
    assert engine.stack_size(1 << 10, 30) == 8
    assert engine.stack_size(1 << 10, 30, is_wide=True) == 15


@pytest.mark.parametrize("model", ["mlp", "logistic"])
def test_predictions_of_a_linear_chain_are_identical_to_the_network(model):
    data = worlds.federation()
    net = models.create(model, data.in_shape, worlds.CLASSES, 0)
    engine = Engine(net, data, seed=0)
    answers = engine.outputs_each(
        data.clients, parameters.repeat(parameters.copy_params(net), len(data.clients)), "test"
    )
    embedded = engine.outputs_each(
        data.clients, parameters.repeat(parameters.copy_params(net), len(data.clients)), "test", features=True
    )
    for client, (logits, _), (_, z) in zip(data.clients, answers, embedded, strict=True):
        x = data.inputs(torch.from_numpy(data.rows(int(client), "test")))
        with process_settings.intra_op(1):
            assert torch.equal(logits, net(x))
            assert torch.equal(z, net.body(x))


@pytest.mark.compiled
def test_compiled_chain_predictions_match_the_network_for_any_number_of_threads(monkeypatch):
    set_own_products(monkeypatch, True)
    monkeypatch.setattr(linear_chain, "LARGE", 0)
    data, predictions = worlds.federation(), []
    net = models.create("mlp", data.in_shape, worlds.CLASSES, 0)
    rows = np.arange(len(data.y))
    for threads in (1, 3):
        engine = Engine(net, data, seed=0, threads=threads)
        with engine.training():
            predictions.append(engine.infer(parameters.copy_params(net), rows, features=True))
    x = data.inputs(torch.from_numpy(rows))
    for (one, three), expected in zip(zip(*predictions, strict=True), (net(x), net.body(x)), strict=True):
        assert torch.equal(one, three)
        torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-5)
    plain, _ = engine.infer(parameters.copy_params(net), rows)
    assert not torch.equal(plain, predictions[0][0])  # the loops did it


def interpolated_loss(model, params, batch):
    """The loss of the mean of two models, one of them constant, with a learned scale of the logits."""
    both = {name: (value + batch.own[name]) / 2 for name, value in params.items() if name != "scale"}
    return batch.loss(params["scale"] * batch.shared["sign"] * model(both, batch.x))


@pytest.mark.parametrize("mode", MODES)
def test_objective_is_minimised_over_all_tensors_of_the_initial_model(mode):
    data = worlds.federation()
    nets = [make_network("other", data, seed) for seed in range(4)]
    stack, own = (
        parameters.stack([parameters.copy_params(net) for net in nets[:2]]),
        parameters.stack([parameters.copy_params(net) for net in nets[2:]]),
    )
    start = {**stack, "scale": torch.tensor([1.0, 2.0])}
    shared = {"sign": torch.tensor(1.0)}
    plan = LocalSGD(epochs=2, batch_size=4, lr=[0.1, 0.1], objective=interpolated_loss, own=own, shared=shared)
    (part,) = Engine(nets[0], data, seed=0, mode=mode).local_sgd([2, 0], start, plan, ("sgd", 0))
    for place, client in enumerate((2, 0)):
        a = {name: value[place].clone().requires_grad_() for name, value in start.items()}
        rows, draw = torch.from_numpy(data.rows(client, "train")), rng.generator(0, "sgd", 0, client)
        for _ in range(2):
            for batch in rows[torch.from_numpy(draw.permutation(len(rows)))].split(4):
                w = {name: (a[name] + own[name][place]) / 2 for name in stack}
                z = torch.tanh(data.inputs(batch) @ w["body.1.weight"].T + w["body.1.bias"])
                logits = a["scale"] * (z @ w["head.weight"].T + w["head.bias"])
                grads = torch.autograd.grad(functional.cross_entropy(logits, data.y[batch]), list(a.values()))
                with torch.no_grad():
                    for value, grad in zip(a.values(), grads, strict=True):
                        value -= 0.1 * grad
        for name, value in parameters.pick(part.params, place).items():
            torch.testing.assert_close(value, a[name].detach(), rtol=1e-5, atol=1e-6)


def test_stack_of_one_client_is_trained_by_the_loop(monkeypatch):
    monkeypatch.setattr(engines, "_MIN_STACKS", 4)
    data, net = worlds.federation(), make_network("other", worlds.federation())
    start, calls = {**parameters.stack([parameters.copy_params(net)] * 6), "scale": torch.ones(6)}, []
    original = Worker.train
    monkeypatch.setattr(
        Worker,
        "train",
        lambda worker, task, *models: (
            calls.append((worker.strategy.stacked, len(task.clients))) or original(worker, task, *models)
        ),
    )
    own, shared = parameters.stack([parameters.copy_params(net)] * 6), {"sign": torch.tensor(1.0)}
    plan = LocalSGD(epochs=1, batch_size=4, lr=[0.1], objective=interpolated_loss, own=own, shared=shared)
    list(Engine(net, data, seed=0, mode="stacked").local_sgd(worlds.ABLE, start, plan, ("sgd", 0)))
    assert calls == [(True, 2)] * 3
    few = {name: value[:4] for name, value in start.items()}
    alone = [
        list(
            Engine(net, data, seed=0, mode=mode).local_sgd(
                worlds.ABLE[:4], few, plan.for_clients(np.arange(4), parameters.pick(few, 0)), ("sgd", 0)
            )
        )
        for mode in MODES
    ]
    assert calls == [(True, 2)] * 3 + [(False, 1)] * 8
    assert worlds.same(alone[0][0].params, alone[1][0].params)


def noisy_gradient(network, params, batch):
    """The gradient of the cross-entropy of some samples, whose number each client draws."""
    sizes = (batch.weight > 0).sum(dim=1).tolist()
    counts = torch.tensor([int(own.integers(1, size + 1)) for size, own in zip(sizes, batch.draws, strict=True)])
    weight = batch.weight * (torch.arange(batch.y.shape[1]) < counts[:, None])
    return network.gradient(params, replace(batch, weight=weight))


@pytest.mark.parametrize("kind", KINDS)
def test_random_draws_of_a_gradient_rule_do_not_depend_on_other_clients(kind):
    data, net = worlds.federation(), make_network(kind, worlds.federation())
    start = parameters.repeat(parameters.copy_params(net), 3)
    plan = LocalSGD(epochs=2, batch_size=4, lr=[0.1, 0.1], gradient=noisy_gradient)
    trained = []
    processes = int(kind != "compiled chain")  # processes would not know that the test wants it compiled
    for mode, jobs in (("loop", 0), ("stacked", 0), ("stacked", processes)):
        engine = Engine(net, data, seed=0, mode=mode, jobs=jobs)
        (part,) = engine.local_sgd([6, 2, 0], start, plan, ("sgd", 0))
        engine.close()
        trained.append(part.params)
    for name, value in trained[0].items():
        torch.testing.assert_close(trained[1][name], value, rtol=1e-5, atol=1e-6)
    assert worlds.same(trained[1], trained[2])


@pytest.mark.parametrize("mode", MODES)
def test_bfloat16_training_is_close_and_keeps_float32_weights(mode):
    data = worlds.federation()
    net = make_network("chain", data)
    heads = []
    for precision in ("float32", "bfloat16"):
        plan = LocalSGD(epochs=2, batch_size=4, lr=[0.1, 0.1], precision=precision)
        (part,) = Engine(net, data, seed=0, mode=mode).local_sgd([0, 2], parameters.copy_params(net), plan, ("sgd", 0))
        heads.append(part.params["head.weight"])
    assert heads[1].dtype == torch.float32
    assert not torch.equal(*heads)
    torch.testing.assert_close(*heads, rtol=0.1, atol=0.02)


@pytest.mark.parametrize("mode", MODES)
def test_processes_give_the_same_bytes_as_threads(mode):
    data = worlds.federation()
    nets = [make_network("other", data, seed) for seed in range(6)]
    stack, own = (
        parameters.stack([parameters.copy_params(net) for net in nets[:3]]),
        parameters.stack([parameters.copy_params(net) for net in nets[3:]]),
    )
    shared = {"sign": torch.tensor(1.0)}
    plans = [
        LocalSGD(epochs=2, batch_size=4, lr=[0.1, 0.1], momentum=0.9, prox=(own, 0.1)),
        LocalSGD(epochs=1, batch_size=4, lr=[0.1], objective=interpolated_with_scale, own=own, shared=shared),
    ]
    outcomes = []
    for jobs in (0, 1, 2):
        engine = Engine(nets[0], data, seed=0, threads=2, mode=mode, jobs=jobs)
        parts = [next(engine.local_sgd([2, 1, 0], stack, plan, ("sgd", 0))) for plan in plans]
        outcomes.append(
            ({str(place): part.params for place, part in enumerate(parts)}, [p.loss.tolist() for p in parts])
        )
        engine.close()
    assert worlds.same(outcomes[0][0], outcomes[1][0])
    assert worlds.same(outcomes[0][0], outcomes[2][0])
    assert outcomes[0][1] == outcomes[1][1] == outcomes[2][1]


def interpolated_with_scale(model, params, batch):
    """The same without a learned scale."""
    return interpolated_loss(model, {**params, "scale": torch.ones(())}, batch)


def test_killed_worker_process_is_replaced_and_changes_no_byte():
    data = worlds.federation()
    net = make_network("chain", data)
    engine = Engine(net, data, seed=0, jobs=2)
    plan = LocalSGD(epochs=1, batch_size=4, lr=[0.1])

    def train():
        chunks = engine.local_sgd([0, 1, 2], parameters.copy_params(net), plan, ("sgd", 0))
        return [{name: value.clone() for name, value in chunk.params.items()} for chunk in chunks]

    warnings = []
    engine.warn = warnings.append
    expected = train()
    for worker in engine.executor._workers:
        worker._process.kill()
    found = train()
    engine.close()
    assert any("ended by signal 9" in warning for warning in warnings)
    for one, other in zip(expected, found, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_worker_processes_that_are_killed_again_by_a_task_raise_lost_worker_error(monkeypatch):
    data = worlds.federation()
    net = make_network("chain", data)
    engine = Engine(net, data, seed=0, jobs=1)
    plan = LocalSGD(epochs=1, batch_size=4, lr=[0.1])
    list(engine.local_sgd([0], parameters.copy_params(net), plan, ("sgd", 0)))
    send = processes._Worker.send

    def send_to_killed(worker, message):
        if isinstance(message, tuple):
            worker._process.kill()
            worker._process.wait()
        send(worker, message)

    monkeypatch.setattr(processes._Worker, "send", send_to_killed)
    with pytest.raises(LostWorkerError, match="ended by signal 9"):
        list(engine.local_sgd([0], parameters.copy_params(net), plan, ("sgd", 0)))
    engine.close()


def shared_memory_files():
    """The files in memory that this process has open."""
    paths = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            paths.append(str(link.readlink()))
    return [path for path in paths if "memfd:pfl" in path]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the open files of a process in /proc")
def test_close_releases_the_shared_memory_of_an_engine():
    data = worlds.federation()
    engine = Engine(make_network("chain", data), data, seed=0, jobs=1)
    while_open = len(shared_memory_files())
    engine.close()
    # That of the samples and that of the parameters; tensors that are still in use hold further ones.
    assert len(shared_memory_files()) == while_open - 2


def test_worker_process_ends_when_its_parent_has_ended():
    """Even if it does not read its pipe, as while it trains."""
    own_end, other_end = connection.Pipe()
    parent = "0"  # no process has this number, so the parent counts as ended
    words = [sys.executable, "-m", "pflcli.core.engine.executors.processes", str(other_end.fileno()), parent]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    worker = subprocess.Popen(words, pass_fds=(other_end.fileno(),), env=environment)
    try:
        assert worker.wait(timeout=60) == 1
    finally:
        worker.kill()
        worker.wait()
        own_end.close()
        other_end.close()


def test_client_chunks_fit_the_memory_limit(monkeypatch):
    monkeypatch.setattr("pflcli.core.engine.engine._CHUNK_BYTES", {"cpu": 100})
    run = worlds.run()
    clients = np.asarray([4, 0, 6, 2, 3])
    assert [ids.tolist() for ids in run.client_chunks(clients, 50)] == [[4, 0], [6, 2], [3]]
    assert [ids.tolist() for ids in run.client_chunks(clients, 1000)] == [[c] for c in clients]
    assert list(run.client_chunks(clients[:0], 50)) == []


def test_part_selects_parameters_and_repeat_stacks_them():
    params = {"body.0.weight": torch.ones(2), "head.weight": torch.zeros(3, 2)}
    assert list(parameters.part(params, "body.")) == ["body.0.weight"]
    assert parameters.repeat(params, 4)["head.weight"].shape == (4, 3, 2)
    with pytest.raises(UsageError, match="no parameters under"):
        parameters.part({"head.weight": torch.zeros(1)}, "body.")


def test_local_sgd_without_clients_yields_nothing():
    run = worlds.run()
    none = run.clients[:0]
    assert list(run.local_sgd(none, parameters.repeat(run.init, 0), t=0)) == []


def test_upper_counts_layers_in_network_order():
    names = ["body.2.weight", "body.2.bias", "body.10.weight", "head.weight", "head.bias"]
    params = dict.fromkeys(names, torch.zeros(1))
    assert parameters.upper(params, 2) == ("body.10.", "head.")
    assert parameters.upper(params, 9) == ("body.2.", "body.10.", "head.")


@pytest.mark.parametrize("mode", MODES)
def test_server_sgd_trains_on_rows_like_a_client(mode):
    run = worlds.run(mode=mode)
    rows = np.concatenate([run.federation.rows(3, "train"), run.federation.rows(0, "test")])
    actual = run.server_sgd(rows, run.init, t=4, epochs=2, momentum=0.5)
    plan = LocalSGD(epochs=2, batch_size=4, lr=[0.1] * 2, momentum=0.5)
    net = models.create("mlp", run.federation.in_shape, worlds.CLASSES, 0)
    expected = train_by_reference(net, run.federation.pooled(rows), 0, plan, ("server", 4), 0)
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=1e-5, atol=1e-6)


def test_server_sgd_raises_an_error_when_it_diverges():
    run = worlds.run()
    with pytest.raises(ComputationError, match="the server's parameters"):
        run.server_sgd(run.federation.rows(0, "train"), run.init, t="cloud", lr=1e20)


def test_client_that_trains_twice_in_a_round_is_recorded_once():
    run = worlds.run()
    for name in ("head", "body"):
        list(run.local_sgd([0, 2], run.init, t=0, name=name))
    assert run.notes.trained == {0, 2}
    assert len(run.notes.losses) == 4


class Reversed(Threads):
    """An executor that does everything in reverse order."""

    def run(self, tasks, start, out):
        losses = [*super().run(tasks[::-1], start, out)]
        yield from losses[::-1]

    def infer(self, tasks, models):
        return super().infer(tasks[::-1], models)[::-1]

    def each(self, work, count):
        return super().each(lambda place: work(count - 1 - place), count)[::-1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", ONE_OF_EACH_KIND)
def test_order_of_tasks_in_an_executor_changes_no_bit(method, mode, monkeypatch):
    plain = worlds.run(method, rounds=2, participation=1.0, mode=mode)
    monkeypatch.setattr("pflcli.core.engine.engine.Threads", Reversed)
    backwards = worlds.run(method, rounds=2, participation=1.0, mode=mode)
    assert isinstance(backwards.engine.executor, Reversed)
    state, other = worlds.play(method, plain), worlds.play(method, backwards)
    assert worlds.same(state, other)
    assert plain.notes.losses == backwards.notes.losses
    answers, others = worlds.answers(method, plain, state), worlds.answers(method, backwards, other)
    assert all(np.array_equal(p, others[split]) for split, p in answers.items())


def test_strategy_explains_how_clients_are_trained():
    explanations = []
    for model, settings in (("mlp", {}), ("cnn", {"precision": "bfloat16"}), ("mlp", {"precision": "bfloat16"})):
        shape = (1, 28, 28) if model == "cnn" else (worlds.FEATURES,)
        net, plan = models.create(model, shape, worlds.CLASSES, 0), LocalSGD(1, np.full(1, 0.1), 4, **settings)
        explanations.append(
            str(strategy.choose(WorkerNet.compile(net, shape, worlds.TASK), plan, strategy.fastest_mode(net, "cpu"), 3))
        )
    assert [text.split(":")[0] for text in explanations] == [
        "linear chain",
        "autograd, one client at a time",
        "stacks by torch.func",
    ]
    assert "bfloat16" in explanations[1]
    run, lines = worlds.run("fedavg", rounds=2), []
    run.engine.explain = lines.append
    worlds.play("fedavg", run)
    assert lines == [explanations[0]]


def test_inference_is_by_the_first_offer_that_is_no_reason_against_it(monkeypatch):
    def decline(worker, training):
        return "no"

    def accept(name, only_training=False):
        offered = strategy.Prediction(name, "as asked", strategy._load)
        return lambda worker, training: offered if training or not only_training else "no"

    def name_chosen(model, *offers, training=False):
        monkeypatch.setattr(strategy.backend, "offers", {"PREDICTION": offers}.__getitem__)
        shape = (1, 28, 28) if model == "cnn" else (worlds.FEATURES,)
        worker = WorkerNet.compile(models.create(model, shape, worlds.CLASSES, 0), shape, worlds.TASK)
        return strategy.choose_inference(worker, training=training).name

    assert name_chosen("mlp", decline, accept("first"), accept("second")) == "first"
    assert name_chosen("mlp", accept("loops", only_training=True), decline) == "linear chain"
    assert name_chosen("mlp", accept("loops", only_training=True), training=True) == "loops"
    assert name_chosen("cnn", decline) == "network"
    assert name_chosen("cnn", accept("program")) == "program"


@pytest.mark.compiled
def test_compiled_chains_support_layers_without_bias(monkeypatch):
    set_own_products(monkeypatch, True)
    monkeypatch.setattr(linear_chain, "LARGE", 0)
    data = worlds.federation()
    torch.manual_seed(0)
    layers = nn.Linear(worlds.FEATURES, 6, bias=False), nn.ReLU(), nn.Linear(6, 5)
    net = models.Net(nn.Sequential(nn.Flatten(), *layers), nn.Linear(5, worlds.CLASSES, bias=False))
    plan = LocalSGD(epochs=2, batch_size=4, lr=[0.1] * 2)
    chosen = [
        strategy.choose(WorkerNet.compile(each, data.in_shape, data.task), plan, "stacked", 2)
        for each in (net, copy.deepcopy(net).double())
    ]
    assert [each.train is not None for each in chosen] == [True, False]
    (part,) = Engine(net, data, seed=5).local_sgd([2, 4], parameters.copy_params(net), plan, ("sgd", 0))
    for place, client in enumerate([2, 4]):
        expected = train_by_reference(net, data, client, plan, ("sgd", 0), 5)
        for key, value in parameters.pick(part.params, place).items():
            torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize("most", [1, 64])
def test_compiled_predictions_match_the_network_of_each_client(features, most, monkeypatch):
    """In stacks of two, where no client has more than a few samples; a client without samples predicts none."""
    set_own_products(monkeypatch, True)
    monkeypatch.setattr(linear_chain, "LARGE", 0)
    monkeypatch.setattr(thread_executor, "_MODELS_PER_STACK", 2)
    monkeypatch.setitem(thread_executor.BATCH, "cpu", 1)
    monkeypatch.setattr(thread_executor, "_MAX_STACKED_SAMPLES", most)
    data, outputs = worlds.federation(), []
    net = models.create("mlp", data.in_shape, worlds.CLASSES, 0)
    own = parameters.stack(
        [parameters.copy_params(models.create("mlp", data.in_shape, worlds.CLASSES, i)) for i in range(7)]
    )
    for count, compiled in ((1, False), (1, True), (3, True)):
        engine = Engine(net, data, seed=0, threads=count)
        with engine.training() if compiled else nullcontext():
            outputs.append(engine.outputs_each(data.clients, own, "train", features=features))
        assert engine.passes.predicted == data.sizes("train").sum()
    for plain, first, second in zip(*outputs, strict=True):
        for expected, actual, same in zip(plain, first, second, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
            assert torch.equal(actual, same)


def test_single_thread_executor_uses_the_calling_thread():
    data = worlds.federation()
    net = make_network("chain", data)
    caller = threading.get_ident()
    assert set(Threads(net, data, 1).each(lambda _: threading.get_ident(), 3)) == {caller}
    assert caller not in Threads(net, data, 2).each(lambda _: threading.get_ident(), 3)


@pytest.mark.parametrize("mode", MODES)
def test_training_under_no_grad_is_the_same_for_any_number_of_threads(mode):
    data, trained = worlds.federation(), []
    net = make_network("other", data)
    for count in (1, 2):
        engine = Engine(net, data, seed=0, threads=count, mode=mode)
        with torch.no_grad():
            (part,) = engine.local_sgd(data.clients, parameters.copy_params(net), LocalSGD(1, 4, [0.1]), ("sgd", 0))
        trained.append(part.params)
    assert worlds.same(*trained)
