"""The network that a worker keeps for all the clients that it trains."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from pflcli.engine import backend, linear_chain
from pflcli.engine.backend import Program
from pflcli.engine.linear_chain import Layer


@dataclass(frozen=True)
class WorkerNet:
    """A network whose parameters each client's training overwrites, with its fast forms, if it has any."""

    net: nn.Module
    layers: list[Layer] | None
    """those of a chain of linear layers"""
    program: Program | None

    @property
    def is_random(self) -> bool:
        """Whether the network draws random numbers while it trains, see ``models.Net``."""
        return bool(getattr(self.net, "is_random", False))

    @property
    def can_stack(self) -> bool:
        """Whether stacks of clients can train by torch.func, which has no rule for recurrent layers."""
        return not any(isinstance(module, nn.GRU | nn.RNN) for module in self.net.modules())

    @property
    def compiles_chain(self) -> bool:
        """Whether compiled loops are faster than PyTorch for this chain of linear layers."""
        return self.layers is not None and linear_chain.pays_to_compile(self.net.parameters())

    @classmethod
    def compile(cls, net: nn.Module, in_shape: tuple[int, ...]) -> WorkerNet:
        """Compile ``net`` for samples of ``in_shape``. Not thread-safe: it traces the network."""
        return cls(net, linear_chain.layers(net), backend.program(net, in_shape))
