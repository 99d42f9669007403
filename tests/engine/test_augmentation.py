"""Augmentation of training images: its effect, its random draws, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import worlds
from helpers import CLASSIFYING
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.core import config, models, parameters, rng
from pflcli.core.engine.augmentation import augment
from pflcli.core.engine.engine import Engine
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.normalization import normalized
from pflcli.core.errors import UsageError
from pflcli.core.settings import Settings

DRAW = np.random.default_rng(0)


def make_federation(side=16, sizes=(11, 5, 1), channels=3, scale="none"):
    counts = np.ravel([(n, 1, 1) if isinstance(n, int) else n for n in sizes])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    cluster = np.arange(len(sizes)) % 2
    x = DRAW.integers(1, 256, (offsets[-1], side, side, channels), dtype=np.uint8)
    data = Federation.from_blocks(x, DRAW.integers(0, 3, offsets[-1]), offsets, 3, cluster=cluster)
    return normalized(data, scale)


def make_run(data, model="cnn", mode="loop", threads=1, **settings):
    run = worlds.run(mode=mode, **settings)
    net = models.create(model, data.in_shape, 3, 0)
    run.federation, run.init = data, parameters.copy_params(net)
    run.engine = Engine(net, data, seed=0, threads=threads, mode=mode)
    return run


def train_models(data, **settings):
    run = make_run(data, epochs=2, **settings)
    parts = [*run.local_sgd(data.clients, run.init, t=0)]
    return {name: torch.cat([part.params[name] for part in parts]) for name in run.init}


@pytest.mark.parametrize("scale", ["none", "dataset"])
def test_augment_mirrors_and_shifts_each_image_with_black_padding(scale):
    data = make_federation(scale=scale)
    images = data.inputs(slice(0, 8)).repeat(20, 1, 1, 1)
    changed = augment(images, ("flip", "crop"), np.random.default_rng(1), data.scale)
    black = torch.zeros(3, 1, 1) if scale == "none" else -data.scale[0] / data.scale[1]
    pad, seen = 2, set()
    for before, after in zip(images, changed, strict=True):
        padded = black.expand(3, 20, 20).clone()
        padded[:, pad:-pad, pad:-pad] = before
        crops = {(y, x): padded[:, y : y + 16, x : x + 16] for y in range(5) for x in range(5)}
        plain = [(*place, "plain") for place, crop in crops.items() if crop.equal(after)]
        mirrored = [(*place, "mirrored") for place, crop in crops.items() if crop.flip(-1).equal(after)]
        (found,) = plain + mirrored
        seen.add(found)
    assert {y for y, *_ in seen} == {x for _, x, _ in seen} == set(range(5))
    assert {form for *_, form in seen} == {"plain", "mirrored"}


def test_augment_mirrors_half_of_the_images_and_draws_shifts_uniformly():
    images = torch.zeros(8000, 1, 16, 16)
    images[:, 0, 8, 5] = 1  # one bright pixel says what happened to its image
    bright = augment(images, ("flip", "crop"), np.random.default_rng(0))[:, 0].flatten(1).argmax(dim=1)
    row, column = (bright // 16).numpy(), (bright % 16).numpy()
    is_mirrored = column > 7  # 5 +- 2, or 10 +- 2
    assert abs(is_mirrored.mean() - 0.5) < 4 * 0.5 / np.sqrt(8000)
    shifts = np.stack([row - 8, np.where(is_mirrored, 10 - column, column - 5)])
    for axis in shifts:
        shares = np.bincount(axis + 2, minlength=5) / 8000
        assert np.abs(shares - 0.2).max() < 4 * np.sqrt(0.2 * 0.8 / 8000)
    assert abs(np.corrcoef([*shifts, is_mirrored]) - np.eye(3)).max() < 4 / np.sqrt(8000)


@pytest.mark.parametrize(("side", "largest"), [(7, 1), (8, 1), (15, 1), (16, 2), (32, 4)])
def test_largest_crop_shift_is_an_eighth_of_the_side(side, largest):
    images = torch.zeros(500, 1, side, side)
    images[:, 0, side // 2, side // 2] = 1
    bright = augment(images, ("crop",), np.random.default_rng(0))[:, 0].flatten(1).argmax(dim=1)
    assert set((bright // side - side // 2).tolist()) == set(range(-largest, largest + 1))
    assert set((bright % side - side // 2).tolist()) == set(range(-largest, largest + 1))


def test_flip_and_crop_can_be_used_separately():
    data = make_federation()
    images = data.inputs(slice(0, 16))
    flipped = augment(images, ("flip",), np.random.default_rng(0))
    is_mirrored = [bool(a.equal(b.flip(-1))) for a, b in zip(flipped, images, strict=True)]
    assert all(m or a.equal(b) for m, a, b in zip(is_mirrored, flipped, images, strict=True))
    assert 0 < sum(is_mirrored) < 16
    cropped = augment(images, ("crop",), np.random.default_rng(0))
    both = augment(images, ("flip", "crop"), np.random.default_rng(0))
    for mirrored, a, b in zip(is_mirrored, cropped, both, strict=True):
        assert (a.flip(-1) if mirrored else a).equal(b)


def test_local_training_on_augmented_images_matches_a_hand_written_loop():
    data = make_federation(sizes=(10,))
    run = make_run(data, model="logistic", epochs=2, augment=("flip", "crop"), lr=0.05)
    (part,) = run.local_sgd([0], run.init, t=3)
    net = models.create("logistic", data.in_shape, 3, 0)
    orders, changes = rng.generator(0, "sgd", 3, 0), rng.generator(0, "augment", "sgd", 3, 0)
    for _ in range(2):
        for batch in torch.from_numpy(orders.permutation(10)).split(4):
            x = augment(data.inputs(batch), ("flip", "crop"), changes)
            loss = torch.nn.functional.cross_entropy(net(x), data.y[batch])
            grads = torch.autograd.grad(loss, [*net.parameters()])
            with torch.no_grad():
                for weight, grad in zip(net.parameters(), grads, strict=True):
                    weight -= 0.05 * grad
    worlds.close(parameters.pick(part.params, 0), parameters.copy_params(net), atol=1e-5)


@pytest.mark.parametrize("model", ["logistic", "mlp", "cnn"])
def test_augmentation_does_not_depend_on_threads_and_modes(model):
    data, kinds = make_federation(28, sizes=(5, 4) * 12), ("flip", "crop")  # as many as several stacks of clients need
    once = train_models(data, model=model, augment=kinds)
    for other in ({"threads": 2}, {"mode": "stacked"}):
        assert worlds.same(once, train_models(data, model=model, augment=kinds, **other)), other
    assert not worlds.same(once, train_models(data, model=model))


@pytest.mark.parametrize("method", CLASSIFYING)
def test_method_trains_on_augmented_images(method):
    data = make_federation(8, sizes=((6, 4, 4), (5, 3, 3), (1, 1, 1), (7, 3, 4)))
    run = worlds.run(method, data=data, augment=("flip", "crop"))
    answers = worlds.answers(method, run, worlds.play(method, run))
    assert np.isfinite(answers["test"]).all()


def test_request_records_augmentation_only_when_it_is_set(tmp_path):
    partition("writers", tmp_path / "p", clients=3)
    settings = {"rounds": 1, "model": "logistic"}
    plain = personalize("fedavg", tmp_path / "p", out=tmp_path / "a", settings=settings)
    changed = personalize("fedavg", tmp_path / "p", out=tmp_path / "b", settings={**settings, "augment": "flip,crop"})
    assert plain.request["settings"]["augment"] == []
    assert changed.request["settings"]["augment"] == ["flip", "crop"]


@pytest.mark.parametrize(("word", "kinds"), [("none", ()), ("crop", ("crop",)), ("flip, crop", ("flip", "crop"))])
def test_augment_setting_reads_kinds_separated_by_commas(word, kinds):
    assert config.build(Settings, {"augment": word}, "the training settings").augment == kinds


def test_augmentation_is_refused_for_samples_that_are_not_images(tmp_path):
    partition("heart-disease", tmp_path / "p")
    with pytest.raises(UsageError, match="images"):
        personalize("fedavg", tmp_path / "p", out=tmp_path / "a", settings={"rounds": 1, "augment": "flip"})
    with pytest.raises(UsageError, match="augment"):
        config.build(Settings, {"augment": "mirror"}, "the training settings")
