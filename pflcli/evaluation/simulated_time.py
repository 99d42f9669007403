"""Simulate the duration of rounds if clients worked in parallel, behind links of a given speed (FedHAM's Table 4).

Gao et al. (2023), https://doi.org/10.1145/3591362, section 6.6. ``rounds.csv`` records the seconds of a whole cohort on
the workers of one machine, and all bytes. Every client is assumed to be the mean of its cohort: it computes for
seconds x workers / clients, and then sends and receives bytes / clients. A round lasts as long as this client. Slower
clients, or clients that receive more, would take longer, but ``rounds.csv`` does not record single clients. Bytes
between peers count both up and down. A client is as fast as one core (or the accelerator) of this machine. Neither the
server's computation nor the adaptation of clients after the rounds is included.
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
    """The network link of each client: speed ``up`` and ``down`` in Mbit/s."""

    up: float
    down: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``UP:DOWN``; raises UsageError unless both are speeds above 0."""
        try:
            up, down = (float(part) for part in text.split(":"))
        except ValueError:
            up = down = math.nan
        if not (0 < up < math.inf and 0 < down < math.inf):
            raise UsageError(f"--link {text} is not two speeds in Mbit/s, up and down", "--link 10:50")
        return cls(up, down)

    def __str__(self) -> str:
        """Return the link as ``UP:DOWN``."""
        return f"{self.up:g}:{self.down:g}"

    def simulate_round(self, row: dict[str, str], workers: int) -> float:
        """Return the seconds of one round, a row of ``rounds.csv`` whose clients ``workers`` trained."""
        clients = max(int(row["clients"]), 1)
        up, down, peer = (int(row[f"bytes_{name}"]) for name in ("up", "down", "peer"))
        megabits = [8e-6 * amount / clients for amount in (up + peer, down + peer)]
        # Round 0 is computation of the server, which is not divided among clients.
        shared = 1 if row["round"] == "0" else clients
        compute = float(row["seconds"]) * min(workers, shared) / shared
        return compute + megabits[0] / self.up + megabits[1] / self.down


def summarize(artifacts: Sequence[Artifact], link: Link, target: float | None) -> dict[str, dict[str, Any]]:
    """Return the simulated seconds of all rounds of one method and, if given, of those until it reached ``target``."""
    totals = [simulate_seconds(artifact, link) for artifact in artifacts]
    by_metric = {"simulated_seconds": totals}
    if target is not None:
        ends = [time_to_target.measure(artifact, target) for artifact in artifacts]
        by_metric["simulated_seconds_to_target"] = [
            math.nan if end is None else simulate_seconds(artifact, link, end["rounds_to_target"])
            for artifact, end in zip(artifacts, ends, strict=True)
        ]
    known = {name: sum(not math.isnan(value) for value in values) for name, values in by_metric.items()}
    return {
        name: catalogue.METRICS[name].record(values, known[name], words=str(link), of=len(values))
        for name, values in by_metric.items()
    }


def simulate_seconds(artifact: Artifact, link: Link, last: float = math.inf) -> float:
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
    rows = backbone.read_rounds(source)
    return sum(link.simulate_round(row, workers) for row in rows if int(row["round"]) <= last)
