"""Images normalized by channel: by which numbers, and the same ones along the whole chain."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from pflcli.artifacts.kinds import embeddings
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds.backbone import read_tensors
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.extract import extract
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global
from pflcli.core import models, parameters
from pflcli.core.engine.engine import Engine
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.local_sgd import LocalSGD
from pflcli.core.engine.normalization import normalized
from pflcli.core.engine.process_settings import intra_op
from pflcli.core.engine.tasks.classes import Classification
from pflcli.core.errors import UsageError


def make_images(channels=3, new=None):
    """Two clients with three training samples and one more of each split."""
    draw = np.random.default_rng(0)
    x = torch.from_numpy(draw.integers(0, 256, (10, channels, 4, 5), dtype=np.uint8))
    return Federation(x, torch.arange(10) % 2, np.asarray([0, 3, 4, 5, 8, 9, 10]), Classification(2), new)


def test_imagenet_normalization_supports_colour_and_grey_images():
    x = make_images().x / 255.0
    red = normalized(make_images(), "imagenet").inputs(slice(None))[:, 0]
    torch.testing.assert_close(red, (x[:, 0] - 0.485) / 0.229)
    grey = normalized(make_images(1), "imagenet").inputs(slice(None))
    torch.testing.assert_close(grey, (make_images(1).x / 255.0 - 0.449) / 0.226)
    assert normalized(make_images(), "none").scale is None


def test_dataset_normalization_uses_training_samples_of_seen_clients():
    new = np.asarray([False, True])
    data = normalized(make_images(new=new), "dataset")
    pixels = (make_images().x[:3] / 255.0).double()
    mean, deviation = pixels.mean(dim=(0, 2, 3)), pixels.std(dim=(0, 2, 3), unbiased=False)
    torch.testing.assert_close(data.scale[0].flatten().double(), mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(data.scale[1].flatten().double(), deviation, rtol=1e-6, atol=1e-7)
    assert data.pooled(np.asarray([4, 5])).inputs(slice(None)).equal(data.inputs(slice(4, 6)))
    flat = Federation(
        torch.full((2, 1, 2, 2), 51, dtype=torch.uint8),
        torch.zeros(2).long(),
        np.asarray([0, 2, 2, 2]),
        Classification(2),
    )
    assert normalized(flat, "dataset").inputs(slice(None)).abs().max() < 1e-6


def test_normalization_refuses_two_channels_and_features():
    with pytest.raises(UsageError, match="one, not of 2"):
        normalized(make_images(2), "imagenet")
    features = Federation(torch.zeros(2, 3), torch.zeros(2).long(), np.asarray([0, 2, 2, 2]), Classification(2))
    with pytest.raises(UsageError, match="is for images"):
        normalized(features, "dataset")


@pytest.mark.parametrize("jobs", [0, 1])
@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_every_mode_trains_on_normalized_images(mode, jobs):
    data = normalized(make_images(), "dataset")
    torch.manual_seed(0)
    net = models.Net(nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten()), nn.Linear(12, 2))
    engine = Engine(net, data, seed=0, mode=mode, jobs=jobs)
    plan = LocalSGD(epochs=1, batch_size=4, lr=[0.1])
    (part,) = engine.local_sgd([0, 1], parameters.copy_params(net), plan, ("sgd", 0))
    engine.close()
    plain = Federation(data.inputs(slice(None)), data.y, data.offsets, Classification(2))
    (expected,) = Engine(net, plain, seed=0, mode=mode).local_sgd([0, 1], parameters.copy_params(net), plan, ("sgd", 0))
    for name, value in expected.params.items():
        torch.testing.assert_close(part.params[name], value)


def test_extract_uses_the_normalization_of_its_backbone(small, tmp_path):
    settings = {"model": "mlp", "rounds": 1, "participation": 0.5, "normalize": "dataset"}
    train_global(small.p, tmp_path / "b", settings=settings)
    assert open_artifact(small.b).manifest.request["settings"]["normalize"] == "none"
    assert open_artifact(tmp_path / "b").manifest.request["settings"]["normalize"] == "dataset"
    extract(tmp_path / "b", tmp_path / "e")
    data = partitions.read(open_artifact(small.p))
    net = models.create("mlp", (1, 28, 28), data.classes, 0)
    net.load_state_dict(read_tensors(open_artifact(tmp_path / "b")))
    plain = Federation.from_blocks(data.x, data.y, data.offsets, data.classes)
    rows = torch.from_numpy(np.concatenate([plain.rows(int(client), "test") for client in plain.clients]))
    with torch.no_grad():
        expected = net(normalized(plain, "dataset").inputs(rows))
    actual = embeddings.read(open_artifact(tmp_path / "e"))["test"].logits
    np.testing.assert_allclose(actual, expected.numpy(), rtol=1e-4, atol=1e-5)
    # Other samples are normalized by the numbers of those that the backbone was trained on.
    partition("writers", tmp_path / "other", clients=3, seed=5)
    extract(tmp_path / "b", tmp_path / "oe", partition=tmp_path / "other")
    shifted = partitions.read(open_artifact(tmp_path / "other"))
    other = Federation.from_blocks(shifted.x, shifted.y, shifted.offsets, shifted.classes)
    with torch.no_grad():
        expected = net(normalized(other, "dataset", plain).inputs(torch.from_numpy(other.rows(0, "test"))))
    actual = embeddings.read(open_artifact(tmp_path / "oe"))["test"].logits[: len(expected)]
    np.testing.assert_allclose(actual, expected.numpy(), rtol=1e-4, atol=1e-5)
    personalize("fedavg-plus", tmp_path / "b", tmp_path / "f")
    assert open_artifact(tmp_path / "f").manifest.request["settings"]["normalize"] == "dataset"
    with pytest.raises(UsageError, match="was trained on images with --normalize dataset, not none"):
        personalize("fedavg-plus", tmp_path / "b", tmp_path / "g", settings={"normalize": "none"})


def test_engine_disables_tf32():
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = True
    with intra_op(1):
        assert not torch.backends.cudnn.allow_tf32
        assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
