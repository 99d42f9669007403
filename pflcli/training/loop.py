"""The loop over the rounds of a method: set up or resume, play a round, checkpoint.

``train-global`` and ``personalize`` share it. A round is a transaction: an interruption or a failure restores the
state after the last complete round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from pflcli.artifacts.writer import ArtifactWriter
from pflcli.errors import ComputationError, InputError, UnsuitedError
from pflcli.execution import Execution
from pflcli.federation.attendance import AllAbsent, Attendance, Diverged, client_list
from pflcli.federation.run import Run
from pflcli.methods import Method
from pflcli.reporter import StopRounds, report_within
from pflcli.training import absences, personal_accuracy, state_files
from pflcli.training.checkpoint import Checkpoints, Progress, Row, State, unpack, update_best
from pflcli.training.predict import client_batches, predict


def run_rounds(
    run: Run,
    name: str,
    method: Method,
    checkpoints: Checkpoints,
    execution: Execution,
    *,
    shared: bool = False,
) -> None:
    """Run the remaining rounds of a method, if it has any, and update the progress of ``checkpoints``.

    They end early if the reporter raises StopRounds, which undoes an incomplete round.
    With ``shared``, only the global model is needed, and the best round is chosen by its accuracy.
    """
    if not method.has_rounds:
        return
    progress = checkpoints.progress
    completed = len(progress.rows)
    with (
        suppress(StopRounds),
        report_within(execution.reporter, run.engine, name, run.settings.rounds, completed) as advance,
        checkpoints.on_interruption(),
    ):
        for t in range(completed, run.settings.rounds):
            with checkpoints.round():
                progress.state, row = play_round(run, name, method, progress.state, t)
                if run.settings.report == "best":
                    progress.best = update_best(progress.best, progress.state, row, shared=shared)
                progress.rows.append(row)
            advance(1, describe_last(progress.rows))
            checkpoints.offer()
    if progress.best is not None:
        execution.reporter.say(
            f"{name}: best round by validation: {progress.best.round} ({progress.best.accuracy:.4f})"
        )
    elif run.settings.report == "best":
        execution.reporter.say(f"{name}: no round has a validation accuracy; the last one is reported")


def resume(run: Run, method: Method, work: ArtifactWriter, execution: Execution) -> Progress:
    """Return the progress of an unfinished run of this request, or that of a new run."""
    saved = work.read_checkpoint()
    run.storage = lambda number: work.open_rows(number, empty=saved is None)
    if saved is None:
        try:
            return Progress(*set_up(run, method))
        except InputError as error:  # a method opens no files, so it rejects the data
            raise UnsuitedError(error.message, *error.fix) from None
    progress, run.traffic, mode = unpack(saved, work, run)
    if run.privacy is not None and progress.rows:
        run.privacy.resume(len(progress.rows) - 1, progress.rows[-1])
    if mode != run.engine.mode:
        # The engine's modes agree only up to rounding: a resumed run keeps its mode, so that it gives the same bytes.
        run.engine.mode = mode
        execution.reporter.say(f"keeping the engine mode {mode}, in which this run began")
    if progress.predicted_clients:
        execution.reporter.say(f"resuming after {progress.predicted_clients} of {len(run.clients)} clients")
    else:
        execution.reporter.say(f"resuming after round {len(progress.rows)} of {run.settings.rounds}")
    return progress


def set_up(run: Run, method: Method) -> tuple[dict[str, Any], list[Row]]:
    """Return the state before the first round, and row 0 if ``setup`` sent something."""
    began, before, run.attendance = time.monotonic(), dict(run.traffic), Attendance()
    state = method.setup(run)
    spent = time.monotonic() - began
    if run.traffic == before:
        return state, []
    return state, [_describe_round(run, method, state, -1, before, spent)]


def play_round(run: Run, name: str, method: Method, state: Any, t: int) -> tuple[Any, Row]:
    """Run round ``t``, from 0, and return the state after it and its row.

    If a client's training diverges, the round is rolled back and repeated without it, as if it had dropped out. If no
    client completes the round, the state stays the same. Raises ComputationError if the method does, or if the training
    of all clients diverges.
    """
    began, before, fix = time.monotonic(), dict(run.traffic), tuple[str, ...]()
    run.attendance = attendance = Attendance(t=t)
    try:
        while True:
            if run.privacy is not None:
                run.privacy.begin_round(t)
            run.losses.clear()
            run.trained.clear()
            run.left_out.clear()
            try:
                with state_files.undo_on_failure(state, run):
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
                is_hopeless = bool(attendance.diverged) and not run.trained
                if run.privacy is not None or not is_hopeless:
                    break
            # With differential privacy a round always runs: skipping it would reveal which clients were absent.
            if is_hopeless and run.privacy is None:
                clients = client_list(sorted(attendance.diverged))
                raise ComputationError(f"the parameters of all clients that trained became non-finite: {clients}", *fix)
    except ComputationError as error:
        raise ComputationError(f"{name}, round {t + 1}: {error.message}", *error.fix) from None
    row = _describe_round(run, method, after, t, before, time.monotonic() - began)
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
    weight = sum(weight for _, weight in run.losses)
    loss = sum(loss * weight for loss, weight in run.losses) / weight if weight else math.nan
    shared = state.get("global") if run.settings.is_due(t, run.settings.eval_every) else None
    return {
        "round": t + 1,
        "clients": len(run.trained) if t >= 0 else len(run.federation.participants),  # ``setup`` involves all of them
        "lr": run.settings.lr_at(t) if t >= 0 else math.nan,
        "loss": loss,
        "validation_accuracy": run.accuracy(shared, "validation") if shared else math.nan,
        **personal_accuracy.measure_personal(run, method, state, t),
        **personal_accuracy.measure_test(run, method, state, t),
        **{f"bytes_{link}": run.traffic[link] - before[link] for link in run.traffic},
        **absences.describe_round(run.attendance, run.left_out),
        "seconds": round(spent, 4),
    }


def describe_last(rows: Sequence[Row]) -> str:
    """Return a note on the last round for the progress bar: its loss or absences, and the latest accuracies."""
    last = rows[-1]
    text = f"loss {last['loss']:.3f}" if last.get("clients", 1) else "no client uploaded"
    text += f", {len(last['diverged'])} diverged" if last.get("diverged") else ""
    for kind in ("validation", "personal"):
        measured = [row[f"{kind}_accuracy"] for row in rows if not math.isnan(row.get(f"{kind}_accuracy", math.nan))]
        text += f", {kind} accuracy {measured[-1]:.3f}" if measured else ""
    return text


def predict_all(run: Run, name: str, method: Method, checkpoints: Checkpoints, execution: Execution) -> None:
    """Predict for all clients that have not predicted yet, and add the predictions to the progress."""
    progress = checkpoints.progress
    completed, total = progress.predicted_clients, len(run.clients)
    with (
        report_within(execution.reporter, run.engine, name, total, completed) as advance,
        checkpoints.on_interruption(),
    ):
        for clients in client_batches(run, first=completed):
            predicted = predict(run, name, method, progress.reported, clients)
            arrays: dict[str, Mapping[str, Any]] = {
                **predicted.parts,
                "flags": predicted.flags,
                "tuned": predicted.predictor.tuned,
            }
            # A single append, so that an interruption keeps either all or none of these clients' predictions.
            progress.predictions.append((len(clients), _tensors(arrays)))
            advance(len(clients), "")
            checkpoints.offer()


def _tensors(arrays: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, torch.Tensor]]:
    return {key: {name: torch.from_numpy(values) for name, values in parts.items()} for key, parts in arrays.items()}
