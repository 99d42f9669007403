"""Rounds of peer-to-peer methods: clients train, receive models of other clients, and average them.

In a round the cohort trains. Each of its clients may then request the last trained model of any client that has
trained (``Run.relay``), and averages the received models with its own. The average is the client's model, from which
it trains in its next round. A client that never took part has no model: it trains alone when it personalizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.method import Predictor, Run, TrainedClients, model_algebra, parameters

State = dict[str, Any]

REMEMBERED = 1000
"""Maximum number of clients for which the graphs of all rounds are stored; with more clients, only the last is."""

_MAX_CELLS = 1 << 20
"""Maximum number of cells of a table of client pairs that is computed at a time, which bounds memory."""


def setup(run: Run) -> State:
    """Return each client's own ``model``, the model that it ``sent`` last, and the ``graph`` of neighbours."""
    start, m = run.initial_model(), len(run.clients)
    graph = torch.zeros(0, m, -(-m // 8), dtype=torch.uint8)
    return {"model": run.table(start), "sent": run.table(start), "graph": graph}


def record_graph(graph: Tensor, parts: Iterable[TrainedClients]) -> Tensor:
    """Return the graph (r, m, m / 8 rounded up) with one more round.

    In this round clients have the neighbours that they report, see ``report_neighbours``; the other clients keep
    theirs. A round takes one bit per pair. With more than ``REMEMBERED`` clients the result has only the last round.
    """
    new = graph[-1].cpu().clone() if len(graph) else graph.new_zeros(graph.shape[1:])
    for part in parts:
        new[torch.from_numpy(part.clients)] = part.params["graph"]
    before = graph.cpu()[: len(graph) if graph.shape[1] <= REMEMBERED else 0]
    return torch.cat([before, new[None]])


def report_neighbours(
    cohort: NDArray[np.int64], neighbours: Sequence[NDArray[np.int64]], clients: int
) -> Iterator[TrainedClients]:
    """Yield the packed row ``graph`` (m / 8 rounded up,) of each ``cohort[i]``, which has ``neighbours[i]``."""
    for first in range(0, len(cohort), at_once := at_a_time(clients)):
        packed = np.packbits(_rows(neighbours[first : first + at_once], clients), axis=1)
        yield TrainedClients.untrained(cohort[first : first + at_once], {"graph": torch.from_numpy(packed)})


def at_a_time(clients: int) -> int:
    """Return the number of rows, with a cell for each of ``clients``, that are computed at a time."""
    return max(1, _MAX_CELLS // clients)


def _rows(ids: Sequence[NDArray[np.int64]], clients: int) -> NDArray[np.bool_]:
    """Return masks (r, m) of the clients in each of ``ids`` (r arrays)."""
    rows = np.zeros((len(ids), clients), dtype=bool)
    for row, columns in zip(rows, ids, strict=True):
        row[columns] = True
    return rows


def train(run: Run, state: State, cohort: NDArray[np.int64], t: int) -> NDArray[np.int64]:
    """Train the cohort from their own models; returns the sorted ids of all clients with a trained model."""
    sent = state["sent"]
    known = np.isin(run.clients, np.union1d(sent.written, run.everyone(cohort)))
    received = run.download({"known": torch.from_numpy(known)}, cohort, counted=False)
    for part in run.collect(run.local_sgd(cohort, state["model"], t=t), run.init, counted=False):
        sent[part.clients] = part.params
    return np.flatnonzero(received["known"].numpy())


def collect_graph(run: Run, state: State, cohort: NDArray[np.int64], neighbours: Sequence[NDArray[np.int64]]) -> Tensor:
    """Return the graph with one more round, in which ``cohort[i]`` has ``neighbours[i]``."""
    graph, reports = state["graph"], report_neighbours(cohort, neighbours, len(run.clients))
    return record_graph(graph, run.collect(reports, {"graph": graph.new_zeros(graph.shape[2])}, is_record=True))


def losses(
    run: Run, state: State, contacts: Mapping[int, NDArray[np.int64]], most: int, t: int
) -> dict[int, NDArray[np.float64]]:
    """Return the mean loss of each client's training samples under the models of its ``contacts``.

    A client evaluates all of them on the same samples, at most ``most``. Each model is evaluated once for all clients.
    """
    rows = [draw_ids(run.rng("tried", t, i), run.federation.rows(i, "train"), most) for i in contacts]
    ends = np.cumsum([0, *map(len, contacts.values())])
    senders, receivers = (
        np.concatenate([run.clients[:0], *contacts.values()]),
        np.repeat(np.arange(len(contacts)), np.diff(ends)),
    )
    loss, order = np.empty(len(senders)), np.argsort(senders, kind="stable")
    models, cuts = np.unique(senders[order], return_index=True)
    for j, askers in zip(models, np.split(order, cuts)[1:], strict=True):
        loss[askers] = run.loss_per_group(
            parameters.pick(state["sent"][[j]], 0), [rows[receiver] for receiver in receivers[askers]]
        )
    return {i: loss[first:last] for i, (first, last) in zip(contacts, itertools.pairwise(ends), strict=True)}


def average(
    run: Run, state: State, cohort: NDArray[np.int64], partners: Sequence[NDArray[np.int64]], *, uniform: bool
) -> None:
    """Set the model of each client of the cohort to the mean of its own and its partners' models.

    ``partners[i]`` are the ids of the partners of client ``cohort[i]``. Weights are ``uniform`` or numbers of samples.
    """
    for first in range(0, len(cohort), at_once := at_a_time(len(run.clients))):
        receivers = cohort[first : first + at_once]
        weights = _rows(partners[first : first + at_once], len(run.clients)).astype(np.float64)
        weights[np.arange(len(receivers)), receivers] = 1
        if not uniform:
            weights *= run.declared
        for rows, models in model_algebra.weighted_means(
            state["sent"], weights, run.engine.clients_that_fit(parameters.size(run.init))
        ):
            state["model"][receivers[rows]] = models


def draw_ids(rng: np.random.Generator, ids: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Draw ``count`` of the ids uniformly without replacement, sorted; all of them if they are fewer."""
    return ids if len(ids) <= count else np.sort(rng.choice(ids, size=count, replace=False))


def predictor(run: Run, state: State, clients: NDArray[np.int64], newcomer_epochs: int) -> Predictor:
    """Predict with each client's own model; a client that never took part trains the initial model alone."""
    models = state["model"]
    return run.predictor(clients, run.adapt(models, clients, models.default, epochs=newcomer_epochs))
