"""The network that a worker keeps for all the clients that it trains."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from pflcli.engine.cpu import linear_chain, program
from pflcli.engine.cpu.linear_chain import Layer
from pflcli.engine.cpu.program import Program

_LARGE = 100_000
"""Weights from which on a chain is trained by compiled loops; Numba takes half a second to load."""


@dataclass(frozen=True)
class ResidentNet:
    """A network whose parameters each client's training overwrites, with its fast forms, if it has any."""

    net: nn.Module
    layers: list[Layer] | None
    """those of a chain of linear layers"""
    program: Program | None

    @property
    def large_chain(self) -> bool:
        """Whether this is a chain in float32 with so many weights that compiled loops save more than they cost."""
        weights = list(self.net.parameters())
        single = self.layers is not None and all(
            value.dtype == torch.float32 and value.device.type == "cpu" for value in weights
        )
        return single and sum(value.numel() for value in weights) >= _LARGE

    @classmethod
    def of(cls, net: nn.Module, in_shape: tuple[int, ...]) -> ResidentNet:
        """Compile ``net`` for samples of ``in_shape``. Not thread-safe: it traces the network."""
        return cls(net, linear_chain.layers(net), program.of(net, in_shape))
