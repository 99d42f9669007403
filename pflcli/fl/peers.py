"""What peer-to-peer methods share: a round without a server, in which clients train, ask others and average.

In a round the cohort trains; then each of it may ask any client that has trained before, which answers with the model
that it trained last; then it averages what it was given with its own. A client's own model is the average, from which
it trains on. A client that never took part has none: it trains alone when it personalizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.fl import mixing
from pflcli.fl import params as P
from pflcli.fl.run import Predictor, Run

State = dict[str, Any]


def setup(run: Run) -> State:
    """Return every client's own ``model``, what it ``sent`` last, and the ``graph`` of who had whom as neighbours."""
    start = run.start()
    return {"model": run.table(start), "sent": run.table(start), "graph": packed(np.zeros((0, len(run.clients)), bool))}


def packed(neighbours: NDArray[np.bool_]) -> Tensor:
    """Return who has whom (r, m) as one round (1, r, m / 8 rounded up) of bits; no round if r is 0."""
    bits = torch.from_numpy(np.packbits(neighbours, axis=1))
    return bits[None] if len(bits) else bits[None][:0]


def recorded(graph: Tensor, neighbours: NDArray[np.bool_]) -> Tensor:
    """Return the graph of all rounds with one more, in which client i has neighbour j if ``neighbours[i, j]``."""
    new = packed(neighbours)
    return torch.cat([graph.cpu(), new]) if len(graph) else new


def last(graph: Tensor, clients: int) -> NDArray[np.bool_]:
    """Return who has whom (m, m) after the last round of the graph: nobody before the first."""
    if not len(graph):
        return np.zeros((clients, clients), dtype=bool)
    return np.unpackbits(graph[-1].cpu().numpy(), axis=1, count=clients).astype(bool)


def train(run: Run, state: State, cohort: NDArray[np.int64], t: int) -> NDArray[np.int64]:
    """Train the cohort from their own models; returns the clients that can be asked from now on, sorted."""
    for part in run.local_sgd(cohort, state["model"], t=t):
        state["sent"][part.clients] = part.params
    reachable: NDArray[np.int64] = state["sent"].written
    return reachable


def losses(
    run: Run, state: State, asked: Mapping[int, NDArray[np.int64]], most: int, t: int
) -> dict[int, NDArray[np.float64]]:
    """Return the mean loss of each client's training samples under the models of the clients it ``asked``.

    It tries all of them on the same samples, ``most`` at most; a model sees those of all that ask for it in one pass.
    """
    found = {i: np.empty(len(ids)) for i, ids in asked.items()}
    rows = {i: drawn(run.rng("tried", t, i), run.federation.rows(i, "train"), most) for i in asked}
    for j in np.unique(np.concatenate([run.clients[:0], *asked.values()])):
        who = [i for i, ids in asked.items() if j in ids]
        values = run.losses_of(P.pick(state["sent"][[j]], 0), [rows[i] for i in who])
        for i, loss in zip(who, values, strict=True):
            found[i][asked[i] == j] = loss
    return found


def average(run: Run, state: State, cohort: NDArray[np.int64], partners: NDArray[np.bool_], *, uniform: bool) -> None:
    """Give each of the cohort the mean of its own model and its partners', weighted by samples or ``uniform``.

    ``partners`` (c, m) are those of client ``cohort[i]`` in row i.
    """
    weights = partners.astype(np.float64)
    weights[np.arange(len(cohort)), cohort] = 1
    if not uniform:
        weights *= run.federation.sizes("train")
    for rows, models in mixing.mixed(state["sent"], weights, run.engine.room(P.size(run.init))):
        state["model"][cohort[rows]] = models


def drawn(rng: np.random.Generator, among: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return ``count`` of the clients, uniformly without replacement and sorted; all of them if they are fewer."""
    return among if len(among) <= count else np.sort(rng.choice(among, size=count, replace=False))


def predictor(run: Run, state: State, clients: NDArray[np.int64], newcomer_epochs: int) -> Predictor:
    """Answer with each client's own model; one that never took part trains alone from the common initialisation."""
    own = state["model"]
    rate = run.settings.lr_at(run.settings.rounds - 1)
    alone = run.local_sgd(own.unwritten(clients), own.default, t="newcomer", epochs=newcomer_epochs, lr=rate)
    return run.predictor(clients, own.replaced(clients, alone))
