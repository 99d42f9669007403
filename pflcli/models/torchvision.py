"""Any classifier of torchvision by its name there, from scratch: ``torchvision:resnet50``.

The names: https://docs.pytorch.org/vision/stable/models.html#classification. The body is the network without its last
linear layer, which is the head. The first convolution takes as many channels as the images have. No dropout and no
stochastic depth: a client's steps then depend on its data and seed alone. Images that are too small are refused.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from pflcli.core.models.net import Net
from pflcli.core.vision import torchvision
from pflcli.models import _classifiers

REPRESENTATION = "the last layer's input"
TAKES = ("images",)


def members() -> list[str]:
    """Return the names of torchvision's classifiers."""
    source = torchvision().models
    return list(source.list_models(module=source))


def build(in_shape: tuple[int, ...], classes: int, member: str) -> Net:
    """Build for images (channels, height, width) of any size that the network can reduce."""

    def construct(shape: tuple[int, ...], count: int) -> nn.Module:
        classifier: nn.Module = getattr(torchvision().models, member)(
            weights=None, num_classes=count, **_list_arguments(member, shape[1], shape[2])
        )
        _classifiers.set_input_channels(classifier, shape[0])
        return classifier

    return _classifiers.build(f"torchvision:{member}", in_shape, classes, construct)


def _list_arguments(member: str, height: int, width: int) -> dict[str, Any]:
    """Return additional arguments of some networks: no auxiliary classifiers, or the size of images."""
    if member in ("googlenet", "inception_v3"):
        return {"aux_logits": False, "init_weights": True}
    if member.startswith("vit_"):
        return {"image_size": height}
    return {"input_size": (height, width)} if member.startswith("maxvit") else {}
