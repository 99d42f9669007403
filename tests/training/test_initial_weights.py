"""``train-global --weights``: names of both kinds, other heads, files that do not fit, and what is recorded."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from pflcli.artifacts import initial_weights as initial
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.compare import compare
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global
from pflcli.core import models, parameters
from pflcli.core.errors import ConflictError, InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.vision import torchvision

SHAPE = (3, 32, 32)


def fail_on_message(text):
    raise AssertionError(f"nothing was to be said: {text}")


def load_initial_model(model, path, classes=4, say=fail_on_message, shape=SHAPE):
    """A model that begins with a file's weights."""
    net = models.create(model, shape, classes, seed=0).eval()
    net.load_state_dict(initial.fit(initial.read(path), model, parameters.copy_params(net), say))
    return net


@pytest.mark.parametrize(
    ("model", "torchvision_name", "extra"),
    [
        ("mobilenet-v2", "mobilenet_v2", {}),
        ("torchvision:mobilenet_v2", "mobilenet_v2", {}),
        ("torchvision:resnet18", "resnet18", {}),
        ("torchvision:convnext_tiny", "convnext_tiny", {}),
        ("torchvision:densenet121", "densenet121", {}),
    ],
)
def test_weights_with_torchvision_names_are_loaded(tmp_path, model, torchvision_name, extra):
    torch.manual_seed(3)
    net = getattr(torchvision().models, torchvision_name)(num_classes=4, **extra).eval()
    torch.save(net.state_dict(), tmp_path / "w.pt")
    x = torch.rand(2, *SHAPE)
    with torch.no_grad():
        torch.testing.assert_close(load_initial_model(model, tmp_path / "w.pt")(x), net(x))


def test_weights_of_a_group_norm_resnet_are_loaded(tmp_path):
    net = torchvision().models.resnet18(num_classes=4, norm_layer=lambda width: nn.GroupNorm(2, width)).eval()
    save_file(net.state_dict(), tmp_path / "w.safetensors")
    x = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(
            load_initial_model("resnet-18", tmp_path / "w.safetensors", shape=(3, 64, 64))(x), net(x)
        )


@pytest.mark.parametrize("model", ["lstm", "gru", "mlp"])
def test_weights_with_own_names_in_half_precision_are_loaded(tmp_path, model):
    shape = (8, 4)
    state = parameters.copy_params(models.create(model, shape, 4, seed=9))
    save_file({name: value.half() for name, value in state.items()}, tmp_path / "w.safetensors")
    actual = load_initial_model(model, tmp_path / "w.safetensors", shape=shape).state_dict()
    assert all(value.dtype == torch.float32 for value in actual.values())
    assert all(torch.equal(actual[name], value.half().float()) for name, value in state.items())


@pytest.mark.parametrize("misfit", ["other classes", "no head"])
def test_head_that_does_not_fit_is_initialized_at_random(tmp_path, misfit):
    net = torchvision().models.mobilenet_v2(num_classes=9)
    state = {k: v for k, v in net.state_dict().items() if misfit == "other classes" or not k.startswith("classifier")}
    torch.save(state, tmp_path / "w.pth")
    lines = []
    actual = load_initial_model("mobilenet-v2", tmp_path / "w.pth", say=lines.append).state_dict()
    own = models.create("mobilenet-v2", SHAPE, 4, seed=0).state_dict()
    stored_head = "9 classes" if misfit == "other classes" else "no head"
    (line,) = lines
    assert all(fact in line for fact in ("head", str(tmp_path / "w.pth"), stored_head, "4 classes"))
    assert torch.equal(actual["head.weight"], own["head.weight"])
    assert torch.equal(actual["body.0.0.0.weight"], net.features[0][0].weight)


def test_weights_without_batch_norm_counters_are_loaded(tmp_path):
    net = torchvision().models.resnet18(num_classes=4)
    state = {name: value for name, value in net.state_dict().items() if not name.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "w.pt")
    actual = load_initial_model("torchvision:resnet18", tmp_path / "w.pt").state_dict()
    assert torch.equal(actual["body.bn1.running_var"], net.bn1.running_var)
    assert actual["body.bn1.num_batches_tracked"] == 0


def make_damaged_state(change):
    state = parameters.copy_params(models.create("mlp", (6,), 4, seed=1))
    return state | change


MISFITS = {
    "a name too many": (
        lambda: make_damaged_state({"body.9.weight": torch.ones(1), "odd": torch.ones(1)}),
        "contains 2 names that mlp lacks: body.9.weight, odd",
    ),
    "a layer too many": (
        lambda: make_damaged_state({"old.weight": torch.ones(4, 200), "old.bias": torch.ones(4)}),
        "contains 2 names that mlp lacks: old.weight, old.bias",
    ),
    "names missing": (
        lambda: {k: v for k, v in make_damaged_state({}).items() if not k.startswith("body.1.")},
        "lacks 2 of 6 names of mlp: body.1.weight, body.1.bias",
    ),
    "another input": (
        lambda: parameters.copy_params(models.create("mlp", (5,), 4, seed=1)),
        "has 1 tensor of another shape than mlp: body.1.weight 200x5 in the file, 200x6 in the model",
    ),
    "not a number": (
        lambda: make_damaged_state({"body.1.bias": torch.full((200,), torch.nan)}),
        "body.1.bias is not finite",
    ),
    "a checkpoint": (
        lambda: {"epoch": 3, "model": make_damaged_state({})},
        "contains a dict with epoch, model, not a state dict",
    ),
    "a list": (lambda: [1, 2], "contains a list, not a state dict"),
    "nothing": (dict, "contains a dict with nothing, not a state dict"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_weights_that_do_not_fit_are_refused_and_named(tmp_path, case):
    make, message = MISFITS[case]
    torch.save(make(), tmp_path / "w.pt")
    with pytest.raises(InputError) as error:
        load_initial_model("mlp", tmp_path / "w.pt", shape=(6,))
    assert error.value.message.endswith(message)


def test_batch_norm_weights_are_refused_for_group_norm(tmp_path):
    torch.save(torchvision().models.resnet18(num_classes=4).state_dict(), tmp_path / "w.pt")
    with pytest.raises(InputError, match=r"60 names that resnet-18 lacks: bn1.running_mean, bn1.running_var"):
        load_initial_model("resnet-18", tmp_path / "w.pt")


def test_unreadable_weights_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        initial.read(tmp_path / "none.pt")
    with pytest.raises(UsageError, match="neither"):
        initial.read(tmp_path / "w.onnx")
    for name in ("w.pt", "w.safetensors"):
        (tmp_path / name).write_bytes(b"no weights at all")
        with pytest.raises(InputError, match="cannot be read as weights"):
            initial.read(tmp_path / name)
    (tmp_path / "folder.pt").mkdir()
    with pytest.raises(InputError, match="not a file"):
        initial.read(tmp_path / "folder.pt")


class Trap:
    """What an attacker's pickle may hold: a call."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_pickled_code_in_a_weights_file_is_not_run(tmp_path):
    torch.save({"w": Trap(tmp_path / "sprung")}, tmp_path / "w.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Trap(tmp_path / "sprung"), protocol=2))
    for name in ("w.pt", "plain.pt"):
        with pytest.raises(InputError, match="cannot be read as weights"):
            initial.read(tmp_path / name)
    assert not (tmp_path / "sprung").exists()


def test_digest_of_weights_depends_only_on_their_content(tmp_path):
    state = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(1), "c": torch.ones(2, dtype=torch.bfloat16)}
    torch.save(dict(reversed(state.items())), tmp_path / "w.pt")
    save_file(state, tmp_path / "w.safetensors")
    changed = [state | {"a": state["a"] + 1e-6}, state | {"a": state["a"].reshape(3, 2)}, {**state, "d": state["b"]}]
    digests = [initial.read(tmp_path / name).digest for name in ("w.pt", "w.safetensors")]
    for each in changed:
        torch.save(each, tmp_path / "other.pt")
        digests.append(initial.read(tmp_path / "other.pt").digest)
    assert digests[0] == digests[1]
    assert len(set(digests)) == 4


@pytest.fixture
def backbones_from_weights(small, tmp_path):
    """A backbone that began with weights of ours and took no step, and one that took a round."""
    net = models.create("mlp", (1, 28, 28), 10, seed=77)
    torch.save(net.state_dict(), tmp_path / "w.pt")
    settings = {"model": "mlp", "participation": 0.5}
    for rounds in (0, 1):
        train_global(
            small.p, tmp_path / f"b{rounds}", settings={**settings, "rounds": rounds}, weights=tmp_path / "w.pt"
        )
    return net


def test_backbone_starts_from_the_given_weights(small, tmp_path, backbones_from_weights):
    start = load_file(tmp_path / "b0" / "weights.safetensors")
    assert all(torch.equal(start[name], value) for name, value in backbones_from_weights.state_dict().items())
    after = load_file(tmp_path / "b1" / "weights.safetensors")
    moved = sum(float((after[name] - value).norm()) for name, value in start.items())
    assert 0 < moved < sum(float(value.norm()) for value in start.values())


def test_same_weights_in_another_file_are_up_to_date(small, tmp_path, backbones_from_weights):
    save_file(backbones_from_weights.state_dict(), tmp_path / "same.safetensors")
    settings = {"model": "mlp", "participation": 0.5, "rounds": 0}
    again = train_global(small.p, tmp_path / "b0", settings=settings, weights=tmp_path / "same.safetensors")
    assert again.decision == "up to date"
    other = models.create("mlp", (1, 28, 28), 10, seed=78)
    save_file(other.state_dict(), tmp_path / "other.safetensors")
    for weights in (tmp_path / "other.safetensors", None):
        with pytest.raises(ConflictError, match="another request") as error:
            train_global(small.p, tmp_path / "b0", settings=settings, weights=weights)
        assert any(line.startswith("weights: ") for line in error.value.fix)


def test_methods_on_a_backbone_start_from_its_initial_weights(tmp_path, backbones_from_weights):
    class Recorder(Execution().reporter.__class__):
        lines: list[str] = []  # noqa: RUF012

        def say(self, text):
            self.lines.append(text)

    personalize("fedavg", tmp_path / "b1", tmp_path / "f", execution=Execution(reporter=Recorder()))
    assert f"fedavg: reusing the 1 rounds of {tmp_path / 'b1'}" in Recorder.lines
    # A method that trains anew, with no step to take, is left with the weights.
    personalize("fedavg", tmp_path / "b1", tmp_path / "f0", settings={"rounds": 0})
    state = load_file(tmp_path / "f0" / "state.safetensors")
    assert all(
        torch.equal(state[f"global/{name}"], value) for name, value in backbones_from_weights.state_dict().items()
    )


def test_weights_option_is_recorded_and_a_missing_file_refused(pfl, small, tmp_path):
    torch.save(models.create("mlp", (1, 28, 28), 3, seed=7).state_dict(), tmp_path / "w.pt")
    line = ("train-global", small.p, "-o", tmp_path / "b", "--model", "mlp", "--rounds", 1, "--weights")
    ran = pfl(*line, tmp_path / "w.pt", "--json")
    assert ran.code == 0
    assert "the head is initialized at random" in ran.err
    assert len(json.loads(ran.out)["request"]["weights"]) == 64
    assert open_artifact(tmp_path / "b").manifest.made["weights"] == str(tmp_path / "w.pt")
    ran = pfl(*line, tmp_path / "gone.pt")
    assert (ran.code, ran.out) == (3, "")
    assert "does not exist" in ran.err


@pytest.mark.parametrize("method", ["fedprox", "fedham", "scaffold"])
def test_method_predicts_the_same_from_its_own_backbone_and_from_the_partition(method, small, tmp_path):
    """One that keeps more than the global model runs its rounds again."""
    settings = {"model": "mlp", "rounds": 2, "participation": 1.0}
    train_global(small.p, tmp_path / "b", method=method, settings=settings)
    personalize(method, tmp_path / "b", tmp_path / "from-backbone")
    personalize(method, small.p, tmp_path / "from-partition", settings=settings)
    artifacts = [open_artifact(tmp_path / name) for name in ("from-backbone", "from-partition")]
    from_backbone, from_partition = (predictions.read(one, "test").parts["p"] for one in artifacts)
    np.testing.assert_array_equal(from_backbone, from_partition)
    assert artifacts[0].manifest.summary["bytes_up"] == artifacts[1].manifest.summary["bytes_up"]


def test_all_methods_of_a_comparison_start_from_the_given_weights(small, tmp_path, backbones_from_weights):
    compare(
        [small.p],
        tmp_path / "c",
        methods=["fedavg", "ditto", "fedavg-plus", "knn-per"],
        settings={"model": "mlp", "rounds": 0},
        options={"fedavg-plus": {"epochs": 0}, "ditto": {"newcomer_epochs": 0}, "knn-per": {"weight": 0.0}},
        weights=tmp_path / "w.pt",
        references=False,
    )
    artifacts = {
        name: open_artifact(tmp_path / "c" / "seed-0" / name) for name in ("fedavg", "ditto", "fedavg-plus", "knn-per")
    }
    digest = initial.read(tmp_path / "w.pt").digest
    assert {one.manifest.request["weights"] for one in artifacts.values()} == {digest}
    answers = {name: predictions.read(one, "test").parts["p"] for name, one in artifacts.items()}
    personalize("fedavg", tmp_path / "b0", tmp_path / "f0")
    expected = predictions.read(open_artifact(tmp_path / "f0"), "test").parts["p"]
    for name, p in answers.items():
        np.testing.assert_allclose(p, expected, atol=1e-6, err_msg=name)
    request = open_artifact(tmp_path / "c" / "comparison").manifest.request
    assert request["weights"] == digest


def test_weights_that_differ_from_the_backbone_are_refused(pfl, small, tmp_path, backbones_from_weights):
    with pytest.raises(UsageError, match="did not start from"):
        personalize("fedavg-plus", small.b, tmp_path / "f", weights=tmp_path / "w.pt")
    same = personalize("fedavg", tmp_path / "b0", tmp_path / "f", weights=tmp_path / "w.pt")
    assert same.request["weights"] == initial.read(tmp_path / "w.pt").digest
    line = ("compare", small.p, "-o", tmp_path / "c", "--methods", "fedavg", "--model", "mlp", "--rounds", 1)
    assert pfl(*line, "--weights", tmp_path / "w.pt", "-q").code == 0
    ran = pfl(*line, "-q")
    assert ran.code == 4
    assert "weights: " in ran.err
