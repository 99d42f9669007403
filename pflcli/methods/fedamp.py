"""FedAMP: pulls each client towards a mean of all models that gives similar models more weight.

Huang et al. (2021), https://arxiv.org/abs/2007.03797. The server keeps the model w_i of every client. For client i it
computes the mean u_i = sum_j xi_ij w_j and sends it. The client minimizes F_i(w) + lambda / (2 alpha) |w - u_i|^2 over
its own model w.

- `form=attention` is FedAMP: xi_ij = alpha A'(|w_i - w_j|^2) for the other clients, where A'(x) = exp(-x / sigma) /
  sigma, and xi_ii is the remainder to 1. If nothing remains, the weights of the others are scaled to a sum of 1.
  Distances grow with the number of parameters: if sigma is too small for them, all weights vanish, and every client
  trains alone.
- `form=heuristic` is HeurFedAMP: xi_ii is given, and the others share the rest in proportion to exp(sigma cos(w_i,
  w_j)).

Models that are close to the common initial model have nearly equal cosines. By default, cosines are therefore those of
the differences from the initial model; `centred=false` is the paper. The paper has all clients in every round; here the
server uses the model that each client uploaded last.

The paper minimizes exactly, so that the start does not matter. After a few local epochs it does. With `start=cloud`
local training starts from u_i: it takes over what others have learned even if lambda is small, and loses part of what
the client has learned. Validation accuracy after 60 rounds with 60 writers is 83.4 % from clients' own models and 73.7
% from u_i.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray

from pflcli.method import ModelTable, Packages, Predictor, Run, TrainedClients, model_algebra, parameters, similarity

KIND = "server"
NEEDS = ()
PERSONAL_MODELS = "model"
PAIRS_KEPT = 8  # inner products of models
SENDS_MORE = "models, which the server mixes for each client"
PAPER = "FedAMP"
YEAR = 2021
TASKS = ("any",)
GRID = {"lam": (0.01, 0.1, 1.0)}

State = dict[str, Any]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    form: Literal["heuristic", "attention"] = "heuristic"
    """weigh models by cosines (heuristic, HeurFedAMP) or by distances (attention, FedAMP)"""
    lam: Annotated[float, Ge(0)] = 0.1
    """pull each client to u_i with weight lambda / alpha, or lambda if alpha is none; 0 is training alone"""
    alpha: Annotated[float, Gt(0)] | None = None
    """use this step size; none uses 1 for heuristic, and for attention the largest per round that leaves no
    weight negative"""
    sigma: Annotated[float, Gt(0)] | None = None
    """use this scale of weights; none uses 10 for heuristic, and for attention the median squared distance of the
    round's models"""
    self_weight: Annotated[float, Ge(0), Le(1)] | None = None
    """give a client's own model this weight (xi_ii) if heuristic; 1 is training alone; none uses 1 / number of
    models"""
    centred: bool = True
    """take cosines of models minus the common initial model; false takes those of the models, as the paper does"""
    start: Literal["own", "cloud"] = "own"
    """start local steps from the client's last model (own, as PFLlib and fling do) or from u_i (cloud, as flgo does)"""
    newcomer_epochs: Annotated[int, Ge(0)] = 5
    """train clients that never took part alone, for this many local epochs, when they personalize"""


def setup(run: Run) -> State:
    """Return every client's ``model``."""
    return {"model": run.table(run.initial_model())}


def train_round(run: Run, state: State, t: int) -> State:
    """Send each of a cohort its mean of all models, and let it train its own near that."""
    here, own = run.cohort(t), state["model"]
    for part in run.collect(_train(run, own, here, t), run.init):
        own[part.clients] = part.params
    return state


def _train(run: Run, own: ModelTable, here: NDArray[np.int64], t: int) -> Iterator[TrainedClients]:
    """Train the clients that are here near the means that they receive."""
    pull = run.cfg.lam / (run.cfg.alpha or 1.0)
    for ids, means in run.deliver(lambda: _means(run, own, here), here, run.init, rows=True, counted=False):
        initial = own if run.cfg.start == "own" else means
        yield from run.local_sgd(ids, initial, t=t, prox=(means, pull))


def _means(run: Run, own: ModelTable, here: NDArray[np.int64]) -> Packages:
    """Yield the clients of a cohort with their means of all models."""
    cohort = run.everyone(here)
    run.send("down", run.init, copies=len(cohort))
    ids = np.union1d(own.written, cohort)
    room = run.engine.clients_that_fit(parameters.size(run.init))
    # Distances are the same from any origin, and differences of smaller numbers.
    origin = run.init if run.cfg.form == "attention" or run.cfg.centred else None
    products = model_algebra.gram_matrix(own, ids, run.engine.parameters, room, origin)
    # No other client gives weight to one that has not uploaded yet.
    xi = weights(run.cfg, products, np.isin(ids, own.written))
    table = np.zeros((len(cohort), len(run.clients)))
    table[:, ids] = xi[np.searchsorted(ids, cohort)]
    snapshot = own.snapshot()  # all means are those of the models before the round
    for rows, means in model_algebra.weighted_means(snapshot, table, room):
        yield cohort[rows], means
    snapshot.release()


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with each client's own model."""
    models = state["model"]
    return run.predictor(clients, run.adapt(models, clients, models.default, epochs=run.cfg.newcomer_epochs))


def weights(cfg: Config, products: Array, known: NDArray[np.bool_]) -> Array:
    """Return xi (n, n), whose rows sum to 1, from inner products of the models (n, n).

    Only the client itself gives weight to a client that is not ``known`` (n,).
    """
    others = known[None, :] & ~np.eye(len(known), dtype=bool)
    xi = (
        _weigh_by_distance(cfg, products, others)
        if cfg.form == "attention"
        else _weigh_by_cosine(cfg, products, others)
    )
    np.fill_diagonal(xi, np.maximum(1 - xi.sum(axis=1), 0))
    return xi


def _weigh_by_distance(cfg: Config, products: Array, others: NDArray[np.bool_]) -> Array:
    squared = similarity.squared_distances(products)
    distances = squared[others & (squared > 0)]
    sigma = cfg.sigma or (float(np.median(distances)) if len(distances) else 1.0)
    slope = np.where(others, np.exp(-squared / sigma) / sigma, 0.0)
    largest = float(slope.sum(axis=1).max(initial=0))
    xi = slope * (cfg.alpha or (1 / largest if largest > 0 else 1.0))
    return np.asarray(xi / np.maximum(xi.sum(axis=1, keepdims=True), 1))


def _weigh_by_cosine(cfg: Config, products: Array, others: NDArray[np.bool_]) -> Array:
    cosine = np.where(others, similarity.cosines(products), -np.inf)
    share = np.where(
        others, np.exp((cfg.sigma or 10.0) * (cosine - np.max(cosine, axis=1, keepdims=True, initial=-1))), 0
    )
    total = share.sum(axis=1, keepdims=True)
    equal_weight = np.where(others.any(axis=1), 1 / (others.sum(axis=1) + 1), 1)
    self_weight = equal_weight if cfg.self_weight is None else cfg.self_weight
    shares = np.divide(share, total, out=np.zeros_like(share), where=total > 0)
    return np.asarray(shares * (1 - np.broadcast_to(self_weight, len(share)))[:, None])
