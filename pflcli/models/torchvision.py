"""Any classifier of torchvision by its name there, from scratch: ``torchvision:resnet50``.

The names: https://docs.pytorch.org/vision/stable/models.html#classification. The body is the network without its last
linear layer, which is the head. The first convolution takes as many channels as the images have. No dropout and no
stochastic depth: a client's steps then depend on its data and seed alone. Images that are too small are refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pflcli.errors import UsageError
from pflcli.models import Net
from pflcli.vision import torchvision

REPRESENTATION = "the last layer's input"
TAKES = ("images",)

_SIDES = (32, 64, 96, 128, 224, 299)
"""Image sizes to recommend if those of the data are too small."""

_MISFIT = (RuntimeError, ValueError, AssertionError, ZeroDivisionError)
"""The errors of torchvision's networks for images of a size that they cannot reduce."""


def members() -> list[str]:
    """Return the names of torchvision's classifiers."""
    source = torchvision().models
    return list(source.list_models(module=source))


def build(in_shape: tuple[int, ...], classes: int, member: str) -> Net:
    """Build for images (channels, height, width) of any size that the network can reduce."""
    try:
        return _tried(in_shape, classes, member)
    except _MISFIT as error:
        larger = [side for side in _SIDES if side > min(in_shape[1:]) and _fits(side, in_shape[0], member)]
        known = f"{larger[0]}x{larger[0]} would do" if larger else str(error).strip().partition("\n")[0]
        shape = "x".join(map(str, in_shape))
        raise UsageError(
            f"torchvision:{member} does not take images of {shape}: {known}", "--model resnet-18"
        ) from None


def _tried(in_shape: tuple[int, ...], classes: int, member: str) -> Net:
    """Build the network and apply it to one empty image; raises torchvision's error if that fails."""
    classifier = getattr(torchvision().models, member)(
        weights=None, num_classes=classes, **_arguments(member, in_shape[1], in_shape[2])
    )
    for module in classifier.modules():
        if isinstance(module, nn.Dropout) or type(module).__name__ == "StochasticDepth":
            module.p = 0.0
    take_channels(classifier, in_shape[0])
    net = split(classifier, f"torchvision:{member}")
    with torch.no_grad():
        answer = net.eval()(torch.zeros(1, *in_shape))
    if answer.shape != (1, classes):
        raise ValueError(f"its output has the shape {tuple(answer.shape)}")
    return net.train()


def _arguments(member: str, height: int, width: int) -> dict[str, Any]:
    """Return additional arguments of some networks: no auxiliary classifiers, or the size of images."""
    if member in ("googlenet", "inception_v3"):
        return {"aux_logits": False, "init_weights": True}
    if member.startswith("vit_"):
        return {"image_size": height}
    return {"input_size": (height, width)} if member.startswith("maxvit") else {}


def _fits(side: int, channels: int, member: str) -> bool:
    """Whether a network takes square images of a size; tried on the meta device, without memory or arithmetic."""
    try:
        with torch.device("meta"):
            _tried((channels, side, side), 2, member)
    except _MISFIT:
        return False
    return True


def take_channels(net: nn.Module, channels: int) -> None:
    """Replace the first convolution by one for ``channels``, with weights that keep the variance of its outputs."""
    first = next(module for module in net.modules() if isinstance(module, nn.Conv2d))
    if first.in_channels == channels:
        return
    spread = first.weight.detach().std() * (first.in_channels / channels) ** 0.5
    out, _, *kernel = first.weight.shape
    first.in_channels = channels
    first.weight = nn.Parameter(torch.randn(out, channels, *kernel) * spread)


def split(net: nn.Module, name: str) -> Net:
    """Cut a classifier before its last linear layer; raises UsageError if it has none."""
    places = [place for place, module in net.named_modules() if isinstance(module, nn.Linear)]
    if not places:
        raise UsageError(f"{name} does not end in a linear layer: it has no head to split off", "--model mobilenet-v2")
    outer, _, last = places[-1].rpartition(".")
    head = net.get_submodule(places[-1])
    setattr(net.get_submodule(outer), last, nn.Identity())
    return Net(net, head)
