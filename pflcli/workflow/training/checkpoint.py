"""Checkpoints of a run: safetensors files with a hash of the whole content."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load, save
from torch import Tensor

from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import parameters
from pflcli.core.errors import InputError, LostWorkerError
from pflcli.core.federation.run import Run
from pflcli.core.parameters.model_table import ModelTable
from pflcli.core.simulation.callbacks import Callback
from pflcli.core.simulation.progress import Best, Progress, tables
from pflcli.workflow.training import state_files


def pack(run: Run, progress: Progress) -> bytes:
    """Return a sealed checkpoint from which the run can be resumed."""
    facts = {
        "before": json.dumps(progress.before),
        "rows": json.dumps(progress.rows),
        "traffic": json.dumps(run.traffic),
        "engine": run.engine.mode,
        "predicted": str(progress.predicted_clients),
        "reads_rounds": json.dumps(progress.reads_rounds),
    }
    state = {"state": progress.state, "predictions": progress.join_predictions()}
    if progress.best is not None:
        facts["best"] = json.dumps([progress.best.round, progress.best.column, progress.best.score])
        state["best"] = progress.best.state
    flat = state_files.flatten(state)
    # Safetensors sorts names; a sum over layers in another order would differ in its last bits.
    facts["names"] = json.dumps([*flat])
    return bytes(save(flat, {**facts, "seal": _seal(facts, flat)}))


def _seal(facts: Mapping[str, str], flat: Mapping[str, Tensor]) -> str:
    """Return a hash of the whole content of a checkpoint."""
    return hashlib.sha256(f"{json.dumps(facts, sort_keys=True)} {parameters.digest(flat)}".encode()).hexdigest()


def unpack(content: bytes, path: Path, run: Run) -> tuple[Progress, dict[str, int], str]:
    """Undo ``pack`` of the ``content`` of the file at ``path``: return the progress, the traffic and the engine's mode.

    Raises InputError if the checkpoint or a row of a table was changed.
    """
    try:
        with safe_open(path, "pt") as file:
            facts = file.metadata()
        flat = load(content)
        if facts.pop("seal") != _seal(facts, flat):
            raise ValueError
    except Exception:  # a parser raises anything on a damaged file
        raise InputError(
            f"the checkpoint {path} is damaged", f"remove it (rm -r {path.parent.parent}), and start again"
        ) from None
    flat, known = {name: flat[name] for name in json.loads(facts["names"])}, dict[int, ModelTable]()
    # The tables of the last round come first, because those of the best round are snapshots of them.
    state, best, joined = (
        state_files.nest(parameters.unprefixed(flat, f"{key}/"), run, known) for key in ("state", "best", "predictions")
    )
    predictions = [(int(facts["predicted"]), joined)] if joined else []
    before, rows = json.loads(facts["before"]), json.loads(facts["rows"])
    progress = Progress(state, before, rows, predictions, reads_rounds=json.loads(facts["reads_rounds"]))
    if "best" in facts:
        number, column, score = json.loads(facts["best"])
        progress.best = Best(number, column, score, best)
    return progress, json.loads(facts["traffic"]), facts["engine"]


_CHECKPOINT_COST_FACTOR, _MAX_SECONDS_BETWEEN_CHECKPOINTS = 20, 10.0
"""A checkpoint is due after this multiple of the time that the last one took, at most after this many seconds."""


class Checkpoints(Callback):
    """Saves the progress of a run to disk between rounds and between batches of predictions."""

    def __init__(self, run: Run, progress: Progress, work: ArtifactWriter) -> None:
        self.progress = progress
        self._run, self._work = run, work
        self._cost, self._last, self._kept = 0.0, time.monotonic(), self._mark()

    def after_round(self, run: Run, progress: Progress) -> None:
        """Write a checkpoint if it is due."""
        self._offer()

    def after_prediction(self, run: Run, progress: Progress) -> None:
        """Write a checkpoint if it is due."""
        self._offer()

    def _mark(self) -> tuple[int, int]:
        return len(self.progress.rows), self.progress.predicted_clients

    def _offer(self) -> None:
        if time.monotonic() - self._last >= min(_CHECKPOINT_COST_FACTOR * self._cost, _MAX_SECONDS_BETWEEN_CHECKPOINTS):
            self._write()

    def _write(self) -> None:
        began = time.monotonic()
        by_key = tables(self.progress.state)
        for table in by_key.values():
            table.storage.sync()
        self._work.write_checkpoint(pack(self._run, self.progress))
        for table in by_key.values():
            table.keep()
        self._last, self._kept = time.monotonic(), self._mark()
        self._cost = self._last - began

    @contextmanager
    def on_interruption(self) -> Iterator[None]:
        """Write a checkpoint if the block or a worker process is interrupted and there is new progress."""
        try:
            yield
        except (KeyboardInterrupt, LostWorkerError):
            if self.progress.is_whole and self._kept != self._mark():
                self._write()
            raise
