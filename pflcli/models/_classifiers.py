"""Classifiers of other libraries as networks with a body and a head, for images of any size that they can reduce."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from pflcli.core.errors import UsageError
from pflcli.core.models.net import Net

_USUAL_SIZES = (32, 64, 96, 128, 224, 299)
"""Image sizes to recommend if those of the data are too small."""

_SIZE_ERRORS = (RuntimeError, ValueError, AssertionError, ZeroDivisionError)
"""The errors of networks for images of a size that they cannot reduce."""

Construct = Callable[[tuple[int, ...], int], nn.Module]
"""Returns a classifier with random weights for images (channels, height, width) and a number of classes."""


def build(word: str, in_shape: tuple[int, ...], classes: int, construct: Construct) -> Net:
    """Return the classifier ``word`` in two parts; raises UsageError for images that are too small, or no linear head.

    No dropout and no stochastic depth: a client's steps then depend on its data and seed alone.
    """
    try:
        return _build_and_apply(word, in_shape, classes, construct)
    except _SIZE_ERRORS as error:
        larger = [
            side
            for side in _USUAL_SIZES
            if side > min(in_shape[1:]) and _takes_size(word, side, in_shape[0], construct)
        ]
        known = f"{larger[0]}x{larger[0]} would do" if larger else str(error).strip().partition("\n")[0]
        shape = "x".join(map(str, in_shape))
        raise UsageError(f"{word} does not take images of {shape}: {known}", "--model resnet-18") from None


def _build_and_apply(word: str, in_shape: tuple[int, ...], classes: int, construct: Construct) -> Net:
    """Build the network and apply it to one empty image; raises the library's error if that fails."""
    classifier = construct(in_shape, classes)
    for module in classifier.modules():
        if isinstance(module, nn.Dropout) or type(module).__name__ == "StochasticDepth":
            module.p = 0.0  # type: ignore[assignment]
    x = torch.zeros(1, *in_shape)
    with torch.no_grad():
        expected = classifier.eval()(x)
        if expected.shape != (1, classes):
            raise ValueError(f"its output has the shape {tuple(expected.shape)}")
        net = divide(classifier, word)
        try:
            is_divided = expected.device.type == "meta" or torch.equal(net.eval()(x), expected)
        except _SIZE_ERRORS:
            is_divided = False
    if not is_divided:
        raise UsageError(f"{word} is not a body and one linear head", "--model resnet-18")
    return net.train()


def _takes_size(word: str, side: int, channels: int, construct: Construct) -> bool:
    """Return whether a network takes square images of a size, without memory or arithmetic: on the meta device."""
    try:
        with torch.device("meta"):
            _build_and_apply(word, (channels, side, side), 2, construct)
    except _SIZE_ERRORS:
        return False
    return True


def set_input_channels(net: nn.Module, channels: int) -> None:
    """Replace the first convolution by one for ``channels``, with weights that keep the variance of its outputs."""
    first = next(module for module in net.modules() if isinstance(module, nn.Conv2d))
    if first.in_channels == channels:
        return
    spread = first.weight.detach().std() * (first.in_channels / channels) ** 0.5
    out, _, *kernel = first.weight.shape
    first.in_channels = channels
    first.weight = nn.Parameter(torch.randn(out, channels, *kernel) * spread)


def divide(net: nn.Module, name: str) -> Net:
    """Cut a classifier before its last linear layer; raises UsageError if it has none."""
    places = [place for place, module in net.named_modules() if isinstance(module, nn.Linear)]
    if not places:
        raise UsageError(f"{name} does not end in a linear layer: it has no head to split off", "--model mobilenet-v2")
    outer, _, last = places[-1].rpartition(".")
    head = net.get_submodule(places[-1])
    setattr(net.get_submodule(outer), last, nn.Identity())
    return Net(net, head)
