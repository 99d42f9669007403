"""FedHealth: a cloud model from public samples, FedAvg from there, then transfer to each client's own distribution.

Chen et al. (2020), https://arxiv.org/abs/1907.09173, Algorithm 1. The server trains a model on a public set, and FedAvg
continues from it. Finally each client fine-tunes the upper layers, with the lower ones frozen. Its loss is the
cross-entropy plus `weight` times the CORAL loss |C_own - C_public|^2 / (4 d^2) between the covariances of the d
features of its minibatch and of public samples (Sun & Saenko, 2016, https://arxiv.org/abs/1607.01719; divided by n
here, so that it is defined for a single sample).

If there is no public set, FedHAM (Gao et al., 2023) takes 10 % of every client's training samples for it, and so does
this implementation. These samples are sent to the server, and their inputs to every client; the bytes are counted.
Clients still train on them. Features are the input of the head. BatchNorm normalizes a minibatch together with the
public samples.

Clients that never took part are personalized in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray
from torch import Tensor

from pflcli.method import (
    Params,
    Pass,
    Predictor,
    Run,
    ServerDiverged,
    Stacked,
    StackedBatch,
    StackedNetwork,
    parameters,
)

KIND = "server"
NEEDS = ()
ADAPTS = True
PAIRS_SENT = "public samples"
SENDS_MORE = "samples"
PAPER = "FedHealth"
YEAR = 2020
TASKS = ("any",)
GRID = {"lr": (0.0, 0.02, 0.2)}

State = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    public: Annotated[float, Gt(0), Le(1)] = 0.1
    """put this share of each client's training samples into the public set, rounded up"""
    cloud_epochs: Annotated[int, Ge(0)] = 5
    """train the cloud model on the public set for this many epochs, before the rounds"""
    upper: Annotated[int, Ge(1)] = 2
    """train this many layers in transfer, counted from the last; 1 is the head, on which the CORAL loss has no
    effect"""
    weight: Annotated[float, Ge(0)] = 1.0
    """add the CORAL loss with this weight; 0 only fine-tunes the upper layers"""
    aligned: Annotated[int, Ge(1)] = 128
    """compare each step's features with those of this many public samples, drawn once"""
    epochs: Annotated[int, Ge(0)] = 5
    """train for this many local epochs in transfer"""
    lr: Annotated[float, Ge(0)] = 0.0
    """train with this learning rate in transfer; 0 uses that of the last round"""


def setup(run: Run) -> State:
    """Return the cloud model, trained on the public samples.

    If it diverges, it is trained again without the clients whose samples alone make it diverge; ``public`` are the
    remaining clients.
    """
    clients = run.federation.seen_clients
    rows = run.once("public", lambda: _draw_public_rows(run, clients))
    public_samples = {"x": run.federation.samples(rows), "y": run.federation.y[rows]}
    run.send("up", public_samples)
    run.send("down", {"x": public_samples["x"]}, copies=len(clients))
    try:
        return {"global": _train_cloud_model(run, rows)}
    except ServerDiverged:
        sound = np.asarray([client for client in clients if _is_trainable(run, client)], dtype=np.int64)
        if len(sound) in (0, len(clients)):
            raise
    run.attendance.rejected = set(clients.tolist()) - set(sound.tolist())
    return {"global": _train_cloud_model(run, _draw_public_rows(run, sound)), "public": torch.from_numpy(sound)}


def _train_cloud_model(run: Run, rows: NDArray[np.int64]) -> Params:
    """Return the cloud model of these samples."""
    return run.server_sgd(rows, run.initial_model(), t="cloud", epochs=run.cfg.cloud_epochs)


def _is_trainable(run: Run, client: int) -> bool:
    """Return whether the cloud model can be trained on the public samples of one client."""
    try:
        return bool(_train_cloud_model(run, _draw_public_rows(run, np.asarray([client]))))
    except ServerDiverged:
        return False


def train_round(run: Run, state: State, t: int) -> State:
    """Send the global model to a cohort, train locally, average what comes back."""
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    return {**state, "global": run.average(run.local_sgd(cohort, start, t=t), start)}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Fine-tune the upper layers on each client, aligned with the public samples."""
    if "public" in state:
        rows = run.once("sound", lambda: _draw_public_rows(run, state["public"].cpu().numpy()))
    else:
        rows = run.once("public", lambda: _draw_public_rows(run, run.federation.seen_clients))
    aligned = run.rng("aligned").permutation(len(rows))[: run.cfg.aligned]
    public = run.federation.inputs(torch.from_numpy(rows[aligned]))
    tuned = run.local_sgd(
        clients,
        parameters.repeat(state["global"], len(clients)),
        t="transfer",
        epochs=run.cfg.epochs,
        lr=run.cfg.lr or run.settings.lr_at(run.settings.rounds - 1),
        trainable=parameters.upper(run.init, run.cfg.upper),
        pass_rule=_passes,
        shared={"public": public, "weight": public.new_tensor(run.cfg.weight)},
    )
    return run.predictor(clients, tuned)


def _draw_public_rows(run: Run, clients: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows (n,) that these clients give to the public set; each client's draw is its own."""
    drawn = []
    for client in clients:
        rows = run.federation.rows(int(client), "train")
        count = math.ceil(run.cfg.public * len(rows))
        drawn.append(np.sort(run.rng("public", int(client)).choice(rows, size=count, replace=False)))
    return np.concatenate(drawn)


def _passes(network: StackedNetwork, params: Stacked, batch: StackedBatch) -> list[Pass]:
    """Return one pass over the public samples and, behind them, the client's own."""
    public = batch.shared["public"].expand(len(batch.x), *batch.shared["public"].shape)
    even = batch.weight.new_full(public.shape[:2], 1 / public.shape[1])
    labels = batch.y.new_zeros(public.shape[:2])  # not used
    joined = (torch.cat(both, dim=1) for both in ((public, batch.x), (labels, batch.y), (even, batch.weight)))
    x, y, weight = joined
    return [Pass(params, replace(batch, x=x, y=y, weight=weight), _losses)]


def _losses(logits: Tensor, z: Tensor, params: Mapping[str, Tensor], batch: StackedBatch) -> Tensor:
    """Return the cross-entropy of the own samples plus ``weight`` times the CORAL loss of both covariances."""
    count = len(batch.shared["public"])
    own = replace(batch, y=batch.y[:, count:], weight=batch.weight[:, count:])
    centred = torch.cat([_centre(z[:, :count], batch.weight[:, :count]), _centre(z[:, count:], own.weight)], dim=1)
    signed = torch.cat([-batch.weight[:, :count], own.weight], dim=1)
    # |sum_i s_i c_i c_i'|^2 = sum_ij s_i s_j (c_i' c_j)^2 needs no tensors of d x d
    apart = signed[:, None] @ (centred @ centred.mT).square() @ signed[..., None]
    coral = apart[:, 0, 0] / (4 * z.shape[2] ** 2)
    return own.loss(logits[:, count:]) + batch.shared["weight"] * coral


def _centre(z: Tensor, weight: Tensor) -> Tensor:
    """Return features (a, n, d) minus their means with weights (a, n) that add up to one."""
    return z - weight[:, None] @ z
