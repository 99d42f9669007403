"""The class of all backbones."""

from __future__ import annotations

from torch import Tensor, nn


class Net(nn.Module):
    """A classifier in two parts: ``body`` computes the representation (n, d), ``head`` the logits (n, C)."""

    is_random: bool | None = False
    """whether it draws random numbers while it trains; None if a network of a user has not been seen to, but may"""

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
