"""How long a run takes to a target accuracy: rounds, seconds, MB, models, as FedHAM's Tables 3 and 4 have it.

Gao et al. (2023), https://doi.org/10.1145/3591362. Table 3 counts what is sent in models: of FedAvg with every client
a round is 1, a model to each client and back.

The accuracy is that on validation samples in ``rounds.csv``: of clients' own models where the method measured it
(``personal_accuracy``), else of the global model (``validation_accuracy``), which must be what clients answer with: a
method whose clients adapt after the rounds, and was not asked to measure them (``personal_every``), reaches nothing.
Nor does one that starts from the backbone of others, in whose rounds nobody adapted. Accuracy is known every
``eval_every`` rounds only. Row 0 is what was sent before the first round: it counts, but is no round.
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
"""What is measured until a target is reached."""


def check(target: float | None) -> None:
    """Raise UsageError for a target outside (0, 1]."""
    if target is not None and not 0 < target <= 1:
        raise UsageError(f"--target {target:g} is not a share of samples, above 0 and up to 1", "--target 0.9")


def metrics(artifacts: Sequence[Artifact], target: float) -> dict[str, dict[str, Any]]:
    """Return the row of one method: means over the seeds ``n`` that reached ``target``, ``of`` so many."""
    known = [values for artifact in artifacts if (values := reached(artifact, target)) is not None]
    return {
        name: catalogue.METRICS[name].record([values[name] for values in known], len(known), of=len(artifacts))
        for name in METRICS
    }


def reached(artifact: Artifact, target: float) -> dict[str, float] | None:
    """Return METRICS, by name, of the rounds until the validation accuracy first reaches ``target``, or None if never.

    Both include the round in which it does. Raises InputError if the backbone that is needed is gone.
    """
    column, rows = rounds(artifact)
    if column == "validation_accuracy" and _adapts(artifact.manifest.request["method"]):
        return None
    seconds = sent_bytes = 0.0
    for row in rows:
        seconds += float(row["seconds"])
        sent_bytes += sum(int(row[link]) for link in _LINKS)
        if row[column] and float(row[column]) >= target:
            values = (float(row["round"]), seconds, sent_bytes / 1e6, sent_bytes * exchange(artifact))
            return dict(zip(METRICS, values, strict=True))
    return None


def exchange(artifact: Artifact) -> float:
    """Return how many exchanges a byte is, a model to every client that takes part and back; nan if that is not known.

    New clients and those without training samples take no part; of older predictions all clients count.
    """
    summary = artifact.manifest.summary
    clients = summary.get("participants", summary["clients"])
    return 1 / (2 * summary["model_bytes"] * clients) if "model_bytes" in summary and clients else float("nan")


def last_rounds(artifact: Artifact) -> list[float]:
    """Return the test accuracy after each of the last rounds, where the training setting ``test_last`` asked for it.

    A method that personalizes the backbone of another method has none: the accuracy of those rounds is not its own.
    """
    if not artifact.manifest.request["settings"].get("test_last"):
        return []  # without opening a backbone that may not exist any more
    source = artifact if backbone.ROUNDS in artifact.manifest.files else ancestor(artifact, "backbone")
    if source is None or source.manifest.request["method"] != artifact.manifest.request["method"]:
        return []
    rows = backbone.rounds(source)
    return [float(row["test_accuracy"]) for row in rows if row.get("test_accuracy")]


def rounds(artifact: Artifact) -> tuple[str, list[dict[str, str]]]:
    """Return the column of accuracies, and the rounds of predictions or of the backbone that they go on from."""
    own = backbone.ROUNDS in artifact.manifest.files
    # A method without rounds of its own counts those of the backbone, if it stands on one.
    source = artifact if own else ancestor(artifact, "backbone") if artifact.manifest.summary.get("rounds") else None
    if source is None:
        return "", []
    rows = backbone.rounds(source)
    method = artifact.manifest.request["method"]
    if source.manifest.request["method"] == method and any(row.get("personal_accuracy") for row in rows):
        return "personal_accuracy", rows
    return "validation_accuracy", rows


def _adapts(method: str) -> bool:
    """Whether clients predict with something else than the global model after the last round."""
    if not registry.exists("methods", method):  # of another pfl, or of a user's file
        return False
    facts = registry.card("methods", method).facts
    return bool(facts["KIND"] == "posthoc" or facts.get("ADAPTS"))
