"""Every form of a convolution against the plain one, gradients in double precision too."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad
from torch.nn import functional

from pflcli import models
from pflcli.accelerated import operators
from pflcli.accelerated.operators import ChannelsLast, PixelLinear, RectifiedPool, SmallDepthwise


def formed(conv, form):
    other = copy.deepcopy(conv)
    other.__class__ = form
    return other


def agree(conv, form, x):
    x = x.double().requires_grad_()
    conv = conv.double()
    other = formed(conv, form)
    draw = torch.randn_like(conv(x))
    for net in (conv, other):
        net(x).mul(draw).sum().backward()
    torch.testing.assert_close(other(x), conv(x))
    for a, b in zip(other.parameters(), conv.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    inputs = []
    for net in (conv, other):
        (grad,) = torch.autograd.grad(net(x).mul(draw).sum(), x)
        inputs.append(grad)
    torch.testing.assert_close(*inputs)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(1, 1), (1, 2), (2, 1), (2, 2), (3, 4), (5, 5)])
def test_small_depthwise(size, stride):
    conv = nn.Conv2d(6, 6, 3, stride=stride, padding=1, groups=6, bias=False)
    agree(conv, SmallDepthwise, torch.randn(3, 6, *size))


@pytest.mark.parametrize("bias", [True, False])
def test_pixel_linear(bias):
    agree(nn.Conv2d(6, 4, 1, bias=bias), PixelLinear, torch.randn(3, 6, 1, 1))


@pytest.mark.parametrize("groups", [1, 2])
def test_channels_last(groups):
    agree(nn.Conv2d(6, 4, 3, padding=1, groups=groups), ChannelsLast, torch.randn(3, 6, 5, 4))


def test_taps_pass_gradcheck():
    x = torch.randn(2, 2, 2, 3, dtype=torch.double, requires_grad=True)
    weight = torch.randn(9, 3, dtype=torch.double, requires_grad=True)
    for stride in (1, 2):
        assert torch.autograd.gradcheck(lambda *args: operators._Taps.apply(*args, stride), (x, weight))  # noqa: B023


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(2, 2), (4, 6), (7, 5), (28, 28)])
def test_rectified_pool(size, dtype):
    x = torch.randn(3, 4, *size, dtype=dtype)
    x[0, :, :2, :2] = 1.5  # ties go to the first
    x[1, 0] = -1.0
    x[2, 0, 0, 1] = 0.0
    x.requires_grad_()
    other, plain = RectifiedPool(2)(x), functional.max_pool2d(x.relu(), 2)
    torch.testing.assert_close(other, plain, rtol=0, atol=0)
    draw = torch.randn_like(plain)
    grads = [torch.autograd.grad((out * draw).sum(), x)[0] for out in (other, plain)]
    torch.testing.assert_close(*grads, rtol=0, atol=0)


@pytest.mark.parametrize("place", range(4))
def test_rectified_pool_does_not_hide_what_diverged(place):
    x = torch.zeros(1, 1, 2, 2)
    x.view(-1)[place] = torch.nan
    assert RectifiedPool(2)(x).isnan().all()


def test_rectified_pool_passes_gradcheck():
    x = torch.randn(1, 2, 4, 5, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(RectifiedPool(2), (x,))


def pooled(pool):
    return models.Net(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), pool, nn.Flatten()), nn.Linear(8, 2))


@pytest.mark.parametrize(
    ("pool", "joined"),
    [
        (nn.MaxPool2d(2), True),
        (nn.MaxPool2d((2, 2), stride=2), True),
        (nn.MaxPool2d(3, stride=2), False),
        (nn.MaxPool2d(2, ceil_mode=True), False),
        (nn.MaxPool2d(2, padding=1), False),
        (nn.AvgPool2d(2), False),
    ],
)
def test_pooling_is_joined_with_its_relu_where_it_halves(pool, joined):
    net = operators.tuned(pooled(pool), (1, 6, 6))
    assert (RectifiedPool in {type(module) for module in net.modules()}) == joined
    assert list(net.state_dict()) == list(pooled(pool).state_dict())


class Reading(nn.Sequential):
    """Layers that somebody also calls one by one: what the ReLU makes is taken by two."""

    def forward(self, x):
        first, relu, pool = self
        value = relu(first(x))
        return pool(value) + value[:, :, ::2, ::2]


def in_two_places():
    act, pool, conv = nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(2, 2, 3, padding=1)
    return {
        "pooling, once without a ReLU": nn.Sequential(conv, act, pool, nn.Conv2d(2, 2, 1), pool),
        "both": nn.Sequential(conv, act, pool, nn.Conv2d(2, 2, 1), act, pool),
        "the sequence": nn.Sequential(*[nn.Sequential(conv, nn.ReLU(), nn.MaxPool2d(2))] * 2),
        "what the ReLU makes": Reading(conv, act, pool),
        "what a ReLU in place is given": Reading(conv, nn.Identity(), nn.Sequential(nn.ReLU(inplace=True), pool)),
    }


@pytest.mark.parametrize("name", in_two_places())
def test_pooling_is_not_joined_where_somebody_else_would_notice(name):
    body = in_two_places()[name]
    net = models.Net(body, nn.Flatten())
    x = torch.randn(3, 2, 8, 8)
    torch.testing.assert_close(operators.tuned(net, (2, 8, 8))(x), net(x))
    assert list(operators.tuned(net, (2, 8, 8)).state_dict()) == list(net.state_dict())


def test_a_pool_may_be_followed_by_what_works_in_place():
    body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.ReLU6(inplace=True), nn.Flatten())
    net = models.Net(body, nn.Linear(8, 2))
    x = torch.randn(3, 1, 6, 6)
    grads = [torch.autograd.grad(n(x).sum(), list(n.parameters())) for n in (net, operators.tuned(net, (1, 6, 6)))]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28)])
@pytest.mark.parametrize("name", ["cnn", "mobilenet-v2"])
def test_torch_func_sees_the_stock_form(name, shape):
    plain = models.create(name, shape, 3, 0).eval()
    other = operators.tuned(plain, shape)
    x, y = torch.rand(4, *shape), torch.arange(4) % 3

    def loss(params, net):
        return functional.cross_entropy(functional_call(net, params, (x,)), y)

    actual, expected = (grad(loss)(dict(net.named_parameters()), net) for net in (other, plain))
    for param, value in expected.items():
        torch.testing.assert_close(actual[param], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28)])
def test_a_whole_network_is_the_same_function(shape):
    plain = models.create("mobilenet-v2", shape, 5, 0).double().train()
    other = operators.tuned(plain.float(), shape).double().train()
    plain.double()
    assert list(other.state_dict()) == list(plain.state_dict())
    x, y = torch.rand(6, *shape, dtype=torch.double), torch.arange(6) % 5
    grads = [torch.autograd.grad(functional.cross_entropy(net(x), y), list(net.parameters())) for net in (plain, other)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-9)
    for name, value in plain.state_dict().items():  # BatchNorm's running statistics too
        torch.testing.assert_close(other.state_dict()[name], value)


def test_the_rule_is_over_shapes():
    kinds = {}
    for side in (32, 64):
        net = operators.tuned(models.create("mobilenet-v2", (3, side, side), 5, 0), (3, side, side))
        kinds[side] = [type(module) for module in net.modules() if isinstance(module, nn.Conv2d)]
    assert {SmallDepthwise, PixelLinear, ChannelsLast} == set(kinds[32])
    assert kinds[32].count(SmallDepthwise) > kinds[64].count(SmallDepthwise)
    plain = operators.tuned(models.create("cnn", (1, 28, 28), 5, 0), (1, 28, 28))
    assert {type(m) for m in plain.modules() if isinstance(m, nn.Conv2d)} == {nn.Conv2d}


def test_a_strided_pointwise_convolution_is_not_a_linear_layer():
    body = nn.Sequential(
        nn.Conv2d(3, 3, 3, padding=1, groups=3, bias=False), nn.Conv2d(3, 4, 1, stride=2), nn.Flatten()
    )
    net = models.Net(body, nn.Linear(4, 2))
    x = torch.randn(2, 3, 2, 2)
    torch.testing.assert_close(operators.tuned(net, (3, 2, 2))(x), net(x))
