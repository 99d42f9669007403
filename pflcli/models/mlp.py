"""The "2NN" of the FedAvg paper: two hidden layers of 200 units, for inputs of any shape.

McMahan et al. (2017), https://arxiv.org/abs/1602.05629, section 3. Representation 200-d.
"""

from __future__ import annotations

import math

from torch import nn

from pflcli.core.models import Net

REPRESENTATION = "200"
TAKES = ("images", "series", "features")


def build(in_shape: tuple[int, ...], classes: int) -> Net:
    """Build for samples of any shape, flattened."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(in_shape), 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU())
    return Net(body, nn.Linear(200, classes))
