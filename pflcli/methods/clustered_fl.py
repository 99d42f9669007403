"""Clustered FL: splits the federation into clusters where clients' updates point in different directions.

Sattler et al. (2020), https://arxiv.org/abs/1910.01991. All clients begin in one cluster, which runs FedAvg. If the
mean update of a cluster is small while the update of one of its clients is large, the cluster has converged to a
compromise between different objectives. It is then split in two by the cosines of the updates. Both halves start from
the same model, and may be split again.

By default, the thresholds for small and large are relative to the largest update of the cluster. Deviations from the
paper:

- `gap` (an extension; 0 turns it off) requires that updates are more similar within the halves than between them.
  Updates of clients with few samples differ by noise alone, and without `gap` clients of the same kind are split again
  and again.
- Clusters are split by complete linkage, as in the authors' code. `linkage=single` is the paper's Algorithm 1.
- The paper has all clients in every round. Here each client is judged by its last update.
- A client that joins after a split receives all models, and takes the one with the lowest loss on its training samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray

from pflcli.method import ModelTable, Predictor, Run, Stacked, TrainedClients, model_algebra, parameters, similarity
from pflcli.methods.parts import clusters

KIND = "server"
NEEDS = ()
PERSONAL_MODELS = "cluster"
PAIRS_KEPT = 8  # inner products of updates
SENDS_MORE = "models, of which the server takes a mean per cluster"
PAPER = "Clustered FL"
YEAR = 2020
TASKS = ("any",)
SERVES = ("models", "update", "largest")
RECORDS = ("cluster",)

State = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    thresholds: Literal["relative", "absolute"] = "relative"
    """read eps1 as a fraction of the cluster's largest update and eps2 of its largest mean update so far
    (relative), or both as norms (absolute)"""
    eps1: Annotated[float, Ge(0)] | None = None
    """split a cluster only if its mean update is shorter than this; 0 never splits, which is FedAvg; none uses 0.4"""
    eps2: Annotated[float, Ge(0)] | None = None
    """split a cluster only if its largest update is longer than this; none uses 0.4, or as a norm the authors' 1.6"""
    warmup: Annotated[int, Ge(0)] = 20
    """split no cluster in this many first rounds"""
    gamma: Annotated[float, Ge(0), Le(1)] = 0.0
    """split only if sqrt((1 - s) / 2) is above this, s being the largest cosine between the halves; 0.7 requires
    s below 0.02"""
    gap: Annotated[float, Ge(0), Le(2)] = 0.1
    """split only if the mean cosine within the halves exceeds that between them by this; 0 is the paper's rule"""
    linkage: Literal["complete", "single"] = "complete"
    """split by complete linkage, or by single linkage as in the paper, which minimises the largest cosine between
    the halves"""


def setup(run: Run) -> State:
    """Return one model, the cluster of every client, none as yet (-1), and their last updates."""
    start = run.initial_model()
    update = run.table({name: torch.zeros_like(start[name]) for name in run.engine.parameters})
    cluster = torch.full((len(run.clients),), -1)
    return {"models": parameters.stack([start]), "cluster": cluster, "update": update, "largest": torch.zeros(())}


def train_round(run: Run, state: State, t: int) -> State:
    """Train a cohort from their clusters' models, average within clusters, then split those that disagree."""
    here, models, update = run.cohort(t), state["models"], state["update"]
    cluster, cohort = state["cluster"].cpu().numpy(), run.everyone(here)
    count, new = len(next(iter(models.values()))), cohort[cluster[cohort] < 0]
    run.send("down", run.init, copies=len(cohort) + (count - 1) * len(new))

    def store_updates(part: TrainedClients, initial: Stacked) -> None:
        update[part.clients] = {name: part.params[name] - initial[name] for name in update.default}

    models, cluster = clusters.train_and_average(run, models, here, cluster, t, on_upload=store_updates)
    return run.serve(lambda: _split_clusters(run, {**state, "models": models}, cluster, t), state)


def _split_clusters(run: Run, state: State, cluster: NDArray[np.int64], t: int) -> State:
    """Return the state after clusters whose clients disagree are split; ``cluster`` (m,) are those of the round."""
    models, update, largest = state["models"], state["update"], float(state["largest"])
    for c in range(len(next(iter(models.values())))):
        members = np.flatnonzero(cluster == c)
        leaving, norm = _split(run, members, update, largest, t)
        largest = max(largest, norm)
        if leaving.any():
            cluster[members[leaving]] = len(next(iter(models.values())))
            models = {name: torch.cat([value, value[c : c + 1]]) for name, value in models.items()}
    records = {"cluster": torch.from_numpy(cluster), "largest": torch.tensor(largest, dtype=torch.float64)}
    return {"models": models, "update": update, **records}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with the model of each client's cluster; one that never took part takes that of the lowest loss."""
    models, _ = clusters.receive_models(run, state["models"], clients, state["cluster"].cpu().numpy())
    return run.predictor(clients, clusters.stack_received(run, models, clients))


def _split(
    run: Run, members: NDArray[np.int64], update: ModelTable, largest: float, t: int
) -> tuple[NDArray[np.bool_], float]:
    """Return which members (n,) leave a cluster, nobody if it stays whole, and the norm of its mean update.

    ``update`` has the members' last updates, ``largest`` is that norm at its largest so far.
    """
    cfg, no_client = run.cfg, np.zeros(len(members), dtype=bool)
    share = run.declared[members] / max(run.declared[members].sum(), 1)
    names, room = run.engine.parameters, run.engine.clients_that_fit(parameters.size(run.init))
    mean, norms = similarity.norms(update, members, names, room, share)
    longest = float(norms.max(initial=0))
    relative = cfg.thresholds == "relative"
    eps1 = (0.4 if cfg.eps1 is None else cfg.eps1) * (longest if relative else 1)
    eps2 = ((0.4 if relative else 1.6) if cfg.eps2 is None else cfg.eps2) * (max(largest, mean) if relative else 1)
    if t < cfg.warmup or len(members) <= 2 or mean >= eps1 or longest <= eps2:
        return no_client, mean
    cosine = similarity.cosines(model_algebra.gram_matrix(update, members, names, room))
    leaving = similarity.bipartition(cosine, cfg.linkage)
    between = cosine[np.ix_(leaving, ~leaving)]
    within = cosine[(leaving[:, None] == leaving) & ~np.eye(len(leaving), dtype=bool)]
    unlike = not cfg.gap or within.mean() - between.mean() >= cfg.gap
    return leaving if unlike and np.sqrt((1 - between.max()) / 2) > cfg.gamma else no_client, mean
