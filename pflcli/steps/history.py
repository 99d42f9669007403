"""What happens in ``setup`` and in each round, as rows: ``rounds.csv``."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from pflcli.errors import ComputationError
from pflcli.fl.run import Run
from pflcli.steps import personal

Row = dict[str, Any]


def begin(run: Run, method: ModuleType) -> tuple[dict[str, Any], list[Row]]:
    """Return the state before the first round, and row 0 if ``setup`` sent something."""
    began, before = time.monotonic(), dict(run.traffic)
    state: dict[str, Any] = method.setup(run) if hasattr(method, "setup") else {}
    spent = time.monotonic() - began
    if run.traffic == before:
        return state, []
    return state, [_row(run, method, state, -1, before, spent)]


def play(run: Run, name: str, method: ModuleType, state: Any, t: int) -> tuple[Any, Row]:
    """Run round ``t``, from 0, and return the state after it and its row."""
    began, before = time.monotonic(), dict(run.traffic)
    run.losses.clear()
    run.trained.clear()
    try:
        state = method.train_round(run, state, t)
    except ComputationError as error:
        raise ComputationError(f"{name}, round {t + 1}: {error.message}", *error.fix) from None
    return state, _row(run, method, state, t, before, time.monotonic() - began)


def _row(run: Run, method: ModuleType, state: Any, t: int, before: Mapping[str, int], spent: float) -> Row:
    """Return the row of a round that took ``spent`` seconds; measuring costs the method nothing."""
    weight = sum(weight for _, weight in run.losses)
    loss = sum(loss * weight for loss, weight in run.losses) / weight if weight else math.nan
    shared = state.get("global") if run.settings.is_due(t, run.settings.eval_every) else None
    return {
        "round": t + 1,
        "clients": len(run.trained) if t >= 0 else len(run.federation.able),  # all of whom setup concerns
        "lr": run.settings.lr_at(t) if t >= 0 else math.nan,
        "loss": loss,
        "validation_accuracy": run.accuracy(shared, "validation") if shared else math.nan,
        **personal.column(run, method, state, t),
        **personal.tested(run, method, state, t),
        **{f"bytes_{link}": run.traffic[link] - before[link] for link in run.traffic},
        "seconds": round(spent, 4),
    }


def note(rows: Sequence[Row]) -> str:
    """Return what a watcher reads after a round: its loss and the accuracies known last."""
    text = f"loss {rows[-1]['loss']:.3f}"
    for kind in ("validation", "personal"):
        known = [row[f"{kind}_accuracy"] for row in rows if not math.isnan(row.get(f"{kind}_accuracy", math.nan))]
        text += f", {kind} accuracy {known[-1]:.3f}" if known else ""
    return text
