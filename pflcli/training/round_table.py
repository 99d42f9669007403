"""Run ``setup`` and single rounds, and describe each as a row of ``rounds.csv``."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pflcli.errors import ComputationError
from pflcli.federation.attendance import Attendance, Diverged, Unanswered, client_list
from pflcli.federation.run import Run
from pflcli.methods import Method
from pflcli.training import absences, personal_accuracy, state_files

Row = dict[str, Any]
State = dict[str, Any]


def begin(run: Run, method: Method) -> tuple[dict[str, Any], list[Row]]:
    """Return the state before the first round, and row 0 if ``setup`` sent something."""
    began, before, run.attendance = time.monotonic(), dict(run.traffic), Attendance()
    state = method.setup(run)
    spent = time.monotonic() - began
    if run.traffic == before:
        return state, []
    return state, [_row(run, method, state, -1, before, spent)]


def play(run: Run, name: str, method: Method, state: Any, t: int) -> tuple[Any, Row]:
    """Run round ``t``, from 0, and return the state after it and its row.

    Raises ComputationError if the method does, or if the training of all clients that answer diverges.
    """
    began, before = time.monotonic(), dict(run.traffic)
    try:
        state = _attended(run, method, state, t)
    except ComputationError as error:
        raise ComputationError(f"{name}, round {t + 1}: {error.message}", *error.fix) from None
    row = _row(run, method, state, t, before, time.monotonic() - began)
    return state, row if run.privacy is None else {**row, **run.privacy.end_round()}


def _attended(run: Run, method: Method, state: State, t: int) -> State:
    """Return the state after the clients that answer have played a round; if nobody does, the state as it is.

    Where a client's training diverges the round is undone and played again without it, so that all others end as if it
    had dropped out. Raises ComputationError if that leaves nobody who trains.
    """
    run.attendance = attendance = Attendance(t=t)
    before, fix = dict(run.traffic), tuple[str, ...]()
    # With differential privacy a round takes place whoever answers: that it did not would tell of single clients.
    while run.privacy is not None or not (attendance.diverged and attendance.unanswered):
        if run.privacy is not None:
            run.privacy.begin_round(t)
        run.losses.clear()
        run.trained.clear()
        run.left_out.clear()
        try:
            with state_files.undone_on_failure(state, run):
                after: State = method.train_round(run, state, t)
            if run.trained or not attendance.diverged or run.privacy is not None:
                return after
            break
        except Unanswered:
            run.traffic = {**before, "down": run.traffic["down"]}  # the bytes sent down count all the same
            return _recorded(state)
        except Diverged as error:
            run.traffic, fix = dict(before), error.fix
            if attendance.diverged.issuperset(error.clients):
                raise
            attendance.diverged.update(error.clients)
    clients = client_list(sorted(attendance.diverged))
    raise ComputationError(f"the parameters of all that trained became non-finite: {clients}", *fix)


def _recorded(state: State) -> State:
    """Return the state after a round that nobody answered: nothing changes, but records by round have no gap.

    These are the ``graph`` of neighbours, which stay; the ``attention`` of clients, 0 of those that sat the round out;
    and the ``history`` of what was measured, nan. Records that have not begun stay empty.
    """
    records: State = {}
    if "graph" in state:
        records["graph"] = torch.cat([state["graph"], state["graph"][-1:]])
    if "first" in state.get("attention", {}):  # FedAttn keeps weights under this name
        records["attention"] = {key: _longer(values, 0.0) for key, values in state["attention"].items()}
    if "history" in state:
        records["history"] = {key: _longer(values, math.nan) for key, values in state["history"].items()}
    return {**state, **records}


def _longer(records: torch.Tensor, value: float) -> torch.Tensor:
    """Return records (r, ...) of rounds with one more, all ``value``; none if there are none before it."""
    return torch.cat([records, torch.full_like(records[-1:], value)])


def _row(run: Run, method: Method, state: Any, t: int, before: Mapping[str, int], spent: float) -> Row:
    """Return the row of a round that took ``spent`` seconds; measuring costs the method nothing."""
    weight = sum(weight for _, weight in run.losses)
    loss = sum(loss * weight for loss, weight in run.losses) / weight if weight else math.nan
    shared = state.get("global") if run.settings.is_due(t, run.settings.eval_every) else None
    return {
        "round": t + 1,
        "clients": len(run.trained) if t >= 0 else len(run.federation.participants),  # all of whom setup concerns
        "lr": run.settings.lr_at(t) if t >= 0 else math.nan,
        "loss": loss,
        "validation_accuracy": run.accuracy(shared, "validation") if shared else math.nan,
        **personal_accuracy.column(run, method, state, t),
        **personal_accuracy.tested(run, method, state, t),
        **{f"bytes_{link}": run.traffic[link] - before[link] for link in run.traffic},
        **absences.of_round(run.attendance, run.left_out),
        "seconds": round(spent, 4),
    }


def note(rows: Sequence[Row]) -> str:
    """Return a note on the last round for the progress bar: its loss or absences, and the latest accuracies."""
    last = rows[-1]
    text = f"loss {last['loss']:.3f}" if last.get("clients", 1) else "nobody answered"
    text += f", {len(last['diverged'])} diverged" if last.get("diverged") else ""
    for kind in ("validation", "personal"):
        measured = [row[f"{kind}_accuracy"] for row in rows if not math.isnan(row.get(f"{kind}_accuracy", math.nan))]
        text += f", {kind} accuracy {measured[-1]:.3f}" if measured else ""
    return text
