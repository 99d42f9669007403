"""Models: every kind of sample, numbers of parameters by hand, and refusals."""

from __future__ import annotations

import copy
import importlib.util
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from pflcli.core import models, parameters, registry, sources
from pflcli.core.engine.engine import Engine
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.local_sgd import LocalSGD
from pflcli.core.engine.networks import has_batch_norm
from pflcli.core.errors import UsageError
from pflcli.core.vision import timm, torchvision
from pflcli.models.torchvision import members

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
SHAPES = {"images": (GREY, COLOUR), "series": ((10, 5),), "features": ((6,),), "tokens": ((12,),)}
CLASSES = 7
MEMBERS = {"torchvision": "torchvision:shufflenet_v2_x0_5", "timm": "timm:mobilenetv3_small_050"}
NAMES = [MEMBERS.get(name, name) for name in registry.names("models")]
CASES = [
    pytest.param(name, kind, shape, id=f"{name}-{kind}-{'x'.join(map(str, shape))}")
    for name in NAMES
    for kind in registry.card("models", name).facts["TAKES"]
    for shape in SHAPES[kind]
]


def count_parameters(net):
    return sum(p.numel() for p in net.parameters())


def make_samples(kind, shape, n, seed=0):
    draw = np.random.default_rng(seed)
    if kind == "images":
        return draw.integers(0, 256, (n, *shape[1:], shape[0]), dtype=np.uint8)
    if kind == "tokens":
        return draw.integers(0, CLASSES, (n, *shape), dtype=np.int16)
    return draw.normal(size=(n, *shape)).astype(np.float32)


def make_federation(kind, shape, sizes=((5, 1, 2), (1, 0, 0), (3, 1, 1))):
    """Three clients, one of them with a single sample."""
    n = sum(map(sum, sizes))
    y = np.random.default_rng(1).integers(0, CLASSES, n)
    offsets = np.cumsum([0, *[part for client in sizes for part in client]])
    return Federation.from_blocks(make_samples(kind, shape, n), y, offsets, CLASSES)


@pytest.mark.parametrize(("name", "kind", "shape"), CASES)
def test_model_has_the_stated_representation_and_logits(name, kind, shape):
    net = models.create(name, shape, CLASSES, 0, tokens=kind == "tokens")
    data = make_federation(kind, shape)
    assert data.in_shape == shape
    x = data.inputs(slice(0, 4))
    net.eval()
    with torch.no_grad():
        z, logits = net.features(x), net(x)
    sizes = {"the input": x[0].numel(), "the last layer's input": net.head.in_features}
    fact = registry.card("models", name).facts["REPRESENTATION"]
    assert z.shape == (4, sizes[fact] if fact in sizes else int(fact))
    assert logits.shape == (4, CLASSES)
    torch.testing.assert_close(net.head(z), logits)
    for row in range(4):  # no sample sees another
        torch.testing.assert_close(net(x[row : row + 1]), logits[row : row + 1], rtol=1e-4, atol=1e-5)
    assert all(key.startswith(("body.", "head.")) for key in net.state_dict())


@pytest.mark.parametrize(("name", "kind", "shape"), CASES)
def test_every_parameter_has_a_gradient(name, kind, shape):
    net = models.create(name, shape, CLASSES, 0)
    data = make_federation(kind, shape)
    assert net.training
    loss = functional.cross_entropy(net(data.inputs(slice(0, 9))), data.y[:9])
    grads = torch.autograd.grad(loss, list(net.parameters()))
    for (key, _), grad in zip(net.named_parameters(), grads, strict=True):
        assert grad.isfinite().all(), key
        assert grad.any(), key


@pytest.mark.parametrize(("name", "kind", "shape"), CASES)
def test_engine_trains_model_like_plain_gradient_descent(name, kind, shape):
    """One epoch of clients with five samples and with one, against gradient descent written out; threads agree."""
    data, net = make_federation(kind, shape), models.create(name, shape, CLASSES, 0)
    plan = LocalSGD(epochs=1, batch_size=8, lr=[0.01])
    trained = []
    for threads in (1, 2):
        engine = Engine(net, data, seed=0, threads=threads, mode="loop")
        trained.append(next(engine.local_sgd([0, 1, 2], parameters.copy_params(net), plan, ("sgd", 0))).params)
    assert all(torch.equal(trained[0][key], trained[1][key]) for key in trained[0])
    # Five samples make BatchNorm's gradients uncertain to some percent in float32; test_operators has doubles.
    allowed = 0.1 if has_batch_norm(net) else 1e-3
    start = {key: value for key, value in parameters.copy_params(net).items() if value.is_floating_point()}
    for place in (0, 1):
        rows = torch.from_numpy(data.rows(place, "train"))
        plain = copy.deepcopy(net).train(not (has_batch_norm(net) and len(rows) == 1))
        functional.cross_entropy(plain(data.inputs(rows)), data.y[rows]).backward()
        with torch.no_grad():
            for value in plain.parameters():
                value -= 0.01 * value.grad
        expected = torch.cat([(plain.state_dict()[key] - value).flatten() for key, value in start.items()])
        actual = torch.cat([(trained[0][key][place] - value).flatten() for key, value in start.items()])
        assert expected.norm() > 0
        assert (actual - expected).norm() <= allowed * expected.norm()


def test_initial_weights_are_the_same_in_threads_that_draw_at_the_same_time(monkeypatch):
    """PyTorch has one generator for all threads; another thread draws here between the layers of a network."""
    build = torch.nn.Linear.reset_parameters

    def slow(layer):
        time.sleep(0.002)
        build(layer)

    expected = [models.create("mlp", (6,), 3, seed).state_dict() for seed in range(4)]
    monkeypatch.setattr(torch.nn.Linear, "reset_parameters", slow)
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda seed: models.create("mlp", (6,), 3, seed).state_dict(), range(4))]
    for own, other in zip(found, expected, strict=True):
        assert all(torch.equal(own[name], other[name]) for name in other)


@pytest.mark.parametrize(("name", "kind", "shape"), [case for case in CASES if GREY not in case.values])
def test_initial_weights_depend_only_on_the_seed(name, kind, shape):
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    a, b, c = (models.create(name, shape, 3, seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert any(not torch.equal(a[key], c[key]) for key in a)


def test_cnn_and_mlp_have_the_sizes_of_the_paper():
    sizes = {name: count_parameters(models.create(name, GREY, 10, 0)) for name in ("cnn", "mlp")}
    assert sizes == {"cnn": 1_663_370, "mlp": 199_210}


def test_resnet_18_has_the_hand_computed_size():
    stem = 3 * 3 * 3 * 64 + 2 * 64
    first = 4 * (9 * 64 * 64 + 2 * 64)

    def stage(old, new):  # two blocks of two convolutions, and the 1x1 convolution around the first
        return 9 * old * new + 3 * (9 * new * new) + old * new + 5 * (2 * new)

    total = stem + first + stage(64, 128) + stage(128, 256) + stage(256, 512) + 512 * 10 + 10
    assert total == 11_173_962
    net = models.create("resnet-18", COLOUR, 10, 0)
    assert count_parameters(net) == total
    assert not has_batch_norm(net)
    norms = [module for module in net.modules() if isinstance(module, nn.GroupNorm)]
    assert len(norms) == 20
    assert {norm.num_groups for norm in norms} == {2}
    # torchvision's has 11,689,512 parameters on 1,000 classes; large images meet its own 7x7 convolution.
    assert count_parameters(models.create("resnet-18", (3, 64, 64), 1000, 0)) == 11_689_512


def test_resnet_18_keeps_the_resolution_of_small_images():
    for side, first in ((28, 28), (32, 32), (64, 16)):
        sizes = []
        net = models.create("resnet-18", (1, side, side), 2, 0)
        net.body.layer1.register_forward_pre_hook(lambda _, inputs, sizes=sizes: sizes.append(inputs[0].shape[-1]))
        net(torch.rand(1, 1, side, side))
        assert sizes == [first]


def test_alexnet_has_the_hand_computed_size():
    convolutions = [(1, 32, 5), (32, 96, 5), (96, 192, 3), (192, 128, 3), (128, 128, 3)]
    linear = [(128 * 3 * 3, 1024), (1024, 1024), (1024, 10)]
    total = sum(a * b * k * k + b for a, b, k in convolutions) + sum(a * b + b for a, b in linear)
    assert total == 2_853_226
    assert count_parameters(models.create("alexnet", GREY, 10, 0)) == total
    assert count_parameters(models.create("alexnet", COLOUR, 10, 0)) == total + 2 * 32 * 5 * 5 == 2_854_826
    for side in (25, 40, 64):
        assert models.create("alexnet", (1, side, side), 10, 0)(torch.rand(2, 1, side, side)).shape == (2, 10)


def test_lstm_has_the_hand_computed_size():
    layer = {8: 4 * 256 * (8 + 256 + 2), 256: 4 * 256 * (256 + 256 + 2), 5: 4 * 256 * (5 + 256 + 2)}
    head = 256 * 80 + 80
    assert count_parameters(models.create("lstm", (80,), 80, 0)) == 80 * 8 + layer[8] + layer[256] + head == 819_920
    assert count_parameters(models.create("lstm", (20, 5), 80, 0)) == layer[5] + layer[256] + head


def test_gru_has_the_hand_computed_size():
    layers = 3 * 128 * (11 + 128 + 2) + 3 * 128 * (128 + 128 + 2)
    assert count_parameters(models.create("gru", (24, 11), 5, 0)) == layers + 128 * 5 + 5 == 153_861
    embedded = 3 * 128 * (8 + 128 + 2) + 3 * 128 * (128 + 128 + 2)
    assert count_parameters(models.create("gru", (24,), 9, 0)) == 9 * 8 + embedded + 128 * 9 + 9


def test_lstm_matches_its_equations():
    """Hochreiter & Schmidhuber's equations, with PyTorch's order of gates: input, forget, cell, output."""
    net = models.create("lstm", (9,), 6, 0).eval()
    w = net.body.lstm
    x = torch.randint(6, (3, 9))
    below = list(net.body.embedding.weight[x].unbind(1))
    last = []
    for layer in (0, 1):
        h, c, above = torch.zeros(3, 256), torch.zeros(3, 256), []
        for step in below:
            gates = step @ getattr(w, f"weight_ih_l{layer}").T + getattr(w, f"bias_ih_l{layer}")
            gates = gates + h @ getattr(w, f"weight_hh_l{layer}").T + getattr(w, f"bias_hh_l{layer}")
            i, f, g, o = gates.chunk(4, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            above.append(h)
        last.append((h, c))
        below = above
    (lower_h, lower_c), (upper_h, upper_c) = last
    z = net.features(x)
    torch.testing.assert_close(z, torch.cat([upper_h, upper_c, lower_h, lower_c], dim=1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(net(x), upper_h @ net.head.weight.T + net.head.bias, rtol=1e-4, atol=1e-5)


def test_gru_matches_its_equations():
    """Cho et al.'s equations, with PyTorch's order of gates: reset, update, new."""
    net = models.create("gru", (9, 4), 6, 0).eval()
    w = net.body.gru
    x = torch.randn(3, 9, 4)
    below = list(x.unbind(1))
    for layer in (0, 1):
        h, above = torch.zeros(3, 128), []
        for step in below:
            a = (step @ getattr(w, f"weight_ih_l{layer}").T + getattr(w, f"bias_ih_l{layer}")).chunk(3, dim=1)
            b = (h @ getattr(w, f"weight_hh_l{layer}").T + getattr(w, f"bias_hh_l{layer}")).chunk(3, dim=1)
            r, u = (a[0] + b[0]).sigmoid(), (a[1] + b[1]).sigmoid()
            h = u * h + (1 - u) * (a[2] + r * b[2]).tanh()
            above.append(h)
        below = above
    torch.testing.assert_close(net.features(x), h, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "shape", "tokens", "message", "fix"),
    [
        ("cnn", (80,), True, "takes images, not tokens of 80", "--model gru or --model lstm"),
        ("cnn", (5,), None, "takes images, not features of 5", "--model gru or --model logistic or --model lstm"),
        ("mlp", (80,), True, "takes images or series or features, not tokens of 80", "--model gru or --model lstm"),
        ("lstm", COLOUR, False, "takes tokens or series, not images of 3x32x32", "--model alexnet or --model cnn"),
        ("gru", (6,), False, "takes series or tokens, not features of 6", "--model logistic or --model mlp"),
        ("resnet-18", (24, 11), False, "takes images, not series of 24x11", "--model gru or"),
        (MEMBERS["torchvision"], (24, 11), False, "takes images, not series of 24x11", "--model gru or"),
        ("mlp", (2, 3, 4, 5), False, "not samples of 2x3x4x5", ""),
        ("cnn", (1, 3, 3), False, "takes images of at least 4x4", "--model mlp"),
        ("mobilenet-v2", (3, 8, 8), False, "takes images of at least 16x16", "--model mlp"),
        ("alexnet", (1, 24, 24), False, "takes images of at least 25x25", "--model mlp"),
    ],
)
def test_create_refuses_samples_that_do_not_fit_the_model(name, shape, tokens, message, fix):
    with pytest.raises(UsageError) as error:
        models.create(name, shape, 3, 0, tokens=tokens)
    assert message in error.value.message
    assert fix in "\n".join(error.value.fix)


@pytest.mark.parametrize(
    ("name", "message", "fix"),
    [
        ("ccn", "unknown model 'ccn'", "did you mean 'cnn'?"),
        ("resnet50", "unknown model 'resnet50'", "--model torchvision:resnet50"),
        ("torchvison:resnet50", "unknown model 'torchvison:resnet50'", "did you mean 'torchvision'?"),
        ("torchvision:resnet5O", "torchvision has no model 'resnet5O'", "did you mean 'resnet50'?"),
        ("torchvision:", "torchvision has no model ''", "choose from: alexnet, convnext_base"),
        ("torchvision", "is a family", "--model torchvision:alexnet"),
        ("cnn:5", "is a single model, not a family", "--model cnn"),
        ("timm:resnet5O", "timm has no model 'resnet5O'", "did you mean 'resnet50'?"),
        ("timm:deit_tiny_distilled_patch16_224", "is not a body and one linear head", "--model resnet-18"),
        ("timm:resnetv2_50x1_bit", "does not end in a linear layer", "--model mobilenet-v2"),
        ("torchvision:squeezenet1_1", "does not end in a linear layer", "--model mobilenet-v2"),
        ("torchvision:inception_v3", "does not take images of 3x32x32: 96x96 would do", "--model resnet-18"),
        ("torchvision:vit_h_14", "does not take images of 3x32x32: 224x224 would do", "--model resnet-18"),
    ],
)
def test_create_refuses_unknown_names_with_a_suggestion(name, message, fix):
    with pytest.raises(UsageError) as error:
        models.create(name, COLOUR, 3, 0)
    assert message in error.value.message
    assert fix in "\n".join(error.value.fix)


@pytest.mark.parametrize("member", ["resnet18", "mobilenet_v3_small", "efficientnet_b0", "googlenet"])
def test_torchvision_network_as_body_and_head_equals_the_original(member):
    net = models.create(f"torchvision:{member}", COLOUR, 5, 0)
    extra = {"aux_logits": False, "init_weights": False} if member == "googlenet" else {}
    original = getattr(torchvision().models, member)(num_classes=5, **extra).eval()
    assert count_parameters(original) == count_parameters(net)
    state = {name.removeprefix("body."): value for name, value in net.state_dict().items() if name.startswith("body.")}
    (head,) = {name.rpartition(".")[0] for name in original.state_dict() if name not in state}
    state |= {f"{head}.weight": net.head.weight, f"{head}.bias": net.head.bias}
    original.load_state_dict(state)
    x = torch.rand(2, *COLOUR)
    with torch.no_grad():
        torch.testing.assert_close(net.eval()(x), original(x))


@pytest.mark.parametrize(
    "member", ["resnet18", "vit_tiny_patch16_224", "mobilenetv3_small_050", "efficientnet_b0", "convnext_atto"]
)
def test_timm_network_as_body_and_head_equals_the_original(member):
    net = models.create(f"timm:{member}", COLOUR, 5, 0).eval()
    size = {"img_size": 32} if member.startswith("vit") else {}
    original = timm().create_model(member, num_classes=5, **size).eval()
    assert count_parameters(original) == count_parameters(net)
    state = {name.removeprefix("body."): value for name, value in net.state_dict().items() if name.startswith("body.")}
    (head,) = {name.rpartition(".")[0] for name in original.state_dict() if name not in state}
    original.load_state_dict({**state, f"{head}.weight": net.head.weight, f"{head}.bias": net.head.bias})
    x = torch.rand(2, *COLOUR)
    with torch.no_grad():
        torch.testing.assert_close(net(x), original(x))


def test_missing_timm_is_named_with_the_install_command(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "timm" else found(name))
    with pytest.raises(UsageError, match="need the package timm") as error:
        models.create("timm:resnet18", COLOUR, 3, 0)
    assert "pip install 'pflcli[timm]'" in error.value.fix


@pytest.mark.parametrize(
    "name",
    [
        *("torchvision:alexnet", "torchvision:efficientnet_b0", "torchvision:convnext_tiny"),
        *("timm:efficientnet_b0", "timm:convnext_atto", "timm:vit_tiny_patch16_224"),
    ],
)
def test_library_networks_have_no_random_dropout(name):
    shape = (3, 64, 64)
    net = models.create(name, shape, 5, 0).train()
    x = torch.rand(2, *shape)
    before = torch.random.get_rng_state()
    with torch.no_grad():
        torch.testing.assert_close(net(x), net(x))
    assert torch.equal(before, torch.random.get_rng_state())


def test_first_convolution_keeps_the_output_variance_for_any_number_of_channels():
    for name in ("torchvision:resnet18", "resnet-18"):
        spread = {c: models.create(name, (c, 64, 64), 5, 0).body.conv1.weight.std().item() for c in (1, 3)}
        assert spread[1] == pytest.approx(spread[3] * 3**0.5, rel=0.05)


def test_torchvision_family_lists_members_and_shares_its_card():
    assert {"resnet50", "vit_b_16", "densenet121"} <= set(members())
    card = registry.card("models", "torchvision:resnet50")
    assert card.doc == registry.card("models", "torchvision").doc
    assert sources.code_hash("models", "torchvision:resnet50") == sources.code_hash("models", "torchvision")


@pytest.mark.parametrize("dry", [[], ["-n"]])
def test_batch_size_1_is_refused_with_batch_normalization(pfl, small, tmp_path, dry):
    ran = pfl("train-global", small.p, "-o", tmp_path / "b", "--model", "mobilenet-v2", "--batch-size", 1, *dry)
    assert ran.code == 2
    assert "mobilenet-v2 has batch normalization" in ran.err
    assert "--batch-size 2 or more" in ran.err
    assert not (tmp_path / "b").exists()
