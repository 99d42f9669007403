"""AlexNet (Krizhevsky et al., 2012) for small images: five convolutions, three linear layers, half as wide.

FedHAM (Gao et al., 2023, section 6) uses it on 28x28 digits and does not give sizes. Our layers: 5x5 convolution to 32,
pool; 5x5 to 96, pool; 3x3 to 192; 3x3 to 128; 3x3 to 128, pool to 3x3; linear 1,024; linear 1,024; head. Each is
followed by ReLU; only the overlapping 3x3 pools have a stride; there is no response normalisation and no dropout.
2,853,226 parameters on 28x28 and 10 classes, 2,854,826 on 32x32x3; representation 1,024-d. FedHAM's learning rate is
0.02; 0.1 is about the limit.
"""

from __future__ import annotations

from torch import nn

from pflcli.core.models import Net, image_shape

REPRESENTATION = "1024"
TAKES = ("images",)


def build(in_shape: tuple[int, ...], classes: int) -> Net:
    """Build for images (channels, height, width) of any size from 25x25."""
    channels, _, _ = image_shape("alexnet", in_shape, 25)
    body = nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(32, 96, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(96, 192, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(192, 128, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(128, 128, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2),
        nn.AdaptiveAvgPool2d(3),  # the identity for images of 25x25 to 32x32, whose maps are 3x3
        nn.Flatten(),
        nn.Linear(128 * 3 * 3, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
    )
    # With PyTorch's smaller default weights, a deep network without normalisation hardly learns: He et al. (2015).
    for value in body.parameters():
        if value.ndim > 1:
            nn.init.kaiming_normal_(value, nonlinearity="relu")
        else:
            nn.init.zeros_(value)
    return Net(body, nn.Linear(1024, classes))
