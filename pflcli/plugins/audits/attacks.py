"""Membership-inference attacks: a score per sample, and the AUC of these scores overall and per client.

The likelihood-ratio attack also uses reference models: the same method on other splits of the same samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import Artifact, follow
from pflcli.core import scores
from pflcli.core.errors import InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.tasks import Labels
from pflcli.methods.parts.logarithmic_pool import GLOBAL
from pflcli.plugins.audits import membership, queries
from pflcli.plugins.audits.membership import Area, Mask, Rate, Scores
from pflcli.plugins.audits.queries import DISTANCE, Queries
from pflcli.workflow.prediction import stored_predictor
from pflcli.workflow.prediction.disclosure import Disclosure
from pflcli.workflow.prediction.stored_predictor import StoredPredictor

SEES = {
    "label": "the predicted class",
    "confidence": "the predicted probabilities",
    "calibrated": "the probabilities of the client's model and of the global model",
    "likelihood-ratio": "the predicted probabilities, and models trained on other splits",
    "neighbours": "the votes of the client's store alone",
    "distance": "the distance to the nearest stored sample",
}
"""What the attacker observes for a sample of known label, by attack; stored in ``audit.json``."""

_CLASSES = Labels(0)
MIN_REFERENCES = 2
"""Minimum number of reference models of the likelihood-ratio attack, which estimates a variance from them."""

MIN_MEMBERS = 5
"""Minimum number of members, and of non-members, for the AUC of a single client."""

FALSE_POSITIVE_RATES = (0.01, 0.001)
"""False-positive rates at which the true-positive rate is reported."""


@dataclass(frozen=True)
class ClientExposure:
    """How well one attack recognizes the members of one client; ``area`` is None if there are too few samples."""

    client: int
    count: int
    """number of audited members; the number of non-members is the same"""
    area: Area | None
    rates: tuple[Rate | None, ...]


@dataclass(frozen=True)
class Exposure:
    """How well one attack recognizes members: over all clients together, and per client."""

    attack: str
    scores: Scores
    area: Area
    rates: tuple[Rate | None, ...]
    clients: tuple[ClientExposure, ...]

    @property
    def ranked_clients(self) -> list[tuple[ClientExposure, Area]]:
        """The clients with a defined AUC, the most exposed first."""
        known = [(item, item.area) for item in self.clients if item.area is not None]
        return sorted(known, key=lambda pair: (-pair[1].value, pair[0].client))


def score_samples(
    parts: Mapping[str, NDArray[Any]], y: NDArray[Any], disclosed: Disclosure | None = None, labels: Labels = _CLASSES
) -> dict[str, Scores]:
    """Return the scores (n,) of each attack that needs no reference model.

    ``parts`` are the parts of the predictions, (n, C) each, and ``y`` (n,) the labels. An attack is left out if its
    part is missing, or if the global model itself is what the client predicts with (``calibrated``). With ``disclosed``
    the attacker sees only what that discloses, and no store; the global model is public. If ``labels`` are numbers,
    there is no attack ``label``, and the others go by the loss.
    """
    p, logits = parts["p"], confidence_scores(parts, y, disclosed, labels)
    if disclosed is not None:
        parts = {name: values for name, values in parts.items() if name == GLOBAL}
    by_attack = {"label": scores.correct(p, y).astype(np.float64)} if labels.fields is None else {}
    by_attack["confidence"] = logits
    if GLOBAL in parts and not np.allclose(parts[GLOBAL], p, rtol=0, atol=1e-6):
        by_attack["calibrated"] = logits - _score(parts[GLOBAL], y, labels)
    if "knn" in parts:
        by_attack["neighbours"] = _score(parts["knn"], y, labels)
    if DISTANCE in parts:
        by_attack["distance"] = -np.asarray(parts[DISTANCE][:, 0], np.float64)
    return by_attack


def confidence_scores(
    parts: Mapping[str, NDArray[Any]], y: NDArray[Any], disclosed: Disclosure | None, labels: Labels = _CLASSES
) -> Scores:
    """Return log(p / (1 - p)) (n,) for the disclosed probability p of the true class, or the score of a number."""
    if disclosed is None:
        return _score(parts["p"], y, labels)
    return _score(disclosed.apply(parts["p"]), y, labels, disclosed.least_probability)


def _score(p: NDArray[Any], y: NDArray[Any], labels: Labels, floor: float = membership.FLOOR) -> Scores:
    """Return scores (n,) that are higher the better predictions (n, C) fit labels (n,)."""
    if labels.fields is None:
        return membership.scaled_logits(p, y, floor)
    return membership.score_numbers(labels.task(), p, y)


def describe_sight(attack: str, labels: Labels) -> str:
    """Return what the attacker observes."""
    return SEES[attack] if labels.fields is None else SEES[attack].replace("probabilities", "numbers")


def measure_exposure(attack: str, values: Scores, member: Mask, client: NDArray[np.int64], clients: int) -> Exposure:
    """Return how well the scores ``values`` (n,) recognize members.

    ``member`` (n,) marks them, ``client`` (n,) is each sample's client, and ``clients`` the number of clients.
    """
    overall = membership.area(values, member, client)
    assert overall is not None  # the audit has members and non-members
    return Exposure(
        attack,
        values,
        overall,
        _true_positive_rates(values, member),
        tuple(_measure_client(number, values[client == number], member[client == number]) for number in range(clients)),
    )


def _measure_client(number: int, values: Scores, member: Mask) -> ClientExposure:
    count = int(member.sum())
    if count < MIN_MEMBERS or len(member) - count < MIN_MEMBERS:
        return ClientExposure(number, count, None, (None,) * len(FALSE_POSITIVE_RATES))
    return ClientExposure(number, count, membership.area(values, member), _true_positive_rates(values, member))


def _true_positive_rates(values: Scores, member: Mask) -> tuple[Rate | None, ...]:
    return tuple(membership.true_positive_rate(values, member, rate) for rate in FALSE_POSITIVE_RATES)


def find_strongest(exposures: Sequence[Exposure]) -> Exposure:
    """Return the attack with the greatest AUC over all clients; the first one if several tie."""
    return max(exposures, key=lambda item: item.area.value)


def open_references(
    target: StoredPredictor, artifacts: Sequence[Artifact], weights: Path | str | None
) -> list[StoredPredictor]:
    """Open the reference predictions for an audit of ``target``.

    Raises UsageError for too few references, or the same one twice; InputError for a reference of another method, with
    other options or settings; and whatever ``open_predictor`` raises.
    """
    if len(artifacts) < MIN_REFERENCES:
        raise UsageError(
            f"got {len(artifacts)} reference; need at least {MIN_REFERENCES} to estimate the variance between models",
            "--reference PREDICTIONS --reference PREDICTIONS",
        )
    if len({artifact.manifest.fingerprint for artifact in artifacts}) < len(artifacts):
        raise UsageError("--reference names the same predictions twice")
    for artifact in artifacts:
        if artifact.manifest.fingerprint == target.artifact.manifest.fingerprint:
            raise UsageError(f"{artifact.path} cannot be a reference: it is the audited artifact itself")
        if _recipe(artifact) != _recipe(target.artifact):
            raise InputError(
                f"{artifact.path} was made with another method, other options or other settings than "
                f"{target.artifact.path}: their predictions cannot be compared",
                "run the same method with the same options on a partition made with another --split-seed",
            )
    return [stored_predictor.open_predictor(artifact, weights) for artifact in artifacts]


def _recipe(artifact: Artifact) -> Any:
    """Return the request of a run without its seed, and the same for its inputs other than the data."""
    request = {key: value for key, value in artifact.manifest.request.items() if key != "seed"}
    made_from = [item for item in artifact.manifest.inputs if item.kind not in ("partition", "dataset")]
    return artifact.kind, request, [_recipe(follow(artifact, item)) for item in made_from]


def score_with_references(
    target: Queries,
    member: Mask,
    references: Sequence[StoredPredictor],
    disclosed: Disclosure | None,
    execution: Execution,
) -> tuple[Scores, Mask]:
    """Return each reference's scaled logits (R, n) for the samples of ``target``, and which it learned from (R, n).

    Raises InputError if a reference has other samples, or learned from exactly the audited members.
    """
    logits, learned = [], []
    for reference in references:
        path = reference.artifact.path
        data = partitions.read(reference.partition)
        sent_queries = queries.match_queries(target, data, str(path))
        own = queries.find_members(reference.artifact, data)[sent_queries.rows]
        if np.array_equal(own, member):
            raise InputError(
                f"{path} cannot be a reference: it learned from the same samples as the audited predictions",
                "pfl partition DATASET -o DIR, as before but with another --split-seed",
            )
        parts, _ = queries.predict_queries(reference, sent_queries, execution)
        logits.append(confidence_scores(parts, sent_queries.y, disclosed, target.data.labels))
        learned.append(own)
    return np.stack(logits), np.stack(learned)
