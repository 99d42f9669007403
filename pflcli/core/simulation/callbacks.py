"""Callbacks: code that sees each round of a run and each batch of predictions, and may end the rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from pflcli.core.errors import UsageError
from pflcli.core.simulation.progress import Progress, Row, find_best

if TYPE_CHECKING:
    from pflcli.core.federation.run import Run
    from pflcli.core.reporter import Advance


class Callback:
    """Sees the rounds of a run; override what you need. ``progress.rows`` has a row per round, the last one at the end.

    Nothing that a callback does may change ``run`` or ``progress``.

    >>> from pflcli import Callback, Federation, simulate
    >>> class Count(Callback):
    ...     rounds = 0
    ...     def after_round(self, run, progress):
    ...         self.rounds += 1
    >>> count = Count()
    >>> writers = Federation.from_dataset("writers", clients=6)
    >>> _ = simulate("fedavg", writers, model="logistic", rounds=2, callbacks=count, quiet=True)
    >>> count.rounds
    2
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


class ProgressBar(Callback):
    """Shows the rounds, or the clients that predict, on a progress bar."""

    def __init__(self, advance: Advance) -> None:
        self._advance = advance

    def after_round(self, run: Run, progress: Progress) -> None:
        """Advance by a round."""
        self._advance(1, describe_last(progress.rows, run.task.score))

    def after_prediction(self, run: Run, progress: Progress) -> None:
        """Advance by the clients that predicted."""
        self._advance(progress.predictions[-1][0], "")


_LEAST_GAIN = 0.005
"""Gain per doubling of the rounds below which accuracy is flat: half a point."""
_LEAST_POINTS = 8
"""Least number of measurements, in the last three quarters of the rounds, that show that it is flat."""


class EarlyStopping(Callback):
    """Ends the rounds at a measurement if validation accuracy has not risen for ``patience`` rounds.

    With "flat" as ``patience``, it ends them if twice as many rounds would gain less than half a point, by a line
    through accuracy over log2(round). The accuracy is that of personal models where it is measured, else that of the
    global model; with ``shared``, always that of the global model. A run in which it is never measured does not end
    early. With the setting ``round_metric``, that metric must improve instead, unless ``patience`` is "flat".

    >>> from pflcli import EarlyStopping, Federation, simulate
    >>> writers = Federation.from_dataset("writers", clients=6)
    >>> stop = EarlyStopping(patience=1)
    >>> short = simulate("fedavg", writers, model="logistic", rounds=50, eval_every=1, callbacks=stop, quiet=True)
    >>> len(short.rounds) < 50
    True
    """

    def __init__(self, patience: int | Literal["flat"], *, shared: bool = False) -> None:
        if patience != "flat" and patience < 1:
            raise UsageError(f"patience={patience} is below one round", "patience=5, or flat")
        self.patience, self._shared = patience, shared

    def stops(self, run: Run, progress: Progress) -> bool:
        """Return whether ``patience`` rounds or more have passed since the best one, or accuracy is flat."""
        if self.patience != "flat":
            found = find_best(progress.rows, run.settings.compares_rounds_by, shared=self._shared)
            return found is not None and found.last - found.best >= self.patience
        found = find_best(progress.rows, shared=self._shared)
        if found is None or found.last < len(progress.rows) - 1:
            return False
        from pflcli.core.scores import gain_per_doubling  # here, because few runs need it

        values = np.asarray([row.get(found.column, math.nan) for row in progress.rows])
        known = ~np.isnan(values)
        fitted = gain_per_doubling(np.flatnonzero(known) + 1.0, values[known], _LEAST_POINTS)
        return fitted is not None and fitted[0] < _LEAST_GAIN


def describe_last(rows: Sequence[Row], score: str = "accuracy") -> str:
    """Return a note on the last round for the progress bar: its loss or absences, and the latest scores."""
    last = rows[-1]
    text = f"loss {last['loss']:.3f}" if last.get("clients", 1) else "no client uploaded"
    text += f", {len(last['diverged'])} diverged" if last.get("diverged") else ""
    for kind in ("validation", "personal"):
        measured = [row[f"{kind}_accuracy"] for row in rows if not math.isnan(row.get(f"{kind}_accuracy", math.nan))]
        text += f", {kind} {score} {measured[-1]:.3f}" if measured else ""
    return text
