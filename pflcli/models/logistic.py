"""Multinomial logistic regression: no hidden layer, the representation is the input itself."""

from __future__ import annotations

import math

from torch import nn

from pflcli.core.models import Net

REPRESENTATION = "the input"
TAKES = ("images", "series", "features")


def build(in_shape: tuple[int, ...], classes: int) -> Net:
    """Build for samples of any shape, flattened."""
    return Net(nn.Flatten(), nn.Linear(math.prod(in_shape), classes))
