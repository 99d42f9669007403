"""TITLE: an MLP with one hidden layer, for samples of any shape.

``pfl check FILE`` tests the laws that every model satisfies.
"""

from __future__ import annotations

import math

from torch import nn

from pflcli.method import Net

REPRESENTATION = "64"
"""The dimension of the representation, for ``pfl list``."""
TAKES = ("images", "series", "features")
"""The kinds of samples: images (C, H, W), series (L, d), features (d,), tokens (L,)."""


def build(in_shape: tuple[int, ...], classes: int) -> Net:
    """Return the network for samples of ``in_shape``: a body that computes the representation (n, d), and a head."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(in_shape), 64), nn.ReLU())
    return Net(body, nn.Linear(64, classes))
