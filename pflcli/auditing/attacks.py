"""Membership-inference attacks: a score per sample, and the AUC of these scores overall and per client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.auditing.queries import DISTANCE
from pflcli.evaluation.metrics import membership
from pflcli.evaluation.metrics.membership import Area, Mask, Rate, Scores
from pflcli.evaluation.pool import GLOBAL
from pflcli.prediction.disclosure import Disclosure

SEES = {
    "label": "the class that is answered",
    "confidence": "the probabilities that are answered",
    "calibrated": "the probabilities of the client's model and of the global model",
    "likelihood-ratio": "the probabilities that are answered, and models trained on other splits",
    "neighbours": "the votes of the client's store alone",
    "distance": "the distance to the nearest stored sample",
}
"""What the attacker observes for a sample of known class, by attack; stored in ``audit.json``."""

MIN_MEMBERS = 5
"""Least number of members, and of non-members, for the AUC of a single client."""

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
    parts: Mapping[str, NDArray[Any]], y: NDArray[np.int64], disclosed: Disclosure | None = None
) -> dict[str, Scores]:
    """Return the scores (n,) of each attack that needs no reference model.

    ``parts`` are the parts of the predictions, (n, C) each, and ``y`` (n,) the labels. An attack is left out if its
    part is missing, or if the global model itself is what the client predicts with (``calibrated``). With ``disclosed``
    the attacker sees only what that discloses, and no store; the global model is public.
    """
    p, logits = parts["p"], confidence_scores(parts, y, disclosed)
    if disclosed is not None:
        parts = {name: values for name, values in parts.items() if name == GLOBAL}
    by_attack = {"label": (p.argmax(axis=1) == y).astype(np.float64), "confidence": logits}
    if GLOBAL in parts and not np.allclose(parts[GLOBAL], p, rtol=0, atol=1e-6):
        by_attack["calibrated"] = logits - membership.scaled_logits(parts[GLOBAL], y)
    if "knn" in parts:
        by_attack["neighbours"] = membership.scaled_logits(parts["knn"], y)
    if DISTANCE in parts:
        by_attack["distance"] = -np.asarray(parts[DISTANCE][:, 0], np.float64)
    return by_attack


def confidence_scores(parts: Mapping[str, NDArray[Any]], y: NDArray[np.int64], disclosed: Disclosure | None) -> Scores:
    """Return log(p / (1 - p)) (n,) for the disclosed probability p of the true class."""
    if disclosed is None:
        return membership.scaled_logits(parts["p"], y)
    return membership.scaled_logits(disclosed.apply(parts["p"]), y, disclosed.least_probability)


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
