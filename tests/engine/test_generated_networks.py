"""Randomly generated networks train in the engine as by plain autograd in double precision.

A user's network may call a module twice, read a value before its ReLU, or use one value several times. Whatever form
the engine gives it (compiled, joined, chained, batched), losses, weights and running statistics equal autograd's.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import worlds
from pflcli.core import models, parameters
from pflcli.core.engine.executors import run_task
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.local_sgd import LocalSGD, batches
from pflcli.core.engine.strategy import WorkerNet
from pflcli.core.engine.tasks.classes import Classification
from pflcli.core.engine.trainer import Task
from pflcli.core.rng import generator

CLASSES, BATCH, EPOCHS = 3, 4, 2
SIZES = (9, 6, 2)
"""Training samples by client: a last batch of one, of two, and all samples as one batch."""


class Written(nn.Module):
    """A forward pass as a list of lines: (what, module or operator, values taken)."""

    def __init__(self, modules, lines):
        super().__init__()
        self.layers, self.lines = nn.ModuleList(modules), lines

    def forward(self, x):
        values = [x]
        for kind, module, inputs in self.lines:
            if kind == "module":
                values.append(self.layers[module](values[inputs[0]]))
            elif kind == "add":
                values.append(values[inputs[0]] + values[inputs[1]])
            elif kind == "relu":
                values.append(values[inputs[0]].relu())
            else:
                values.append(values[inputs[0]].add_(values[inputs[1]]))
        return values[-1]


def make_norm(channels):
    return nn.BatchNorm2d(channels)


def make_depthwise(draw, channels):
    return nn.Conv2d(channels, channels, 3, stride=draw.choice([1, 1, 2]), padding=1, groups=channels, bias=False)


def make_pointwise(draw, channels):
    return nn.Conv2d(channels, draw.choice([channels, channels, 6]), 1, bias=draw.random() < 0.1)


def draw_activation(draw):
    return draw.choice([nn.ReLU, nn.ReLU6])(inplace=draw.random() < 0.4)


def draw_layer(draw, channels):
    """A layer or a few for maps of so many channels, as the networks have that the engine knows, or nearly."""
    kind = draw.choice(
        ["depthwise", "depthwise", "pointwise", "norm", "act", "act", "pool", "sequence", "same", "conv"]
    )
    if kind == "depthwise":
        return make_depthwise(draw, channels)
    if kind == "pointwise":
        return make_pointwise(draw, channels)
    if kind == "norm":
        return make_norm(channels)
    if kind == "act":
        return draw_activation(draw)
    if kind == "pool":
        return draw.choice([nn.MaxPool2d(2), nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(2)])
    if kind == "conv":
        return nn.Conv2d(channels, channels, 3, padding=1)
    if kind == "same":
        return draw.choice([nn.Identity(), nn.Dropout(0.0)])
    return draw_sequence(draw, channels)


def draw_sequence(draw, channels):
    """A block as in MobileNet, or a convolution with pooling, perhaps with one activation module in two places."""
    act, shared = draw_activation(draw), draw.random() < 0.3
    if draw.random() < 0.5:
        first = [make_depthwise(draw, channels), make_norm(channels), act]
        return nn.Sequential(*first, nn.Conv2d(channels, channels, 1, bias=False), make_norm(channels))
    pool = nn.MaxPool2d(2)
    parts = [act, pool] if draw.random() < 0.3 else [nn.Conv2d(channels, channels, 3, padding=1), act, pool]
    if draw.random() < 0.5:
        again = nn.Conv2d(channels, channels, 3, padding=1)
        parts += [again, act if shared else draw_activation(draw), pool if shared else nn.MaxPool2d(2)][
            draw.choice([0, 1]) :
        ]
    return nn.Sequential(*parts)


def draw_image_network(draw):
    """A network of convolutions for images (2, 8, 8)."""
    modules = [
        nn.Conv2d(2, 4, 3, stride=draw.choice([1, 2]), padding=1, bias=False),
        make_norm(4),
        draw_activation(draw),
    ]
    lines = [("module", place, (place,)) for place in range(3)]
    shapes = [(2, 8, 8)]
    state = Written(modules, lines)
    with torch.no_grad():
        shapes += [tuple(Written(modules, lines[: n + 1])(torch.zeros(1, 2, 8, 8)).shape[1:]) for n in range(3)]
    for _ in range(draw.randint(1, 9)):
        latest = len(shapes) - 1
        source = latest if draw.random() < 0.7 else draw.randint(1, latest)
        alike = [n for n, shape in enumerate(shapes) if shape == shapes[source] and n]
        kind = draw.choice(["module", "module", "module", "again", "add", "add", "relu", "add_"])
        if kind in ("add", "add_"):
            line = (kind, None, (source, draw.choice(alike)))
        elif kind == "relu":
            line = (kind, None, (source,))
        elif kind == "again":
            line = ("module", draw.randint(1, len(modules) - 1), (source,))
        else:
            modules.append(draw_layer(draw, shapes[source][0]))
            line = ("module", len(modules) - 1, (source,))
        tried = Written(modules, [*lines, line])
        try:
            with torch.no_grad():
                shape = tuple(tried.eval()(torch.zeros(1, 2, 8, 8)).shape[1:])
        except RuntimeError:  # maps too small, or other channels
            continue
        if 0 in shape:
            continue
        lines, state = [*lines, line], tried
        shapes.append(shape)
    pool = nn.AdaptiveAvgPool2d(1) if draw.random() < 0.9 else nn.AdaptiveMaxPool2d(1)
    head = nn.Linear(shapes[-1][0], CLASSES)
    return models.Net(nn.Sequential(state, pool, nn.Flatten()), head), (2, 8, 8)


def draw_mobile_network(draw):
    """A network of the layers that there are programs for, wired in modes that there may be none for."""
    modules = [nn.Conv2d(2, 4, 3, stride=draw.choice([1, 2]), padding=1, bias=False), make_norm(4)]
    lines, values = [("module", 0, (0,)), ("module", 1, (1,))], [2]

    def call(module, value):
        if isinstance(module, int):
            lines.append(("module", module, (value,)))
        else:
            modules.append(module)
            lines.append(("module", len(modules) - 1, (value,)))
        return len(lines)

    for _ in range(draw.randint(1, 5)):
        value = values[-1] if draw.random() < 0.8 else draw.choice(values)
        after = call(draw_activation(draw), value) if draw.random() < 0.5 else value
        if draw.random() < 0.15:
            after = call(nn.Identity(), after)
        again = draw.random() < 0.1
        kind = Scaled if draw.random() < 0.05 else nn.Conv2d
        new_layer = kind(4, 4, 3, padding=1, groups=4, bias=False) if draw.random() < 0.6 else kind(4, 4, 1, bias=False)
        known = [place for place, module in enumerate(modules) if place and not isinstance(module, nn.BatchNorm2d)]
        output = call(draw.choice(known) if again and known else new_layer, after if draw.random() < 0.9 else value)
        norms = [place for place, module in enumerate(modules) if isinstance(module, nn.BatchNorm2d)]
        output = call(draw.choice(norms) if draw.random() < 0.08 else make_norm(4), output)
        if draw.random() < 0.5:
            lines.append(
                ("add", None, tuple(draw.sample([draw.choice([after, value, draw.choice(values)]), output], 2)))
            )
            output = len(lines)
        values.append(output)
    modules += [make_depthwise(draw, 4), make_norm(4)]
    lines += [("module", len(modules) - 2, (values[-1],)), ("module", len(modules) - 1, (len(lines) + 1,))]
    return models.Net(nn.Sequential(Written(modules, lines), nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(4, 3)), (
        2,
        8,
        8,
    )


class Scaled(nn.Conv2d):
    """A convolution of the user's own, whose weights are scaled."""

    def forward(self, x):
        return self._conv_forward(x, 2 * self.weight, self.bias)


def draw_sequential(draw):
    """A plain Sequential of convolutions and pooling for images (2, 8, 8), some modules in two places."""
    act, pool, conv = draw_activation(draw), nn.MaxPool2d(2), nn.Conv2d(3, 3, 3, padding=1)
    parts = [nn.Conv2d(2, 3, 3, padding=1)]
    for _ in range(draw.randint(1, 6)):
        parts.append(draw.choice([act, act, pool, nn.ReLU(), conv, nn.MaxPool2d(2), make_norm(3), nn.Identity()]))
    return models.Net(nn.Sequential(*parts, nn.AdaptiveAvgPool2d(2), nn.Flatten()), nn.Linear(12, CLASSES)), (2, 8, 8)


def draw_linear_chain(draw):
    """A chain of linear layers for samples (2, 3), some modules in two places."""
    act, again = nn.ReLU(inplace=draw.random() < 0.5), nn.Linear(5, 5, bias=draw.random() < 0.7)
    parts = [nn.Flatten(), nn.Linear(6, 5)]
    for _ in range(draw.randint(0, 5)):
        new_layers = [nn.Linear(5, 5, bias=draw.random() < 0.7), nn.ReLU(), nn.Identity(), nn.Dropout(0.0)]
        parts.append(
            draw.choice([act, act, again, *new_layers, nn.BatchNorm1d(5), nn.Sequential(nn.Linear(5, 5), act)])
        )
    if draw.random() < 0.2:
        tied = nn.Linear(5, 5)
        tied.weight = again.weight
        parts += [again, tied]
    return models.Net(nn.Sequential(*parts), nn.Linear(5, CLASSES)), (2, 3)


KINDS = {
    "images": draw_image_network,
    "mobile": draw_mobile_network,
    "sequential": draw_sequential,
    "linear": draw_linear_chain,
}


def make_samples(shape, seed):
    draw = np.random.default_rng(seed)
    x = torch.from_numpy(draw.normal(size=(sum(SIZES), *shape)))
    y = torch.from_numpy(draw.integers(0, CLASSES, len(x)))
    return Federation(x, y, np.cumsum([0, *(n for size in SIZES for n in (size, 0, 0))]), Classification(CLASSES))


PLAN = LocalSGD(epochs=EPOCHS, batch_size=BATCH, lr=np.asarray([0.05, 0.02]))


def train_by_autograd(net, data, client, key):
    """One client's local SGD by plain autograd."""
    net = copy.deepcopy(net).train()
    draw, rows = generator(0, *key, client), torch.from_numpy(data.rows(client, "train"))
    losses = []
    joins = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in net.modules())
    for epoch in range(EPOCHS):
        for batch in batches(rows[torch.from_numpy(draw.permutation(len(rows)))], BATCH, join_single=joins):
            loss = functional.cross_entropy(net(data.x[batch]), data.y[batch])
            grads = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True, materialize_grads=True)
            with torch.no_grad():
                for value, grad in zip(net.parameters(), grads, strict=True):
                    value -= float(PLAN.lr[epoch]) * grad
            losses.append(loss.item())
    return np.mean(losses), parameters.copy_params(net)


def check_modes_agree(draw, kind):
    """Train clients in both modes and by autograd; returns whether the network has a program of its own."""
    torch.manual_seed(draw.randint(0, 10**6))
    net, shape = KINDS[kind](draw)
    net = net.double()
    data, key = make_samples(shape, draw.randint(0, 10**6)), ("sgd", 0)
    try:
        expected = [train_by_autograd(net, data, client, key) for client in range(len(SIZES))]
    except RuntimeError:  # a value that autograd needs was changed in place: no network at all
        return None
    except ValueError:  # batch normalization of one value
        return None
    start = parameters.copy_params(net)
    # Where a norm meets one or two values the gradient is ill-conditioned: nothing can be told from it.
    if not all(value.abs().max() < 1e3 for _, params in expected for value in params.values()):
        return None
    clients = np.arange(len(SIZES))
    for mode in ("loop", "stacked"):
        worker_net = WorkerNet.compile(copy.deepcopy(net), shape, worlds.TASK)
        out = {name: torch.empty((len(SIZES), *value.shape), dtype=value.dtype) for name, value in start.items()}
        losses = run_task(Task(mode, np.arange(len(SIZES)), clients, PLAN, 0, key), worker_net, data, start, out)
        for place, (loss, params) in enumerate(expected):
            assert losses[place] == pytest.approx(loss, rel=1e-6, abs=1e-9), mode
            assert params.keys() == out.keys()
            for name, value in params.items():
                torch.testing.assert_close(out[name][place], value, rtol=1e-5, atol=1e-7)
    return worker_net.program is not None


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(draw=st.randoms(use_true_random=False))
def test_generated_networks_train_like_autograd(kind, draw):
    assume(check_modes_agree(draw, kind) is not None)
