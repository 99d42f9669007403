"""Rounds, seconds, MB and model exchanges until a run reaches a target accuracy (FedHAM's Tables 3 and 4).

Gao et al. (2023), https://doi.org/10.1145/3591362. Table 3 counts communication in model exchanges: one round of FedAvg
with all clients is 1 (one model to each client and back).

The accuracy is the validation accuracy in ``rounds.csv``: that of personal models if the method measured it
(``personal_accuracy``), otherwise that of the global model (``validation_accuracy``). The latter counts only for
methods whose clients predict with the global model. A method whose clients adapt after the rounds reaches a target only
if personal models were measured (``personal_every``); a method that personalizes the backbone of another method never
does. Accuracy is known only every ``eval_every`` rounds. Row 0 is the communication before round 1; it counts towards
the totals, but not as a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pflcli import registry
from pflcli.artifacts.kinds import backbone
from pflcli.artifacts.reader import Artifact, ancestor
from pflcli.errors import UsageError
from pflcli.evaluation.metrics import catalogue

_LINKS = ("bytes_up", "bytes_down", "bytes_peer")
METRICS = ("rounds_to_target", "seconds_to_target", "megabytes_to_target", "exchanges_to_target")
"""The quantities measured until the target is reached."""


def require_share(target: float | None) -> None:
    """Raise UsageError for a target outside (0, 1]."""
    if target is not None and not 0 < target <= 1:
        raise UsageError(f"--target {target:g} is not an accuracy above 0 and up to 1", "--target 0.9")


def summarize(artifacts: Sequence[Artifact], target: float) -> dict[str, dict[str, Any]]:
    """Return METRICS of one method: means over the ``n`` seeds, out of ``of``, that reached ``target``."""
    known = [values for artifact in artifacts if (values := measure(artifact, target)) is not None]
    return {
        name: catalogue.METRICS[name].record([values[name] for values in known], len(known), of=len(artifacts))
        for name in METRICS
    }


def measure(artifact: Artifact, target: float) -> dict[str, float] | None:
    """Return METRICS up to and including the round in which the validation accuracy reaches ``target``, None if never.

    Raises InputError if a backbone is needed and no longer exists.
    """
    column, rows = read_rounds(artifact)
    if column == "validation_accuracy" and _adapts(artifact.manifest.request["method"]):
        return None
    seconds = sent_bytes = 0.0
    for row in rows:
        seconds += float(row["seconds"])
        sent_bytes += sum(int(row[link]) for link in _LINKS)
        if row[column] and float(row[column]) >= target:
            values = (float(row["round"]), seconds, sent_bytes / 1e6, sent_bytes * exchanges_per_byte(artifact))
            return dict(zip(METRICS, values, strict=True))
    return None


def exchanges_per_byte(artifact: Artifact) -> float:
    """Return 1 / bytes of one exchange, a model to every participating client and back; nan if unknown.

    Unseen clients and clients without training samples do not participate; older predictions count all clients.
    """
    summary = artifact.manifest.summary
    clients = summary.get("participants", summary["clients"])
    return 1 / (2 * summary["model_bytes"] * clients) if "model_bytes" in summary and clients else float("nan")


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


def read_rounds(artifact: Artifact) -> tuple[str, list[dict[str, str]]]:
    """Return the rounds of a run, or of its backbone if it has no rounds of its own, and the column of accuracies."""
    own = backbone.ROUNDS in artifact.manifest.files
    source = artifact if own else ancestor(artifact, "backbone") if artifact.manifest.summary.get("rounds") else None
    if source is None:
        return "", []
    rows = backbone.read_rounds(source)
    method = artifact.manifest.request["method"]
    if source.manifest.request["method"] == method and any(row.get("personal_accuracy") for row in rows):
        return "personal_accuracy", rows
    return "validation_accuracy", rows


def _adapts(method: str) -> bool:
    """Whether clients predict with a model other than the global one after the last round."""
    if not registry.exists("methods", method):  # from another version of pfl, or of a user's file
        return False
    facts = registry.card("methods", method).facts
    return bool(facts["KIND"] == "posthoc" or facts.get("ADAPTS"))
