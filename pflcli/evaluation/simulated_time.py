"""How long rounds would take if clients worked side by side, behind links of some speed, as in FedHAM's Table 4.

Gao et al. (2023), https://doi.org/10.1145/3591362, section 6.6. ``rounds.csv`` has the seconds of a whole cohort on a
machine's workers, and all bytes. A client is given the mean of its cohort: seconds x workers / clients to compute, and
bytes / clients to send and receive, one after the other. A round lasts as long as that client; the slowest and the one
that is sent most would take longer, but rounds keep no client apart. What peers send counts up and down. Clients are as
fast as a core (or the accelerator) of this machine, the server costs nothing, and of methods whose clients adapt after
the rounds that is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from pflcli.artifacts.kinds import backbone
from pflcli.artifacts.reader import Artifact, ancestor
from pflcli.errors import UsageError
from pflcli.evaluation import time_to_target
from pflcli.evaluation.metrics import catalogue


@dataclass(frozen=True)
class Link:
    """What joins each client to the others: ``up`` and ``down``, Mbit/s."""

    up: float
    down: float

    @classmethod
    def of(cls, text: str) -> Self:
        """Parse ``UP:DOWN``; raises UsageError if that is not two speeds above 0."""
        try:
            up, down = (float(part) for part in text.split(":"))
        except ValueError:
            up = down = math.nan
        if not (0 < up < math.inf and 0 < down < math.inf):
            raise UsageError(f"--link {text} is not two speeds in Mbit/s, up and down", "--link 10:50")
        return cls(up, down)

    def __str__(self) -> str:
        """Return the text that ``of`` parses."""
        return f"{self.up:g}:{self.down:g}"

    def seconds(self, row: dict[str, str], workers: int) -> float:
        """Return how long one round of ``rounds.csv`` takes, whose clients were trained by so many ``workers``."""
        clients = max(int(row["clients"]), 1)
        up, down, peer = (int(row[f"bytes_{name}"]) for name in ("up", "down", "peer"))
        megabits = [8e-6 * amount / clients for amount in (up + peer, down + peer)]
        # Before the rounds it is the server that computes.
        shared = 1 if row["round"] == "0" else clients
        compute = float(row["seconds"]) * min(workers, shared) / shared
        return compute + megabits[0] / self.up + megabits[1] / self.down


def metrics(artifacts: Sequence[Artifact], link: Link, target: float | None) -> dict[str, dict[str, Any]]:
    """Return simulated seconds of all rounds of one method, and of those until it reached ``target``, if given."""
    totals = [seconds(artifact, link) for artifact in artifacts]
    by_metric = {"simulated_seconds": totals}
    if target is not None:
        ends = [time_to_target.reached(artifact, target) for artifact in artifacts]
        by_metric["simulated_seconds_to_target"] = [
            math.nan if end is None else seconds(artifact, link, end["rounds_to_target"])
            for artifact, end in zip(artifacts, ends, strict=True)
        ]
    known = {name: sum(not math.isnan(value) for value in values) for name, values in by_metric.items()}
    return {
        name: catalogue.METRICS[name].record(values, known[name], words=str(link), of=len(values))
        for name, values in by_metric.items()
    }


def seconds(artifact: Artifact, link: Link, last: float = math.inf) -> float:
    """Return the simulated seconds of the rounds up to ``last``; nan for a method without rounds."""
    own = backbone.ROUNDS in artifact.manifest.files
    source = artifact if own else ancestor(artifact, "backbone") if artifact.manifest.summary.get("rounds") else None
    if source is None:
        return math.nan
    circumstances = source.manifest.made
    workers = (
        int(circumstances.get("jobs") or circumstances.get("threads") or 1)
        if circumstances.get("device", "cpu") == "cpu"
        else 1
    )
    rows = backbone.rounds(source)
    return sum(link.seconds(row, workers) for row in rows if int(row["round"]) <= last)
