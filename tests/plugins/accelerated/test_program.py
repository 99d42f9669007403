"""Networks as programs: gradients against autograd in double precision, and which networks there is one for."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import worlds
from pflcli.core import models, parameters
from pflcli.core.engine import backend, strategy
from pflcli.core.engine.engine import Engine
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.local_sgd import LocalSGD
from pflcli.core.engine.strategy import WorkerNet
from pflcli.core.engine.tasks.classes import Classification
from pflcli.core.engine.trainer import Task, Worker
from pflcli.methods import per_fedavg
from pflcli.plugins.accelerated import graph, loops, products, program
from pflcli.plugins.accelerated.layers import Move
from pflcli.plugins.accelerated.program import CompiledNetwork


def run_step(compiled, x, y, names=None, moves=None):
    """Return the cross-entropy of a batch, and write its gradients or take the moves."""
    logits, _ = compiled.forward(x)
    weight = logits.new_full((1, len(x)), 1 / len(x))
    losses, grad = worlds.TASK.mean_losses(logits[None], y[None], weight)
    compiled.backward(len(x), grad[0], names=names, moves=moves)
    return losses[0]


def make_depthwise(channels, stride=1, **how):
    return nn.Conv2d(channels, channels, 3, stride=stride, padding=1, groups=channels, bias=False, **how)


class Block(nn.Module):
    """A residual block whose sum is taken by two, like MobileNet's, but with ReLU."""

    def __init__(self, channels):
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(channels, 7, 1, bias=False),
            nn.BatchNorm2d(7),
            nn.ReLU(),
            make_depthwise(7),
            nn.BatchNorm2d(7),
            nn.ReLU6(inplace=True),
            nn.Conv2d(7, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x):
        return x + self.inner(x)


class Shared(nn.Module):
    """A value that a depthwise convolution takes beside a sum."""

    def __init__(self, channels):
        super().__init__()
        self.inner = nn.Sequential(make_depthwise(channels), nn.BatchNorm2d(channels))

    def forward(self, x):
        return self.inner(x) + x


def make_body(*layers, first=None):
    first = first or nn.Conv2d(2, 4, 5, stride=2, padding=1, bias=False)
    return nn.Sequential(first, nn.BatchNorm2d(4), nn.ReLU6(), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def make_small():
    return models.Net(make_body(Block(4), Block(4), make_depthwise(4, 2), nn.BatchNorm2d(4)), nn.Linear(4, 3))


def make_capped():
    """Normalized values far beyond the 6 at which ReLU6 ends."""
    net = make_small()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.constant_(module.weight, 10.0)
    return net


def make_shared():
    return models.Net(make_body(Shared(4), Block(4), Shared(4), Shared(4)), nn.Linear(4, 3))


def make_pooled(*how, inputs=2, outputs=5, **options):
    return nn.Conv2d(inputs, outputs, *how, **options), nn.ReLU(), nn.MaxPool2d(2)


def make_uneven():
    """Odd maps, padding of more than the kernel needs, channels that fill no vector, two linear layers."""
    first, second = make_pooled(4, padding=3), make_pooled(5, inputs=5, outputs=19, padding=4)
    linear = nn.Linear(19 * 7 * 6, 18), nn.ReLU(), nn.Linear(18, 7)
    return models.Net(nn.Sequential(*first, *second, nn.Flatten(), *linear), nn.Linear(7, 3))


def make_averaged():
    """A CNN with batch normalization between convolutions, and a mean over all pixels."""
    layers = (
        *make_pooled(3),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        *make_pooled(5, inputs=5, outputs=4),
        nn.AdaptiveAvgPool2d(1),
    )
    return models.Net(nn.Sequential(*layers, nn.Flatten()), nn.Linear(4, 3))


NETS = {
    "cnn": (lambda: models.create("cnn", (1, 28, 28), 3, 0), (1, 28, 28)),
    "cnn, colours": (lambda: models.create("cnn", (3, 32, 32), 3, 0), (3, 32, 32)),
    "cnn-valid": (lambda: models.create("cnn-valid", (1, 28, 28), 3, 0), (1, 28, 28)),
    "uneven": (make_uneven, (2, 17, 13)),
    "averaged": (make_averaged, (2, 18, 17)),
    "small": (make_small, (2, 9, 6)),
    "capped": (make_capped, (2, 9, 6)),
    "shared": (make_shared, (2, 9, 6)),
    "mobilenet-v2": (lambda: models.create("mobilenet-v2", (3, 32, 32), 3, 0), (3, 32, 32)),
    "mobilenet-v2, grey": (lambda: models.create("mobilenet-v2", (1, 28, 28), 3, 0), (1, 28, 28)),
    "mobilenet-v2, large": (lambda: models.create("mobilenet-v2", (3, 64, 40), 3, 0), (3, 64, 40)),
}


@pytest.fixture(params=[False, True], ids=["PyTorch's products", "own products"])
def own_products(request, monkeypatch):
    monkeypatch.setattr(products, "COMPILED", request.param)


@pytest.mark.parametrize("case", NETS)
def test_program_gradients_and_statistics_match_autograd(case, own_products):
    if products.COMPILED and case in ("mobilenet-v2, grey", "mobilenet-v2, large"):
        pytest.skip("the products differ in their sizes alone")
    build, shape = NETS[case]
    draw = torch.Generator().manual_seed(1)
    plain = build().double().train()
    other = copy.deepcopy(plain)
    compiled = backend.program(other, shape)
    # The memory grows, and serves smaller batches too. Of very few samples a norm over 1x1 maps is ill-conditioned.
    for n in (12, 9, 16, 12, *([1] if case in ("cnn", "uneven") else [])):
        x = torch.rand(n, *shape, generator=draw, dtype=torch.double)
        y = torch.randint(0, 3, (n,), generator=draw)
        loss = functional.cross_entropy(plain(x), y)
        grads = torch.autograd.grad(loss, list(plain.parameters()))
        torch.testing.assert_close(run_step(compiled, x, y), loss.detach())
        for (name, _), grad in zip(plain.named_parameters(), grads, strict=True):
            torch.testing.assert_close(compiled.grads[name], grad, rtol=1e-6, atol=1e-9, msg=name)
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(other.state_dict()[name], value, msg=name)


def test_program_gradients_are_accurate_in_single_precision(own_products):
    """Winograd's transforms cost a digit at most."""
    exact = models.create("cnn", (1, 28, 28), 3, 0).double().train()
    draw = torch.Generator().manual_seed(2)
    x, y = torch.rand(8, 1, 28, 28, generator=draw, dtype=torch.double), torch.arange(8) % 3
    expected = torch.autograd.grad(functional.cross_entropy(exact(x), y), list(exact.parameters()))
    compiled = backend.program(copy.deepcopy(exact).float(), (1, 28, 28))
    run_step(compiled, x.float(), y)
    for (name, _), grad in zip(exact.named_parameters(), expected, strict=True):
        difference = (compiled.grads[name] - grad).abs().max() / grad.abs().max()
        assert difference < 1e-4, name


def test_program_convolution_has_a_small_rounding_error():
    """2e-6 of the outputs' deviation in the mean, where the direct sum has 4e-7."""
    draw = torch.Generator().manual_seed(3)
    conv = nn.Conv2d(32, 64, 5).double()
    first = nn.Sequential(nn.Conv2d(1, 32, 1).double(), nn.ReLU(), nn.MaxPool2d(2))
    layers = nn.Sequential(*first, conv, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    exact = models.Net(layers, nn.Linear(64 * 9, 3).double())
    images = torch.randn(9, 1, 20, 20, generator=draw, dtype=torch.double)
    _, z = backend.program(copy.deepcopy(exact).float(), (1, 20, 20)).forward(images.float())
    with torch.no_grad():
        deviation = conv(first(images)).std()
        error = (z - exact.body(images)) / deviation
    assert error.square().mean().sqrt() < 3e-6
    assert error.abs().max() < 2e-5


def test_program_updates_linear_weights_within_products_like_autograd(own_products):
    draw = torch.Generator().manual_seed(4)
    plain = make_uneven().double().train()
    other = copy.deepcopy(plain)
    x, y = torch.rand(9, 2, 17, 13, generator=draw, dtype=torch.double), torch.arange(9) % 3
    expected, compiled = backend.program(plain, (2, 17, 13)), backend.program(other, (2, 17, 13))
    assert compiled.linear == {"body.7.weight", "body.9.weight", "head.weight"}
    run_step(expected, x, y)
    before = {name: value.clone() for name, value in other.state_dict().items()}
    elsewhere = torch.ones(3, 7, dtype=torch.double)
    run_step(compiled, x, y, moves={"head.weight": Move(elsewhere, 0.0)})  # a rate may fall to zero
    anchor, drift = (torch.rand(18, 19 * 7 * 6, generator=draw, dtype=torch.double) for _ in range(2))
    own = Move(other.body[7].weight.detach(), 0.5, anchor, 0.25, drift)
    run_step(compiled, x, y, moves={"body.7.weight": own, "head.weight": Move(elsewhere, 0.25)})
    torch.testing.assert_close(elsewhere, 1 - 0.25 * expected.grads["head.weight"])
    for name, value in other.state_dict().items():
        if name == "body.7.weight":
            gradient = expected.grads[name] + drift
            torch.testing.assert_close(value, 0.75 * before[name] + 0.25 * anchor - 0.5 * gradient)
        else:
            assert torch.equal(value, before[name])
        if name not in {"body.7.weight", "head.weight"}:
            torch.testing.assert_close(compiled.grads[name], expected.grads[name], msg=name)


def test_backward_stops_at_the_lowest_trained_layer():
    net = make_uneven().train()
    compiled, x, y = backend.program(net, (2, 17, 13)), torch.rand(4, 2, 17, 13), torch.arange(4) % 3
    run_step(compiled, x, y)
    expected = {name: grad.clone() for name, grad in compiled.grads.items()}
    for names, absent in ((["head.bias"], "body.9.weight"), (["body.7.weight"], "body.3.weight")):
        for grad in compiled.grads.values():
            grad.fill_(torch.nan)
        run_step(compiled, x, y, names=names)
        for name in names:
            assert torch.equal(compiled.grads[name], expected[name])
        assert compiled.grads[absent].isnan().all()


def test_cross_entropy_sums_many_improbable_classes_accurately():
    """Each alone is less than the last digit of the sum in single precision."""
    logits = np.full((1, 100_000), -17, np.float32)
    logits[0, 0] = 0
    grad = np.empty_like(logits)
    loss = loops.cross_entropy(logits, np.zeros(1, np.int64), np.ones(1, np.float32), 2.0, grad)
    assert loss == pytest.approx(np.log1p(99_999 * np.exp(-17)), rel=1e-5)
    assert grad[0, 0] == pytest.approx(2 * np.expm1(-loss), rel=1e-3)
    assert grad[0, 1:].sum() == pytest.approx(-grad[0, 0], rel=1e-3)


def test_program_propagates_nan():
    """A client that diverges must be seen to."""
    net = make_cnn().train()
    compiled = backend.program(net, (2, 8, 8))
    x = torch.rand(3, 2, 8, 8)
    x[1] = torch.nan
    logits, _ = compiled.forward(x)
    assert logits[1].isnan().all()
    assert logits[[0, 2]].isfinite().all()


def test_program_max_pooling_breaks_ties_like_pytorch():
    """The first of equal ones, as the patches of constant images are equal, and none where none is positive."""
    net = make_cnn().double().train()
    for level in (0.0, 0.7):
        x, y = torch.full((2, 2, 8, 8), level, dtype=torch.double), torch.tensor([0, 1])
        compiled = backend.program(net, (2, 8, 8))
        loss = run_step(compiled, x, y)
        expected = functional.cross_entropy(net(x), y)
        torch.testing.assert_close(loss, expected.detach())
        for (name, _), grad in zip(
            net.named_parameters(), torch.autograd.grad(expected, list(net.parameters())), strict=True
        ):
            torch.testing.assert_close(compiled.grads[name], grad, msg=name)


def test_program_reads_current_parameters():
    net = make_small().train()
    compiled, x, y = backend.program(net, (2, 8, 8)), torch.rand(4, 2, 8, 8), torch.arange(4) % 3
    before = run_step(compiled, x, y)
    with torch.no_grad():
        net.head.weight.zero_()
        net.head.bias.zero_()
    assert float(before) != pytest.approx(np.log(3), rel=1e-6)
    assert float(run_step(compiled, x, y)) == pytest.approx(np.log(3), rel=1e-6)


@pytest.mark.parametrize("size", [2, 30])
@pytest.mark.parametrize("turned", [False, True])
def test_program_reads_and_updates_linear_weights_in_place(size, turned, own_products):
    """Also for more samples than a layer has inputs; a weight in another order of memory is copied."""
    net, other = make_uneven().double(), make_uneven().double()
    compiled, draw = backend.program(net, (2, 17, 13)), torch.Generator().manual_seed(0)
    x, y = torch.randn(size, 2, 17, 13, generator=draw).double(), torch.randint(3, (size,), generator=draw)
    params = {name: value + 0.1 for name, value in parameters.copy_params(other).items()}
    if turned:
        params["body.9.weight"] = params["body.9.weight"].t().contiguous().t()
    other.load_state_dict(params)
    expected = functional.cross_entropy(other(x), y)
    expected_grads = dict(zip(params, torch.autograd.grad(expected, list(other.parameters())), strict=True))
    start, before = parameters.copy_params(net), compiled.forward(x)[0].clone()
    moves = {name: Move(params[name], 1.0) for name in compiled.linear if params[name].is_contiguous()}
    unmoved = {name: params[name].clone() for name in moves}
    with compiled.model(params):
        loss = run_step(compiled, x, y, moves=moves)
    torch.testing.assert_close(loss, expected.detach())
    for name, value in expected_grads.items():
        torch.testing.assert_close(unmoved[name] - params[name] if name in moves else compiled.grads[name], value)
    assert len(moves) == (2 if turned else 3)
    for name, value in net.named_parameters():
        assert torch.equal(value, start[name]) == (name in moves)
    net.load_state_dict(start)
    torch.testing.assert_close(compiled.forward(x)[0], before)  # it has forgotten the model


def test_program_is_deterministic():
    draws = []
    for _ in range(2):
        torch.manual_seed(0)
        compiled = backend.program(make_small().train(), (2, 8, 8))
        run_step(compiled, torch.rand(6, 2, 8, 8), torch.arange(6) % 3)
        draws.append(torch.cat([value.flatten() for value in compiled.grads.values()]))
    assert torch.equal(*draws)


class Twice(nn.Module):
    def forward(self, x):
        return x + x


class Forked(nn.Module):
    """Two branches beside the value itself, whose sums come after both."""

    def __init__(self):
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4))
        self.two = nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4))

    def forward(self, x):
        one, two = self.one(x), self.two(x)
        return one + x + two


class Stem(nn.Module):
    """The images beside a convolution of theirs, or two convolutions of the images."""

    def __init__(self, convolutions):
        super().__init__()
        self.inner = nn.ModuleList(
            nn.Sequential(nn.Conv2d(2, 2, 3, padding=1, bias=False), nn.BatchNorm2d(2)) for _ in range(convolutions)
        )

    def forward(self, x):
        outputs = [inner(x) for inner in self.inner]
        return outputs[0] + (outputs[1] if outputs[1:] else x)


class Idle(nn.Module):
    """A branch that nobody takes."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4))

    def forward(self, x):
        self.inner(x)
        return x


def make_stemmed(convolutions):
    layers = (Stem(convolutions), make_depthwise(2), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return models.Net(nn.Sequential(*layers), nn.Linear(2, 3))


class Scaled(nn.Module):
    def forward(self, x):
        return 2 * x


class Standardized(nn.Conv2d):
    """A convolution of the user's own."""

    def forward(self, x):
        return self._conv_forward(x, self.weight / self.weight.std(), self.bias)


class Before(nn.Module):
    """A norm's output from before its ReLU, taken after it."""

    def __init__(self):
        super().__init__()
        self.one, self.two = make_norm(), make_norm()
        self.act, self.conv = nn.ReLU(), make_depthwise(4)

    def forward(self, x):
        value = self.one(x)
        return value + self.two(self.conv(self.act(value)))


def make_norm():
    return nn.BatchNorm2d(4)


def make_reused(module):
    return models.Net(make_body(module, make_norm(), nn.ReLU(), module, make_norm()), nn.Linear(4, 3))


def make_tied():
    one, two = make_depthwise(4), make_depthwise(4)
    two.weight = one.weight
    return models.Net(make_body(one, make_norm(), two, make_norm()), nn.Linear(4, 3))


def make_twice_normalized():
    same = make_norm()
    return models.Net(make_body(make_depthwise(4), same, nn.ReLU(), make_depthwise(4), same), nn.Linear(4, 3))


def make_cnn(second=(), last=(), **first):
    """A small CNN, some of whose layers may be others."""
    layers = [*(second or make_pooled(5, inputs=4, padding=2)), nn.Flatten()]
    body = nn.Sequential(
        *make_pooled(5, outputs=4, padding=2, **first), *layers, nn.Linear(20, 6), *(last or [nn.ReLU()])
    )
    return models.Net(body, nn.Linear(6, 3))


class BesideItsPool(nn.Module):
    """A convolution whose output is taken beside its pooling."""

    def __init__(self):
        super().__init__()
        self.conv, self.relu, self.pool = make_pooled(5, inputs=4, outputs=5, padding=2)

    def forward(self, x):
        before = self.conv(x)
        return self.pool(self.relu(before)) + before[..., ::2, ::2]


UNKNOWN = {
    "a CNN whose convolutions have no bias": lambda: make_cnn(bias=False),
    "a CNN with dilation": lambda: make_cnn(dilation=1, stride=1, groups=2),
    "a CNN with a convolution that is not 5x5": lambda: make_cnn(make_pooled(3, inputs=4, padding=1)),
    "a CNN without ReLU": lambda: make_cnn((nn.Conv2d(4, 5, 5, padding=2), nn.MaxPool2d(2))),
    "a CNN without pooling": lambda: make_cnn((nn.Conv2d(4, 5, 5, padding=2), nn.ReLU(), nn.AdaptiveMaxPool2d(2))),
    "a CNN with other pooling": lambda: make_cnn((nn.Conv2d(4, 5, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2))),
    "a CNN with overlapping pools": lambda: make_cnn(
        (nn.Conv2d(4, 5, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True))
    ),
    "a CNN with another activation": lambda: make_cnn(last=[nn.Tanh()]),
    "a CNN with dropout": lambda: make_cnn(last=[nn.ReLU(), nn.Dropout(0.1)]),
    "a CNN whose maps are used twice": lambda: make_cnn([BesideItsPool()]),
    "no depthwise convolution": lambda: models.Net(make_body(make_norm()), nn.Linear(4, 3)),
    "a bias": lambda: models.Net(make_body(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), make_depthwise(4)), nn.Linear(4, 3)),
    "another activation": lambda: models.Net(make_body(make_depthwise(4), nn.GELU()), nn.Linear(4, 3)),
    "a norm without statistics": lambda: models.Net(
        make_body(make_depthwise(4), nn.BatchNorm2d(4, track_running_stats=False)), nn.Linear(4, 3)
    ),
    "norms of different momentum": lambda: models.Net(
        make_body(make_depthwise(4), nn.BatchNorm2d(4, momentum=0.5)), nn.Linear(4, 3)
    ),
    "a dilated convolution": lambda: models.Net(
        make_body(make_depthwise(4), nn.BatchNorm2d(4), first=nn.Conv2d(2, 4, 3, dilation=2, bias=False)),
        nn.Linear(4, 3),
    ),
    "padding with more than zeros": lambda: models.Net(
        make_body(make_depthwise(4, padding_mode="reflect"), make_depthwise(4)), nn.Linear(4, 3)
    ),
    "a sum of a value with itself": lambda: models.Net(
        make_body(make_depthwise(4), nn.BatchNorm2d(4), Twice()), nn.Linear(4, 3)
    ),
    "sums that come after other branches": lambda: models.Net(
        make_body(make_depthwise(4), nn.BatchNorm2d(4), Forked()), nn.Linear(4, 3)
    ),
    "a sum with the images": lambda: make_stemmed(1),
    "two first convolutions": lambda: make_stemmed(2),
    "a branch that nobody takes": lambda: models.Net(
        make_body(make_depthwise(4), nn.BatchNorm2d(4), Idle()), nn.Linear(4, 3)
    ),
    "an operator that is not a layer": lambda: models.Net(make_body(make_depthwise(4), Scaled()), nn.Linear(4, 3)),
    "a layer in two places": lambda: make_reused(make_depthwise(4)),
    "a norm in two places": make_twice_normalized,
    "two layers with the same weights": make_tied,
    "a value from before its ReLU": lambda: models.Net(make_body(make_depthwise(4), Before()), nn.Linear(4, 3)),
    "a convolution of the user's own": lambda: models.Net(
        make_body(Standardized(4, 4, 1, bias=False), make_norm(), make_depthwise(4), make_norm()), nn.Linear(4, 3)
    ),
    "dropout": lambda: models.Net(make_body(make_depthwise(4)), nn.Sequential(nn.Dropout(0.2), nn.Linear(4, 3))),
    "no bias of the head": lambda: models.Net(make_body(make_depthwise(4)), nn.Linear(4, 3, bias=False)),
    "two linear layers": lambda: models.Net(
        make_body(make_depthwise(4)), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    ),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_unsupported_networks_have_no_program(case):
    net = UNKNOWN[case]()
    net(torch.rand(2, 2, 8, 8))  # it is a network
    assert graph.read(net, (2, 8, 8)) is None
    assert backend.program(net, (2, 8, 8)) is None


def test_supported_network_has_a_graph():
    assert graph.read(make_small(), (2, 8, 8)) is not None


def test_large_images_have_no_program():
    assert backend.program(make_small(), (2, 65, 8)) is None


def loss_with_squares(logits, z, params, batch):
    """Return the cross-entropy plus the mean squared representation."""
    return batch.loss(logits) + batch.mean(z.square().sum(dim=2))


PLANS = {
    "sgd": {},
    "momentum and decay": {"momentum": 0.9, "weight_decay": 0.01},
    "adam": {"optimizer": "adam"},
    "head alone": {"trainable": "head."},
    "weights of the head alone": {"trainable": "head.weight"},
    "frozen norm": {"frozen_norm": True},
    "rule": {"loss": loss_with_squares},
    "rule of the head": {"loss": loss_with_squares, "trainable": "head."},
    "rule with momentum": {"loss": loss_with_squares, "momentum": 0.9},
    "padded halves": {"pass_rule": partial(per_fedavg._passes, alpha=0.1)},
}


@pytest.mark.parametrize("build", [make_small, lambda: make_cnn()], ids=["small", "cnn"])
@pytest.mark.parametrize("case", PLANS)
def test_client_trained_by_the_program_matches_autograd(case, build, monkeypatch):
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (11, 2, 8, 8), dtype=np.uint8)
    data = Federation(
        torch.from_numpy(x), torch.from_numpy(draw.integers(0, 3, 11)), np.asarray([0, 11, 11, 11]), Classification(3)
    )
    plan = LocalSGD(epochs=2, batch_size=4, lr=np.full(2, 0.05), **PLANS[case])
    start = {name: value.clone() for name, value in build().double().state_dict().items()}
    results, passes = [], []
    original = program.Program.backward
    monkeypatch.setattr(program.Program, "backward", lambda *args: passes.append(1) or original(*args))
    monkeypatch.setattr(Federation, "inputs", lambda self, rows: self.x[rows].double() / 255)
    for compiled in (True, False):
        if not compiled:
            monkeypatch.setattr(program, "compile_network", lambda net, layers: None)
        net = build().double()
        out = {name: torch.empty_like(value)[None] for name, value in start.items()}
        worker_net, only = WorkerNet.compile(net, data.in_shape, data.task), np.zeros(1, np.int64)
        worker = Worker(worker_net, strategy.choose(worker_net, plan, "loop", 1), data)
        loss = worker.train(Task("loop", only, only, plan, 5, ()), start, out)[0]
        results.append((loss, parameters.pick(out, 0)))
    per_step = 2 if "pass_rule" in PLANS[case] else 0 if case == "frozen norm" and list(net.buffers()) else 1
    assert len(passes) == 6 * per_step
    (loss, out), (expected_loss, expected) = results
    assert loss == pytest.approx(expected_loss, rel=1e-9)
    for name, value in expected.items():
        torch.testing.assert_close(out[name], value, rtol=1e-6, atol=1e-8, msg=name)


@pytest.mark.parametrize(
    ("build", "how"), [(make_small, {"threads": 3}), (make_small, {"jobs": 2}), (make_uneven, {"threads": 3})]
)
def test_program_training_gives_the_same_bytes_with_threads_and_jobs(build, how):
    draw = np.random.default_rng(0)
    sizes = [9, 30, 4, 17, 12]
    rows = np.cumsum([0, *(part for size in sizes for part in (size, 0, 0))])
    shape = (2, 9, 6) if build is make_small else (2, 17, 13)
    x = torch.from_numpy(draw.integers(0, 256, (rows[-1], *shape), dtype=np.uint8))
    data = Federation(x, torch.from_numpy(draw.integers(0, 3, len(x))), rows, Classification(3))
    plan = LocalSGD(epochs=2, batch_size=8, lr=np.full(2, 0.05))
    torch.manual_seed(0)
    net = build()
    assert backend.program(net, shape)
    results = []
    for options in ({"threads": 1}, how):
        engine = Engine(copy.deepcopy(net), data, seed=0, mode="loop", **options)
        (part,) = engine.local_sgd(range(5), parameters.copy_params(net), plan, ("a",))
        engine.close()
        results.append(part.params)
    for name, value in results[0].items():
        assert torch.equal(results[1][name], value), name


def test_program_predictions_do_not_depend_on_the_number_of_threads():
    draw = np.random.default_rng(0)
    x = torch.from_numpy(draw.integers(0, 256, (150, 2, 17, 13), dtype=np.uint8))
    data = Federation(x, torch.from_numpy(draw.integers(0, 3, 150)), np.asarray([0, 150, 150, 150]), Classification(3))
    net = make_uneven().eval()
    rows = np.arange(150)
    with torch.no_grad():
        expected = net(data.inputs(torch.from_numpy(rows)))
    answers = []
    for threads in (1, 3):
        engine = Engine(copy.deepcopy(net), data, seed=0, threads=threads)
        answers.append(engine.infer(parameters.copy_params(net), rows, features=True))
        few, _ = engine.infer(parameters.copy_params(net), rows[140:], features=True)
        engine.close()
        torch.testing.assert_close(few, expected[140:])
    torch.testing.assert_close(answers[0][0], expected)
    for one, other in zip(*answers, strict=True):
        assert torch.equal(one, other)


def test_program_outputs_survive_the_next_batch():
    """A rule may pass several batches before it uses the outputs."""
    net = make_uneven().train()
    network = CompiledNetwork(net, [name for name, _ in net.named_parameters()], backend.program(net, (2, 17, 13)))
    models = {name: value[None].clone() for name, value in parameters.copy_params(net).items()}
    first = network.forward(models, torch.zeros(1, 4, 2, 17, 13))
    before = first.logits.clone(), first.z.clone()
    network.forward(models, torch.ones(1, 4, 2, 17, 13))
    assert torch.equal(first.logits, before[0])
    assert torch.equal(first.z, before[1])
