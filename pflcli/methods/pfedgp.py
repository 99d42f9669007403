"""pFedGP: clients share an embedding network, and each classifies by Gaussian processes over its own samples.

Achituve et al. (2021), https://arxiv.org/abs/2106.15482, the full variant (section 4). A client's classes form a binary
tree, which k-means on their mean embeddings builds. Each inner node is a two-class Gaussian process on L2-normalized
embeddings, whose posterior is drawn by Gibbs sampling with Pólya-Gamma augmentation. In a round, the cohort downloads
the body, takes a few steps on the predictive likelihood (of one half of each class given the other half), and uploads
the body. The server takes the unweighted mean. The paper trains with `--lr 0.05 --momentum 0.9 --weight-decay 0.001`,
and clips gradients at norm 50 (`--clip-gradients 50`).

A class of which a client has no sample gets the probability 1 / (n + C), by the rule of succession, where n is the
client's number of samples and C the number of classes; the tree distributes the rest. A client without samples
therefore predicts 1 / C for each class. A client with a single class, or without two samples of any class, cannot train
the body and uploads nothing.

A quantity needs neither trees nor sampling: each client regresses by one exact Gaussian process
(``parts/gaussian_process_regression.py``), which the paper leaves out. Training uses the predictive likelihood of every
second sample given the others; variances are those of the largest marginal likelihood. A client with fewer than four
samples cannot train the body. Counts have no exact posterior.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Gt
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from pflcli.method import Params, Predictor, Run, Stacked, StackedBatch, StackedNetwork, parameters
from pflcli.methods.parts import gaussian_process_regression
from pflcli.methods.parts.gaussian_process_tree import Prior, build_trees, losses_and_gradients, predict_classes

KIND = "server"
NEEDS = ()
DIVIDES = True
ADAPTS = True
PAPER = "pFedGP"
YEAR = 2021
TASKS = ("classes", "quantity")
IGNORES = ("epochs", "steps", "batch_size")  # its own options stand for them

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
    """use this variance of the Gaussian process of classes"""
    length: Annotated[float, Gt(0)] = 1.0
    """use this length scale of the RBF kernel, between embeddings of norm 1"""
    chains: Annotated[int, Ge(1)] = 20
    """run this many Gibbs chains in training on classes"""
    answer_chains: Annotated[int, Ge(1)] = 30
    """run this many Gibbs chains for predictions of classes"""
    sweeps: Annotated[int, Ge(1)] = 5
    """take this many Gibbs steps per chain"""

    def prior(self, chains: int) -> Prior:
        """Return the Gaussian process of an inner node, sampled by this many chains."""
        return Prior(scale=self.scale, length=self.length, chains=chains, sweeps=self.sweeps)


def setup(run: Run) -> State:
    """Return the common initial body."""
    return {"body": parameters.part(run.initial_model(), "body.")}


def train_round(run: Run, state: State, t: int) -> State:
    """Train the body of each client of a cohort through its own tree, and average the bodies."""
    cohort = run.cohort(t)
    body = run.download(state["body"], cohort)
    labels = {client: run.federation.labels_of(np.asarray([client]), "train") for client in cohort.tolist()}
    is_quantity = run.task.kind == "quantity"
    trainable = np.asarray([client for client, y in labels.items() if _can_train(y, is_quantity)], dtype=np.int64)
    models, mean = parameters.repeat({**run.init, **body}, len(trainable)), run.averaging(body)
    how: dict[str, Any] = {"gradient": partial(regression_gradients, run.cfg.length)}
    if not is_quantity:
        trees = _build_trees(run, trainable, models, [labels[client] for client in trainable.tolist()], t)
        how = {"gradient": partial(gradients, run.cfg.prior(run.cfg.chains)), "own": {"tree": trees}}
    trained = run.local_sgd(
        trainable, models, t=t, epochs=run.cfg.steps, batch_size=run.cfg.batch_size, trainable="body.", **how
    )
    for part in trained if len(trainable) else ():
        mean.add({name: part.params[name] for name in body}, np.ones(len(part.clients)), part.clients)
    return {"body": mean.value()} if mean.is_defined else state


def _can_train(y: NDArray[Any], is_quantity: bool) -> bool:
    """Return whether a client with these labels has samples to predict from others."""
    if is_quantity:
        return len(y) >= gaussian_process_regression.MIN_SAMPLES
    return 1 < len(np.unique(y)) < len(y)


def _build_trees(
    run: Run, clients: NDArray[np.int64], models: Stacked, labels: list[NDArray[np.int64]], t: int
) -> Tensor:
    """Return the tree of each client over its classes, by the embeddings of its model."""
    outputs = run.engine.outputs_each(clients, models, "train", features=True) if len(clients) else []
    trees = build_trees(
        [_normalize(z).cpu().numpy() for _, z in outputs],
        labels,
        run.federation.classes,
        [run.rng("tree", t, client) for client in clients.tolist()],
    )
    return torch.from_numpy(trees).to(run.federation.y.device)


def gradients(prior: Prior, network: StackedNetwork, params: Stacked, batch: StackedBatch) -> tuple[Tensor, Stacked]:
    """Return the losses (a,) of clients by their trees, and their gradients (a, ...)."""
    outputs = network.forward(params, batch.x, batch.weight)
    sizes = (batch.weight > 0).sum(dim=1).tolist()
    losses, by_z = losses_and_gradients(prior, batch.own["tree"], outputs.z, batch.y, sizes, batch.draws)
    return losses, network.backward(outputs, None, by_z)


def regression_gradients(
    length: float, network: StackedNetwork, params: Stacked, batch: StackedBatch
) -> tuple[Tensor, Stacked]:
    """Return the losses (a,) of clients by their Gaussian processes, and their gradients (a, ...)."""
    outputs = network.forward(params, batch.x, batch.weight)
    sizes = (batch.weight > 0).sum(dim=1).tolist()
    y = _standardize(batch.task, batch.y)
    losses, by_z = gaussian_process_regression.losses_and_gradients(length, outputs.z, y, sizes)
    return losses, network.backward(outputs, None, by_z)


def _standardize(task: Any, y: Tensor) -> Tensor:
    """Return labels in deviations from the mean of all training labels."""
    standardized: Tensor = (y - task.mean) / task.deviation
    return standardized


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with each client's tree over its own samples, embedded by the common body."""
    data, cfg, splits = run.federation, run.cfg, run.predicted_splits
    prior, embedded, is_quantity = cfg.prior(cfg.answer_chains), [], run.task.kind == "quantity"
    for client in clients:
        rows_by_split = [data.rows(int(client), split) for split in ("train", *splits)]
        embedded.append([_embed(run, state["body"], rows) for rows in rows_by_split])

    def predict(index: int) -> list[NDArray[np.float32]]:
        client, (z, *query_z) = int(clients[index]), embedded[index]
        y, draw = data.y[data.block(client, "train")], run.rng("answer", client)
        if is_quantity:
            rows = torch.from_numpy(np.sort(draw.permutation(len(y))[: cfg.capacity])).to(y.device)
            known = z[rows], _standardize(run.task, y[rows])
            outputs = gaussian_process_regression.predict(cfg.length, *known, torch.cat(query_z))
            p = torch.from_numpy(run.task.predict(outputs[:, None]))
        else:
            p = predict_classes(prior, z, y, torch.cat(query_z), data.classes, cfg.capacity, draw)
        return [piece.numpy() for piece in torch.split(p.float().cpu(), [len(part) for part in query_z])]

    pieces_by_client = run.engine.each(predict, len(clients))
    pieces_by_client.append([np.zeros((0, run.task.outputs), np.float32)] * len(splits))
    predictions = {split: np.concatenate(pieces) for split, *pieces in zip(splits, *pieces_by_client, strict=True)}
    return Predictor(lambda split: {"p": predictions[split]}, splits)


def _embed(run: Run, body: Params, rows: NDArray[np.int64]) -> Tensor:
    """Return normalized embeddings (n, d) of one client's rows, computed alone, so that other clients change no bit.

    A sample for which the network overflows gets zeros.
    """
    return _normalize(run.engine.infer({**run.init, **body}, rows, features=True)[1])


def _normalize(z: Tensor) -> Tensor:
    z = normalize(z, dim=1)
    return torch.where(z.isfinite().all(dim=1, keepdim=True), z, 0.0)
