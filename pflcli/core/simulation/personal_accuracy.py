"""The accuracy of personal models by round: that of the clients' predictions if the run ended after the round.

A method whose clients have personal models after each round declares ``PERSONAL_MODELS``: the key, in its state, of a
table with one row per client that took part, or of an array (m,) with each client's cluster, -1 for none. These models
are measured whenever the global model is. A method whose clients adapt after the rounds declares ``ADAPTS``. Measuring
it takes as long as ``personalize`` for all clients, so it is only done on request: every ``personal_every`` rounds, all
seen clients adapt as if the run ended there. The cost of a round does not include training for measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.federation.run import Run
from pflcli.core.methods import Method
from pflcli.core.parameters.model_table import ModelTable
from pflcli.core.settings import Settings
from pflcli.core.simulation.predict import client_batches


def find_owners(run: Run, method: Method, state: Mapping[str, Any]) -> NDArray[np.int64]:
    """Return the seen clients (n,) that have a personal model; all seen clients if they use the global one."""
    models = state.get(method.PERSONAL_MODELS)
    if models is None:
        return run.federation.seen_clients
    with_model = models.written if isinstance(models, ModelTable) else np.flatnonzero(models.cpu().numpy() >= 0)
    return np.intersect1d(with_model, run.federation.seen_clients)


def is_due(settings: Settings, method: Method, column: str, t: int) -> bool:
    """Whether the score in this column of ``rounds.csv`` is measured after round ``t``, from 0."""
    every = settings.personal_every if method.ADAPTS else settings.eval_every
    if column.startswith("test_"):
        return t >= settings.rounds - settings.test_last and (not method.ADAPTS or settings.is_due(t, every))
    return settings.is_due(t, settings.eval_every if column.startswith("validation_") else every)


def measure_shared(run: Run, method: Method, state: dict[str, Any], t: int) -> dict[str, float]:
    """Return the columns of the global model after round ``t``: ``validation_accuracy``, nan if it is not measured.

    With the setting ``round_metric``, there is also a column of that metric.
    """
    shared, found = state.get("global"), _UNKNOWN
    if shared and is_due(run.settings, method, "validation_accuracy", t):
        if run.settings.compares_rounds_by is None:
            return {"validation_accuracy": run.accuracy(shared, "validation")}
        clients = run.federation.seen_clients
        found = _measure(run, [(clients, *run.answers(clients, shared, "validation"))], "validation")
    return _columns(run, "validation", found)


def measure_personal(run: Run, method: Method, state: dict[str, Any], t: int) -> dict[str, float]:
    """Return the same columns of personal models after round ``t``: ``personal_accuracy`` and that of a metric."""
    measures = run.settings.personal_every if method.ADAPTS else method.PERSONAL_MODELS
    due = measures and is_due(run.settings, method, "personal_accuracy", t)
    return _columns(run, "personal", measure_owners(run, method, state) if due else _UNKNOWN)


_UNKNOWN = (math.nan, math.nan)


def _columns(run: Run, model: str, found: tuple[float, float]) -> dict[str, float]:
    metric = run.settings.compares_rounds_by
    return {f"{model}_accuracy": found[0], **({} if metric is None else {f"{model}_{metric}": found[1]})}


def measure_test(run: Run, method: Method, state: dict[str, Any], t: int) -> dict[str, float]:
    """Return the column ``test_accuracy`` after round ``t`` (from 0); nan if ``test_last`` is 0.

    It is also nan before the last ``test_last`` rounds, over which FedAttn's Table 1 reports the mean. It is measured
    with the personal models of ``find_owners`` if the method has any, else with the global model. If clients adapt
    after the rounds, it is measured with the adapted models whenever ``personal_every`` is due. Nothing is chosen by
    it.
    """
    if not run.settings.test_last or not is_due(run.settings, method, "test_accuracy", t):
        return {"test_accuracy": math.nan}
    if method.ADAPTS:
        return {"test_accuracy": measure_accuracy(run, method, state, "test")}
    own = measure_accuracy(run, method, state, "test") if method.PERSONAL_MODELS else math.nan
    # With some options, clients have no personal models, as in FedAttn without attention.
    return {"test_accuracy": run.accuracy(state["global"], "test") if math.isnan(own) and "global" in state else own}


def measure_accuracy(run: Run, method: Method, state: dict[str, Any], split: str = "validation") -> float:
    """Return the accuracy of ``measure_owners``."""
    return measure_owners(run, method, state, split)[0]


def measure_owners(run: Run, method: Method, state: dict[str, Any], split: str = "validation") -> tuple[float, float]:
    """Return the accuracy of the ``find_owners`` on a split, each with its own model, and what rounds are compared by.

    Both are weighted by samples, and nan if there are no such samples, or if the method was trained on them.
    """
    clients = find_owners(run, method, state)
    clients = clients[run.federation.sizes(split)[clients] > 0]
    with run.personalizing(), run.engine.training():
        return _measure(run, _answers(run, method, state, clients, split), split)


_Answers = tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]
"""Clients (m,), and the predictions (n, C) and labels (n,) of their samples."""


def _answers(
    run: Run, method: Method, state: dict[str, Any], clients: NDArray[np.int64], split: str
) -> Iterator[_Answers]:
    for chunk in client_batches(run, clients):
        predictor = method.personalize(run, state, chunk)
        if split not in predictor.splits:
            return
        yield chunk, predictor.answer(split)["p"], run.federation.labels_of(chunk, split)


def _measure(run: Run, answers: Iterable[_Answers], split: str) -> tuple[float, float]:
    """Return the mean score of the task, and the metric by which rounds are compared; nan without samples."""
    name = run.settings.compares_rounds_by if split == "validation" else None
    right, kept = list[NDArray[Any]](), list[_Answers]()
    for clients, learned_p, learned_y in answers:
        p, y = run.restore(learned_p, clients, split), run.restore(learned_y, clients, split)
        right.append(run.label_task.scores(p, y))
        kept += [(clients, p, y)] if name is not None else []
    if not sum(map(len, right)):
        return _UNKNOWN
    score = float(np.concatenate(right).mean())
    if name is None:
        return score, math.nan
    from pflcli.core.metrics import catalogue  # here, because few runs need it
    from pflcli.core.tasks import Labels

    metric, (owners, p, y) = catalogue.METRICS[name], map(np.concatenate, zip(*kept, strict=True))
    sizes = run.federation.sizes(split)[owners]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return score, metric.score_answers(p, y, offsets, Labels.of(run.label_task))
