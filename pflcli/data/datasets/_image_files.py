"""Files of images with a training and a test part: IDX and NPZ files, and those that torchvision reads."""

from __future__ import annotations

import gzip
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.datasets import Samples
from pflcli.core.errors import InputError, UsageError
from pflcli.core.foreign import parsing, read_npz, reading, require_room

_IDX_KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")


def read_idx_parts(folders: Sequence[Path], stems: tuple[str, str], names: tuple[str, ...]) -> Samples | None:
    """Return the images (n, 28, 28) and labels of a training and a test part, joined; None if no folder has any.

    The first of ``folders`` with any of the four files is read. A stem is the part of a file name before
    ``-images-idx3-ubyte`` and ``-labels-idx1-ubyte``. Raises InputError if the folder lacks one of the files, or if
    images and labels do not match.
    """
    for folder in folders:
        paths = {f"{stem}-{kind}": _find(folder / f"{stem}-{kind}") for stem in stems for kind in _IDX_KINDS}
        if not any(paths.values()):
            continue
        arrays: list[NDArray[np.uint8]] = []
        for name, path in paths.items():
            if path is None:
                raise InputError(f"{folder} lacks {name}, or {name}.gz")
            arrays.append(read_idx(path))
        parts = list(zip(arrays[::2], arrays[1::2], strict=True))
        for stem, (x, y) in zip(stems, parts, strict=True):
            if x.shape[1:] != (28, 28) or y.shape != x.shape[:1]:
                raise InputError(
                    f"{folder}: {stem} has images {x.shape} and labels {y.shape}, not (n, 28, 28) and (n,)"
                )
        return _join(parts, names)
    return None


def _find(path: Path) -> Path | None:
    """Return the path of a file or of its gzipped form; None if neither exists."""
    return next((each for each in (path, path.with_name(f"{path.name}.gz")) if each.is_file()), None)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, gzipped if its name ends in ``.gz``; raises InputError if it is damaged.

    The format is that of MNIST (LeCun et al., 1998): a magic number with type and rank, the sizes, and the bytes.
    """
    with reading(path, "IDX"), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        magic = file.read(4)
        rank = magic[3] if len(magic) > 3 else 0
        sizes = file.read(4 * rank)
        if magic[:3] != b"\0\0\x08" or len(sizes) < 4 * rank:
            raise InputError(f"{path} is not an IDX file of unsigned bytes")
        shape = np.frombuffer(sizes, ">u4").tolist()
        declared = math.prod(shape)
        require_room(str(path), declared, path.stat().st_size)
        raw = file.read(declared + 1)
        if len(raw) != declared:
            actual = f"{len(raw)}" if len(raw) < declared else "more"
            raise InputError(f"{path} is damaged: its header announces {'x'.join(map(str, shape))} bytes, got {actual}")
        return np.frombuffer(raw, np.uint8).reshape(shape)


def read_npz_parts(path: Path, names: tuple[str, ...]) -> Samples:
    """Read ``x_train, y_train, x_test, y_test`` from an NPZ file, joined in this order."""
    x_train, y_train, x_test, y_test = read_npz(path, "x_train", "y_train", "x_test", "y_test")
    if x_train.shape[1:] != x_test.shape[1:]:
        raise InputError(f"{path}: samples of x_train are {x_train.shape[1:]}, of x_test {x_test.shape[1:]}")
    with parsing(str(path), "images and labels"):
        return _join([(x_train, y_train), (x_test, y_test)], names)


def read_torchvision(cls: str, root: Path | None, names: tuple[str, ...], *, download: bool, **options: Any) -> Samples:
    """Read a torchvision dataset's training and test part, joined; raises if its files are not in ``root``."""
    from pflcli.core.vision import torchvision

    if root is None:
        raise UsageError(f"--download of {cls} needs a target folder", "--root FOLDER --download")
    reader = getattr(torchvision().datasets, cls)
    with parsing(str(root), cls, "--download fetches it"):  # also a failed download, a checksum, a missing folder
        parts = [reader(str(root), train=train, download=download, **options) for train in (True, False)]
        return _join([(np.asarray(part.data), np.asarray(part.targets)) for part in parts], names)


def _join(parts: Sequence[tuple[NDArray[Any], NDArray[Any]]], names: tuple[str, ...]) -> Samples:
    """Join the images and labels of the training and the test part into one dataset, and mark the test samples."""
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    is_test = np.repeat([False, True], [len(labels) for _, labels in parts])
    return Samples(x, y.astype(np.int64), len(names), names=names, is_test=is_test)
