"""FedAttn: computes each client's biases by attention over its nearest neighbours, on top of a global model.

Luo, Panchal & Guan (2022), "Personalized Federated Learning through Collaboration with Nearest Neighbors" (report,
University of Massachusetts), Algorithm 1. The server stores the biases M of each client and its representation Z, the
mean input of the head over its training samples. A client downloads the global model with the biases softmax((W_K
Z_N)(W_Q Z_i) / sqrt(d_k)) W_V M_N, where N are the k clients with the nearest Z. The server averages the uploads to the
global model as in FedAvg. It trains W_Q, W_K and W_V by the difference between the biases that it sent and received,
which takes the place of a gradient.

As written in the report (``form=faithful``), biases pass through W_V in every round. Once its spectral radius exceeds
1, they grow geometrically, and accuracy collapses. The report shows this, and proposes to pull biases towards the
global ones (``mu_g``) and those of the neighbours (``mu_n``), and to begin with rounds of FedAvg (``warmup``). By
default (``guarded``), W_V is the identity, which cannot amplify; the server stores the offsets of biases from the
global ones, and Z is normalized. Uploads that are not finite are rejected in either form.

``history`` in the state has one value for each round after the warm-up: ``rho``, the spectral radius of W_V;
``largest``, the largest bias sent; ``rejected``, the number of rejected uploads; ``validation``, the accuracy of the
models as sent (-1 without validation samples).

To judge the attention, compare with ``k=1`` (private biases) and the controls of ``fedattn-extended``. By default
clients attend to several neighbours, as in the paper. If clients have few classes each, private biases are better: 87.1
against 82.0 % (validation accuracy, Fashion-MNIST, Dirichlet 0.1, mean of eight runs). On writers both are equally
good.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pflcli.method import Diverged, Mean, Params, Predictor, Run, Stacked, TrainedClients, parameters
from pflcli.methods.parts import bias_attention, records
from pflcli.methods.parts.bias_attention import BiasAttention, BiasLayout, Neighbourhood, find_nearest_others
from pflcli.methods.parts.server_optimizer import adam_moments, adam_step

KIND = "server"
NEEDS = ()
PERSONAL_MODELS = "z"
SENDS_MORE = "biases and representations"
PAPER = "FedAttn"
YEAR = 2022
TASKS = ("any",)
RECORDS = ("history",)
GRID = {"server_lr": (0.003, 0.01, 0.03)}

State = dict[str, Any]
FindNeighbours = Callable[[Run, State, NDArray[np.int64]], Neighbourhood]


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    form: Literal["guarded", "faithful"] = "guarded"
    """use offsets of biases, a normalized Z and W_V fixed to the identity, which cannot collapse (guarded), or raw
    biases, the raw Z and a random initial W_V (faithful)"""
    k: Annotated[int, Ge(1)] = 5
    """attend to this many neighbours, the client itself included; 1 gives private biases"""
    key_size: Annotated[int, Ge(1)] = 64
    """give W_Q and W_K this many rows (d_k), at most the size of a representation"""
    server_lr: Annotated[float, Gt(0)] = 0.01
    """train the attention with this learning rate (Adam)"""
    mu_g: Annotated[float, Ge(0)] = 0.0
    """pull biases to the global ones with this weight in local training"""
    mu_n: Annotated[float, Ge(0)] = 0.0
    """pull biases to the mean of the neighbours' biases with this weight in local training"""
    warmup: Annotated[int, Ge(0)] = 0
    """run this many rounds of FedAvg before biases become personal"""

    def build_attention(self, layout: BiasLayout) -> BiasAttention:
        """Return the attention over the biases of a ``layout``: W_V is the identity if guarded, else a full matrix."""
        is_guarded = self.form == "guarded"
        return BiasAttention(layout, is_guarded, "identity" if is_guarded else "full")


def setup(run: Run) -> State:
    """Return the common initial model and attention; no client has stored biases or a representation yet."""
    attention, d_z = _attention(run), run.representation_size
    theta = attention.initialize(min(run.cfg.key_size, d_z), d_z, run.rng("attention"))
    return {
        "global": run.initial_model(),
        "z": run.table({"z": torch.zeros(d_z)}),
        "biases": run.table({"biases": torch.zeros(attention.layout.size)}),
        "attention": theta,
        "adam": adam_moments(theta),
        "history": {name: torch.zeros(0) for name in ("rho", "largest", "rejected", "validation")},
    }


def train_round(run: Run, state: State, t: int, find: FindNeighbours | None = None) -> State:
    """Send a cohort personal models; train the global model and the attention by the uploads.

    ``find`` returns the neighbours of clients, by default the nearest ones.
    """
    cfg, cohort, start = run.cfg, run.cohort(t), state["global"]
    if t < cfg.warmup:
        start = run.download(start, cohort)
        return {**state, "global": run.average(run.local_sgd(cohort, start, t=t), start)}
    state = {**state, **parameters.on_cpu({name: state[name] for name in ("attention", "adam", "history")})}
    attention, layout = _attention(run), _attention(run).layout
    global_biases, neighbours = layout.flatten(start), (find or find_neighbours)(run, state, cohort)
    theta = {name: value.clone().requires_grad_() for name, value in state["attention"].items()}
    personal = attention.attend(theta, neighbours, global_biases)  # (n, d)
    models = {**parameters.repeat(start, len(cohort)), **layout.unflatten(personal)}
    # Rounded as they are sent, so that a bias that training does not move has a gradient of zero: Adam would turn the
    # rounding error into a step.
    sent_biases = layout.flatten(models)
    _count_bytes(run, state, cohort)
    history = _extend_history(run, state, cohort, models)

    mean, received, weight = Mean(), sent_biases.clone(), torch.zeros(len(cohort), dtype=torch.float64)
    representations = torch.zeros(neighbours.z.shape)
    pull = _pull(run, neighbours, global_biases)
    try:
        for part in run.local_sgd(cohort, models, t=t, also_upload=lambda part: _represent(run, part), **pull):
            positions = np.searchsorted(cohort, part.clients)
            mean.add({name: part.params[name] for name in start}, part.weights)
            weight[positions] = torch.from_numpy(part.weights)
            received[positions], representations[positions] = layout.flatten(part.params), part.params["z"].cpu()
    except Diverged as collapse:
        if cfg.form != "faithful" or len(collapse.clients) < len(cohort):
            raise
        run.attendance.rejected = {*run.attendance.diverged, *collapse.clients}  # the run goes on, to show the collapse
        history["rejected"][-1] += len(collapse.clients)
        return {**state, "history": history}
    change = (weight / weight.sum())[:, None] * (sent_biases - received)  # the pseudo-gradient
    new_biases = global_biases - change.sum(dim=0)
    state["z"][cohort] = {"z": representations}
    # If guarded, stored offsets move with the global biases.
    state["biases"][cohort] = {"biases": (received - attention.origin(new_biases)).float()}
    model = {**mean.value(), **layout.unflatten(new_biases)}
    grads = attention.differentiate(theta, personal, change)
    after, moments = adam_step(state["attention"], grads, state["adam"], cfg.server_lr)
    return {**state, "global": model, "attention": after, "adam": moments, "history": history}


def personalize(run: Run, state: State, clients: NDArray[np.int64], find: FindNeighbours | None = None) -> Predictor:
    """Predict with the global model under each client's biases, computed as in a round."""
    start, layout = state["global"], _attention(run).layout
    if not len(state["z"].written):
        return run.predictor(clients, start)
    global_biases, neighbours = layout.flatten(start), (find or find_neighbours)(run, state, clients)
    personal = _attention(run).attend(parameters.on_cpu(state["attention"]), neighbours, global_biases)
    # A client without samples has no representation; biases beyond float32 would make a model useless.
    usable = torch.from_numpy(run.federation.sizes("train")[clients] > 0) & personal.float().isfinite().all(dim=1)
    personal = torch.where(usable[:, None], personal, global_biases)
    return run.predictor(clients, {**parameters.repeat(start, len(clients)), **layout.unflatten(personal)})


def _attention(run: Run) -> BiasAttention:
    """Return the attention of the run by its options."""
    layout = run.once("layout of biases", lambda: BiasLayout(run.init, run.engine.parameters))
    attention: BiasAttention = run.cfg.build_attention(layout)
    return attention


def find_neighbours(
    run: Run, state: State, clients: NDArray[np.int64], choose: Callable[..., NDArray[np.int64]] = find_nearest_others
) -> Neighbourhood:
    """Return the neighbours of each client, itself the first, and what the server knows of them.

    ``choose`` returns the ids of the others.
    """
    stored, memory, count = state["z"].written, state["biases"], min(run.cfg.k, len(run.clients)) - 1
    z, own_biases = _recall(run, state, clients)
    stored_z = state["z"][stored]["z"].cpu()
    if run.cfg.form == "guarded":
        z, stored_z = (functional.layer_norm(rows, rows.shape[1:]) for rows in (z, stored_z))
    z = torch.nan_to_num(z, nan=0.0, posinf=0.0, neginf=0.0)  # a new client's samples may overflow the global model
    ids = choose(stored, stored_z.numpy(), clients, z.numpy(), count)
    exists = torch.from_numpy(ids >= 0)
    row = torch.from_numpy(np.searchsorted(stored, np.maximum(ids, 0)))
    keys = torch.cat([stored_z, stored_z.new_zeros(1, stored_z.shape[1])])[torch.where(exists, row, -1)]
    values = memory[np.maximum(ids, 0).ravel()]["biases"].cpu().double().view(*ids.shape, own_biases.shape[1])
    keys, values = torch.cat([z[:, None], keys], dim=1), torch.cat([own_biases[:, None], values], dim=1)
    exists = torch.cat([exists.new_ones(len(clients), 1), exists], dim=1)
    return Neighbourhood(z.double(), keys.double(), values, exists)


def _recall(run: Run, state: State, clients: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Return the clients' representations (n, d_z) and biases (n, d); without stored ones, by the global model."""
    start, is_new = state["global"], ~np.isin(clients, state["z"].written)
    z, own_biases = state["z"][clients]["z"].cpu(), state["biases"][clients]["biases"].cpu().double()
    if is_new.any():
        z[is_new] = run.engine.represent(clients[is_new], parameters.repeat(start, int(is_new.sum())), "train").cpu()
        global_biases = _attention(run).layout.flatten(start)
        own_biases[is_new] = global_biases - _attention(run).origin(global_biases)
    return z, own_biases


def _count_bytes(run: Run, state: State, cohort: NDArray[np.int64]) -> None:
    """Count a model with personal in place of global biases sent down, and a model and Z sent up.

    New clients first download the whole global model and upload their Z. Pulls also need the biases of their anchor.
    """
    cfg, new_clients = run.cfg, int((~np.isin(cohort, state["z"].written)).sum())
    anchors = len(cohort) if cfg.mu_g + cfg.mu_n else 0
    run.send("down", state["global"], copies=len(cohort))
    run.send("down", state["biases"].default, copies=new_clients + anchors)
    run.send("up", state["global"], copies=len(cohort))
    run.send("up", state["z"].default, copies=len(cohort) + new_clients)


def _represent(run: Run, part: TrainedClients) -> Stacked:
    """Return the representations that trained clients upload."""
    return {"z": run.engine.represent(part.clients, part.params, "train")}


def _pull(run: Run, neighbours: Neighbourhood, global_biases: Tensor) -> dict[str, Any]:
    """Return options of local training that pull biases to the global ones and to the neighbours' mean, if any."""
    cfg, mu, attention = run.cfg, run.cfg.mu_g + run.cfg.mu_n, _attention(run)
    if not mu:
        return {}
    neighbour_mean = neighbours.mean_values() + attention.origin(global_biases)
    # Two pulls equal one, by their sum, to the point between.
    anchor = attention.layout.unflatten((cfg.mu_g * global_biases + cfg.mu_n * neighbour_mean) / mu)
    return {
        "objective": bias_attention.pulled_loss,
        "own": anchor,
        "shared": {"mu": torch.tensor(mu, device=run.federation.y.device)},
    }


def _extend_history(run: Run, state: State, cohort: NDArray[np.int64], models: Stacked) -> Params:
    """Return the history with the values of this round, in which the ``models`` (n, ...) are sent to the cohort."""
    theta, biases = state["attention"], _attention(run).layout.flatten(models)
    rho = bias_attention.spectral_radius(theta["v"]) if "v" in theta else 1.0
    values = {
        "rho": rho,
        "largest": float(biases.abs().max()),
        "rejected": float(len(run.attendance.diverged)),
        "validation": records.share_of_correct(run.is_correct(cohort, models, "validation")),
    }
    return records.extend_history(state["history"], values)
