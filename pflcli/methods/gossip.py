"""Gossip: each peer averages its model with those of random other peers.

After Hegedűs et al. (2019), "Gossip Learning as a Decentralized Alternative to Federated Learning",
https://doi.org/10.1007/978-3-030-22496-7_5, and the random baseline of PENS (Onoszko et al., 2021),
https://arxiv.org/abs/2107.08517, in rounds. A client trains, receives the models of k other clients drawn uniformly,
and averages them with its own. If k is the number of all others and all clients take part in every round, this is
FedAvg without a server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from pflcli.method import Predictor, Run
from pflcli.methods.parts import peers
from pflcli.methods.parts.peers import State

KIND = "peer"
NEEDS = ()
PERSONAL_MODELS = "model"
PAIRS_KEPT = 0.125  # the graph of neighbours
SENDS_MORE = "models to each other"
PAPER = "Gossip learning"
YEAR = 2019
TASKS = ("any",)
RECORDS = ("graph",)


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    k: Annotated[int, Ge(0)] = 5
    """average with this many other clients per round; 0 is training alone"""
    uniform: bool = False
    """average models with equal weights instead of weights by numbers of samples"""
    newcomer_epochs: Annotated[int, Ge(0)] = 5
    """train clients that never took part alone, for this many local epochs, when they personalize"""


def setup(run: Run) -> State:
    """Return every client's models."""
    return peers.setup(run)


def train_round(run: Run, state: State, t: int) -> State:
    """Train, receive k models, average."""
    cohort = run.cohort(t)
    reachable = peers.train(run, state, cohort, t)
    partners = [peers.draw_ids(run.rng("asked", t, i), reachable[reachable != i], run.cfg.k) for i in cohort]
    graph = peers.collect_graph(run, state, cohort, partners)
    run.relay(state["sent"], dict(zip(cohort.tolist(), partners, strict=True)))
    peers.average(run, state, cohort, partners, uniform=run.cfg.uniform)
    return {**state, "graph": graph}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with each client's own model."""
    return peers.predictor(run, state, clients, run.cfg.newcomer_epochs)
