"""How much of an answer leaves a client: its probabilities, rounded ones, or the class alone.

Gao et al. (2023), FedHAM, https://doi.org/10.1145/3591362, section 7, "confidence fuzzy processing". Whoever asks then
sees the answer alone: neither the parts that explain it, nor distances to stored samples, nor what the client chose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.errors import UsageError

_MOST = 6


@dataclass(frozen=True)
class Disclosure:
    """What leaves: ``digits`` of probabilities behind the point, 0 for the class alone, None for all of them."""

    digits: int | None

    @property
    def is_label(self) -> bool:
        """Whether the class alone leaves."""
        return self.digits == 0

    @property
    def doubt(self) -> float:
        """Half a unit of the last rounded digit, which an attacker takes for the least probability; else nearly 0."""
        return 0.5 * 10.0**-self.digits if self.digits else 1e-30

    def of(self, p: NDArray[Any]) -> NDArray[np.float32]:
        """Return what leaves of probabilities (n, C); of the class alone, 1 for it and 0 for others.

        The class is that of the full probabilities: rounding would make ties. Rounded rows need not add up to 1.
        """
        if self.is_label:
            return np.asarray(np.eye(p.shape[1], dtype=np.float32)[p.argmax(axis=1)])
        return np.asarray(p if self.digits is None else np.round(p.astype(np.float64), self.digits), dtype=np.float32)

    def __str__(self) -> str:
        """Return it as it is typed."""
        return "full" if self.digits is None else "label" if self.is_label else f"rounded:{self.digits}"


def load(text: str | None) -> Disclosure | None:
    """Return what ``--answers`` names, None for None; raises UsageError for what cannot be."""
    if text in (None, "full", "label"):
        return None if text is None else Disclosure(0 if text == "label" else None)
    name, _, digits = str(text).partition(":")
    if name == "rounded" and digits.isdecimal() and 1 <= int(digits) <= _MOST:
        return Disclosure(int(digits))
    raise UsageError(
        f"--answers {text} is none of full, label and rounded:DIGITS with 1 to {_MOST} digits", "--answers rounded:1"
    )
