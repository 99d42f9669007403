"""The CNN of the FedAvg paper: two 5x5 convolutions (32, 64) with 2x2 max pooling, then 512 units.

McMahan et al. (2017), https://arxiv.org/abs/1602.05629, section 3. 1,663,370 parameters on 28x28 and 10 classes;
representation 512-d.
"""

from __future__ import annotations

from torch import nn

from pflcli.core.models import Net, image_shape

REPRESENTATION = "512"
TAKES = ("images",)


def build(in_shape: tuple[int, ...], classes: int) -> Net:
    """Build for images (channels, height, width) of any size from 4x4."""
    channels, height, width = image_shape("cnn", in_shape, 4)
    body = nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
    )
    return Net(body, nn.Linear(512, classes))
