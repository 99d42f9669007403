"""Predict with the models of clients after the rounds of a method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.core import parameters
from pflcli.core.errors import ComputationError
from pflcli.core.federation.predictor import Predictor
from pflcli.core.federation.run import Run
from pflcli.core.methods import Method, State
from pflcli.core.simulation import absences

MIN_BATCH = 16
"""The minimum number of clients that predict together."""

Parts = dict[str, NDArray[np.float32]]
"""Probabilities ``p`` (n, C) and their components, by name."""


@dataclass(frozen=True)
class Predicted:
    """The predictions of ``clients`` (n,): ``parts`` by split, and flags (n,) of clients whose predictions failed.

    The flags have the keys of ``absences.FAILURES``.
    """

    clients: NDArray[np.int64]
    predictor: Predictor
    parts: dict[str, Parts]
    flags: dict[str, NDArray[np.bool_]]


def predict(
    run: Run,
    name: str,
    method: Method,
    state: State,
    clients: NDArray[np.int64],
    splits: Sequence[str] | None = None,
) -> Predicted:
    """Personalize ``clients`` and predict their samples, for ``splits`` or for all that ``personalize`` stores.

    Predictions are in the unit of labels. Rows of probabilities that are not finite become 1 / C. Communication is not
    allowed. Raises ComputationError, with the method's ``name``, if the method cannot predict.
    """
    with run.personalizing():
        try:
            predictor = method.personalize(run, state, clients)
        except ComputationError as error:
            raise ComputationError(f"{name}: {error.message}", *error.fix) from None
        chosen = predicted_splits(run, predictor) if splits is None else splits
        parts = {split: add_global(run, predictor.answer(split), clients, split) for split in chosen}
        finite, flags = absences.replace_nonfinite(run, clients, parts)
    return Predicted(clients, predictor, finite, flags)


def client_batches(run: Run, clients: NDArray[np.int64] | None = None, first: int = 0) -> Iterator[NDArray[np.int64]]:
    """Return batches of ``clients`` (default: all) that predict together, starting with number ``first``.

    The last bits of a sum depend on the batch, so code that repeats a prediction must use the same batches.
    """
    chosen, count = run.clients if clients is None else clients, batch_size(run)
    return (chosen[begin : begin + count] for begin in range(first, len(chosen), count))


def batch_size(run: Run) -> int:
    """Return how many clients predict together: one percent of all, but no more than fit into memory."""
    least = 1 if run.settings.apart else MIN_BATCH
    return max(least, min(len(run.clients) // 100, run.engine.clients_that_fit(parameters.size(run.init))))


def predicted_splits(run: Run, predictor: Predictor) -> list[str]:
    """Return the splits to predict; with ``refit``, validation samples were trained on and are excluded."""
    return [split for split in predictor.splits if split != "validation" or not run.settings.refit]


def add_global(run: Run, parts: Mapping[str, Any], clients: Any, split: str) -> dict[str, Any]:
    """Add the predictions of the backbone, against which ``evaluate`` can measure gains."""
    if run.backbone is None or "global" in parts:
        return dict(parts)
    if run.embeddings is not None:
        return {**parts, "global": run.task.predict(torch.from_numpy(run.embeddings[split].take(clients).logits))}
    return {**parts, "global": run.predictor(clients, run.backbone).answer(split)["p"]}
