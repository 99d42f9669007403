"""The predictions of a method, computed on demand, and the models that they come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pflcli.core.parameters import Params

if TYPE_CHECKING:
    from pflcli.core.knn.stores import NeighbourVote


@dataclass(frozen=True)
class ClientModel:
    """The model of one client: networks and, for kNN-Per, the vote of stored samples.

    ``networks`` are parameters of the run's model. Their probabilities are averaged with the weights ``shares``, which
    sum to 1. Then the vote of ``neighbours`` is mixed in, with the representations of the first network.
    """

    networks: tuple[Params, ...]
    shares: tuple[float, ...] = (1.0,)
    neighbours: NeighbourVote | None = None


def no_model(client: int) -> ClientModel | None:
    """Return None: the client's model is not a ``ClientModel``."""
    return None


@dataclass(frozen=True)
class Predictor:
    """Computes a method's predictions for a list of clients.

    ``answer(split)`` returns probabilities ``p`` (n, C) of the clients' samples in their order, and optionally (n, C)
    components of ``p``. ``splits``, a subset of ``run.predicted_splits``, are those with predictions. ``tuned`` has
    values (m,) that each client chose, as a rule on its validation samples. ``model_of(client)`` returns the model of
    a client, or None if it is not a ``ClientModel``; ``export`` needs it.
    """

    answer: Callable[[str], Mapping[str, NDArray[np.float32]]]
    splits: tuple[str, ...] = ("validation", "test")
    tuned: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    model_of: Callable[[int], ClientModel | None] = no_model
