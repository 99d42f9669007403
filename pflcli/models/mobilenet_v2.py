"""MobileNet-v2 (Sandler et al., 2018), https://arxiv.org/abs/1801.04381, torchvision's, from scratch.

Representation 1,280-d, as in kNN-Per. The first convolution has as many input channels as the images. There is no
dropout, so that a client's steps depend only on its data and seed.
"""

from __future__ import annotations

from torch import nn

from pflcli.core.models import Net, image_shape
from pflcli.core.vision import torchvision

REPRESENTATION = "1280"
TAKES = ("images",)
PREFIXES = {"features.": "body.0."}
"""torchvision's names and ours, for ``--weights``; the head is found by itself."""


def build(in_shape: tuple[int, ...], classes: int) -> Net:
    """Build for images (channels, height, width) of any size from 16x16."""
    channels, _, _ = image_shape("mobilenet-v2", in_shape, 16)
    net = torchvision().models.mobilenet_v2(num_classes=classes, dropout=0.0)
    if channels != 3:
        net.features[0][0] = nn.Conv2d(channels, 32, 3, stride=2, padding=1, bias=False)
        nn.init.kaiming_normal_(net.features[0][0].weight, mode="fan_out")
    body = nn.Sequential(net.features, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Net(body, net.classifier[1])
