"""The progress of a run, and its checkpoint: a safetensors file with a hash of its whole content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load, save

from pflcli import parameters
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.errors import InputError
from pflcli.federation.run import Run
from pflcli.parameters.model_table import ModelTable
from pflcli.training import state_files
from pflcli.training.best_round import Best

Row = dict[str, Any]
"""A row of ``rounds.csv``."""


@dataclass
class Progress:
    """The progress of a run: the method's state, a row per round, the best round, and the predictions of clients.

    ``before`` contains the row of ``setup`` if that sent anything. ``best`` is only set if the best round is reported.
    Each item of ``answers`` is a number of clients and their predictions: parts by split and name, and ``tuned``
    values.
    """

    state: dict[str, Any]
    before: list[Row] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    answers: list[tuple[int, dict[str, dict[str, torch.Tensor]]]] = field(default_factory=list)
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
    def answered_clients(self) -> int:
        """The number of clients that have predicted."""
        return sum(clients for clients, _ in self.answers)

    def join_answers(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return the predictions of all clients, concatenated."""
        pieces = [piece for _, piece in self.answers]
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
        "answered": str(progress.answered_clients),
    }
    state = {"state": progress.state, "answers": progress.join_answers()}
    if progress.best is not None:
        facts["best"], state["best"] = progress.best.facts(), progress.best.state
    flat = state_files.flatten(state)
    # Safetensors sorts names; a sum over layers in another order would differ in its last bits.
    facts["names"] = json.dumps([*flat])
    return bytes(save(flat, {**facts, "seal": _seal(facts, flat)}))


def _seal(facts: Mapping[str, str], flat: Mapping[str, torch.Tensor]) -> str:
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
        state_files.nest(parameters.unprefixed(flat, f"{key}/"), run, known) for key in ("state", "best", "answers")
    )
    answers = [(int(facts["answered"]), joined)] if joined else []
    before, rows = json.loads(facts["before"]), json.loads(facts["rows"])
    progress = Progress(state, before, rows, answers)
    progress.best = Best.parse(facts["best"], best) if "best" in facts else None
    return progress, json.loads(facts["traffic"]), facts["engine"]
