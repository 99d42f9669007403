"""What FedHAM's clients attended to, round by round, and how well their hybrids did before they were trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass
class Seen:
    """One round of ``clients`` clients: attention ``first`` (m, m) and ``second`` (m, 3), 0 for those that sat it out.

    ``right`` collects which validation samples their hybrids got right.
    """

    clients: int
    right: list[NDArray[np.bool_]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.first = torch.zeros(self.clients, self.clients)
        self.second = torch.zeros(self.clients, 3)

    def recorded(self, state: Mapping[str, Any], *, remember: int) -> dict[str, Any]:
        """Return the records of ``state`` with this round; of more than ``remember`` clients the last round alone."""
        right = np.concatenate([*self.right, np.zeros(0, dtype=bool)])
        accuracy = torch.tensor([right.mean() if len(right) else -1]).float()
        first, second = state["attention"]["first"], state["attention"]["second"]
        if self.clients > remember:
            first, second = first[:0], second[:0]
        return {
            "attention": {
                "first": torch.cat([first, self.first[None]]),
                "second": torch.cat([second, self.second[None]]),
            },
            "history": {"hybrid": torch.cat([state["history"]["hybrid"], accuracy])},
        }
