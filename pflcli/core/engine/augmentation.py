"""Random changes of training images: flips from left to right, and shifts by up to an eighth of their side.

He et al. (2016), https://arxiv.org/abs/1512.03385, Sec. 4.2: images of 32 pixels are padded by 4 pixels on each side, a
crop of the original size is taken at a random place, and half of the images are flipped.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_SIDE_PER_SHIFT = 8
"""Side length of an image divided by its largest shift, which is rounded down but is at least 1 pixel."""


def augment(
    images: Tensor, kinds: tuple[str, ...], draw: np.random.Generator, scale: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """Return a batch of images (n, C, H, W), each changed at random.

    If "flip" is among the ``kinds``, an image is flipped with probability 1/2; if "crop" is, it is shifted by up to an
    eighth of its sides, and black pixels fill the gap. ``scale`` is the mean and deviation (C, 1, 1) by which the
    images are normalized, see ``Federation``. Each image takes three numbers from ``draw``, whatever the kinds.
    """
    number, channels, height, width = images.shape
    flip, down, right = draw.random((3, number))
    rows, columns = np.arange(height)[None], np.arange(width)[None]  # of the old image, per pixel of the new one
    if "crop" in kinds:
        rows, columns = rows + _shifts(height, down)[:, None], columns + _shifts(width, right)[:, None]
    if "flip" in kinds:
        columns = np.where(flip[:, None] < 0.5, columns[:, ::-1], columns)
    row = torch.from_numpy(rows).to(images.device)[:, None, :, None]
    column = torch.from_numpy(columns).to(images.device)[:, None, None]
    image, channel = (torch.arange(n, device=images.device) for n in (number, channels))
    places = (image[:, None, None, None], channel[:, None, None], row.clamp(0, height - 1), column.clamp(0, width - 1))
    is_inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    black = images.new_zeros(1) if scale is None else -scale[0] / scale[1]
    return torch.where(is_inside, images[places], black)


def _shifts(side: int, draws: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return a shift in pixels for each draw from [0, 1). All shifts are equally likely."""
    largest = max(1, side // _SIDE_PER_SHIFT)
    return np.floor(draws * (2 * largest + 1)).astype(np.int64) - largest
