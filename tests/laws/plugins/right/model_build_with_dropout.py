"""A function build, whose body has dropout and group normalization."""

from __future__ import annotations

import math

from torch import nn

from pflcli.core.models import Net

REPRESENTATION = "16"


def build(in_shape, classes):
    body = nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(in_shape), 16), nn.GroupNorm(4, 16), nn.ReLU(), nn.Dropout(0.3)
    )
    return Net(body, nn.Linear(16, classes))


TAKES = ("images", "features")
