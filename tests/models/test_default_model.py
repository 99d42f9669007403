"""The default model, and dry runs that refuse what a run would refuse."""

from __future__ import annotations

import numpy as np
import pytest

from pflcli.artifacts.reader import open_artifact
from pflcli.commands.compare import compare
from pflcli.commands.import_data import import_data
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global
from pflcli.core import models, registry
from pflcli.core.errors import UsageError

FEW = {"rounds": 1, "participation": 1.0, "lr": 0.01}
DRAW = np.random.default_rng(0)
SHAPES = {
    "cnn": DRAW.integers(0, 256, (40, 12, 12), dtype=np.uint8),
    "mlp": DRAW.normal(size=(40, 5)).astype(np.float32),
    "gru": DRAW.normal(size=(40, 12, 2)).astype(np.float32),
}


@pytest.fixture
def import_and_partition(tmp_path):
    """Import arrays and partition them between two clients."""

    def run(x):
        np.savez(tmp_path / "data.npz", x=x, y=np.arange(len(x)) % 2, owner=np.arange(len(x)) // (len(x) // 2))
        import_data(tmp_path / "data.npz", tmp_path / "data")
        partition(str(tmp_path / "data"), tmp_path / "p")
        return tmp_path / "p"

    return run


@pytest.mark.parametrize("model", SHAPES)
def test_request_names_the_default_model_for_the_samples(import_and_partition, tmp_path, model):
    p = import_and_partition(SHAPES[model])
    for step in (
        lambda: train_global(p, tmp_path / "b", settings=FEW),
        lambda: personalize("local", p, tmp_path / "m", settings=FEW),
        lambda: personalize("fedavg", tmp_path / "b", tmp_path / "f", settings={"model": "auto"}),
        lambda: compare([p], tmp_path / "c", methods=["local"], settings=FEW, references=False),
    ):
        assert step().request["settings"]["model"] == model
    manifest = open_artifact(tmp_path / "c" / "seed-0" / "local").manifest
    assert manifest.fingerprint == open_artifact(tmp_path / "m").manifest.fingerprint


def test_default_model_of_tokens_is_an_lstm():
    assert models.default((80,), tokens=True) == "lstm"
    assert models.default((80,), tokens=False) == "mlp"


UNFIT = ("train-global {p}", "personalize ditto {p}", "compare {p} --methods ditto")


@pytest.mark.parametrize("command", UNFIT)
@pytest.mark.parametrize("words", [[], ["-n"]])
def test_dry_run_refuses_a_model_that_does_not_fit_the_samples(pfl, import_and_partition, tmp_path, command, words):
    p = import_and_partition(SHAPES["mlp"])
    ran = pfl(*command.format(p=p).split(), "--model", "cnn", "-o", tmp_path / "out", *words)
    assert ran.code == 2
    assert "model cnn takes images, not features of 5" in ran.err
    assert not (tmp_path / "out").exists()


def test_dry_run_refuses_images_that_are_too_small(pfl, import_and_partition, tmp_path):
    p = import_and_partition(SHAPES["cnn"][:, :4, :4])
    ran = pfl("train-global", p, "--model", "alexnet", "-o", tmp_path / "out", "-n")
    assert (ran.code, "model alexnet takes images of at least" in ran.err) == (2, True)


@pytest.mark.parametrize("name", registry.names("models"))
def test_outline_refuses_the_same_shapes_as_create(name):
    """What can be built passes the check, and what cannot is refused by both."""
    if name in ("torchvision", "timm"):
        pytest.skip("a family; its members need a library")
    for shape, tokens in (((3, 32, 32), False), ((1, 4, 4), False), ((5,), False), ((12, 2), False), ((12,), True)):
        messages = [capture_usage_error(models.create, name, shape, 3, 0, tokens=tokens)]
        messages.append(capture_usage_error(models.outline, name, shape, 3, tokens=tokens))
        assert messages[0] == messages[1]


def capture_usage_error(act, *args, **kwargs):
    try:
        act(*args, **kwargs)
    except UsageError as error:
        return error.message
    return None
