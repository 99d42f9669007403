"""Callbacks: code that sees each round of a run and each batch of predictions, and may end the rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pflcli.federation.run import Run
    from pflcli.simulation.progress import Progress, Row


class Callback:
    """Sees the rounds of a run; override what you need. ``progress.rows`` has a row per round, the last one at the end.

    Nothing that a callback does may change ``run`` or ``progress``.
    """

    def before_round(self, run: Run, progress: Progress) -> None:
        """Do something before the next round."""

    def after_round(self, run: Run, progress: Progress) -> None:
        """Do something after the round of ``progress.rows[-1]``, which ended with ``progress.state``."""

    def stops(self, run: Run, progress: Progress) -> bool:
        """Return whether the rounds end here. It is asked before each round, also when a run is resumed."""
        return False

    def after_prediction(self, run: Run, progress: Progress) -> None:
        """Do something after the batch of clients ``progress.predictions[-1]``."""


class EarlyStopping(Callback):
    """Ends the rounds when the accuracy on validation samples has not risen for ``patience`` rounds.

    The accuracy is that of personal models where it is measured, else that of the global model; rounds without a
    measurement count, and a run without validation samples never ends early.
    """

    def __init__(self, patience: int) -> None:
        if patience < 1:
            raise ValueError(f"patience={patience} is below one round")
        self.patience = patience

    def stops(self, run: Run, progress: Progress) -> bool:
        """Return whether the best measured round is ``patience`` rounds ago or more."""
        best = find_best(progress.rows)
        return best is not None and len(progress.rows) - 1 - best >= self.patience


ACCURACIES = ("personal_accuracy", "validation_accuracy")
"""The columns by which rounds are compared: the accuracy of personal models if measured, else of the global model."""


def find_best(rows: Sequence[Row]) -> int | None:
    """Return the index of the first row with the highest accuracy; None if none was measured."""
    for column in ACCURACIES:
        values: list[Any] = [row.get(column, math.nan) for row in rows]
        measured = [index for index, value in enumerate(values) if not math.isnan(value)]
        if measured:
            return max(measured, key=lambda index: (values[index], -index))
    return None
