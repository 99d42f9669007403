"""FedAttn with controls and variants: random neighbours, untrained attention, other W_V, and bounded offsets.

Without its own options it is ``fedattn`` (Luo, Panchal & Guan, 2022). ``attention=none`` (FedAvg), ``attention=frozen``
and ``neighbours=random`` show what the attention and the choice of neighbours add to personal biases.

``trust`` bounds the offsets of biases by the norm of the global biases. It is off by default: with balanced classes the
global biases of the head are near zero, and the bound would remove what clients learn about their own labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor

from pflcli.method import Params, Predictor, Run, Stacked
from pflcli.methods import fedattn
from pflcli.methods.fedattn import Config as Paper
from pflcli.methods.parts.bias_attention import (
    BiasAttention,
    BiasLayout,
    Neighbourhood,
    drop_self,
    find_nearest_others,
)

KIND = "server"
NEEDS = ()
PERSONAL_MODELS = "z"
SERVES = ("z", "biases", "attention", "adam")
SENDS_MORE = "biases and representations"
PAPER = "FedAttn extended"
YEAR = 2022
EXTENDS = "fedattn"
TASKS = ("any",)
RECORDS = ("history",)
GRID = {"server_lr": (0.003, 0.01, 0.03)}

State = dict[str, Any]


@dataclass(frozen=True)
class Config(Paper):
    """The options of ``fedattn``, and the extensions."""

    include_self: bool = True
    """count each client as its own nearest neighbour"""
    neighbours: Literal["nearest", "random"] = "nearest"
    """attend to the nearest clients or, as a control, to random ones"""
    attention: Literal["learned", "frozen", "none"] = "learned"
    """train the attention (learned) or, as controls, keep its initial weights (frozen) or use none, which is FedAvg"""
    value: Literal["form", "identity", "blocks", "full"] = "form"
    """fix W_V to the identity, or train one matrix per layer (blocks) or one for all biases (full); form is identity
    if guarded, and full if faithful"""
    trust: Annotated[float, Ge(0)] = 0.0
    """if guarded, limit the norm of each layer's offsets to this multiple of the norm of its global biases; 0 sets no
    limit, which is safe while W_V is the identity"""

    def build_attention(self, layout: BiasLayout) -> BiasAttention:
        """Return the attention over the biases of a ``layout`` by the options."""
        own = super().build_attention(layout)
        value = own.value if self.value == "form" else self.value
        if self.trust and own.is_guarded:
            return BoundedAttention(layout, own.is_guarded, value, self.trust)
        return BiasAttention(layout, own.is_guarded, value)


@dataclass(frozen=True)
class BoundedAttention(BiasAttention):
    """An attention whose mixed offsets have at most ``trust`` times the norm of the global biases, layer by layer."""

    trust: float

    def mix(self, theta: Params, neighbours: Neighbourhood, global_biases: Tensor) -> Tensor:
        """Return the mixed values (n, d) of the clients' neighbours, within the bound."""
        return limit_norms(self.layout, super().mix(theta, neighbours, global_biases), global_biases, self.trust)


setup = fedattn.setup


def train_round(run: Run, state: State, t: int) -> State:
    """Play a round of ``fedattn`` with the neighbours of the options, and train the attention or not."""
    if run.cfg.attention == "none":
        cohort = run.cohort(t)
        start = run.download(state["global"], cohort)
        return {**state, "global": run.average(run.local_sgd(cohort, start, t=t), start)}
    after = fedattn.train_round(run, state, t, partial(_find_neighbours, t=t))
    if run.cfg.attention == "frozen":
        return {**after, "attention": state["attention"], "adam": state["adam"]}
    return after


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with the global model under each client's biases, computed as in a round."""
    return fedattn.personalize(run, state, clients, partial(_find_neighbours, t="personalize"))


def _find_neighbours(run: Run, state: State, clients: NDArray[np.int64], own: Stacked, t: int | str) -> Neighbourhood:
    """Return the neighbours of each client, random ones of round ``t`` if the options ask for them."""
    cfg = run.cfg

    def choose(
        stored: NDArray[np.int64],
        stored_z: NDArray[np.float32],
        clients: NDArray[np.int64],
        z: NDArray[np.float32],
        count: int,
    ) -> NDArray[np.int64]:
        count += not cfg.include_self
        if cfg.neighbours == "nearest":
            return find_nearest_others(stored, stored_z, clients, z, count)
        orders = [run.rng("neighbours", t, int(client)).permutation(stored) for client in clients]
        return drop_self(np.pad(np.stack(orders), ((0, 0), (0, count)), constant_values=-1), clients, count)

    found = fedattn.find_neighbours(run, state, clients, own, choose)
    if cfg.include_self:
        return found
    return Neighbourhood(found.z, found.keys[:, 1:], found.values[:, 1:], found.exists[:, 1:])


def limit_norms(layout: BiasLayout, offsets: Tensor, reference: Tensor, factor: float) -> Tensor:
    """Limit the norm of each layer of ``offsets`` (n, d) to ``factor`` times that of ``reference`` (d,)."""
    shrunk = []
    for piece, layer in zip(layout.split(offsets), layout.split(reference), strict=True):
        norm = piece.norm(dim=-1, keepdim=True)
        limit = factor * layer.norm()
        shrunk.append(piece * (limit / norm.clamp_min(1e-300)).clamp_max(1.0))
    return torch.cat(shrunk, dim=-1)
