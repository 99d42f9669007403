"""Samples that another library has dealt to clients and split, and the forms in which it stores them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.data.formats import RawSamples, to_text
from pflcli.errors import InputError
from pflcli.foreign import require_room

MAX_PIXEL_ERROR = 0.01
"""Maximum distance of a restored pixel from an integer: float32 rounds."""


@dataclass(frozen=True)
class Block:
    """The samples ``x`` (n, ...) and labels ``y`` (n,) of one client in one split; ``place`` is their file."""

    client: int
    split: str
    x: NDArray[Any]
    y: NDArray[Any]
    place: str


def join(blocks: Sequence[Block], name: str, classes: tuple[str, ...], remarks: Sequence[str] = ()) -> RawSamples:
    """Return the samples of all blocks, in their order; ``name`` is the folder in messages.

    Clients are named by their numbers, with leading zeros, so that they keep their order. Raises InputError if there
    are no test samples, if samples differ in shape, or if they are neither images, series nor features.
    """
    filled = [block for block in blocks if len(block.y)]
    if not any(block.split == "train" for block in filled):
        raise InputError(f"{name} has no training samples")
    if not any(block.split == "test" for block in filled):
        raise InputError(f"{name} has no test samples", "deal it again with a share of test samples")
    x, remark = join_samples([block.x for block in filled], [block.place for block in filled])
    sizes = [len(block.y) for block in filled]
    first = np.cumsum([0, *sizes])
    width = len(str(max(block.client for block in blocks)))

    def place(row: int, role: str, at: Sequence[int]) -> str:
        number = int(np.searchsorted(first, row, side="right")) - 1
        array = {"features": "x", "label": "y"}.get(role)
        where = filled[number].place
        return f"{where}: {array}[{', '.join(map(str, (row - first[number], *at)))}]" if array else where

    return RawSamples(
        x=x,
        label=np.concatenate([_labels(block) for block in filled]),
        owner=np.repeat([f"{block.client:0{width}d}" for block in filled], sizes),
        place=place,
        classes=classes,
        remarks=(*((remark,) if remark else ()), *remarks),
        metadata={"split": np.repeat([block.split for block in filled], sizes)},
    )


def _labels(block: Block) -> NDArray[np.str_]:
    if block.y.shape != (len(block.x),):
        raise InputError(f"{block.place}: y has shape {block.y.shape}, but x has {len(block.x)} samples")
    return to_text(block.y, f"{block.place}: y")


def join_samples(blocks: Sequence[NDArray[Any]], places: Sequence[str]) -> tuple[NDArray[Any], str]:
    """Return images (n, H, W) or (n, H, W, 3) as uint8, series (n, steps, channels) or features (n, d), and a remark.

    ``blocks`` are (n, C, H, W) images or (n, C, 1, steps) series, channels first as in PyTorch; (n, H, W) or
    (n, H, W, 3) images in uint8; (n, steps, channels) series; or (n, d) features. ``places`` are their files in
    messages. Raises InputError for any other shape or type, and for images that were not 8-bit.
    """
    shape = blocks[0].shape[1:]
    for block, place in zip(blocks, places, strict=True):
        if block.dtype.kind not in "biuf":
            raise InputError(f"{place}: x has type {block.dtype}, not numbers")
        if block.shape[1:] != shape:
            raise InputError(f"{place}: samples have shape {block.shape[1:]}, but those of {places[0]} {shape}")
    if not shape or 0 in shape:
        raise InputError(f"{places[0]}: x has shape {blocks[0].shape} instead of (samples, features)")
    is_uint8 = all(block.dtype == np.uint8 for block in blocks)
    if len(shape) == 1 or (len(shape) == 2 and not is_uint8):
        return np.concatenate(blocks), ""
    if len(shape) == 2:
        return _restore_pixels(blocks, places)
    if len(shape) == 3 and shape[1] == 1 and shape[2] > 1:
        series = np.concatenate([block[:, :, 0].transpose(0, 2, 1) for block in blocks])
        return np.ascontiguousarray(series), f"series of {shape[2]} steps, {shape[0]} channels"
    if len(shape) == 3 and shape[0] in (1, 3):
        return _restore_pixels([block.transpose(0, 2, 3, 1) for block in blocks], places)
    if len(shape) == 3 and shape[2] in (1, 3):
        return _restore_pixels(blocks, places)
    raise InputError(
        f"{places[0]}: samples have shape {shape}, neither images (C, H, W), series (C, 1, steps) nor features (d,)"
    )


def _restore_pixels(blocks: Sequence[NDArray[Any]], places: Sequence[str]) -> tuple[NDArray[np.uint8], str]:
    """Return images (n, H, W[, C]) as uint8, and a remark on how they were scaled back.

    Raises InputError if the pixels are not those of 8-bit images, as they were, divided by 255, or then normalized with
    mean 0.5 and deviation 0.5.
    """
    require_room(f"the images of {places[0]} and others", sum(block.size for block in blocks))
    low, high = (float(pick([pick(block) for block in blocks])) for pick in (np.min, np.max))
    restore, how = find_scale(low, high)
    images: list[NDArray[np.uint8]] = []
    for block, place in zip(blocks, places, strict=True):
        if block.dtype == np.uint8:
            images.append(block)
            continue
        values = restore(block.astype(np.float32))
        rounded = np.rint(values)
        far = ~((np.abs(values - rounded) <= MAX_PIXEL_ERROR) & (rounded >= 0) & (rounded <= 255))
        if far.any():
            at = tuple(np.argwhere(far)[0].tolist())
            raise InputError(
                f"{place}: x contains {block[at]:.6g}, which is no pixel of an 8-bit image"
                f"{f' {how}' if how else ''}; pfl reads 8-bit images",
                "deal it again without other transforms than ToTensor and Normalize(0.5, 0.5)",
            )
        images.append(rounded.astype(np.uint8))
    x = np.concatenate(images)
    x = x[..., 0] if x.ndim == 4 and x.shape[3] == 1 else x
    return np.ascontiguousarray(x), f"images {how} were restored to 8 bits; pfl scales pixels to [0, 1]" if how else ""


def find_scale(low: float, high: float) -> tuple[Callable[[NDArray[np.float32]], NDArray[np.float32]], str]:
    """Return the function from stored values, from ``low`` to ``high``, to pixels, and how they were scaled."""
    if low < 0:
        return lambda values: values * 127.5 + 127.5, "normalized to [-1, 1]"
    if high <= 1:
        return lambda values: values * 255, "scaled to [0, 1]"
    return lambda values: values, ""
