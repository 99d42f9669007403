"""The predictions of a method, computed on demand, and the model behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pflcli.knn.client_store import NeighbourVote
from pflcli.parameters import Params


@dataclass(frozen=True)
class ClientModel:
    """What one client predicts with: networks and, for kNN-Per, the vote of stored samples.

    ``networks`` are parameters of the run's model. Their probabilities are added with the weights ``shares``, which sum
    to 1. ``neighbours`` are then mixed in, with the representations of the first network.
    """

    networks: tuple[Params, ...]
    shares: tuple[float, ...] = (1.0,)
    neighbours: NeighbourVote | None = None


def no_model(client: int) -> ClientModel | None:
    """Return None: the client predicts by more than networks and a store."""
    return None


@dataclass(frozen=True)
class Predictor:
    """Computes a method's predictions for a list of clients.

    ``answer(split)`` returns probabilities ``p`` (n, C) of the clients' samples in their order, and optionally (n, C)
    parts that explain ``p``. ``splits``, out of ``run.predicted_splits``, are those with predictions. ``tuned`` has
    values (m,) that each client chose on its validation samples. ``model_of(client)`` returns the model that one of
    the clients predicts with, or None if it is more than a ``ClientModel``; ``export`` needs it.
    """

    answer: Callable[[str], Mapping[str, NDArray[np.float32]]]
    splits: tuple[str, ...] = ("validation", "test")
    tuned: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    model_of: Callable[[int], ClientModel | None] = no_model
