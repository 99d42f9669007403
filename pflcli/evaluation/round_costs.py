"""What the rounds of a run cost until it reaches a target accuracy, and how long they would take behind slow links.

Both are measurements of FedHAM (Gao et al. 2023, https://doi.org/10.1145/3591362) from ``rounds.csv``. Row 0 is the
communication before round 1; it counts towards the totals, but not as a round.

*Time to target* (Tables 3 and 4). Table 3 counts communication in model exchanges: one round of FedAvg with all clients
is 1 (one model to each client and back). The accuracy is the validation accuracy in ``rounds.csv``: that of personal
models if the method measured it (``personal_accuracy``), otherwise that of the global model (``validation_accuracy``).
The latter counts only for methods whose clients predict with the global model. A method whose clients adapt after the
rounds reaches a target only if personal models were measured (``personal_every``); a method that personalizes the
backbone of another method never does. Accuracy is known only every ``eval_every`` rounds. The target of numbers is a
value of the task's first metric over all validation samples, such as the RMSE, which follows from the score in the same
columns.

*Simulated time* (Table 4, section 6.6): the duration of rounds if clients worked in parallel. ``rounds.csv`` records
the seconds of a whole cohort on the workers of one machine, and all bytes. Every client is assumed to be the mean of
its cohort: it computes for seconds x workers / clients, and then sends and receives bytes / clients. A round lasts as
long as this client. Slower clients, or clients that receive more, would take longer, but ``rounds.csv`` does not record
single clients. Bytes between peers count both up and down. A client is as fast as one core (or the accelerator) of this
machine. Neither the server's computation nor the adaptation of clients after the rounds is included. Without a link it
is what a client computes.

*The reported round* (``--report best``). What a run sent and how long it took counts up to this round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pflcli.artifacts.kinds import backbone, read_labels
from pflcli.artifacts.reader import Artifact, ancestor
from pflcli.core import registry
from pflcli.core.errors import GoneError, UsageError
from pflcli.core.metrics import catalogue
from pflcli.core.tasks import CLASSES
from pflcli.evaluation import convergence

LINKS = ("bytes_up", "bytes_down", "bytes_peer")
TARGET_METRICS = ("rounds_to_target", "seconds_to_target", "megabytes_to_target", "exchanges_to_target")
"""The quantities measured until the target is reached."""


def check_target(target: float | None, kind: str = CLASSES) -> None:
    """Raise UsageError for a target that is no accuracy in (0, 1], or no finite number for another ``kind`` of task."""
    if target is not None and kind == CLASSES and not 0 < target <= 1:
        raise UsageError(f"--target {target:g} is not an accuracy above 0 and up to 1", "--target 0.9")
    if target is not None and not math.isfinite(target):
        raise UsageError(f"--target {target:g} is not a finite number", "--target 2.5")


def summarize_time_to_target(artifacts: Sequence[Artifact], target: float) -> dict[str, dict[str, Any]]:
    """Return TARGET_METRICS of one method: means over the ``n`` seeds, out of ``of``, that reached ``target``."""
    known = [values for artifact in artifacts if (values := measure_time_to_target(artifact, target)) is not None]
    return {
        name: catalogue.METRICS[name].record([values[name] for values in known], len(known), of=len(artifacts))
        for name in TARGET_METRICS
    }


def measure_time_to_target(artifact: Artifact, target: float) -> dict[str, float] | None:
    """Return TARGET_METRICS up to and including the round that reaches the ``target``; None if no round does.

    Raises InputError if a backbone is needed and no longer exists.
    """
    column, rows = read_rounds(artifact)
    labels = read_labels(artifact.manifest, 0)
    target = target if labels.fields is None else labels.task().score_at(target)
    if column == "validation_accuracy" and adapts(artifact.manifest.request["method"]):
        return None
    seconds = sent_bytes = 0.0
    for row in rows:
        seconds += float(row["seconds"])
        sent_bytes += sum(int(row[link]) for link in LINKS)
        if row[column] and float(row[column]) >= target:
            values = (float(row["round"]), seconds, sent_bytes / 1e6, sent_bytes * exchanges_per_byte(artifact))
            return dict(zip(TARGET_METRICS, values, strict=True))
    return None


def reported_round(artifact: Artifact) -> int | None:
    """Return the round whose models predict, the last one by default; None if the artifact was made without rounds.

    Raises InputError if it is not recorded, and the backbone no longer exists.
    """
    if (best := artifact.manifest.summary.get("reported_round")) is not None:
        return int(best)
    source = find_rounds(artifact)
    return None if source is None else max((int(row["round"]) for row in backbone.read_rounds(source)), default=0)


def measure_later(artifact: Artifact) -> dict[str, float]:
    """Return the bytes by link and the ``seconds`` of the rounds after the reported one, which its models do not need.

    All are 0 if the last round is reported, and nan if the backbone that played the rounds no longer exists.
    """
    columns, last = (*LINKS, "seconds"), artifact.manifest.summary.get("reported_round")
    if last is None:
        return dict.fromkeys(columns, 0.0)
    try:
        source = find_rounds(artifact)
    except GoneError:
        return dict.fromkeys(columns, math.nan)
    rows = [] if source is None else backbone.read_rounds(source)
    return {name: sum(float(row[name]) for row in rows if int(row["round"]) > last) for name in columns}


def exchanges_per_byte(artifact: Artifact) -> float:
    """Return 1 / bytes of one exchange, a model to every participating client and back; nan if unknown.

    Unseen clients and clients without training samples do not participate.
    """
    summary = artifact.manifest.summary
    clients = summary["participants"]
    return 1 / (2 * summary["model_bytes"] * clients) if clients else float("nan")


def last_accuracies(artifact: Artifact) -> list[float]:
    """Return the test accuracy after each of the last ``test_last`` rounds; empty without this training setting.

    Also empty for a method that personalizes the backbone of another method.
    """
    if not artifact.manifest.request["settings"].get("test_last"):
        return []  # before opening a backbone, which may no longer exist
    source = artifact if backbone.ROUNDS in artifact.manifest.files else ancestor(artifact, "backbone")
    if source is None or source.manifest.request["method"] != artifact.manifest.request["method"]:
        return []
    rows = backbone.read_rounds(source)
    return [float(row["test_accuracy"]) for row in rows if row.get("test_accuracy")]


def find_rounds(artifact: Artifact) -> Artifact | None:
    """Return the artifact with the rounds of a run: itself, or its backbone; None if no rounds were played.

    Also None for the backbone of a real site, which does not know the rounds. Raises InputError if the backbone no
    longer exists.
    """
    has_rows = backbone.ROUNDS in artifact.manifest.files
    # A method on a backbone may have row 0 alone: what it sent after the rounds of the backbone.
    if has_rows and any(row["round"] != "0" for row in artifact.table(backbone.ROUNDS)):
        return artifact
    found = ancestor(artifact, "backbone") if artifact.manifest.summary.get("rounds") else None
    if found is None:
        return artifact if has_rows else None
    return found if backbone.ROUNDS in found.manifest.files else None


def read_rounds(artifact: Artifact) -> tuple[str, list[dict[str, str]]]:
    """Return the rounds of a run, or of its backbone if it has no rounds of its own, and the column of accuracies."""
    source = find_rounds(artifact)
    if source is None:
        return "", []
    rows = backbone.read_rounds(source)
    method = artifact.manifest.request["method"]
    if source.manifest.request["method"] == method and any(row.get("personal_accuracy") for row in rows):
        return "personal_accuracy", rows
    return "validation_accuracy", rows


def read_progress(artifact: Artifact) -> tuple[tuple[list[int], list[float]], list[float]]:
    """Return the measured rounds of a run with their validation accuracies, and the training loss of each round.

    Both are empty if the run has no rounds, if its backbone no longer exists, or if labels are not classes.
    """
    if read_labels(artifact.manifest, 0).kind != CLASSES:  # whose scores are no accuracies
        return ([], []), []
    try:
        column, rows = read_rounds(artifact)
    except GoneError:
        return ([], []), []
    return convergence.select_measured(rows, column), convergence.select_measured(rows, "loss")[1]


def adapts(method: str) -> bool:
    """Whether clients predict with a model other than the global one after the last round."""
    if not registry.exists("methods", method):  # from another version of pfl, or of a user's file
        return False
    facts = registry.card("methods", method).facts
    return bool(facts["KIND"] == "posthoc" or facts.get("ADAPTS"))


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

    def transfer(self, row: Mapping[str, str]) -> float:
        """Return the seconds in which the mean client of a round, a row of ``rounds.csv``, sends and receives."""
        clients = max(int(row["clients"]), 1)
        up, down, peer = (int(row[f"bytes_{name}"]) for name in ("up", "down", "peer"))
        megabits = [8e-6 * amount / clients for amount in (up + peer, down + peer)]
        return megabits[0] / self.up + megabits[1] / self.down


def count_workers(artifact: Artifact) -> int:
    """Return the number of cores, or 1 for an accelerator, that trained the clients of an artifact with rounds."""
    made = artifact.manifest.made
    return int(made.get("jobs") or made.get("threads") or 1) if made.get("device", "cpu") == "cpu" else 1


def compute_seconds(row: Mapping[str, str], workers: int) -> float:
    """Return the seconds that the mean client of a round, whose clients ``workers`` trained, computes on one of them.

    Round 0 is computation of the server, which is not divided among clients.
    """
    clients = 1 if row["round"] == "0" else max(int(row["clients"]), 1)
    return float(row["seconds"]) * min(workers, clients) / clients


def summarize_simulated_time(
    artifacts: Sequence[Artifact], link: Link, target: float | None
) -> dict[str, dict[str, Any]]:
    """Return the simulated seconds of a method's rounds up to the reported one and, if given, until its ``target``."""
    totals = [simulate_seconds(artifact, link) for artifact in artifacts]
    by_metric = {"simulated_seconds": totals}
    if target is not None:
        ends = [measure_time_to_target(artifact, target) for artifact in artifacts]
        by_metric["simulated_seconds_to_target"] = [
            math.nan if end is None else simulate_seconds(artifact, link, end["rounds_to_target"])
            for artifact, end in zip(artifacts, ends, strict=True)
        ]
    known = {name: sum(not math.isnan(value) for value in values) for name, values in by_metric.items()}
    return {
        name: catalogue.METRICS[name].record(values, known[name], words=str(link), of=len(values))
        for name, values in by_metric.items()
    }


def simulate_seconds(artifact: Artifact, link: Link, last: float | None = None) -> float:
    """Return the simulated seconds of the rounds up to ``last``, by default the reported one; nan without rounds."""
    source = find_rounds(artifact)
    if source is None:
        return math.nan
    last = artifact.manifest.summary.get("reported_round", math.inf) if last is None else last
    both = [source, artifact] if source is not artifact and backbone.ROUNDS in artifact.manifest.files else [source]
    return sum(
        link.transfer(row) + compute_seconds(row, count_workers(each))
        for each in both
        for row in backbone.read_rounds(each)
        if int(row["round"]) <= last
    )
