"""PENS: peers select neighbours whose models often have a low loss on their own samples.

Onoszko et al. (2021), https://arxiv.org/abs/2107.08517. In the first stage, a client receives the models of n random
other clients, averages its own model with the m models that have the lowest loss on its training samples, and counts
how often it asked and selected each client. Its neighbours are the clients that it selected more often than by chance,
which is m of the n times that it asked them. In the second stage it averages with random neighbours. A client without
neighbours continues with the first stage. Models are exchanged in rounds; in the paper, asynchronously.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
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
PAPER = "PENS"
YEAR = 2021
TASKS = ("any",)
RECORDS = ("graph",)
KEEPS = ("pairs", "chance", "taken")

_MAX_TRIED_SAMPLES = 512
"""Maximum number of samples on which a client tries others' models; all models of a round use the same ones."""

_PAIR_STRIDE = 1 << 32
"""Distance between the numbers of the pairs of one client and the next."""


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    n: Annotated[int, Ge(1)] = 10
    """ask this many others per round in the first stage"""
    m: Annotated[int, Ge(1)] = 2
    """average with this many of those asked, the ones of lowest loss"""
    t1: Annotated[int, Ge(0)] = 0
    """let the first stage take this many rounds; 0 uses half of all rounds"""
    partners: Annotated[int, Ge(1)] = 2
    """average with this many neighbours per round in the second stage"""
    uniform: bool = False
    """average models with equal weights instead of weights by numbers of samples"""
    newcomer_epochs: Annotated[int, Ge(0)] = 5
    """train clients that never took part alone, for this many local epochs, when they personalize"""

    def __post_init__(self) -> None:
        if self.m > self.n:
            raise ValueError(f"m={self.m} models cannot be taken of the n={self.n} that are asked for")


def setup(run: Run) -> State:
    """Return every client's models, and for all ``pairs`` of a client and one that it asked the number of selections.

    The pair of client i with client j is the number i 2^32 + j. ``taken`` is how often i selected j, and ``chance`` how
    often it would have done so by chance.
    """
    pairs = {"pairs": torch.int64, "chance": torch.float64, "taken": torch.int32}
    return {**peers.setup(run), **{name: torch.zeros(0, dtype=kind) for name, kind in pairs.items()}}


def train_round(run: Run, state: State, t: int) -> State:
    """Train; ask random clients and count the selected ones, or ask neighbours; average."""
    cohort, cfg = run.cohort(t), run.cfg
    reachable = peers.train(run, state, cohort, t)
    exploring = t < (cfg.t1 or run.settings.rounds // 2)
    contacts, partners = {}, {}
    for i, neighbours in zip(cohort.tolist(), _select_neighbours(state, cohort), strict=True):
        if exploring or not len(neighbours):
            contacts[i] = peers.draw_ids(run.rng("asked", t, i), reachable[reachable != i], cfg.n)
        else:
            partners[i] = peers.draw_ids(run.rng("neighbours", t, i), neighbours, cfg.partners)
    run.relay(state["sent"], {i: contacts.get(i, cohort[:0]) for i in cohort.tolist()})
    pairs, chance, chosen = ([state[name].cpu().numpy()] for name in ("pairs", "chance", "taken"))
    for i, loss in peers.losses(run, state, contacts, _MAX_TRIED_SAMPLES, t).items():
        best = np.argsort(loss, kind="stable")[: cfg.m]
        partners[i] = contacts[i][best]
        pairs.append(i * _PAIR_STRIDE + contacts[i])
        chance.append(np.full(len(loss), len(best) / max(len(loss), 1)))
        chosen.append(np.isin(np.arange(len(loss)), best))
    distinct, index = np.unique(np.concatenate(pairs), return_inverse=True)
    sums = [np.bincount(index, np.concatenate(values), len(distinct)) for values in (chance, chosen)]
    counts = {
        "pairs": torch.from_numpy(distinct),
        "chance": torch.from_numpy(sums[0]),
        "taken": torch.from_numpy(sums[1].astype(np.int32)),
    }
    graph = peers.collect_graph(run, state, cohort, _select_neighbours(counts, cohort))
    run.relay(state["sent"], {i: ids[:0] if i in contacts else ids for i, ids in partners.items()})
    peers.average(run, state, cohort, [partners[i] for i in cohort.tolist()], uniform=cfg.uniform)
    return {**state, **counts, "graph": graph}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with each client's own model."""
    return peers.predictor(run, state, clients, run.cfg.newcomer_epochs)


def _select_neighbours(counts: State, clients: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the clients that each of ``clients`` selected more often than by chance."""
    pairs, chance, chosen = (counts[name].cpu().numpy() for name in ("pairs", "chance", "taken"))
    often = pairs[chosen > chance + 1e-6]  # sums of fractions are not exact
    spans = np.searchsorted(often, np.stack([clients, clients + 1], axis=1) * _PAIR_STRIDE)
    return [often[first:last] % _PAIR_STRIDE for first, last in spans]
