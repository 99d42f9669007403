"""Encoders of torchvision and timm: their networks without the classification head, with weights from a file."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pflcli import models, parameters, vision
from pflcli.encoders import Loaded
from pflcli.errors import InputError, UsageError, closest
from pflcli.training import initial_weights

_SIZE = 224
"""The side of the images, in pixels, with which most networks are trained on ImageNet."""


def load_torchvision(name: str, weights: Path, size: int | None) -> Loaded:
    """Return a classifier of torchvision without its last linear layer."""
    word, side = f"torchvision:{name}", size or _SIZE
    net = models.create(word, (3, side, side), 2, 0)
    read = initial_weights.read(weights)
    init = parameters.state(net)
    fitted = initial_weights.fit(read, word, init, lambda _: None)
    net.load_state_dict(fitted, strict=False)
    # Networks with attention may have positions for one size of images; all others take any.
    return Loaded(net.body, read.digest, side)


def load_timm(name: str, weights: Path, size: int | None) -> Loaded:
    """Return a network of timm without its classifier; its configuration has the size and the normalization.

    Raises UsageError if timm is not installed, or has no such network.
    """
    if importlib.util.find_spec("timm") is None:
        raise UsageError("encoders of timm need timm, which is not installed", "pip install 'pflcli[timm]'")
    vision.torchvision()  # timm imports it
    import timm

    if not timm.is_model(name):
        raise UsageError(f"timm has no model '{name}'", closest(name, timm.list_models()))
    read = initial_weights.read(weights)
    with torch.random.fork_rng(devices=[]):
        net = _create(timm, name, size)
    classifier = net.pretrained_cfg.get("classifier") or "classifier"
    heads = tuple(f"{head}." for head in ([classifier] if isinstance(classifier, str) else classifier))
    body = {key: value for key, value in read.tensors.items() if not key.startswith(heads)}
    try:
        missing, unknown = net.load_state_dict(body, strict=False)
    except RuntimeError as error:  # tensors of another shape
        reason = str(error).partition("\n")[2].strip().partition("\n")[0]
        raise InputError(f"{weights} does not fit timm:{name}: {reason}") from None
    missing = [key for key in missing if not key.endswith("num_batches_tracked")]
    if missing or unknown:
        problem = f"lacks {missing[0]}" if missing else f"contains {unknown[0]}, which it lacks"
        raise InputError(f"{weights} does not fit timm:{name}: it {problem}", "a state dict of this network")
    cfg = net.pretrained_cfg
    return Loaded(net, read.digest, size or cfg["input_size"][-1], tuple(cfg["mean"]), tuple(cfg["std"]))


def _create(timm: Any, name: str, size: int | None) -> nn.Module:
    """Return the network with random weights; networks that need to know the size of images are told."""
    if size is not None:
        try:
            net: nn.Module = timm.create_model(name, pretrained=False, num_classes=0, img_size=size)
            return net
        except TypeError:  # most convolutional networks have no such argument
            pass
    net = timm.create_model(name, pretrained=False, num_classes=0)
    return net
