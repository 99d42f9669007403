"""Networks of users' classes: divided into body and head, random by key, refused in words, and used like any model."""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from pflcli.artifacts.reader import open_artifact
from pflcli.core import models, parameters, registry
from pflcli.core.engine.engine import Engine
from pflcli.core.engine.local_sgd import LocalSGD
from pflcli.core.errors import InputError, UsageError
from pflcli.plugins.checks.laws.federations import make_tiny_clients
from pflcli.workflow.admission.small_federation import are_equal

CNN = """
import torch
from torch import nn

from own_layers import pool


class Net(nn.Module):
    def __init__(self, classes, in_channels, width=4, p=0.0):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(in_channels, width, 3, stride=2), nn.BatchNorm2d(width)
        self.drop, self.fc = nn.Dropout(p), nn.Linear(width, classes)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        return self.fc(self.drop(pool(self.norm(self.conv(x)).relu() * self.scale)))
"""
SERIES = """
from torch import nn


class Net(nn.Module):
    def __init__(self, num_classes, in_channels):
        super().__init__()
        self.conv, self.out = nn.Conv1d(in_channels, 6, 3), nn.Linear(6, num_classes)

    def forward(self, x):
        return self.out(self.conv(x.mT).relu().amax(dim=2))
"""
TRANSFORMER = """
from torch import nn


class Net(nn.Module):
    def __init__(self, vocab_size, classes, d=8):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d)
        self.layer = nn.TransformerEncoderLayer(d, 2, 16, dropout=0.1, batch_first=True)
        self.out = nn.Linear(d, classes)

    def forward(self, x):
        return self.out(self.layer(self.embed(x)).mean(dim=1))
"""
SETTINGS = ("--rounds", 2, "--participation", 0.5, "-q")


@pytest.fixture
def write_network(tmp_path, monkeypatch):
    """Return a function that writes a user's file and returns its path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_layers.py").write_text("def pool(x):\n    return x.mean(dim=(2, 3))\n")

    def write(code, name="net"):
        (tmp_path / f"{name}.py").write_text(code)
        importlib.invalidate_caches()
        return f"./{name}.py"

    return write


def create_model(word, shape, classes=3, *, tokens=False):
    return models.create(registry.use("models", word), shape, classes, 0, tokens=tokens)


@pytest.mark.parametrize(
    ("code", "shape", "tokens", "head", "is_random"),
    [
        (CNN, (1, 9, 9), False, (4, 3), False),
        (SERIES, (12, 2), False, (6, 3), False),
        (TRANSFORMER, (10,), True, (8, 30), True),
    ],
)
def test_last_linear_layer_becomes_the_head(write_network, code, shape, tokens, head, is_random):
    classes = 30 if tokens else 3
    whole = create_model(write_network(code), shape, classes, tokens=tokens).eval()
    assert (whole.head.in_features, whole.head.out_features) == head
    assert bool(whole.is_random) == is_random
    x = torch.randint(30, (5, *shape)) if tokens else torch.rand(5, *shape)
    with torch.no_grad():
        assert torch.equal(whole.head(whole.features(x)), whole(x))
    names = [name for name, _ in whole.named_parameters()]
    assert {name.partition(".")[0] for name in names} == {"body", "head"}


def test_class_can_name_its_head(write_network):
    code = SERIES.replace("class Net(nn.Module):", 'class Net(nn.Module):\n    HEAD = "out"')
    assert create_model(write_network(code), (12, 2)).head.in_features == 6
    code = SERIES.replace("class Net(nn.Module):", 'class Net(nn.Module):\n    HEAD = "conv"')
    assert not [
        *create_model(write_network(code, "other"), (12, 2)).head.parameters()
    ]  # which does not compute the logits


@pytest.mark.parametrize("after", ["relu()", "clamp(-50, 50)", "softmax(dim=1)"])
def test_network_with_a_function_after_the_last_layer_has_no_head(write_network, after):
    code = SERIES.replace("dim=2))", f"dim=2)).{after}")
    word = registry.use("models", write_network(code))
    for seed in range(20):  # for some initial weights, the logits of a few samples are all positive
        assert not [*models.create(word, (12, 2), 3, seed).head.parameters()]


def test_network_without_a_head_is_refused_only_by_methods_that_need_one(write_network, pfl, small):
    word = write_network(CNN.replace("* self.scale)))", "* self.scale))).log_softmax(dim=1)"))
    assert not [*create_model(word, (1, 28, 28), 10).head.parameters()]
    for method in ("ditto", "fedbn"):
        assert pfl("personalize", method, small.p, "-o", method, "--model", word, *SETTINGS).code == 0
    for method in ("fedper", "fedrep", "lg-fedavg"):
        ran = pfl("personalize", method, small.p, "-o", method, "--model", word, *SETTINGS)
        assert ran.code == UsageError.exit_code
        assert "the model has no parameters under 'head.'" in ran.err
    ran = pfl("personalize", "fedbabu", small.p, "-o", "head", "--model", word, "--set", "tune=head", *SETTINGS)
    assert ran.code == UsageError.exit_code
    assert "it does not end in a linear layer" in ran.err


def test_dropout_gives_the_same_bytes_for_any_threads_jobs_and_engine(write_network, pfl, small):
    """The same bytes with any number of threads and processes, in either mode."""
    word = write_network(CNN)
    words = ("personalize", "local", small.p, "--model", word, "--set", "model.p=0.5", "-q")
    how = {"one": ("--threads", 1), "two": ("--threads", 2), "jobs": ("--jobs", 2), "stack": ("--engine", "stacked")}
    for out, more in how.items():
        assert pfl(*words, "-o", out, *more).code == 0
    contents = {(open_artifact(out).path / "predictions.h5").read_bytes() for out in how}
    assert len(contents) == 1
    assert pfl(*words, "-o", "none", "--set", "model.width=5").code == 0
    assert open_artifact("one").manifest.request["settings"]["model"] == "net:Net(p=0.5)"


DRAWS = {
    "a function build": """
from torch import nn

from pflcli.core.models import Net

REPRESENTATION = "4"


def build(in_shape, classes):
    return Net(nn.Sequential(nn.Flatten(), nn.Linear(784, 4), nn.Dropout(0.3)), nn.Linear(4, classes))
""",
    "rare draws": """
        if self.training and torch.rand(()) < 0.02:
            x = torch.zeros_like(x)
""",
    "draws by NumPy": """
        if self.training:
            x = x * (1 + 0.1 * np.random.normal())
""",
    "draws by Python": """
        if self.training:
            x = x * (1 + 0.1 * random.random())
""",
    "draws for some batches": """
        if self.training and len(x) == 3:
            x = nn.functional.dropout(x, 0.3)
""",
}
"""Ways to draw random numbers. The last one is not seen before training."""


@pytest.mark.parametrize("draw", DRAWS)
def test_random_networks_are_reproducible_for_every_way_of_drawing(write_network, draw):
    code = DRAWS[draw]
    if draw != "a function build":
        forward = "    def forward(self, x):\n"
        code = f"import random\n\nimport numpy as np\n{CNN}".replace(forward, forward + code)
    whole, data = create_model(write_network(code), (1, 28, 28)), make_tiny_clients(6, samples=7, features=784)
    data = replace(data, x=data.x.view(-1, 1, 28, 28))
    plan, start = LocalSGD(2, 4, np.full(2, 0.1), 0.0, 0.0), parameters.copy_params(whole)
    trained = []
    for number, (threads, mode) in enumerate([(1, "loop"), (3, "loop"), (1, "stacked")]):
        torch.manual_seed(number)
        random.seed(number)
        engine = Engine(whole, data, seed=0, threads=threads, mode=mode)
        parts = [part.params for part in engine.local_sgd(data.clients, start, plan, ("test",))]
        trained.append({name: torch.cat([part[name] for part in parts]) for name in start})
        engine.close()
    assert are_equal(trained[0], trained[1])
    assert are_equal(trained[0], trained[2])


def test_user_network_is_stored_and_required_by_later_commands(write_network, pfl, small, tmp_path):
    word = write_network(CNN)
    assert pfl("train-global", small.p, "-o", "b", "--model", word, "--set", "model.width=3", *SETTINGS).code == 0
    manifest = open_artifact("b").manifest
    assert manifest.made["files"] == {"models/net": "net.py"}
    assert (tmp_path / "b" / "net.py").read_text() == CNN
    assert manifest.made["command"].endswith("--set model.width=3")
    os.environ.pop(registry.USED)
    for line in (("extract", "b", "-o", "e"), ("personalize", "fedrep", "b", "-o", "m")):
        ran = pfl(*line, "-q")
        assert ran.code == UsageError.exit_code
        assert "pfl --use PATH/net.py" in ran.err
        assert pfl("--use", "net.py", *line, "-q").code == 0
        os.environ.pop(registry.USED)
    client = json.loads((tmp_path / "m" / "codebook.json").read_text())["clients"][0]
    np.savez("x.npz", x=np.zeros((3, 28, 28), np.uint8))
    assert pfl("--use", "net.py", "predict", "m", "x.npz", "--client", client, "-q").code == 0
    (tmp_path / "own_layers.py").write_text("def pool(x):\n    return x.amax(dim=(2, 3))\n")
    assert (
        "models/net:Net(width=3) has changed" in pfl("--use", "net.py", "predict", "m", "x.npz", "--client", client).err
    )


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("def forward(self, x):", "def forward(self, x, mask):", InputError, "Net.forward takes 2 inputs (x, mask)"),
        (
            "nn.Linear(width, classes)",
            "nn.Linear(width, 7)",
            InputError,
            "returns (2, 7) for two samples of 10 classes",
        ),
        ("self.norm(self.conv(x))", "self.norm(self.con(x))", InputError, "net.py, line 1"),
        ("super().__init__()", "super().__init__(", InputError, "SyntaxError"),
        ("nn.Linear(width, classes)", "nn.Linear(wide, classes)", InputError, "name 'wide' is not defined"),
        ("class Net(nn.Module)", "class Net", InputError, "has no subclass of torch.nn.Module"),
        (
            "class Net(nn.Module)",
            "class One(nn.Module):\n    pass\n\n\nclass Net(nn.Module)",
            UsageError,
            "several networks",
        ),
    ],
)
def test_wrong_network_class_ends_in_one_error(write_network, pfl, small, old, new, error, message):
    assert old in CNN
    ran = pfl("personalize", "fedavg", small.p, "-o", "m", "--model", write_network(CNN.replace(old, new)), *SETTINGS)
    assert ran.code == error.exit_code
    assert message in ran.err
    assert "bug in pfl" not in ran.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "./net.py:Nett"), "has no network Nett"),
        (("--model", "./absent.py"), "does not exist"),
        (("--model", "own_package.nets:Net"), "there is no module own_package.nets"),
        (("--model", "./net.py", "--set", "model.wide=3"), "Net has no argument 'wide'"),
        (("--model", "mlp", "--set", "model.width=3"), "needs a model that is a class of yours"),
        (("--model", "./net.py:Net(open('x'))"), "arguments are not literal"),
        (("--model", "json.tool:Net"), "json/tool.py has no network Net"),
    ],
)
def test_wrong_model_arguments_are_refused(write_network, pfl, small, words, message):
    write_network(CNN)
    ran = pfl("personalize", "fedavg", small.p, "-o", "m", *words, *SETTINGS)
    assert ran.code in (UsageError.exit_code, InputError.exit_code)
    assert message in ran.err


def test_network_class_of_an_installed_module_can_be_used(write_network, pfl, small, tmp_path, monkeypatch):
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "__init__.py").touch()
    (tmp_path / "installed" / "nets.py").write_text(CNN)
    monkeypatch.syspath_prepend(str(tmp_path))
    ran = pfl("personalize", "fedavg", small.p, "-o", "m", "--model", "installed.nets:Net", *SETTINGS)
    assert ran.code == 0, ran.err
    assert "models/installed.nets:Net" in open_artifact("m").manifest.code
    assert pfl("train-global", small.p, "-o", "b", "--model", "installed.nets:Net", *SETTINGS).code == 0
    os.environ.pop(registry.USED)
    for name in [name for name in sys.modules if name.partition(".")[0] == "installed"]:
        del sys.modules[name]
    ran = pfl("extract", "b", "-o", "e")
    assert ran.code == UsageError.exit_code
    assert "pfl --use installed.nets COMMAND" in ran.err
    assert not {"installed", "installed.nets"} & set(sys.modules)  # an artifact does not choose what is imported
    assert pfl("--use", "installed.nets", "extract", "b", "-o", "e", "-q").code == 0


def test_stacked_engine_refuses_a_network_that_vmap_cannot_run(write_network, pfl, small):
    word = write_network(
        CNN.replace("        return self.fc(", "        if x.sum() > 1e9:\n            x = -x\n        return self.fc(")
    )
    words = ("personalize", "local", small.p, "--model", word, "-q")
    ran = pfl(*words, "-o", "s", "--engine", "stacked")
    assert ran.code == UsageError.exit_code
    assert "this network cannot be trained in stacks: vmap: " in ran.err
    assert "--engine loop" in ran.err
    assert pfl(*words, "-o", "l", "--engine", "loop").code == 0
