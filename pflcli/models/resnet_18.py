"""ResNet-18 with GroupNorm instead of BatchNorm, which loses accuracy if clients' data differ.

He et al. (2016), https://arxiv.org/abs/1512.03385; Hsieh et al. (2020), https://arxiv.org/abs/1910.00189; GroupNorm
with 2 parts per layer as in Reddi et al. (2021), https://arxiv.org/abs/2003.00295. torchvision's network, from scratch;
its first layer is 3x3 without pooling for images below 64x64, 7x7 with stride 2 and pooling for larger ones. The
representation has 512 values.
"""

from __future__ import annotations

from torch import nn

from pflcli.core.models import Net, image_shape
from pflcli.core.vision import torchvision
from pflcli.models._classifiers import divide, set_input_channels

REPRESENTATION = "512"
TAKES = ("images",)

_MIN_SIZE_TO_REDUCE = 64
"""Height or width below which the first convolution keeps the resolution."""


def build(in_shape: tuple[int, ...], classes: int) -> Net:
    """Build for images (channels, height, width) of any size from 8x8."""
    channels, height, width = image_shape("resnet-18", in_shape, 8)
    net = torchvision().models.resnet18(num_classes=classes, norm_layer=_create_group_norm)
    if min(height, width) < _MIN_SIZE_TO_REDUCE:
        net.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
        net.maxpool = nn.Identity()
    set_input_channels(net, channels)
    return divide(net, "resnet-18")


def _create_group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(2, channels)
