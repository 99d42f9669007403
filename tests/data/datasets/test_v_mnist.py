"""FedHAM's variations of MNIST: sizes of the paper, disjoint digits, transformations, and the same draw every time."""

from __future__ import annotations

import numpy as np
import pytest

from originals import SHARED, needs_shared, write_idx
from pflcli.core.errors import InputError, UsageError
from pflcli.data.datasets import cifar10, fashion_mnist, mnist, v_mnist

DRAW = np.random.default_rng(1)


@pytest.mark.parametrize(
    ("balanced", "total", "deviation"), [(False, 72_795, 1876), (True, 82_800, 0)], ids=["unbalanced", "balanced"]
)
def test_count_samples_gives_the_sizes_of_the_paper(balanced, total, deviation):
    sizes = v_mnist.count_samples(balanced, 70_000, 70_000)
    assert sizes.shape == (6, 3)
    assert sizes.sum() == total
    assert abs(sizes.mean() - total / 18) < 1e-9
    assert sizes.std() == pytest.approx(deviation, abs=1)
    assert sizes[:5].sum() <= 70_000  # each digit stands in one variation


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize(("digits", "clothes"), [(52_047, 70_000), (70_000, 60), (37, 1000), (18, 4), (0, 9), (14, 3)])
def test_count_samples_scales_clients_with_the_available_images(balanced, digits, clothes):
    sizes = v_mnist.count_samples(balanced, digits, clothes)
    assert sizes[:5].sum() <= digits
    assert sizes[5].sum() <= clothes
    full = v_mnist.count_samples(balanced, 70_000, 70_000)
    np.testing.assert_allclose(sizes, full * (sizes.sum() / full.sum()), atol=2)
    assert sizes[:5].sum() > digits - 15 or sizes[5].sum() > clothes - 3
    assert not balanced or len(np.unique(sizes)) == 1


def test_rotate_by_right_angles_is_exact():
    """Four quarters are the identity, one quarter is what NumPy calls it, and nothing is out by a pixel."""
    x = DRAW.integers(0, 256, (4, 28, 28), dtype=np.uint8)
    turned = v_mnist.rotate(x, np.arange(4) * np.pi / 2, chunk=3)
    for quarters in range(4):
        np.testing.assert_array_equal(turned[quarters], np.rot90(x[quarters], quarters))


def test_rotate_interpolates_between_pixels():
    """A blurred spot at distance 8 lands at its angle, counter-clockwise, as bright as it was."""
    row, column = np.indices((29, 29))
    spot = 200 * np.exp(-((row - 14) ** 2 + (column - 22) ** 2) / 4)  # to the right of the centre
    turned = v_mnist.rotate(np.rint(spot[None]).astype(np.uint8), np.asarray([np.pi / 6])).astype(float)[0]
    assert turned.sum() == pytest.approx(spot.sum(), rel=0.02)
    assert (turned * column).sum() / turned.sum() == pytest.approx(14 + 8 * np.cos(np.pi / 6), abs=0.1)
    assert (turned * row).sum() / turned.sum() == pytest.approx(14 - 8 * np.sin(np.pi / 6), abs=0.1)


def test_overlay_blends_ink_with_the_background():
    ink = np.asarray([[[0, 255, 51]]], np.uint8)
    np.testing.assert_array_equal(v_mnist.overlay(ink, np.full((1, 1, 3), 100, np.uint8)), [[[100, 255, 131]]])


@pytest.fixture
def few_images(tmp_path):
    """A folder with 120 digits, 30 pieces of clothing and 12 colour images."""
    x = DRAW.integers(1, 256, (150, 28, 28), dtype=np.uint8)
    for i, image in enumerate(x):
        image[0, 0], image[-1, -1] = i, 0  # to tell them apart
    y = np.arange(150) % 10
    np.savez(tmp_path / "mnist_by_writer.npz", x=x[:120], y=y[:120], mnist_test=y[:120] > 9)
    parts = {"x_train": x[120:140], "y_train": y[120:140], "x_test": x[140:], "y_test": y[140:]}
    np.savez(tmp_path / "fashion_mnist.npz", **parts)
    grey = np.repeat(DRAW.integers(0, 256, (12, 32, 32, 1), dtype=np.uint8), 3, axis=3)
    np.savez(tmp_path / "cifar10_12k.npz", x_train=grey[:9], y_train=y[:9], x_test=grey[9:], y_test=y[:3])
    return tmp_path


@pytest.mark.parametrize("balanced", [False, True])
def test_v_mnist_uses_every_image_once_and_keeps_labels(few_images, balanced):
    samples = v_mnist.load(few_images, cfg=v_mnist.Config(balanced=balanced))
    samples.check("v-mnist")
    digits, clothes = mnist.load(few_images), fashion_mnist.load(few_images)
    names, counts = np.unique(samples.owner, return_counts=True)
    assert len(names) == 18
    np.testing.assert_array_equal(np.sort(counts), np.sort(v_mnist.count_samples(balanced, 120, 30).ravel()))
    used = []
    for variation, source in (("plain", digits), ("fashion", clothes)):
        indices = np.flatnonzero(np.char.startswith(samples.owner, variation))
        sources = [int(np.flatnonzero((source.x == x).all(axis=(1, 2)))[0]) for x in samples.x[indices]]
        assert len(set(sources)) == len(sources)
        np.testing.assert_array_equal(source.y[sources], samples.y[indices])
        used += sources if source is digits else []
    on_noise = np.flatnonzero(np.char.startswith(samples.owner, "noise"))
    for row in on_noise:  # ink never darkens, and hides what is behind where it is full
        near = [i for i in range(120) if (samples.x[row] >= digits.x[i]).all()]
        assert len(near) == 1
        assert digits.y[near[0]] == samples.y[row]
        used += near
    assert len(set(used)) == len(used)


def test_v_mnist_backgrounds_are_patches_of_the_images(few_images):
    """Where there is no ink, the background shows: black digits come out as exact patches."""
    images = v_mnist._to_grey(cifar10.load(few_images).x)
    np.testing.assert_array_equal(images, cifar10.load(few_images).x[..., 0])  # a grey image keeps its values
    varied = v_mnist.make_variation("image", np.zeros((20, 28, 28), np.uint8), images)
    patches = {image[r : r + 28, c : c + 28].tobytes() for image in images for r in range(5) for c in range(5)}
    assert all(patch.tobytes() in patches for patch in varied)
    assert len({patch.tobytes() for patch in varied}) > 10


def test_v_mnist_is_deterministic(few_images):
    first, again = v_mnist.load(few_images), v_mnist.load(few_images)
    np.testing.assert_array_equal(first.x, again.x)
    other = v_mnist.load(few_images, cfg=v_mnist.Config(background="fashion-mnist"))
    pasted = np.char.endswith(np.char.rstrip(first.owner, "-012"), "image")
    np.testing.assert_array_equal(first.x[~pasted], other.x[~pasted])
    assert (first.x[pasted] != other.x[pasted]).any(axis=(1, 2)).all()


def test_v_mnist_names_missing_source_datasets(few_images, tmp_path):
    (few_images / "cifar10_12k.npz").unlink()
    with pytest.raises(UsageError, match="v-mnist takes backgrounds from cifar10") as error:
        v_mnist.load(few_images)
    assert error.value.fix[-1] == "or --set background=fashion-mnist"
    (few_images / "fashion_mnist.npz").unlink()
    with pytest.raises(UsageError, match="fashion-mnist is not included in pfl"):
        v_mnist.load(few_images)
    with pytest.raises(UsageError, match="mnist is not included in pfl"):
        v_mnist.load(None)


def test_v_mnist_refuses_too_few_digits(few_images):
    write_idx(few_images, "train", "t10k")
    with pytest.raises(InputError, match="needs more than 9 digits"):
        v_mnist.load(few_images)


@needs_shared
def test_v_mnist_of_the_shared_folder_is_plausible():
    samples = v_mnist.load(SHARED)
    samples.check("v-mnist")
    assert samples.x.shape == (62_456, 28, 28)
    brightness = {name: samples.x[np.char.startswith(samples.owner, f"{name}-0")].mean() for name in v_mnist.VARIATIONS}
    # A turn keeps the ink; noise of mean 127.5 and photographs add to it.
    assert brightness["rotated"] == pytest.approx(brightness["plain"], rel=0.05)
    assert brightness["noise"] == pytest.approx(brightness["plain"] + (1 - brightness["plain"] / 255) * 127.5, rel=0.02)
    assert brightness["image"] > 2 * brightness["plain"]
    for name in np.unique(samples.owner):
        assert len(np.unique(samples.y[samples.owner == name])) == 10
