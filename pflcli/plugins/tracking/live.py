"""A callback that shows the rounds of a simulation in an experiment tracker while they are played."""

from __future__ import annotations

import math
from pathlib import Path

from pflcli.artifacts import manifest as manifests
from pflcli.core import config
from pflcli.core.federation.run import Run
from pflcli.core.simulation.callbacks import Callback
from pflcli.core.simulation.progress import Progress
from pflcli.plugins.tracking import OpenRun, Record, flatten, open_writer, require_tool


class Tracker(Callback):
    """Writes each round to the folder ``out`` for the tool ``to``: tensorboard, mlflow or wandb. See ``pfl track``.

    The run has this ``name`` in the ``group``. A run with the same name, options, settings and seed is replaced. Raises
    UsageError if the tool is unknown or not installed.

    >>> from pflcli import Federation, Tracker, simulate
    >>> writers = Federation.from_dataset("writers", clients=6)
    >>> live = Tracker("tracked", to="tensorboard", name="ditto")
    >>> result = simulate("ditto", writers, model="logistic", rounds=2, callbacks=live, quiet=True)
    """

    def __init__(self, out: Path | str, *, to: str = "tensorboard", name: str = "run", group: str = "simulate") -> None:
        require_tool(to)
        self._writer = open_writer(to, Path(out))
        self._name, self._group = name, group
        self._open: tuple[Record, OpenRun] | None = None

    def before_round(self, run: Run, progress: Progress) -> None:
        """Begin the run before its first round."""
        if self._open is None:
            facts = {"options": config.plain(run.cfg), "settings": config.plain(run.settings), "seed": run.seed}
            key = manifests.digest([self._group, self._name, facts])
            record = Record(key, self._group, self._name, flatten(facts))
            self._open = record, self._writer.begin(record)

    def after_round(self, run: Run, progress: Progress) -> None:
        """Write the measurements of the round."""
        assert self._open is not None
        record, written = self._open
        row = {name: float(value) for name, value in progress.rows[-1].items() if isinstance(value, int | float)}
        number = int(row.pop("round"))
        record.rounds[number] = {name: value for name, value in row.items() if math.isfinite(value)}
        written.log({number: record.rounds[number]})

    def after_prediction(self, run: Run, progress: Progress) -> None:
        """Finish the run when all clients have predicted."""
        if self._open is not None and progress.predicted_clients == len(run.clients):
            record, written = self._open
            written.finish(record)
            written.close()
            self._open = None
            self._writer.close()
