"""PANM: peers find others with the same task, for any number of clusters.

Li & Wu (2022), "Towards Effective Clustered Federated Learning: A Peer-to-peer Framework with Adaptive Neighbor
Matching", MLSys poster, https://arxiv.org/abs/2203.12285. First, a client keeps the k most similar clients among those
that it asks and those that it had (confident neighbour initialization, Eq. 5). From round t1 on, it asks some of its
neighbours and some other clients, and keeps those that a mixture of two Gaussians assigns to its cluster (heuristic
neighbour matching, Eq. 6 to 10, `mixture.py`). In each round it averages its model with those of k neighbours.

Similarity is 1 / loss of a peer's model on the client's own samples (Eq. 1: PANMLoss), or the cosine of the last local
updates mixed with the cosine of the differences from the common initial model (Eq. 2 to 4: PANMGrad). `grad-centred`
(an extension) is PANMGrad without the part that all compared clients have in common, which otherwise dominates.
PANMGrad needs several local epochs: after one, updates are mostly noise. New neighbours (Eq. 10) are used from the
round in which they are found.

A client that is asked sends its model and, if gradients are compared, its last update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray

from pflcli.method import Predictor, Run, TrainedClients, similarity
from pflcli.methods.parts import mixture, peers
from pflcli.methods.parts.peers import State

KIND = "peer"
NEEDS = ()
PERSONAL_MODELS = "model"
PAIRS_KEPT = 1  # the neighbours
SENDS_MORE = "models to each other"
PAPER = "PANM"
YEAR = 2022
TASKS = ("any",)
RECORDS = ("graph",)
KEEPS = ("bag",)

Array = NDArray[np.float64]

_MAX_TRIED_SAMPLES = 512
"""Maximum number of samples on which a client tries its peers' models; all models of a round use the same ones."""


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    metric: Literal["loss", "grad", "grad-centred"] = "loss"
    """compare clients by losses (PANMLoss), by gradients (grad, PANMGrad), or by gradients minus their common
    part (grad-centred)"""
    k: Annotated[int, Ge(0)] | None = None
    """average with this many neighbours; 0 is training alone; none uses 5, or 3 for up to 20 clients"""
    l: Annotated[int, Ge(0)] = 0  # noqa: E741 (the poster's name)
    """ask this many other clients per round, and from round t1 on as many neighbours; 0 uses the larger of k and 5
    (10 for 40 clients and more)"""
    alpha: Annotated[float, Ge(0), Le(1)] = 0.5
    """weigh the last update by this, and the change since the initial model by the rest, in the similarity of
    gradients"""
    t1: Annotated[int, Ge(0)] = 0
    """find initial neighbours for this many rounds; 0 uses a quarter of all rounds, at least 1 and at most 10"""
    tau: Annotated[int, Ge(1)] = 1
    """match neighbours every this many rounds; 5 halves the traffic at little cost"""
    aggregate: Literal["neighbours", "bag"] = "neighbours"
    """average with k random matched neighbours, or with all of them (bag: the poster's Eq. 10, with more traffic)"""
    uniform: bool = False
    """average models with equal weights instead of weights by numbers of samples"""
    sim: Literal["inverse", "negative", "negative-log"] = "inverse"
    """turn a loss F into the similarity 1 / F (inverse, the poster), -F (negative) or -log F (negative-log); the
    latter two are nearer to Gaussian"""
    em: Literal["matching", "poster"] = "matching"
    """start EM by matching neighbours or as the poster prints it, which keeps the other cluster (a negative control)"""
    allow_isolated: bool = False
    """let a client end up without neighbours; otherwise it keeps the most similar one"""
    newcomer_epochs: Annotated[int, Ge(0)] = 5
    """train clients that never took part alone, for this many local epochs, when they personalize"""


def setup(run: Run) -> State:
    """Return every client's models and neighbours, none as yet, and for gradients its last update."""
    state = peers.setup(run)
    if run.cfg.metric != "loss":
        state["update"] = run.table({name: torch.zeros_like(run.init[name]) for name in run.engine.parameters})
    return {**state, "bag": torch.zeros((len(run.clients), len(run.clients)), dtype=torch.bool)}


def train_round(run: Run, state: State, t: int) -> State:
    """Train, ask peers, keep the similar ones, and average with k of them."""
    cohort, bag = run.cohort(t), state["bag"].cpu().numpy().copy()
    reachable = peers.train(run, state, cohort, t)
    contacts = {int(i): _draw_contacts(run, bag[i], reachable[reachable != i], int(i), t) for i in cohort}
    run.relay(state["sent"], contacts)
    if "update" in state:
        for part in run.collect(_updates(run, state, cohort), state["update"].default, counted=False):
            state["update"][part.clients] = part.params
        run.relay(state["update"], contacts)
    scores, partners = _similarities(run, state, contacts, t), {}
    for i, ids in contacts.items():
        if len(ids):
            bag[i] = _update_neighbours(run, bag[i], ids, scores[i], t)
        neighbours = np.flatnonzero(bag[i])
        takes_all = run.cfg.aggregate == "bag"
        chosen = neighbours if takes_all else peers.draw_ids(run.rng("neighbours", t, i), neighbours, _sizes(run)[0])
        partners[i] = chosen
    graph = peers.collect_graph(run, state, cohort, [np.flatnonzero(bag[i]) for i in cohort])
    run.relay(state["sent"], {i: np.setdiff1d(chosen, contacts[i]) for i, chosen in partners.items()})
    peers.average(run, state, cohort, [*partners.values()], uniform=run.cfg.uniform)
    return {**state, "bag": torch.from_numpy(bag), "graph": graph}


def _updates(run: Run, state: State, cohort: NDArray[np.int64]) -> Iterator[TrainedClients]:
    """Yield the last local updates of a cohort."""
    for ids in run.client_chunks(cohort):
        old, new = state["model"][ids], state["sent"][ids]
        yield TrainedClients.untrained(ids, {name: new[name] - old[name] for name in run.engine.parameters})


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with each client's own model."""
    return peers.predictor(run, state, clients, run.cfg.newcomer_epochs)


def _sizes(run: Run) -> tuple[int, int, int]:
    """Return k, l and t1; those without a value depend on the numbers of clients and rounds."""
    cfg, clients = run.cfg, int((run.declared[run.federation.seen_clients] > 0).sum())
    k = cfg.k if cfg.k is not None else 3 if clients <= 20 else 5
    return k, cfg.l or max(k, 5 if clients < 40 else 10), cfg.t1 or max(1, min(10, run.settings.rounds // 4))


def _is_matching(run: Run, bag: NDArray[np.bool_], t: int) -> bool:
    """Return whether a client with these neighbours (m,) matches them; without neighbours it never does."""
    return t >= _sizes(run)[2] and bool(bag.any())


def _draw_contacts(run: Run, bag: NDArray[np.bool_], others: NDArray[np.int64], i: int, t: int) -> NDArray[np.int64]:
    """Draw the clients that a client asks: its neighbours, or l of them when it matches, and l others."""
    k, count, t1 = _sizes(run)
    matching = _is_matching(run, bag, t)
    if k == 0 or (matching and (t - t1) % run.cfg.tau):
        return others[:0]
    draw, near, far = run.rng("asked", t, i), others[bag[others]], others[~bag[others]]
    return np.concatenate([peers.draw_ids(draw, near, count) if matching else near, peers.draw_ids(draw, far, count)])


def _update_neighbours(
    run: Run, bag: NDArray[np.bool_], contacts: NDArray[np.int64], y: Array, t: int
) -> NDArray[np.bool_]:
    """Return a client's neighbours (m,), given the similarities ``y`` (n,) of its ``contacts``."""
    updated, order = bag.copy(), contacts[np.argsort(-mixture.replace_nonfinite(y), kind="stable")]
    updated[contacts] = False
    if not _is_matching(run, bag, t):
        updated[order[: _sizes(run)[0]]] = True
        return updated
    updated[contacts[mixture.match_neighbours(y, bag[contacts], as_printed=run.cfg.em == "poster")]] = True
    if not updated.any() and not run.cfg.allow_isolated:
        updated[order[0]] = True
    return updated


def _similarities(run: Run, state: State, contacts: dict[int, NDArray[np.int64]], t: int) -> dict[int, Array]:
    """Return the similarities (n,) of each client to its contacts."""
    if run.cfg.metric != "loss":
        return {i: _cosines(run, state, np.asarray([i, *ids])) for i, ids in contacts.items() if len(ids)}
    losses = peers.losses(run, state, contacts, _MAX_TRIED_SAMPLES, t)
    return {i: _SIMILARITY[run.cfg.sim](values) for i, values in losses.items()}


_SIMILARITY: dict[str, Callable[[Array], Array]] = {
    "inverse": lambda loss: 1 / (loss + 1e-8),
    "negative": lambda loss: -loss,
    "negative-log": lambda loss: -np.log(loss + 1e-8),
}


def _cosines(run: Run, state: State, ids: NDArray[np.int64]) -> Array:
    """Return the similarity of the first client's gradients with those of the others (n - 1,), Eq. 4."""
    names, centred = run.engine.parameters, run.cfg.metric == "grad-centred"
    last = similarity.vectors(state["update"][ids], names)
    change = similarity.vectors(state["sent"][ids], names, run.init)
    cosines = [similarity.cosines_to_first(rows, centred=centred) for rows in (last, change)]
    return np.asarray(run.cfg.alpha * cosines[0] + (1 - run.cfg.alpha) * cosines[1])
