"""Clients that dropped out, diverged or were left out by an aggregator: count and report them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.errors import ComputationError
from pflcli.core.federation.attendance import Attendance, client_list
from pflcli.core.federation.run import Run
from pflcli.core.wording import counted

Row = dict[str, Any]

FAILURES = {
    "diverged_personalizing": "training diverged while clients personalized; they predict with their initial model",
    "overflowed": "samples overflow the model; all classes get the same probability",
}
"""Messages about clients that cannot predict as intended, by their keys in a summary."""


def describe_round(attendance: Attendance, left_out: Mapping[int, Sequence[float]]) -> Row:
    """Return the absences of a round: how many clients dropped out, which diverged, and the shares left out.

    ``left_out`` contains, by client, the fraction of each of its uploads that the aggregator left out; the row contains
    the mean.
    """
    shares = {str(client): float(np.mean(values)) for client, values in sorted(left_out.items())}
    return {
        "dropped": len(attendance.dropped),
        "diverged": sorted(attendance.diverged | attendance.rejected),
        "left_out": shares,
    }


def count_clients(rows: Sequence[Row]) -> list[Row]:
    """Return the rows for ``rounds.csv``, with counts instead of clients."""
    return [
        {**row, "diverged": len(row.get("diverged", ())), "left_out": round(sum(row.get("left_out", {}).values()), 6)}
        for row in rows
    ]


def summarize(rows: Sequence[Row], names: Sequence[str]) -> dict[str, Any]:
    """Return the absences of all rounds for a summary: how often each client diverged, and how many dropped out.

    ``names`` (m,) are the names of the clients.
    """
    rounds = Counter(names[client] for row in rows for client in row.get("diverged", ()))
    dropped = sum(row.get("dropped", 0) for row in rows)
    empty = sum(row.get("dropped", 0) > 0 and not row["clients"] for row in rows)
    shares: dict[str, list[float]] = {}
    for row in rows:
        for client, share in row.get("left_out", {}).items():
            shares.setdefault(names[int(client)], []).append(share)
    left_out = {name: round(float(np.mean(values)), 4) for name, values in sorted(shares.items()) if any(values)}
    facts = {"diverged": dict(rounds), "dropped": dropped, "rounds_unanswered": empty, "left_out": left_out}
    return {key: value for key, value in facts.items() if value}


def describe(facts: Mapping[str, Any]) -> list[str]:
    """Return the absences of a summary as sentences, one per kind."""
    lines = []
    if "diverged" in facts:
        clients = client_list(f"{name} ({counted(rounds, 'round')})" for name, rounds in facts["diverged"].items())
        lines.append(f"excluded from rounds because their parameters became non-finite: {clients}")
    if "dropped" in facts:
        empty = facts.get("rounds_unanswered", 0)
        no_upload = f"; {counted(empty, 'round')} had no upload" if empty else ""
        lines.append(f"clients dropped out {counted(facts['dropped'], 'time')}{no_upload}")
    if "left_out" in facts:
        most = sorted(facts["left_out"].items(), key=lambda item: -item[1])
        clients = client_list(f"{name} ({100 * share:.0f} %)" for name, share in most)
        lines.append(f"mean share of their uploads that the aggregator left out: {clients}")
    lines += [f"{words}: {client_list(facts[key])}" for key, words in FAILURES.items() if key in facts]
    return lines


def replace_nonfinite(
    run: Run, clients: NDArray[np.int64], by_split: Mapping[str, Mapping[str, NDArray[np.float32]]]
) -> tuple[dict[str, dict[str, NDArray[Any]]], dict[str, NDArray[np.bool_]]]:
    """Return predictions by split in the unit of labels, with the task's default in rows that are not finite.

    Also return flags (n,) of the clients with such rows; their keys are those of ``FAILURES``.
    """
    overflowed, finite = np.zeros(len(clients), dtype=bool), dict[str, dict[str, NDArray[Any]]]()
    for split, parts in by_split.items():
        owner = np.repeat(np.arange(len(clients)), run.federation.sizes(split)[clients])
        finite[split] = {}
        for name, values in parts.items():
            lost: NDArray[np.bool_] = np.asarray(~np.isfinite(values).all(axis=1))
            overflowed[owner[lost]] = True
            finite[split][name] = run.restore(np.where(lost[:, None], run.task.default(), values), clients, split)
    return finite, {"diverged_personalizing": np.isin(clients, list(run.notes.unfit)), "overflowed": overflowed}


def require_finite(run: Run, method: str, flags: Mapping[str, NDArray[np.bool_]]) -> None:
    """Raise ComputationError if the training of all clients with samples diverged while they personalized."""
    diverged = flags.get("diverged_personalizing", np.zeros(len(run.clients), dtype=bool))
    trains = run.federation.sizes("train") > 0
    if trains.any() and diverged[trains].all():
        raise ComputationError(
            f"{method}: the parameters of all clients became non-finite while they personalized",
            "a smaller --lr may help",
        )


def name_flagged(flags: Mapping[str, Any], names: Sequence[str]) -> dict[str, list[str]]:
    """Return the names of the flagged clients by the key of their flags (m,); keys without a client are omitted."""
    return {
        key: [names[client] for client in np.flatnonzero(flag).tolist()] for key, flag in flags.items() if flag.any()
    }
