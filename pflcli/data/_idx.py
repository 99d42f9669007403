"""The IDX format of MNIST and its kin (LeCun et al., 1998): a magic number with type and rank, the sizes, bytes."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pflcli.data import Samples, joined
from pflcli.errors import InputError

_KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, gzipped if its name ends in ``.gz``; raises InputError if it is damaged."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    rank = raw[3] if len(raw) > 3 else 0
    start = 4 + 4 * rank
    if raw[:3] != b"\0\0\x08" or len(raw) < start:
        raise InputError(f"{path} is not an IDX file of unsigned bytes")
    shape = np.frombuffer(raw, ">u4", rank, offset=4).astype(np.int64)
    if len(raw) - start != shape.prod():
        sizes = "x".join(map(str, shape))
        raise InputError(f"{path} is damaged: {sizes} bytes are announced, {len(raw) - start} are there")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def read_parts(folders: Sequence[Path], stems: tuple[str, str], names: tuple[str, ...]) -> Samples | None:
    """Return images (n, 28, 28) of the training and the test stem, joined, from the first folder that holds one.

    A stem is what stands before ``-images-idx3-ubyte`` and ``-labels-idx1-ubyte``. Returns None if no folder holds
    any; raises InputError if one holds some but not all, or if images and labels do not match.
    """
    for folder in folders:
        found = {f"{stem}-{kind}": _either(folder / f"{stem}-{kind}") for stem in stems for kind in _KINDS}
        if not any(found.values()):
            continue
        arrays: list[NDArray[np.uint8]] = []
        for name, path in found.items():
            if path is None:
                raise InputError(f"{folder} lacks {name}, or {name}.gz")
            arrays.append(read_idx(path))
        images, labels = arrays[::2], arrays[1::2]
        for stem, x, y in zip(stems, images, labels, strict=True):
            if x.shape[1:] != (28, 28) or y.shape != x.shape[:1]:
                raise InputError(
                    f"{folder}: {stem} has images {x.shape} and labels {y.shape}, not (n, 28, 28) and (n,)"
                )
        return joined(list(zip(images, labels, strict=True)), names)
    return None


def _either(path: Path) -> Path | None:
    for candidate in (path, path.with_name(f"{path.name}.gz")):
        if candidate.is_file():
            return candidate
    return None
