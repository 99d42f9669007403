"""pFedGP: a common embedding network; every client classifies by Gaussian processes over its own samples.

Achituve et al. (2021), https://arxiv.org/abs/2106.15482, the full variant (section 4). The classes of a client form a
binary tree, by k-means on their mean embeddings. Each inner node is a two-class Gaussian process on L2-normalized
embeddings, whose posterior is drawn by Gibbs sampling with Pólya-Gamma augmentation. In a round, the cohort downloads
the body, takes a few steps on the predictive likelihood (of one half of each class given the other half), and uploads
it. The server takes the unweighted mean. The paper trains with `--lr 0.05 --momentum 0.9 --weight-decay 0.001` and
clips gradients at norm 50, for which `--clip-gradients 50` stands.

A class of which a client has no sample gets 1 / (n + C), by the rule of succession, where n is the number of its
samples and C the number of classes; its tree distributes the rest. A client without samples therefore predicts 1 / C
for each class. A client without two classes, or without two samples of any class, cannot train the body and uploads
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from pflcli import parameters
from pflcli.engine.gradients import StackedBatch, StackedNetwork
from pflcli.federation.run import Predictor, Run
from pflcli.methods.parts import class_tree
from pflcli.methods.parts.gaussian_process import Prior, probabilities
from pflcli.methods.parts.tree_likelihood import losses_and_gradients
from pflcli.parameters import Params, Stacked

KIND = "server"
NEEDS = ()
ADAPTS = True
PAPER = "pFedGP"
YEAR = 2021

State = dict[str, Params]


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    steps: Annotated[int, Ge(1)] = 3
    """pass over a client's samples this many times per round; a pass is one step if they fit into one minibatch"""
    batch_size: Annotated[int, Ge(2)] = 512
    """use this many samples per step instead of --batch-size; time grows with its cube"""
    capacity: Annotated[int, Ge(2)] = 1000
    """predict from at most this many training samples per client, a stratified draw if it has more; time grows
    with its cube"""
    scale: Annotated[float, Gt(0)] = 8.0
    """use this variance of the GP"""
    length: Annotated[float, Gt(0)] = 1.0
    """use this length scale of the RBF kernel, between embeddings of norm 1"""
    chains: Annotated[int, Ge(1)] = 20
    """run this many Gibbs chains in training"""
    answer_chains: Annotated[int, Ge(1)] = 30
    """run this many Gibbs chains for predictions"""
    sweeps: Annotated[int, Ge(1)] = 5
    """take this many Gibbs steps per chain"""

    def prior(self, chains: int) -> Prior:
        """Return the GP of an inner node."""
        return Prior(scale=self.scale, length=self.length, chains=chains, sweeps=self.sweeps)


def setup(run: Run) -> State:
    """Return the common initial body."""
    return {"body": parameters.part(run.initial_model(), "body.")}


def train_round(run: Run, state: State, t: int) -> State:
    """Train the body of each client of a cohort through its own tree, and average the bodies."""
    cohort = run.cohort(t)
    body = run.download(state["body"], cohort)
    labels = {client: run.federation.labels_of(np.asarray([client]), "train") for client in cohort.tolist()}
    trainable = np.asarray([client for client, y in labels.items() if 1 < len(np.unique(y)) < len(y)], dtype=np.int64)
    models, mean = parameters.repeat({**run.init, **body}, len(trainable)), run.averaging(body)
    outputs = (
        run.engine.outputs_each(trainable, models, "train", features=True, compiled=True) if len(trainable) else []
    )
    trees = [
        class_tree.build(_unit(z).cpu().numpy(), labels[client], run.federation.classes, run.rng("tree", t, client))
        for client, (_, z) in zip(trainable.tolist(), outputs, strict=True)
    ]
    trained = run.local_sgd(
        trainable,
        models,
        t=t,
        epochs=run.cfg.steps,
        batch_size=run.cfg.batch_size,
        gradient=partial(gradients, run.cfg.prior(run.cfg.chains)),
        trainable="body.",
        own={"tree": torch.from_numpy(np.asarray(trees)).to(run.federation.y.device)},
    )
    for part in trained if len(trainable) else ():
        mean.add({name: part.params[name] for name in body}, np.ones(len(part.clients)), part.clients)
    return {"body": mean.value()} if mean.is_defined else state


def gradients(prior: Prior, network: StackedNetwork, params: Stacked, batch: StackedBatch) -> tuple[Tensor, Stacked]:
    """Return the losses (a,) of clients by their trees, see ``tree_likelihood``, and their gradients (a, ...)."""
    outputs = network.forward(params, batch.x, batch.weight)
    sizes = (batch.weight > 0).sum(dim=1).tolist()
    losses, by_z = losses_and_gradients(prior, batch.own["tree"], outputs.z, batch.y, sizes, batch.draws)
    return losses, network.descend(params, batch, outputs, None, by_z)


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Answer with each client's tree over its own samples, embedded by the common body."""
    splits = run.predicted_splits
    data, embedded = run.federation, []
    for client in clients:
        train_rows = data.rows(int(client), "train")
        query_rows = [data.rows(int(client), split) for split in splits]
        embedded.append([_embedded(run, state["body"], rows) for rows in (train_rows, *query_rows)])

    def answer(index: int) -> list[NDArray[np.float32]]:
        client, (z, *query_z) = int(clients[index]), embedded[index]
        p = _probabilities(run, z, data.y[data.block(client, "train")], torch.cat(query_z), run.rng("answer", client))
        return [piece.numpy() for piece in torch.split(p.float().cpu(), [len(part) for part in query_z])]

    pieces_of = run.engine.each(answer, len(clients))
    predictions = {split: np.concatenate(pieces) for split, *pieces in zip(splits, *pieces_of, strict=True)}
    return Predictor(lambda split: {"p": predictions[split]}, splits)


def _embedded(run: Run, body: Params, rows: NDArray[np.int64]) -> Tensor:
    """Return normalised embeddings (n, d); rows of one client at a time, whose bits do not depend on its company.

    A sample under which the network overflows has zeros.
    """
    return _unit(run.engine.infer({**run.init, **body}, rows, features=True)[1])


def _unit(z: Tensor) -> Tensor:
    z = normalize(z, dim=1)
    return torch.where(z.isfinite().all(dim=1, keepdim=True), z, 0.0)


def _probabilities(run: Run, z: Tensor, y: Tensor, queries: Tensor, rng: np.random.Generator) -> Tensor:
    """Return the probabilities (q, C) of ``queries`` (q, d), given one client's samples ``z`` (n, d), ``y`` (n,)."""
    classes, labels = run.federation.classes, y.cpu().numpy()
    tree = torch.from_numpy(class_tree.build(z.cpu().numpy(), labels, classes, rng)).to(y.device)
    rows = torch.from_numpy(class_tree.stratified(labels, run.cfg.capacity, rng)).to(y.device)
    prior = run.cfg.prior(run.cfg.answer_chains)
    positive = queries.new_full((len(queries), len(tree)), 0.5, dtype=torch.float64)
    for row, node in enumerate(tree if len(queries) else ()):
        below = rows[node[y[rows]] != 0]
        if len(below):
            positive[:, row] = probabilities(prior, z[below], node[y[below]], queries, rng)
    return class_tree.leaves(tree, positive, torch.bincount(y, minlength=classes))
