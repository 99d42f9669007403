"""The FedAvg CNN with convolutions without padding ("valid"), as in PFLlib: a third of the arithmetic of ``cnn``.

Zhang et al. (2025), PFLlib, https://www.jmlr.org/papers/v26/23-1634.html, its ``FedAvgCNN``. 582,026 parameters on
28x28 and 10 classes; representation 512-d.
"""

from __future__ import annotations

from torch import nn

from pflcli.core.models import Net, image_shape

REPRESENTATION = "512"
TAKES = ("images",)


def build(in_shape: tuple[int, ...], classes: int) -> Net:
    """Build for images (channels, height, width) of any size from 16x16."""
    channels, height, width = image_shape("cnn-valid", in_shape, 16)
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    body = nn.Sequential(
        nn.Conv2d(channels, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * rows * columns, 512),
        nn.ReLU(),
    )
    return Net(body, nn.Linear(512, classes))
