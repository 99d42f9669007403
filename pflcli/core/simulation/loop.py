"""Play the rounds of a method, and predict for its clients after them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from pflcli.core.engine import backend
from pflcli.core.errors import ComputationError, InputError, UnsuitedError
from pflcli.core.federation.attendance import AllAbsent, Attendance, Diverged, RoundNotes, client_list
from pflcli.core.federation.run import Run
from pflcli.core.methods import Method
from pflcli.core.settings import Settings
from pflcli.core.simulation import absences, personal_accuracy
from pflcli.core.simulation.callbacks import Callback, EarlyStopping
from pflcli.core.simulation.predict import client_batches, predict
from pflcli.core.simulation.progress import Progress, Row, State, require_state, undo_on_failure, update_best

ROUND_COLUMNS = (
    *("round", "clients", "lr", "loss", "validation_accuracy", "personal_accuracy", "test_accuracy"),
    *("bytes_up", "bytes_down", "bytes_peer", "dropped", "diverged", "left_out", "seconds"),
)
"""The columns of ``rounds.csv`` for all methods; differential privacy and the setting ``round_metric`` add some."""


def run_rounds(
    run: Run,
    name: str,
    method: Method,
    progress: Progress,
    callbacks: Sequence[Callback] = (),
    *,
    shared: bool = False,
) -> None:
    """Play the remaining rounds of a method, if it has any, and add them to ``progress``.

    With ``shared``, only the global model is needed, and the best round is chosen by its score.
    """
    settings = run.settings
    stopping = [EarlyStopping(settings.patience, shared=shared)] if settings.patience else []
    while (
        method.has_rounds
        and len(progress.rows) < settings.rounds
        and not any(callback.stops(run, progress) for callback in (*stopping, *callbacks))
    ):
        for callback in callbacks:
            callback.before_round(run, progress)
        with progress.round(run):
            progress.state, row = play_round(run, name, method, progress.state, len(progress.rows))
            progress.rows.append(row)
            progress.reads_rounds |= run.notes.reads_rounds
            if settings.report == "best":
                by = settings.compares_rounds_by
                progress.best = update_best(progress.best, progress.state, progress.rows, by, shared=shared)
        for callback in callbacks:
            callback.after_round(run, progress)


class _NotingSettings(Settings):
    """Settings that note in ``notes`` that their number of rounds was read."""

    notes = RoundNotes()

    @property
    def rounds(self) -> int:
        self.notes.reads_rounds = True
        return int(vars(self)["rounds"])

    @rounds.setter
    def rounds(self, value: int) -> None:
        vars(self)["rounds"] = value


@contextmanager
def _note_rounds(run: Run) -> Iterator[None]:
    """Note within the block whether the method reads the number of rounds, itself or by a learning rate."""
    settings = run.settings
    run.settings = _NotingSettings(**vars(settings))
    vars(run.settings)["notes"] = run.notes
    try:
        yield
    finally:
        run.settings = settings


def _clock() -> float:
    """Return the seconds since some moment, without those that ``compile_seconds`` counts."""
    return time.monotonic() - backend.compile_seconds()[0]


def set_up(run: Run, name: str, method: Method) -> Progress:
    """Return the progress before the first round, with row 0 if ``setup`` sent something.

    Raises UnsuitedError if the method rejects the data, InputError if its state cannot be stored.
    """
    began, before, run.notes = _clock(), dict(run.traffic), RoundNotes()
    try:
        with _note_rounds(run), run.engine.training():
            state = method.setup(run)
    except InputError as error:  # a method opens no files, so it rejects the data
        raise UnsuitedError(error.message, *error.fix) from None
    require_state(f"{name}, setup", state)
    spent = _clock() - began
    rows = [] if run.traffic == before else [_describe_round(run, method, state, -1, before, spent)]
    return Progress(state, rows, reads_rounds=run.notes.reads_rounds)


def play_round(run: Run, name: str, method: Method, state: Any, t: int) -> tuple[Any, Row]:
    """Run round ``t``, from 0, and return the state after it and its row.

    If a client's training diverges, the round is rolled back and repeated without it, as if it had dropped out. If no
    client completes the round, the state stays the same. Raises ComputationError if the method does, or if the training
    of all clients diverges, InputError if the state cannot be stored.
    """
    began, before, fix = _clock(), dict(run.traffic), tuple[str, ...]()
    attendance = Attendance(t=t)
    try:
        while True:
            if run.privacy is not None:
                run.privacy.begin_round(t)
            run.notes = RoundNotes(attendance)
            try:
                with undo_on_failure(state, run), _note_rounds(run), run.engine.training():
                    after: State = method.train_round(run, state, t)
            except AllAbsent:
                run.traffic = {**before, "down": run.traffic["down"]}  # clients that drop out still download
                after = _extend_records(method, state)
                break
            except Diverged as error:
                run.traffic, fix = dict(before), error.fix
                if attendance.diverged.issuperset(error.clients):
                    raise
                attendance.diverged.update(error.clients)
                is_hopeless = attendance.all_absent
            else:
                is_hopeless = bool(attendance.diverged) and not run.notes.trained
                if run.privacy is not None or not is_hopeless:
                    break
            # With differential privacy a round always runs: skipping it would reveal which clients were absent.
            if is_hopeless and run.privacy is None:
                clients = client_list(sorted(attendance.diverged))
                raise ComputationError(f"the parameters of all clients that trained became non-finite: {clients}", *fix)
    except ComputationError as error:
        raise ComputationError(f"{name}, round {t + 1}: {error.message}", *error.fix) from None
    require_state(f"{name}, round {t + 1}", after)
    row = _describe_round(run, method, after, t, before, _clock() - began)
    return after, row if run.privacy is None else {**row, **run.privacy.end_round()}


def _extend_records(method: Method, state: State) -> State:
    """Return the state after a round without uploads: the ``RECORDS`` of the method get one more round.

    Neighbours stay the same, attention is 0 and measured numbers are nan. Empty records stay empty.
    """
    records: State = {}
    if "graph" in method.RECORDS:
        records["graph"] = torch.cat([state["graph"], state["graph"][-1:]])
    if "attention" in method.RECORDS:
        records["attention"] = {key: _append(values, 0.0) for key, values in state["attention"].items()}
    if "history" in method.RECORDS:
        records["history"] = {key: _append(values, math.nan) for key, values in state["history"].items()}
    return {**state, **records}


def _append(records: torch.Tensor, value: float) -> torch.Tensor:
    """Return records (r, ...) with one more round of ``value``; records without a round stay empty."""
    return torch.cat([records, torch.full_like(records[-1:], value)])


def _describe_round(run: Run, method: Method, state: Any, t: int, before: Mapping[str, int], spent: float) -> Row:
    """Return the row of a round that took ``spent`` seconds, without the time of measuring."""
    # A deployment has the same losses in another order.
    weight = math.fsum(weight for _, weight in run.notes.losses)
    loss = math.fsum(loss * weight for loss, weight in run.notes.losses) / weight if weight else math.nan
    return {
        "round": t + 1,
        # ``setup`` involves all participants.
        "clients": len(run.notes.trained) if t >= 0 else len(run.federation.participants),
        "lr": run.settings.lr_at(t) if t >= 0 else math.nan,
        "loss": loss,
        **personal_accuracy.measure_shared(run, method, state, t),
        **personal_accuracy.measure_personal(run, method, state, t),
        **personal_accuracy.measure_test(run, method, state, t),
        **{f"bytes_{link}": run.traffic[link] - before[link] for link in run.traffic},
        **absences.describe_round(run.attendance, run.notes.left_out),
        "seconds": round(spent, 4),
    }


def predict_all(run: Run, name: str, method: Method, progress: Progress, callbacks: Sequence[Callback] = ()) -> None:
    """Predict for all clients that have not predicted yet, and add the predictions to ``progress``."""
    for clients in client_batches(run, first=progress.predicted_clients):
        predicted = predict(run, name, method, progress.reported, clients)
        arrays: dict[str, Mapping[str, Any]] = {
            **predicted.parts,
            "flags": predicted.flags,
            "tuned": predicted.predictor.tuned,
        }
        # A single append, so that an interruption keeps either all or none of these clients' predictions.
        progress.predictions.append((len(clients), _tensors(arrays)))
        for callback in callbacks:
            callback.after_prediction(run, progress)


def _tensors(arrays: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, torch.Tensor]]:
    return {key: {name: torch.from_numpy(values) for name, values in parts.items()} for key, parts in arrays.items()}
