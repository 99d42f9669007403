"""Encoders of torchvision and timm: classifiers without their last linear layer, with weights from a file."""

from __future__ import annotations

from pathlib import Path

from pflcli import models, parameters, vision
from pflcli.encoders import Loaded
from pflcli.training import initial_weights

_SIZE = 224
"""The side of the images, in pixels, with which most networks are trained on ImageNet."""


def load(word: str, weights: Path, size: int | None) -> Loaded:
    """Return a classifier, such as torchvision:resnet50, without its last linear layer.

    Images of timm's networks have the size and the normalization that timm recommends for the weights of that name.
    Raises UsageError if the library has no such classifier, InputError if the weights are not those of it.
    """
    models.check(word)
    side, mean, deviation = _SIZE, None, None
    kind, _, member = word.partition(":")
    if kind == "timm":
        advice = vision.timm().get_pretrained_cfg(member)
        side, mean, deviation = advice.input_size[1], advice.mean, advice.std
    side = size or side
    net = models.create(word, (3, side, side), 2, 0)
    read = initial_weights.read(weights)
    fitted = initial_weights.fit(read, word, parameters.state(net), lambda _: None)
    net.load_state_dict(fitted, strict=False)
    # Networks with attention may have positions for one size of images; all others take any.
    return Loaded(net.body, read.digest, side, mean, deviation)
