"""The accuracy of clients' own models by round: that of their answers if the run ended then.

A method whose rounds leave clients models of their own says so by ``PERSONAL_MODELS``: the key of its state under which
stands who has taken part, a table with a row for each of them, or the cluster (m,) of each client, -1 for none. They
are measured whenever the global model is. A method whose clients adapt after the rounds, which takes as long as all of
its ``personalize``, says so by ``ADAPTS``, and is measured if a user wants it: every ``personal_every`` rounds all seen
clients adapt as if the run ended there. What is trained for an answer is not counted to the round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.engine.engine import Engine
from pflcli.federation.run import Run
from pflcli.methods import Method
from pflcli.parameters.model_table import ModelTable
from pflcli.training.predict import client_batches


def owners(run: Run, method: Method, state: Mapping[str, Any]) -> NDArray[np.int64]:
    """Return the seen clients (n,) that have a model of their own; all of them if they share one, or adapt it."""
    models = state.get(method.PERSONAL_MODELS)
    if models is None:
        return run.federation.seen_clients
    with_model = models.written if isinstance(models, ModelTable) else np.flatnonzero(models.cpu().numpy() >= 0)
    return np.intersect1d(with_model, run.federation.seen_clients)


def column(run: Run, method: Method, state: dict[str, Any], t: int) -> dict[str, float]:
    """Return what ``rounds.csv`` says of clients' own models after round ``t``; nothing where none are measured."""
    settings, adapts = run.settings, method.ADAPTS
    every = settings.personal_every if adapts else settings.eval_every
    if not every or not (adapts or method.PERSONAL_MODELS):
        return {}
    return {"personal_accuracy": accuracy(run, method, state) if settings.is_due(t, every) else math.nan}


def tested(run: Run, method: Method, state: dict[str, Any], t: int) -> dict[str, float]:
    """Return the test accuracy after round ``t`` (from 0), nan before the last ``test_last`` rounds; nothing for none.

    It is that of the ``owners``' models where the method has them, else of the global model, as FedAttn's Table 1 takes
    the mean of over its last 100 rounds. Where clients adapt after the rounds it is that of the adapted models, in the
    rounds in which ``personal_every`` has them adapt. It is reported; no round, option or model is chosen by it.
    """
    settings, adapts = run.settings, method.ADAPTS
    if not settings.test_last:
        return {}
    if t < max(settings.rounds - settings.test_last, 0):
        return {"test_accuracy": math.nan}
    if adapts:
        adapted = settings.personal_every and settings.is_due(t, settings.personal_every)
        return {"test_accuracy": accuracy(run, method, state, "test") if adapted else math.nan}
    own = accuracy(run, method, state, "test") if method.PERSONAL_MODELS else math.nan
    # Options may leave clients without models of their own, as FedAttn's without attention do.
    return {"test_accuracy": run.accuracy(state["global"], "test") if math.isnan(own) and "global" in state else own}


def accuracy(run: Run, method: Method, state: dict[str, Any], split: str = "validation") -> float:
    """Return the accuracy of the ``owners`` on a split, each by its own model, weighted by samples.

    It is nan if they have no such samples, or if the method has learned from them.
    """
    clients = owners(run, method, state)
    clients = clients[run.federation.sizes(split)[clients] > 0]
    right: list[NDArray[np.bool_]] = []
    with run.personalizing(), _measuring(run.engine):
        for chunk in client_batches(run, clients):
            predictor = method.personalize(run, state, chunk)
            if split not in predictor.splits:
                break
            right.append(predictor.answer(split)["p"].argmax(axis=1) == run.federation.labels_of(chunk, split))
    return float(np.concatenate(right).mean()) if right else math.nan


@contextmanager
def _measuring(engine: Engine) -> Iterator[None]:
    """Let the loops that train give answers inside the block, for several clients at a time."""
    engine.measures = True
    try:
        yield
    finally:
        engine.measures = False
