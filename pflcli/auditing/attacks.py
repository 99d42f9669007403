"""Attacks on membership: the score of each sample, and how well the scores tell members, overall and by client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.auditing.queries import DISTANCE
from pflcli.evaluation.learners import GLOBAL
from pflcli.evaluation.metrics import membership
from pflcli.evaluation.metrics.membership import Area, Mask, Rate, Scores
from pflcli.prediction.disclosure import Disclosure

SEES = {
    "label": "the class that is answered",
    "confidence": "the probabilities that are answered",
    "calibrated": "the probabilities of the client's model and of the global model",
    "likelihood-ratio": "the probabilities that are answered, and models trained on other splits",
    "neighbours": "the votes of the client's store alone",
    "distance": "the distance to the nearest stored sample",
}
"""What the attacker of each attack sees of a sample whose class it knows."""

FEWEST = 5
"""The least number of members, and of non-members, with which the AUC of one client is defined."""

RATES = (0.01, 0.001)
"""Shares of non-members that an attacker takes for members, at which true positives are counted."""


@dataclass(frozen=True)
class ClientExposure:
    """How one attack tells the members of one client; ``area`` is None if it has too few samples."""

    client: int
    count: int
    """its members in the audit, and as many non-members"""
    area: Area | None
    rates: tuple[Rate | None, ...]


@dataclass(frozen=True)
class Exposure:
    """How one attack tells members: over all clients together, and for each of them."""

    attack: str
    scores: Scores
    area: Area
    rates: tuple[Rate | None, ...]
    clients: tuple[ClientExposure, ...]

    @property
    def defined(self) -> list[tuple[ClientExposure, Area]]:
        """The clients whose AUC is defined, most exposed first."""
        known = [(item, item.area) for item in self.clients if item.area is not None]
        return sorted(known, key=lambda pair: (-pair[1].value, pair[0].client))


def scores(
    parts: Mapping[str, NDArray[Any]], y: NDArray[np.int64], disclosed: Disclosure | None = None
) -> dict[str, Scores]:
    """Return the scores (n,) of the attacks that need no reference, by the ``parts`` of answers (n, C) and labels (n,).

    An attack that the parts give nothing for is left out, such as a calibration by a global model that is the answer.
    With ``disclosed`` the attacker sees that much of an answer, and no store; the global model is everybody's.
    """
    p, logits = parts["p"], confidences(parts, y, disclosed)
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


def confidences(parts: Mapping[str, NDArray[Any]], y: NDArray[np.int64], disclosed: Disclosure | None) -> Scores:
    """Return log(p / (1 - p)) (n,) of the true classes, in what leaves of the answers."""
    if disclosed is None:
        return membership.scaled_logits(parts["p"], y)
    return membership.scaled_logits(disclosed.of(parts["p"]), y, disclosed.doubt)


def exposure(attack: str, values: Scores, member: Mask, client: NDArray[np.int64], clients: int) -> Exposure:
    """Return how ``values`` (n,) tell members (n,) of the ``client`` (n,) of each sample, out of so many clients."""
    overall = membership.area(values, member, client)
    assert overall is not None  # the audit has members and non-members
    return Exposure(
        attack,
        values,
        overall,
        tuple(membership.true_positives(values, member, rate) for rate in RATES),
        tuple(_of_client(number, values[client == number], member[client == number]) for number in range(clients)),
    )


def _of_client(number: int, values: Scores, member: Mask) -> ClientExposure:
    count = int(member.sum())
    if count < FEWEST or len(member) - count < FEWEST:
        return ClientExposure(number, count, None, (None,) * len(RATES))
    rates = tuple(membership.true_positives(values, member, rate) for rate in RATES)
    return ClientExposure(number, count, membership.area(values, member), rates)


def strongest(exposures: Sequence[Exposure]) -> Exposure:
    """Return the attack with the greatest AUC over all clients; of equal ones the first."""
    return max(exposures, key=lambda item: item.area.value)
