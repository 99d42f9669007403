"""The progress of a run with its best round, and checkpoints: safetensors files with a hash of the whole content."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load, save
from torch import Tensor

from pflcli import parameters
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.errors import InputError, LostWorkerError
from pflcli.federation.run import Run
from pflcli.parameters.model_table import ModelTable, Snapshot
from pflcli.training import state_files

State = dict[str, Any]
Row = dict[str, Any]
"""A row of ``rounds.csv``."""

_ACCURACIES = ("personal_accuracy", "validation_accuracy")
"""The columns by which rounds are compared: the accuracy of personal models if measured, else of the global model."""


@dataclass(frozen=True)
class Best:
    """The first ``round`` with the highest ``accuracy``, a ``column`` of ``rounds.csv``, and the ``state`` after it."""

    round: int
    column: str
    accuracy: float
    state: State


def update_best(best: Best | None, state: State, row: Mapping[str, Any], *, shared: bool) -> Best | None:
    """Return the best round so far, after a round that ended with ``state``.

    ``shared`` compares only the global model. A round without a measured accuracy is ignored. As soon as the accuracy
    of personal models is measured, that of the global model no longer counts.
    """
    for column in _ACCURACIES[shared:]:
        accuracy = row.get(column, math.nan)
        if math.isnan(accuracy):
            continue
        if best is not None and (_ACCURACIES.index(best.column), -best.accuracy) <= (
            _ACCURACIES.index(column),
            -accuracy,
        ):
            return best
        if best is not None:
            _release(best.state)
        return Best(row["round"], column, accuracy, _freeze(state))
    return best


def _freeze(state: Mapping[str, Any]) -> State:
    """Return a state that later rounds do not change: with copies of tensors and snapshots of tables."""
    return {
        key: value.snapshot()
        if isinstance(value, ModelTable)
        else value.clone()
        if isinstance(value, Tensor)
        else _freeze(value)
        for key, value in state.items()
    }


def _release(state: Mapping[str, Any]) -> None:
    """Release the snapshots of tables in a state."""
    for value in state.values():
        if isinstance(value, Snapshot):
            value.release()
        elif isinstance(value, Mapping):
            _release(value)


@dataclass
class Progress:
    """The progress of a run: the method's state, a row per round, the best round, and the predictions of clients.

    ``before`` contains the row of ``setup`` if that sent anything. ``best`` is only set if the best round is reported.
    Each item of ``predictions`` is a number of clients and what they predict: parts by split and name, and ``tuned``
    values.
    """

    state: dict[str, Any]
    before: list[Row] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    predictions: list[tuple[int, dict[str, dict[str, Tensor]]]] = field(default_factory=list)
    best: Best | None = None

    @property
    def reported(self) -> dict[str, Any]:
        """The state that is stored, and with which clients predict."""
        return self.state if self.best is None else self.best.state

    def facts(self) -> dict[str, Any]:
        """Return the facts about the reported round for a summary."""
        if self.best is None:
            return {"reported": "last round"}
        return {"reported": f"best round by validation: {self.best.round}", "reported_round": self.best.round}

    @property
    def predicted_clients(self) -> int:
        """The number of clients that have predicted."""
        return sum(clients for clients, _ in self.predictions)

    def join_predictions(self) -> dict[str, dict[str, Tensor]]:
        """Return the predictions of all clients, concatenated."""
        pieces = [piece for _, piece in self.predictions]
        return {
            key: {name: torch.cat([piece[key][name] for piece in pieces]) for name in parts}
            for key, parts in (pieces[0].items() if pieces else ())
        }


def pack(run: Run, progress: Progress) -> bytes:
    """Return a sealed checkpoint from which the run can be resumed."""
    facts = {
        "before": json.dumps(progress.before),
        "rows": json.dumps(progress.rows),
        "traffic": json.dumps(run.traffic),
        "engine": run.engine.mode,
        "predicted": str(progress.predicted_clients),
    }
    state = {"state": progress.state, "predictions": progress.join_predictions()}
    if progress.best is not None:
        facts["best"] = json.dumps([progress.best.round, progress.best.column, progress.best.accuracy])
        state["best"] = progress.best.state
    flat = state_files.flatten(state)
    # Safetensors sorts names; a sum over layers in another order would differ in its last bits.
    facts["names"] = json.dumps([*flat])
    return bytes(save(flat, {**facts, "seal": _seal(facts, flat)}))


def _seal(facts: Mapping[str, str], flat: Mapping[str, Tensor]) -> str:
    """Return a hash of the whole content of a checkpoint."""
    return hashlib.sha256(f"{json.dumps(facts, sort_keys=True)} {parameters.digest(flat)}".encode()).hexdigest()


def unpack(content: bytes, work: ArtifactWriter, run: Run) -> tuple[Progress, dict[str, int], str]:
    """Undo ``pack``: return the progress, the traffic and the engine's mode.

    Raises InputError if the checkpoint or a row of a table was changed.
    """
    path = work.folder / "checkpoint" / "state.safetensors"
    try:
        with safe_open(path, "pt") as file:
            facts = file.metadata()
        flat = load(content)
        if facts.pop("seal") != _seal(facts, flat):
            raise ValueError
    except Exception:  # a parser raises anything on a damaged file
        raise InputError(
            f"the checkpoint {path} is damaged", f"remove it (rm -r {work.folder}), and start again"
        ) from None
    flat, known = {name: flat[name] for name in json.loads(facts["names"])}, dict[int, ModelTable]()
    # The tables of the last round come first, because those of the best round are snapshots of them.
    state, best, joined = (
        state_files.nest(parameters.unprefixed(flat, f"{key}/"), run, known) for key in ("state", "best", "predictions")
    )
    predictions = [(int(facts["predicted"]), joined)] if joined else []
    before, rows = json.loads(facts["before"]), json.loads(facts["rows"])
    progress = Progress(state, before, rows, predictions)
    if "best" in facts:
        number, column, accuracy = json.loads(facts["best"])
        progress.best = Best(number, column, accuracy, best)
    return progress, json.loads(facts["traffic"]), facts["engine"]


_CHECKPOINT_COST_FACTOR, _MAX_SECONDS_BETWEEN_CHECKPOINTS = 20, 10.0
"""A checkpoint is due after this multiple of the time that the last one took, at most after this many seconds."""


class Checkpoints:
    """Saves the progress of a run to disk between rounds and between batches of predictions."""

    def __init__(self, run: Run, progress: Progress, work: ArtifactWriter) -> None:
        self.progress = progress
        self._run, self._work = run, work
        self._cost, self._last, self._kept = 0.0, time.monotonic(), self._mark()
        self._whole = True

    def _mark(self) -> tuple[int, int]:
        return len(self.progress.rows), self.progress.predicted_clients

    @contextmanager
    def round(self) -> Iterator[None]:
        """Run a round as a transaction: if it is interrupted or fails, the state before it is restored."""
        run, progress, traffic = self._run, self.progress, dict(self._run.traffic)
        state, best, count = progress.state, progress.best, len(progress.rows)
        marks = [(table, table.mark()) for table in state_files.tables(state).values()]
        # If a second interruption stops the rollback, the progress is inconsistent, and no checkpoint is written.
        self._whole = False
        try:
            yield
        except BaseException:
            for table, mark in marks:
                table.undo(mark)
            progress.state, progress.best, run.traffic = state, best, traffic
            del progress.rows[count:]
            self._whole = True
            raise
        self._whole = True
        for _, mark in marks:
            mark.models.release()

    def offer(self) -> None:
        """Write a checkpoint if it is due."""
        if time.monotonic() - self._last >= min(_CHECKPOINT_COST_FACTOR * self._cost, _MAX_SECONDS_BETWEEN_CHECKPOINTS):
            self._write()

    def _write(self) -> None:
        began = time.monotonic()
        tables = state_files.tables(self.progress.state)
        for table in tables.values():
            table.storage.sync()
        self._work.write_checkpoint(pack(self._run, self.progress))
        for table in tables.values():
            table.keep()
        self._last, self._kept = time.monotonic(), self._mark()
        self._cost = self._last - began

    @contextmanager
    def on_interruption(self) -> Iterator[None]:
        """Write a checkpoint if the block or a worker process is interrupted and there is new progress."""
        try:
            yield
        except (KeyboardInterrupt, LostWorkerError):
            if self._whole and self._kept != self._mark():
                self._write()
            raise
