"""A step of plain SGD as a product can take it that computes the gradient."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Move:
    """A weight that changes by minus a rate times its gradient, in the product that computes this.

    Before that it moves by ``part`` of the way to the ``anchor``, and by minus the rate times the ``drift``. If the
    gradient ``replaces`` it, there is no rate.
    """

    weight: Tensor
    rate: float
    anchor: Tensor | None = None
    part: float = 0.0
    drift: Tensor | None = None
    replaces: bool = False
