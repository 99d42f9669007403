"""EMNIST, handwritten letters and digits in the format of MNIST (Cohen et al., 2017), https://arxiv.org/abs/1702.05373.

``--root``: a folder with torchvision's ``EMNIST/raw``, with NIST's ``gzip`` folder, with the idx files themselves, or
with ``emnist_letters_31k.npz``, a balanced subset of 31,200 letters. The idx files store every image transposed; they
are returned upright. Classes are numbered from 0 in EMNIST's order: ``letters``, 1..26 in EMNIST, are 0..25.
Training and test images are joined; ``--keep-test`` of the partition keeps them apart.
"""

from __future__ import annotations

import string
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pflcli.core.datasets import Samples, missing_root_error
from pflcli.data.datasets._image_files import read_idx_parts, read_npz_parts, read_torchvision

CLASSES = 26
SHAPE = "28x28"
LICENCE = "a work of the US Government"
FILES = ("EMNIST/raw", "gzip/emnist-*-ubyte.gz", "emnist-*-ubyte*", "emnist_letters_31k.npz")
NAMES = {
    "letters": tuple(string.ascii_lowercase),
    "balanced": tuple(string.digits + string.ascii_uppercase + "abdefghnqrt"),
    "byclass": tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase),
    "bymerge": tuple(string.digits + string.ascii_uppercase + "abdefghnqrt"),
    "digits": tuple(string.digits),
    "mnist": tuple(string.digits),
}
"""The classes of each selection; if both cases of a letter are one class, it has the capital's name."""


@dataclass(frozen=True)
class Config:
    """Options of the dataset."""

    split: Literal["letters", "balanced", "byclass", "bymerge", "digits", "mnist"] = "letters"
    """use this selection of EMNIST; letters are a to z, with both cases merged"""


def load(root: Path | None, *, download: bool = False, cfg: Config | None = None) -> Samples:
    """Return all upright images of one selection; raises UsageError if its files are not in ``root``."""
    split = (cfg or Config()).split
    stem = f"emnist-{split}"
    samples = None
    if download:
        samples = read_torchvision("EMNIST", root, NAMES[split], download=True, split=split)
    elif root is not None:
        raw = root / "EMNIST" / "raw"
        folders = [raw, raw / "gzip", root / "gzip", root]
        samples = read_idx_parts(folders, (f"{stem}-train", f"{stem}-test"), NAMES[split])
    if samples is not None:
        return replace(samples, x=samples.x.transpose(0, 2, 1), y=samples.y - (split == "letters"))
    if root is not None and split == "letters" and (root / FILES[3]).is_file():
        return read_npz_parts(root / FILES[3], NAMES[split])
    files = [f"EMNIST/raw/{stem}-train-images-idx3-ubyte", *([FILES[3]] if split == "letters" else [])]
    raise missing_root_error(f"emnist (split={split})", *files)
