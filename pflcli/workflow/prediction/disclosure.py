"""How much of a prediction leaves the client (``--answers``): the probabilities, rounded ones, or the class only.

Gao et al. (2023), FedHAM, https://doi.org/10.1145/3591362, section 7, "confidence fuzzy processing". The parts of the
prediction, distances to stored samples and options tuned by the client are then not disclosed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.errors import UsageError
from pflcli.core.tasks import CLASSES

_MAX_DIGITS = 6


@dataclass(frozen=True)
class Disclosure:
    """``digits`` after the decimal point of each probability; 0 discloses the class only, None everything."""

    digits: int | None

    @property
    def is_label(self) -> bool:
        """Whether only the class is disclosed."""
        return self.digits == 0

    @property
    def least_probability(self) -> float:
        """The probability that an attacker assumes for a disclosed 0: half a unit of the last digit, or nearly 0."""
        return 0.5 * 10.0**-self.digits if self.digits else 1e-30

    def apply(self, p: NDArray[Any]) -> NDArray[np.float32]:
        """Return what is disclosed of probabilities (n, C); if that is the class only, a one-hot row.

        The class is taken from the full probabilities because rounding makes ties. Rounded rows need not sum to 1.
        """
        if self.is_label:
            return np.asarray(np.eye(p.shape[1], dtype=np.float32)[p.argmax(axis=1)])
        return np.asarray(p if self.digits is None else np.round(p.astype(np.float64), self.digits), dtype=np.float32)

    def __str__(self) -> str:
        """Return the value as typed after ``--answers``."""
        return "full" if self.digits is None else "label" if self.is_label else f"rounded:{self.digits}"


def parse(text: str | None, kind: str = CLASSES) -> Disclosure | None:
    """Parse the value of ``--answers``; None stays None.

    Raises UsageError for any other value, and for "label" if labels are of another ``kind`` than classes.
    """
    if text == "label" and kind != CLASSES:
        raise UsageError(f"--answers label reveals classes alone, and the task is {kind}", "--answers rounded:1")
    if text in (None, "full", "label"):
        return None if text is None else Disclosure(0 if text == "label" else None)
    name, _, digits = str(text).partition(":")
    if name == "rounded" and digits.isdecimal() and 1 <= int(digits) <= _MAX_DIGITS:
        return Disclosure(int(digits))
    raise UsageError(
        f"--answers {text} is not full, label or rounded:DIGITS (1 to {_MAX_DIGITS} digits)", "--answers rounded:1"
    )
