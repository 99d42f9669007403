"""The IDX format of MNIST (LeCun et al., 1998): a magic number with type and rank, the sizes, and the bytes."""

from __future__ import annotations

import gzip
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pflcli.errors import InputError
from pflcli.foreign import reading, require_room

_KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, gzipped if its name ends in ``.gz``; raises InputError if it is damaged."""
    packed = path.suffix == ".gz"
    with reading(path, "IDX"), gzip.open(path) if packed else path.open("rb") as file:
        magic = file.read(4)
        rank = magic[3] if len(magic) > 3 else 0
        sizes = file.read(4 * rank)
        if magic[:3] != b"\0\0\x08" or len(sizes) < 4 * rank:
            raise InputError(f"{path} is not an IDX file of unsigned bytes")
        shape = np.frombuffer(sizes, ">u4").tolist()
        announced = math.prod(shape)
        require_room(str(path), announced, path.stat().st_size)
        raw = file.read(announced + 1)
        if len(raw) != announced:
            actual = f"{len(raw)}" if len(raw) < announced else "more"
            raise InputError(f"{path} is damaged: its header announces {'x'.join(map(str, shape))} bytes, got {actual}")
        return np.frombuffer(raw, np.uint8).reshape(shape)


def read_parts(folders: Sequence[Path], stems: tuple[str, str]) -> list[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    """Return images (n, 28, 28) and labels (n,) of the training and the test stem, from the first folder with any.

    A stem is the part of a file name before ``-images-idx3-ubyte`` and ``-labels-idx1-ubyte``. Returns an empty list if
    no folder has such files; raises InputError if a folder has some but not all, or if images and labels do not match.
    """
    for folder in folders:
        paths = {f"{stem}-{kind}": _either(folder / f"{stem}-{kind}") for stem in stems for kind in _KINDS}
        if not any(paths.values()):
            continue
        arrays: list[NDArray[np.uint8]] = []
        for name, path in paths.items():
            if path is None:
                raise InputError(f"{folder} lacks {name}, or {name}.gz")
            arrays.append(read_idx(path))
        images, labels = arrays[::2], arrays[1::2]
        for stem, x, y in zip(stems, images, labels, strict=True):
            if x.shape[1:] != (28, 28) or y.shape != x.shape[:1]:
                raise InputError(
                    f"{folder}: {stem} has images {x.shape} and labels {y.shape}, not (n, 28, 28) and (n,)"
                )
        return list(zip(images, labels, strict=True))
    return []


def _either(path: Path) -> Path | None:
    for candidate in (path, path.with_name(f"{path.name}.gz")):
        if candidate.is_file():
            return candidate
    return None
