"""Encoders of torchvision: classifiers without their last linear layer, with weights from a file."""

from __future__ import annotations

from pathlib import Path

from pflcli import models, parameters
from pflcli.encoders import Loaded
from pflcli.training import initial_weights

_SIZE = 224
"""The side of the images, in pixels, with which most networks are trained on ImageNet."""


def load(name: str, weights: Path, size: int | None) -> Loaded:
    """Return a classifier of torchvision without its last linear layer.

    Raises UsageError if torchvision has no such classifier, InputError if the weights are not those of it.
    """
    word, side = f"torchvision:{name}", size or _SIZE
    net = models.create(word, (3, side, side), 2, 0)
    read = initial_weights.read(weights)
    fitted = initial_weights.fit(read, word, parameters.state(net), lambda _: None)
    net.load_state_dict(fitted, strict=False)
    # Networks with attention may have positions for one size of images; all others take any.
    return Loaded(net.body, read.digest, side)
