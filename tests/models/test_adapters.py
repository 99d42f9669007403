"""``--adapter lora:RANK``: a network with a frozen body, products of low rank beside its layers, and a trained head."""

from __future__ import annotations

import copy
import json

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

import pflcli
import worlds
from pflcli.artifacts import initial_weights
from pflcli.artifacts.kinds import embeddings, predictions
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import open_artifact
from pflcli.core import config, methods, models, parameters
from pflcli.core.engine.engine import Engine
from pflcli.core.engine.local_sgd import LocalSGD
from pflcli.core.engine.networks import has_batch_norm
from pflcli.core.errors import UsageError
from pflcli.core.execution import Execution
from pflcli.core.models.adapters import FrozenBatchNorm, LowRank
from pflcli.core.settings import Settings
from pflcli.plugins.export import onnx_network
from pflcli.plugins.export.standalone_model import build_standalone_model
from pflcli.workflow.prediction import reopened_run
from pflcli.workflow.training.run_spec import RunSpec

ONE = Execution(threads=1)


def draw_tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(5, 7), (4, 5)),
        (nn.Linear(5, 7, bias=False), (4, 3, 5)),
        (nn.Conv2d(5, 7, 1), (4, 5, 6, 6)),
        (nn.Conv2d(5, 7, 1, stride=2, padding=1, bias=False), (4, 5, 6, 6)),
    ],
)
def test_low_rank_adds_the_product_to_the_weight(layer, shape):
    adapted = LowRank(copy.deepcopy(layer), 2)
    assert adapted.down.numel() == 2 * 5
    assert adapted.up.numel() == 7 * 2
    x = draw_tensor(*shape)
    assert torch.equal(adapted(x), layer(x))  # B is zero
    with torch.no_grad():
        adapted.up.copy_(draw_tensor(*adapted.up.shape))
        layer.weight += torch.einsum("or,ri->oi", adapted.up.flatten(1), adapted.down.flatten(1)).view_as(layer.weight)
    assert torch.allclose(adapted(x), layer(x), atol=1e-5)
    assert torch.allclose(adapted.weight, layer.weight, atol=1e-6)


def test_low_rank_limits_the_rank_to_that_of_the_layer():
    assert LowRank(nn.Linear(3, 50), 8).down.shape == (3, 3)


def test_frozen_batch_norm_uses_stored_statistics():
    norm = nn.BatchNorm2d(3)
    with torch.no_grad():
        for value in (norm.running_mean, norm.weight, norm.bias):
            value.copy_(draw_tensor(3))
        norm.running_var.copy_(draw_tensor(3, seed=1).abs() + 0.1)
    x = draw_tensor(5, 3, 4, 4)
    frozen = FrozenBatchNorm(norm).train()
    assert torch.equal(frozen(x), norm.eval()(x))
    assert not parameters.state(frozen)


def test_add_adapter_leaves_only_adapter_and_head_as_parameters():
    net = models.create("mobilenet-v2", (3, 32, 32), 10, 0)
    adapted = models.add_adapter(net, "lora:4", 0)
    names = set(parameters.state(adapted))
    assert names == {name for name, _ in adapted.named_parameters()}
    pointwise = [
        name for name, module in net.body.named_modules() if isinstance(module, nn.Conv2d) and module.groups == 1
    ][1:]  # the first one is 3x3
    expected = {f"body.{name}.{part}" for name in pointwise for part in ("down", "up")}
    assert names == expected | {"head.weight", "head.bias"}
    assert parameters.size(parameters.state(adapted)) < parameters.size(parameters.state(net)) / 10
    assert set(parameters.state(net)) == set(parameters.state(models.create("mobilenet-v2", (3, 32, 32), 10, 0)))


@pytest.mark.parametrize("name", ["timm:mobilenetv3_small_050", "timm:vit_tiny_patch16_224", "torchvision:resnet18"])
def test_library_networks_with_new_adapters_give_the_same_outputs(name):
    plain, x = models.create(name, (3, 32, 32), 5, 0), draw_tensor(4, 3, 32, 32)
    net = models.add_adapter(plain, "lora:2", 0)
    with torch.no_grad():
        expected = plain.eval()(x)
        assert torch.allclose(net.train()(x), expected, atol=1e-5)
        assert torch.allclose(net.eval()(x), expected, atol=1e-5)
    assert not has_batch_norm(net)


class Doubled(nn.Linear):
    """A linear layer with a forward pass of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return twice the output."""
        return 2 * super().forward(x)


def test_layers_with_a_custom_forward_are_frozen_without_adapter():
    plain = models.Net(nn.Sequential(Doubled(4, 4), nn.Linear(4, 4)), nn.Linear(4, 2))
    net, x = models.add_adapter(plain, "lora:2", 0), draw_tensor(3, 4)
    assert torch.equal(net(x), plain(x))
    assert set(parameters.state(net)) == {"body.1.down", "body.1.up", "head.weight", "head.bias"}


@pytest.mark.parametrize(
    ("layer", "is_adapted"),
    [
        (nn.Linear(8, 6), True),
        (nn.Conv2d(8, 6, 1), True),
        (nn.Conv2d(8, 6, 1, stride=2, bias=False), True),
        (nn.Conv2d(8, 6, 1, padding=1), True),
        (nn.Conv2d(8, 6, (1, 1), padding=(0, 2)), True),
        (nn.Conv2d(8, 6, 3), False),
        (nn.Conv2d(8, 6, (1, 3)), False),
        (nn.Conv2d(8, 6, 1, groups=2), False),
        (nn.Conv2d(8, 8, 1, groups=8), False),
        (nn.Conv2d(8, 6, 1, padding=1, padding_mode="reflect"), False),
        (nn.Conv2d(8, 6, 1, padding=1, padding_mode="circular"), False),
        (nn.Conv1d(8, 6, 1), False),
        (nn.ConvTranspose2d(8, 6, 1), False),
    ],
)
def test_adapted_layer_starts_with_the_same_outputs_and_learns(layer, is_adapted):
    """Beside a layer that always gets an adapter, so that networks without one are not refused."""
    shape = {nn.Linear: (8,), nn.Conv1d: (8, 5)}.get(type(layer), (8, 5, 5))
    x = draw_tensor(4, *shape)
    body = nn.Sequential(layer, nn.Flatten(), nn.Linear(layer(x).flatten(1).shape[1], 4), nn.ReLU())
    plain = models.Net(body, nn.Linear(4, 2))
    net = models.add_adapter(plain, "lora:2", 0)
    assert torch.allclose(net(x), plain(x), atol=1e-6)
    names = set(parameters.state(net))
    assert ("body.0.up" in names) == is_adapted
    assert not any(name.startswith("body.0.") for name in names) or is_adapted
    with torch.no_grad():
        for name, value in net.named_parameters():
            if name.endswith("up"):
                value += draw_tensor(*value.shape)
    if is_adapted:  # the layer is one with the weight W + B A
        low, other = net.body[0], copy.deepcopy(plain)
        with torch.no_grad():
            other.body[0].weight += (low.up.flatten(1) @ low.down.flatten(1)).view_as(other.body[0].weight)
            other.body[2].weight += net.body[2].up @ net.body[2].down
        assert torch.allclose(low.weight, other.body[0].weight, atol=1e-6)
        assert torch.allclose(net(x), other(x), atol=1e-4)
        assert not torch.allclose(net(x), plain(x), atol=1e-2)


def test_layer_used_twice_gets_one_adapter():
    layer = nn.Linear(4, 4)
    net = models.add_adapter(models.Net(nn.Sequential(layer, nn.ReLU(), layer), nn.Linear(4, 2)), "lora:1", 0)
    assert net.body[0] is net.body[2]
    assert len(parameters.state(net)) == 4


def test_attention_with_an_adapted_output_layer_is_trained():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    plain = models.Net(nn.Sequential(encoder, nn.Flatten()), nn.Linear(24, 2))
    net, x = models.add_adapter(plain, "lora:2", 0), draw_tensor(5, 3, 8)
    assert torch.allclose(net(x), plain(x), atol=1e-6)
    net(x).sum().backward()
    assert all(value.grad is not None for value in net.parameters())
    assert any("out_proj.up" in name for name, _ in net.named_parameters())


@pytest.mark.parametrize(
    ("net", "fact"),
    [
        (models.Net(nn.Flatten(), nn.Linear(4, 2)), "1x1 convolution"),
        (models.Net(nn.Sequential(nn.Linear(4, 2)), nn.Identity()), "trains the head"),
    ],
)
def test_networks_without_a_layer_or_a_head_are_refused(net, fact):
    with pytest.raises(UsageError, match=fact):
        models.add_adapter(net, "lora:2", 0)


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_training_of_adapters_matches_a_short_reference(mode):
    data = worlds.clustered(groups=4, members=4)
    whole = models.create("mlp", data.in_shape, data.classes, 0)
    net = models.add_adapter(whole, "lora:2", 0)
    start = parameters.copy_params(net)
    with torch.no_grad():  # B is not zero, so that A has a gradient
        start = {name: value + 0.1 * draw_tensor(*value.shape) for name, value in start.items()}
    plan = LocalSGD(2, 1000, np.asarray([0.1, 0.1]))  # two steps, each on all samples
    engine = Engine(net, data, seed=0, threads=1, mode=mode)
    chosen: list[str] = []
    engine.explain = chosen.append
    (trained,) = engine.local_sgd(data.clients, start, plan, ("test",))
    assert chosen[0].startswith("stacks by torch.func" if mode == "stacked" else "autograd")

    frozen = {name: value.clone() for name, value in parameters.state(whole).items()}
    rows = data.rows(1, "train")
    x, y = data.inputs(torch.from_numpy(rows)).flatten(1), data.y[torch.from_numpy(rows)]
    w = dict(start)
    for _ in range(2):
        w = {name: value.detach().requires_grad_() for name, value in w.items()}
        z = x
        for layer in ("body.1", "body.3"):
            weight = frozen[f"{layer}.weight"] + w[f"{layer}.up"] @ w[f"{layer}.down"]
            z = functional.relu(z @ weight.T + frozen[f"{layer}.bias"])
        loss = functional.cross_entropy(z @ w["head.weight"].T + w["head.bias"], y)
        grads = torch.autograd.grad(loss, list(w.values()))
        w = {name: value - 0.1 * grad for (name, value), grad in zip(w.items(), grads, strict=True)}
    assert set(trained.params) == set(w)
    for name, value in w.items():
        assert torch.allclose(trained.params[name][1], value, atol=1e-5), name
        assert not torch.allclose(start[name], value, atol=1e-5), name


def train_and_save_weights(small, path):
    """Return a file with the weights of an ``mlp`` that was trained on the partition."""
    pflcli.train_global(small.p, path / "g", settings={"model": "mlp", "rounds": 2}, execution=ONE)
    save_file(load_file(path / "g" / "weights.safetensors"), path / "w.safetensors")
    return path / "w.safetensors"


SETTINGS = {"model": "mlp", "adapter": "lora:2", "rounds": 2}


def test_run_with_adapters_sends_and_stores_only_adapters_and_head(small, tmp_path):
    weights = train_and_save_weights(small, tmp_path)
    made = pflcli.personalize("ditto", small.p, tmp_path / "m", weights=weights, settings=SETTINGS, execution=ONE)
    whole = load_file(weights)
    outputs, inputs = whole["body.1.weight"].shape
    classes, features = whole["head.weight"].shape
    hidden = whole["body.3.weight"].shape
    count = 2 * (outputs + inputs) + 2 * sum(hidden) + classes * features + classes
    assert made.summary["model_bytes"] == 4 * count
    state = load_file(tmp_path / "m" / "state.safetensors")
    assert not any("frozen" in name or name.endswith("body.1.weight") for name in state)

    with pytest.raises(UsageError, match="weights in a file"):
        reopened_run.reopen(open_artifact(tmp_path / "m"), None)
    run = reopened_run.reopen(open_artifact(tmp_path / "m"), weights)
    model = build_standalone_model(run, 2, ONE)
    split, data = predictions.read(open_artifact(tmp_path / "m"), "test"), partitions.read(open_artifact(small.p))
    x = torch.from_numpy(data.x[slice(*data.offsets[8:10])])[:, None].float() / 255
    expected = split.parts["p"][slice(*split.offsets[2:4])]
    with torch.no_grad():
        np.testing.assert_allclose(torch.softmax(model.networks[0](x), dim=1).numpy(), expected, atol=1e-5)
    session = onnxruntime.InferenceSession(onnx_network.export_network(model))
    (p,) = session.run(["p"], {"x": data.x[slice(*data.offsets[8:10])]})
    np.testing.assert_allclose(p, expected, atol=1e-5)


def test_backbone_with_adapters_stores_the_whole_network(small, tmp_path):
    weights = train_and_save_weights(small, tmp_path)
    pflcli.train_global(small.p, tmp_path / "b", weights=weights, settings=SETTINGS, execution=ONE)
    whole = load_file(weights)
    initial = load_file(tmp_path / "b" / "initial.safetensors")
    assert all(torch.equal(initial[name], value) for name, value in whole.items())
    assert set(load_file(tmp_path / "b" / "weights.safetensors")) == {
        *(f"body.{layer}.{part}" for layer in (1, 3) for part in ("down", "up")),
        *("head.weight", "head.bias"),
    }
    weights.unlink()  # the backbone needs it no more
    pflcli.extract(tmp_path / "b", tmp_path / "e", execution=ONE)
    pflcli.build_datastore(tmp_path / "e", tmp_path / "d", execution=ONE)
    pflcli.personalize("knn-per", tmp_path / "d", tmp_path / "k", execution=ONE)
    pflcli.personalize("fedavg-plus", tmp_path / "b", tmp_path / "f", execution=ONE)
    z = embeddings.read(open_artifact(tmp_path / "e"))["test"].z
    net = models.create("mlp", (1, 28, 28), 10, 0)
    parameters.load(net, whole)
    net = models.add_adapter(net, "lora:2", 0)
    parameters.load(net, load_file(tmp_path / "b" / "weights.safetensors"))
    data = partitions.read(open_artifact(small.p))
    with torch.no_grad():
        own = net.body(torch.from_numpy(data.x[slice(*data.offsets[2:4])])[:, None].float() / 255)
    np.testing.assert_allclose(z[: len(own)], own, atol=1e-5)
    build_standalone_model(reopened_run.reopen(open_artifact(tmp_path / "f"), None), 2, ONE)


def test_initial_models_with_adapters_share_the_frozen_body_and_not_the_head(small, tmp_path):
    weights, data = (
        initial_weights.read(train_and_save_weights(small, tmp_path)),
        partitions.read(open_artifact(small.p)),
    )
    settings = config.build(Settings, SETTINGS, "")
    method = methods.load("ifca")
    spec = RunSpec(name="ifca", method=method, cfg=method.Config(), settings=settings, seed=0, weights=weights)
    run = spec.build(data, ONE)
    drawn = run.initial_models(3)
    assert set(drawn) == set(run.init)
    assert not torch.equal(drawn["head.weight"][0], drawn["head.weight"][1])
    assert torch.equal(drawn["head.weight"][0], weights.tensors["head.weight"])
    assert not torch.equal(drawn["body.1.down"][1], drawn["body.1.down"][2])
    run.engine.close()


def test_wrong_uses_of_adapters_are_refused(small, tmp_path, pfl):
    weights = train_and_save_weights(small, tmp_path)
    lora = ("--model", "mlp", "--adapter", "lora:2")
    ran = pfl("personalize", "ditto", small.p, "-o", tmp_path / "m", *lora)
    assert ran.code == 2
    assert "--weights FILE" in ran.err
    ran = pfl("compare", small.p, "-o", tmp_path / "c", "--methods", "ditto", *lora)
    assert (ran.code, "--weights FILE" in ran.err) == (2, True)
    assert not (tmp_path / "c").exists()
    for wrong in ("lora", "lora:0", "dora:8", "lora:-1", "lora:2.5"):
        ran = pfl("personalize", "ditto", small.p, "-o", tmp_path / "m", "--adapter", wrong, "--weights", weights)
        assert (ran.code, "lora:8" in ran.err) == (2, True)
    ran = pfl("personalize", "ditto", tmp_path / "g", "-o", tmp_path / "m", "--adapter", "lora:2")
    assert (ran.code, f"--weights {tmp_path / 'g' / 'weights.safetensors'}" in ran.err) == (2, True)
    assert pfl("train-global", small.p, "-o", tmp_path / "b", *lora, "--weights", weights, "--rounds", 1).code == 0
    ran = pfl("personalize", "ditto", tmp_path / "b", "-o", tmp_path / "m", "--adapter", "lora:4")
    assert (ran.code, "was trained with --adapter lora:2" in ran.err) == (2, True)
    ran = pfl("personalize", "ditto", small.p, "-o", tmp_path / "m", "--adapter", "none", "--rounds", 1)
    assert ran.code == 0
    assert json.loads((tmp_path / "m" / "manifest.json").read_text())["request"]["settings"]["adapter"] is None
