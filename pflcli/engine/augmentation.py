"""Random changes of training images: mirrored left to right, and shifted by up to an eighth of their side.

He et al. (2016), https://arxiv.org/abs/1512.03385, Sec. 4.2: images of 32 pixels are padded by 4 pixels on each side, a
crop of the old size is taken at a random place, and half of the images are mirrored.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.engine.federation import Federation

_SHARE = 8
"""An image is padded on each side by its side length divided by this number, rounded down, and at least by 1 pixel."""


def augment(images: Tensor, kinds: tuple[str, ...], data: Federation, draw: np.random.Generator) -> Tensor:
    """Return a batch of inputs (n, C, H, W) of ``data`` of which each image is changed at random.

    With "flip" among the ``kinds``, each is mirrored with probability 1/2; with "crop", it is shifted by up to an
    eighth of its sides, and black pixels fill the gap. Each image takes three draws, whatever the kinds.
    """
    height, width = images.shape[-2:]
    mirrored, down, right = draw.random((3, len(images)))
    rows, columns = _shifted(height, down, "crop" in kinds), _shifted(width, right, "crop" in kinds)
    columns = np.where((mirrored < 0.5)[:, None] & ("flip" in kinds), columns[:, ::-1], columns)
    is_gap = ((rows < 0) | (rows >= height))[:, :, None] | ((columns < 0) | (columns >= width))[:, None]
    channels = np.arange(images.shape[1])
    at = (np.arange(len(images))[:, None, None, None], channels[:, None, None], rows[:, None, :, None])
    places = (*at, columns[:, None, None])
    most = (len(images), len(channels), height, width)
    index = [torch.from_numpy(np.clip(part, 0, n - 1)).to(images.device) for part, n in zip(places, most, strict=True)]
    black = images.new_zeros(1) if data.scale is None else -data.scale[0] / data.scale[1]
    return torch.where(torch.from_numpy(is_gap)[:, None].to(images.device), black, images[tuple(index)])


def _shifted(side: int, draws: NDArray[np.float64], moves: bool) -> NDArray[np.int64]:
    """Return which of the pixels 0 to ``side`` - 1 each image shows (n, side); others are outside."""
    pad = max(1, side // _SHARE)
    offsets = np.floor(draws * (2 * pad + 1)).astype(np.int64) - pad if moves else np.zeros(len(draws), np.int64)
    return np.arange(side) + offsets[:, None]
