"""The progress of a run, and its checkpoint: safetensors, with a hash over its whole content."""

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
    """The progress of a run: the method's state, a row per round, the best round, and the answers of clients.

    ``before`` holds the row of what ``setup`` sent, if it did; ``best`` is looked for only if that round is to be
    reported. Each of ``answers`` holds a number of clients and, for them, a split's parts by name and ``tuned`` values.
    """

    state: dict[str, Any]
    before: list[Row] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    answers: list[tuple[int, dict[str, dict[str, torch.Tensor]]]] = field(default_factory=list)
    best: Best | None = None

    @property
    def reported(self) -> dict[str, Any]:
        """Return the state that is stored, and with which clients answer."""
        return self.state if self.best is None else self.best.state

    def facts(self) -> dict[str, Any]:
        """Return the facts on the reported round for a summary."""
        if self.best is None:
            return {"reported": "last round"}
        return {"reported": f"best round by validation: {self.best.round}", "reported_round": self.best.round}

    @property
    def answered_clients(self) -> int:
        """How many clients have answered."""
        return sum(clients for clients, _ in self.answers)

    def joined(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return all answers, concatenated."""
        pieces = [piece for _, piece in self.answers]
        return {
            key: {name: torch.cat([piece[key][name] for piece in pieces]) for name in parts}
            for key, parts in (pieces[0].items() if pieces else ())
        }


def pack(run: Run, progress: Progress) -> bytes:
    """Return a checkpoint, from which a run can go on, with a seal."""
    facts = {
        "before": json.dumps(progress.before),
        "rows": json.dumps(progress.rows),
        "traffic": json.dumps(run.traffic),
        "engine": run.engine.mode,
        "answered": str(progress.answered_clients),
    }
    state = {"state": progress.state, "answers": progress.joined()}
    if progress.best is not None:
        facts["best"], state["best"] = progress.best.facts(), progress.best.state
    flat = state_files.flatten(state)
    # The file sorts names, and a sum over layers in another order differs in its last bits.
    facts["names"] = json.dumps([*flat])
    return bytes(save(flat, {**facts, "seal": _seal(facts, flat)}))


def _seal(facts: Mapping[str, str], flat: Mapping[str, torch.Tensor]) -> str:
    """Return a hash over all that a checkpoint says."""
    return hashlib.sha256(f"{json.dumps(facts, sort_keys=True)} {parameters.digest(flat)}".encode()).hexdigest()


def unpack(content: bytes, work: ArtifactWriter, run: Run) -> tuple[Progress, dict[str, int], str]:
    """Return the progress, the traffic and the engine's mode of a checkpoint, as it was packed.

    Raises InputError if it is not what was written, or a row of a table is not.
    """
    path = work.folder / "checkpoint" / "state.safetensors"
    try:
        with safe_open(path, "pt") as file:
            facts = file.metadata()
        flat = load(content)
        if facts.pop("seal") != _seal(facts, flat):
            raise ValueError
    except Exception:  # a parser raises anything on a damaged file
        raise InputError(f"the checkpoint {path} is damaged", f"rm -r {work.folder}, and start again") from None
    flat, known = {name: flat[name] for name in json.loads(facts["names"])}, dict[int, ModelTable]()
    # The best round's tables are snapshots of the last one's, which come first.
    state, best, joined = (
        state_files.nest(parameters.unprefixed(flat, f"{key}/"), run, known) for key in ("state", "best", "answers")
    )
    answers = [(int(facts["answered"]), joined)] if joined else []
    before, rows = json.loads(facts["before"]), json.loads(facts["rows"])
    progress = Progress(state, before, rows, answers)
    progress.best = Best.of(facts["best"], best) if "best" in facts else None
    return progress, json.loads(facts["traffic"]), facts["engine"]
