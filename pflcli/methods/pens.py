"""PENS: peers find neighbours by trying others' models on their own samples and counting who does well.

Onoszko et al. (2021), https://arxiv.org/abs/2107.08517. First a client receives the models of n random others, averages
its own with the m that have the lowest loss on its training samples, and counts whom it asked and whom it took. Those
taken more often than chance would have it, m of n times they were asked, are its neighbours; after that it averages
with random ones of these. A client without any goes on asking. In the paper models wander at times of their own; here
in rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray

from pflcli.fl import peers
from pflcli.fl.peers import State
from pflcli.fl.run import Predictor, Run

KIND = "peer"
NEEDS = ()
PERSONAL = "model"
PAPER = "PENS"
YEAR = 2021

_TRIED = 512
"""Samples at most on which a client tries others' models, the same for all of a round."""


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    n: Annotated[int, Ge(1)] = 10
    """others to ask in a round of the first stage"""
    m: Annotated[int, Ge(1)] = 2
    """of these, how many to average with"""
    t1: Annotated[int, Ge(0)] = 0
    """rounds of the first stage; 0 takes half of the rounds"""
    partners: Annotated[int, Ge(1)] = 2
    """neighbours to average with in a round of the second stage"""
    uniform: bool = False
    """average without regard to numbers of samples"""
    newcomer_epochs: Annotated[int, Ge(0)] = 5
    """local epochs, when they personalize, of clients that never took part and so train alone"""

    def __post_init__(self) -> None:
        if self.m > self.n:
            raise ValueError(f"m={self.m} models cannot be taken of the n={self.n} that are asked for")


def setup(run: Run) -> State:
    """Return every client's models, and how often it took which others, and would have by chance: never as yet."""
    never = torch.zeros((len(run.clients), len(run.clients)), dtype=torch.float64)
    return {**peers.setup(run), "chance": never, "taken": never.to(torch.int32)}


def train_round(run: Run, state: State, t: int) -> State:
    """Train; ask and count, or turn to neighbours; average."""
    cohort, cfg = run.cohort(t), run.cfg
    reachable = peers.train(run, state, cohort, t)
    chance, taken = (state[name].cpu().numpy().copy() for name in ("chance", "taken"))
    first = t < (cfg.t1 or run.settings.rounds // 2)
    asked, partners = {}, np.zeros((len(cohort), len(run.clients)), dtype=bool)
    for place, i in enumerate(cohort.tolist()):
        neighbours = np.flatnonzero(_often(taken[i], chance[i]))
        if first or not len(neighbours):
            asked[i] = peers.drawn(run.rng("asked", t, i), reachable[reachable != i], cfg.n)
        else:
            partners[place, peers.drawn(run.rng("neighbours", t, i), neighbours, cfg.partners)] = True
    for i, loss in peers.losses(run, state, asked, _TRIED, t).items():
        best = asked[i][np.argsort(loss, kind="stable")[: cfg.m]]
        chance[i, asked[i]] += len(best) / max(len(loss), 1)
        taken[i, best] += 1
        partners[np.searchsorted(cohort, i), best] = True
        run.send("peer", run.init, copies=len(loss) - len(best))
    run.send("peer", run.init, copies=int(partners.sum()))
    peers.average(run, state, cohort, partners, uniform=cfg.uniform)
    counts = {"chance": torch.from_numpy(chance), "taken": torch.from_numpy(taken)}
    return {**state, **counts, "graph": peers.recorded(state["graph"], _often(taken, chance))}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Answer with each client's own model."""
    return peers.predictor(run, state, clients, run.cfg.newcomer_epochs)


def _often(taken: NDArray[np.int32], chance: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether others were taken more often than by chance, whose sums of fractions are not exact."""
    return np.asarray(taken > chance + 1e-6)
