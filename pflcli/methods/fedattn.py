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

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pflcli.method import Diverged, Mean, Package, Packages, Params, Predictor, Run, Stacked, TrainedClients, parameters
from pflcli.methods.parts import bias_attention, records
from pflcli.methods.parts.bias_attention import BiasAttention, BiasLayout, Neighbourhood, find_nearest_others
from pflcli.methods.parts.server_optimizer import adam_moments, adam_step

KIND = "server"
NEEDS = ()
PERSONAL_MODELS = "z"
SERVES = ("z", "biases", "attention", "adam")
SENDS_MORE = "biases and representations"
PAPER = "FedAttn"
YEAR = 2022
TASKS = ("any",)
RECORDS = ("history",)
GRID = {"server_lr": (0.003, 0.01, 0.03)}

_ANCHOR = "anchor:"
"""The beginning of the names of what biases are pulled to, beside the biases."""

State = dict[str, Any]
FindNeighbours = Callable[[Run, State, NDArray[np.int64], Stacked], Neighbourhood]


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

    @property
    def mu(self) -> float:
        """Return the weight of both pulls."""
        return self.mu_g + self.mu_n

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
    here, start = run.cohort(t), state["global"]
    if t < run.cfg.warmup:
        start = run.download(start, here)
        return {**state, "global": run.average(run.local_sgd(here, start, t=t), start)}
    state = {**state, **parameters.on_cpu({name: state[name] for name in ("attention", "adam", "history")})}
    weights, biases = _attention(run).layout.divide(start)
    weights = run.download(weights, here)
    new = run.serve(lambda: state["z"].unwritten(run.everyone(here)), here[:0])
    own = _recall(run, state, here, new, weights)
    plan = run.serve(lambda: _plan(run, state, run.everyone(here), own, find or find_neighbours))
    like = _pack(biases, biases if run.cfg.mu else {})
    sent = list(run.deliver(lambda: [(plan.cohort, plan.packages)], here, like, rows=True))
    correct = run.collect(_measure(run, sent, weights), records.CORRECT, is_record=True)
    uploads = run.collect(_train(run, sent, weights, t), {**start, **state["z"].default})
    return run.serve(lambda: _learn(run, state, plan, correct, uploads), state)


@dataclass(frozen=True)
class _Plan:
    """What the server computes for a cohort (n,): their ``personal`` biases (n, d), by the attention ``theta``.

    ``packages`` (n, ...) are these biases and, if there is a pull, its anchors, as clients receive them.
    """

    cohort: NDArray[np.int64]
    theta: Params
    personal: Tensor
    packages: Stacked


def _plan(run: Run, state: State, cohort: NDArray[np.int64], own: Stacked, find: FindNeighbours) -> _Plan:
    """Attend to the neighbours of a cohort."""
    cfg, attention, global_biases = run.cfg, _attention(run), _attention(run).layout.flatten(state["global"])
    neighbours = find(run, state, cohort, own)
    theta = {name: value.clone().requires_grad_() for name, value in state["attention"].items()}
    personal = attention.attend(theta, neighbours, global_biases)  # (n, d)
    anchor = {}
    if cfg.mu:
        neighbour_mean = neighbours.mean_values() + attention.origin(global_biases)
        # Two pulls equal one, by their sum, to the point between.
        anchor = attention.layout.unflatten((cfg.mu_g * global_biases + cfg.mu_n * neighbour_mean) / cfg.mu)
    return _Plan(cohort, theta, personal, _pack(attention.layout.unflatten(personal), anchor))


def _measure(run: Run, sent: Sequence[Package], weights: Params) -> Iterator[TrainedClients]:
    """Let clients measure the personal models that they receive."""
    for ids, package in sent:
        yield TrainedClients.untrained(ids, records.count_correct(run, ids, _join(run, weights, package)))


def _train(run: Run, sent: Sequence[Package], weights: Params, t: int) -> Iterator[TrainedClients]:
    """Let clients train the personal models that they receive, and represent their samples by them."""

    def represent(part: TrainedClients) -> Stacked:
        return {"z": run.engine.represent(part.clients, part.params, "train")}

    for ids, package in sent:
        pull: dict[str, Any] = {}
        if run.cfg.mu:
            mu = torch.tensor(run.cfg.mu, device=run.federation.y.device)
            anchor = parameters.unprefixed(package, _ANCHOR)
            pull = {"objective": bias_attention.pulled_loss, "own": anchor, "shared": {"mu": mu}}
        yield from run.local_sgd(ids, _join(run, weights, package), t=t, also_upload=represent, **pull)


def _learn(
    run: Run, state: State, plan: _Plan, correct: Iterable[TrainedClients], uploads: Iterable[TrainedClients]
) -> State:
    """Average the uploads, store biases and representations, and train the attention."""
    attention, cohort = _attention(run), plan.cohort
    # Rounded as they were sent, so that a bias that training does not move has a gradient of zero: Adam would turn the
    # rounding error into a step.
    sent_biases = attention.layout.flatten(plan.packages)
    history = _extend_history(run, state, sent_biases, records.share_of_correct(correct))
    mean, received, weight = Mean(), sent_biases.clone(), torch.zeros(len(cohort), dtype=torch.float64)
    representations = state["z"][cohort]["z"].cpu()
    try:
        for part in uploads:
            positions = np.searchsorted(cohort, part.clients)
            mean.add({name: part.params[name] for name in state["global"]}, part.weights)
            weight[positions] = torch.from_numpy(part.weights)
            received[positions] = attention.layout.flatten(part.params)
            representations[positions] = part.params["z"].cpu()
    except Diverged as collapse:
        if run.cfg.form != "faithful" or len(collapse.clients) < len(cohort):
            raise
        run.send("up", {**state["global"], **state["z"].default}, copies=len(cohort))
        run.attendance.rejected = {*run.attendance.diverged, *collapse.clients}  # the run goes on, to show the collapse
        history["rejected"][-1] += len(collapse.clients)
        return {**state, "history": history}
    change = (weight / weight.sum())[:, None] * (sent_biases - received)  # the pseudo-gradient
    new_biases = attention.layout.flatten(state["global"]) - change.sum(dim=0)
    state["z"][cohort] = {"z": representations}
    # If guarded, stored offsets move with the global biases.
    state["biases"][cohort] = {"biases": (received - attention.origin(new_biases)).float()}
    model = {**mean.value(), **attention.layout.unflatten(new_biases)}
    grads = attention.differentiate(plan.theta, plan.personal, change)
    after, moments = adam_step(state["attention"], grads, state["adam"], run.cfg.server_lr)
    return {**state, "global": model, "attention": after, "adam": moments, "history": history}


def personalize(run: Run, state: State, clients: NDArray[np.int64], find: FindNeighbours | None = None) -> Predictor:
    """Predict with the global model under each client's biases, computed as in a round."""
    start, layout, everyone = state["global"], _attention(run).layout, run.everyone(clients)
    weights, biases = layout.divide(start)
    is_mixed = run.serve(lambda: len(state["z"].written) > 0, False)
    own = _recall(run, state, clients, state["z"].unwritten(everyone) if is_mixed else everyone[:0], weights)

    def attend() -> Packages:
        if not is_mixed:
            return
        neighbours, global_biases = (find or find_neighbours)(run, state, everyone, own), layout.flatten(start)
        personal = _attention(run).attend(parameters.on_cpu(state["attention"]), neighbours, global_biases)
        # A client without samples has no representation; biases beyond float32 would make a model useless.
        usable = torch.from_numpy(run.declared[everyone] > 0) & personal.float().isfinite().all(dim=1)
        yield everyone, layout.unflatten(torch.where(usable[:, None], personal, global_biases))

    models: Params | Stacked = start
    for _, package in run.deliver(attend, clients, biases, rows=True, counted=False):
        models = _join(run, weights, package)
    return run.predictor(clients, models)


def _attention(run: Run) -> BiasAttention:
    """Return the attention of the run by its options."""
    layout = run.once("layout of biases", lambda: BiasLayout(run.init, run.engine.parameters))
    attention: BiasAttention = run.cfg.build_attention(layout)
    return attention


def find_neighbours(
    run: Run,
    state: State,
    clients: NDArray[np.int64],
    own: Stacked,
    choose: Callable[..., NDArray[np.int64]] = find_nearest_others,
) -> Neighbourhood:
    """Return the neighbours of each client, itself the first, and what the server knows of them.

    ``own`` are the representations ``z`` (n, d_z) and the ``biases`` (n, d) of the clients. ``choose`` returns the ids
    of the others.
    """
    stored, memory, count = state["z"].written, state["biases"], min(run.cfg.k, len(run.clients)) - 1
    z, own_biases, stored_z = own["z"], own["biases"], state["z"][stored]["z"].cpu()
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


def _recall(run: Run, state: State, here: NDArray[np.int64], new: NDArray[np.int64], weights: Params) -> Stacked:
    """Return the representations ``z`` (n, d_z) and ``biases`` (n, d) of clients, those here and all at a server.

    The ``new`` ones have none stored: they receive the global biases, and send their representation by that model.
    """
    clients, attention, is_counted = run.everyone(here), _attention(run), not run.sealed
    _, biases = attention.layout.divide(state["global"])

    def represent() -> Iterator[TrainedClients]:
        packages = [(new, biases)] if len(new) else []
        for ids, received in run.deliver(lambda: packages, here, biases, counted=is_counted):
            model = _join(run, weights, parameters.repeat(received, len(ids)))
            yield TrainedClients.untrained(ids, {"z": run.engine.represent(ids, model, "train")})

    own = {"z": state["z"][clients]["z"].cpu(), "biases": state["biases"][clients]["biases"].cpu().double()}
    for part in run.collect(represent(), state["z"].default, new, counted=is_counted):
        own["z"][np.isin(clients, part.clients)] = part.params["z"].cpu()
    global_biases = attention.layout.flatten(biases)
    own["biases"][np.isin(clients, new)] = global_biases - attention.origin(global_biases)
    return own


def _pack(biases: Params | Stacked, anchor: Params | Stacked) -> Params | Stacked:
    """Return what clients receive: biases, and the anchor of their pull."""
    return {**biases, **{f"{_ANCHOR}{name}": value for name, value in anchor.items()}}


def _join(run: Run, weights: Params, package: Stacked) -> Stacked:
    """Return models (n, ...) with the common weights and the biases of a package (n, ...)."""
    count = len(next(iter(package.values())))
    joined = {**parameters.repeat(weights, count), **package}
    return {name: joined[name] for name in run.init}


def _extend_history(run: Run, state: State, sent_biases: Tensor, accuracy: float) -> Params:
    """Return the history with the values of this round, in which ``sent_biases`` (n, d) are sent to the cohort."""
    theta = state["attention"]
    values = {
        "rho": bias_attention.spectral_radius(theta["v"]) if "v" in theta else 1.0,
        "largest": float(sent_biases.abs().max()),
        "rejected": float(len(run.attendance.diverged)),
        "validation": accuracy,
    }
    return records.extend_history(state["history"], values)
