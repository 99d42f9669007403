"""V-MNIST: six variations of MNIST, three clients each, as in FedHAM (section 6.1 of its paper).

FedHAM's variations: unchanged digits, rotated, on noise, on an image, rotated on an image (after Larochelle et al.,
ICML 2007), and Fashion-MNIST. ``--root``: a folder with the files of ``mnist``, ``fashion-mnist`` and, for the
backgrounds, ``cifar10``, as these datasets require. Each digit is in one variation. ``SEED`` determines all draws, so
that the same files always give the same samples.

Sizes are the paper's: 72,795 samples, 4,044 ± 1,876 per client, or 18 times 4,600 when balanced. The paper does
not explain the unbalanced sizes; here a variation's three clients share it as 0.432 : 1 : 1.568, which has the same
deviation. If there are too few digits, all clients shrink by the same factor: with 52,047 digits to 62,456 samples.

Angles are uniform over the full circle; noise is uniform in every pixel; backgrounds are random 28x28 patches of grey
CIFAR images. Ink covers the background in proportion to its brightness.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pflcli.core import rng
from pflcli.core.datasets import Samples
from pflcli.core.errors import InputError, UsageError
from pflcli.data.datasets import cifar10, cifar100, fashion_mnist, mnist

CLASSES = 10
SHAPE = "28x28"
LICENCE = "those of its sources"
MADE_FROM = ("mnist", "fashion-mnist", "cifar10")
VARIATIONS = ("plain", "rotated", "noise", "image", "rotated-image", "fashion")
CLIENTS = 3
SIDE = 28
SEED = 0
TOTAL = {False: 72_795, True: 82_800}
SHARES = {False: (0.432, 1.0, 1.568), True: (1.0, 1.0, 1.0)}
_SOURCES = {"cifar10": cifar10, "cifar100": cifar100, "fashion-mnist": fashion_mnist}


@dataclass(frozen=True)
class Config:
    """Options of the dataset."""

    balanced: bool = False
    """give all clients 4,600 samples, instead of 4,044 ± 1,876"""
    background: Literal["cifar10", "cifar100", "fashion-mnist"] = "cifar10"
    """take image backgrounds from this dataset: natural images, or clothes if CIFAR is not available"""


def load(root: Path | None, *, download: bool = False, cfg: Config | None = None) -> Samples:
    """Return the samples of 18 clients, named by variation and number; raises UsageError if a source is missing."""
    cfg = cfg or Config()
    digits = mnist.load(root, download=download)
    clothes = fashion_mnist.load(root, download=download)
    try:
        behind = _to_grey(_SOURCES[cfg.background].load(root, download=download).x)
    except UsageError as error:
        other = "or --set background=fashion-mnist"
        raise UsageError(
            f"v-mnist takes backgrounds from {cfg.background}: {error.message}", *error.fix, other
        ) from None
    clients = count_samples(cfg.balanced, len(digits.y), len(clothes.y))
    if not clients.all():
        raise InputError(f"v-mnist needs more than {len(digits.y)} digits and {len(clothes.y)} pieces of clothing")
    rows = {
        "digits": _generator("digits").permutation(len(digits.y)),
        "clothes": _generator("clothes").permutation(len(clothes.y)),
    }
    x, y, owner, used = [], [], [], 0
    for variation, counts in zip(VARIATIONS, clients, strict=True):
        source, kind, first = (clothes, "clothes", 0) if variation == "fashion" else (digits, "digits", used)
        chosen = rows[kind][first : first + counts.sum()]
        used += counts.sum()
        x.append(make_variation(variation, source.x[chosen], behind))
        y.append(source.y[chosen])
        owner += [f"{variation}-{client}" for client in range(CLIENTS) for _ in range(counts[client])]
    return Samples(np.concatenate(x), np.concatenate(y), CLASSES, np.asarray(owner))


def count_samples(balanced: bool, digits: int, clothes: int) -> NDArray[np.int64]:
    """Return the clients' numbers of samples (6, 3): the paper's, or less if there are fewer digits or clothes."""
    total = min(TOTAL[balanced], digits * len(VARIATIONS) // (len(VARIATIONS) - 1), clothes * len(VARIATIONS))
    if balanced:  # exactly one size
        total -= total % (len(VARIATIONS) * CLIENTS)
    shares = np.tile(SHARES[balanced], len(VARIATIONS))
    ends = np.floor(np.cumsum(shares) / shares.sum() * total + 1e-6).astype(np.int64)
    clients: NDArray[np.int64] = np.diff(ends, prepend=0).reshape(len(VARIATIONS), CLIENTS)
    return clients


def make_variation(variation: str, x: NDArray[np.uint8], behind: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return images (n, 28, 28) in one of the variations; ``behind`` (m, H, W) are grey images for backgrounds."""
    if variation.startswith("rotated"):
        x = rotate(x, _generator(variation, "angle").uniform(0, 2 * np.pi, len(x)))
    if variation == "noise":
        return overlay(x, _generator(variation, "noise").integers(0, 256, x.shape, dtype=np.uint8))
    if variation.endswith("image"):
        return overlay(x, _draw_patches(behind, len(x), _generator(variation, "patch")))
    return x


def rotate(x: NDArray[np.uint8], angle: NDArray[np.float64], chunk: int = 2048) -> NDArray[np.uint8]:
    """Return images (n, H, W) rotated counter-clockwise about their centre by ``angle`` (n,) radians.

    Interpolation is bilinear; pixels from outside are black.
    """
    turned = np.empty_like(x)
    height, width = x.shape[1:]
    middle = np.asarray([height - 1, width - 1]) / 2
    down, right = np.indices((height, width)).reshape(2, -1) - middle[:, None]
    for first in range(0, len(x), chunk):
        padded = np.pad(x[first : first + chunk], ((0, 0), (1, 2), (1, 2))).astype(np.float64)
        cos, sin = (wave(angle[first : first + chunk])[:, None] for wave in (np.cos, np.sin))
        # Where each pixel comes from, in the padded image: the inverse turn, with rows counted downwards.
        row = np.clip(cos * down + sin * right + middle[0] + 1, 0, height + 1)
        column = np.clip(cos * right - sin * down + middle[1] + 1, 0, width + 1)
        top, left = row.astype(np.int64), column.astype(np.int64)
        low, far = row - top, column - left
        image = np.arange(len(padded))[:, None]
        upper = padded[image, top, left] * (1 - far) + padded[image, top, left + 1] * far
        lower = padded[image, top + 1, left] * (1 - far) + padded[image, top + 1, left + 1] * far
        turned[first : first + chunk] = np.rint(upper * (1 - low) + lower * low).reshape(-1, height, width)
    return turned


def overlay(ink: NDArray[np.uint8], behind: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return white ink (n, H, W) on a background: ink + (1 - ink / 255) background."""
    covered: NDArray[np.uint8] = np.rint(ink + (1 - ink / 255) * behind).astype(np.uint8)
    return covered


def _draw_patches(images: NDArray[np.uint8], count: int, draw: np.random.Generator) -> NDArray[np.uint8]:
    """Return ``count`` random patches (count, 28, 28) of images (m, H, W)."""
    windows = np.lib.stride_tricks.sliding_window_view(images, (SIDE, SIDE), axis=(1, 2))
    image, row, column = (draw.integers(0, size, count) for size in windows.shape[:3])
    patches: NDArray[np.uint8] = windows[image, row, column]
    return patches


def _to_grey(x: NDArray[Any]) -> NDArray[np.uint8]:
    """Return grey images (n, H, W); colour images are converted with the luma weights of ITU-R BT.601."""
    return x if x.ndim == 3 else np.rint(x @ np.asarray([0.299, 0.587, 0.114])).astype(np.uint8)


def _generator(*key: str) -> np.random.Generator:
    return rng.generator(SEED, "v-mnist", *key)
