"""Backbones, one file each: ``build(in_shape, classes) -> Net``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pflcli import registry, rng
from pflcli.errors import UsageError


class Net(nn.Module):
    """A classifier in two parts: ``body`` gives the representation (n, d), ``head`` the logits (n, C)."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def features(self, x: Tensor) -> Tensor:
        """Return the representation (n, d): the input of the head."""
        out: Tensor = self.body(x)
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (n, C)."""
        out: Tensor = self.head(self.body(x))
        return out


def create(name: str, in_shape: tuple[int, ...], classes: int, seed: int) -> Net:
    """Build a backbone with the initial weights that belong to ``seed``; the global generator is left as it was."""
    module = registry.load("models", name)
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(rng.integer(seed, "init", name))
        net: Net = module.build(in_shape, classes)
    return net


def image_shape(name: str, in_shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """Return (channels, height, width); raises UsageError if the samples are not images of at least that size."""
    if len(in_shape) != 3 or min(in_shape[1:]) < smallest:
        shape = "x".join(map(str, in_shape))
        raise UsageError(f"model {name} takes images of at least {smallest}x{smallest}, not {shape}", "--model mlp")
    return in_shape
