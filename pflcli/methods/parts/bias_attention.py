"""FedAttn's attention: it mixes the biases of a model from those of other clients, and is trained through them.

Luo, Panchal & Guan (2022), Definition 3.1 and section 4.1. The biases of a model form one vector (d,), float64 on the
CPU: vectors are short, and the attention is differentiated through them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.method import Batch, Model, Params, Stacked, UsageError, find_nearest
from pflcli.methods.parts.attention import compute_weights, draw_xavier

_MAX_GRADIENT_NORM = 1.0
"""Largest norm of the gradient over all matrices, if guarded."""


class BiasLayout:
    """Converts between the biases of a model like ``like`` and vectors (d,); ``names`` are its parameters, in order.

    The biases of linear, convolutional, recurrent and normalization layers count. Raises UsageError if there are none.
    """

    def __init__(self, like: Params, names: Iterable[str]) -> None:
        self._like = {name: like[name] for name in names if name.rsplit(".", 1)[-1].startswith("bias")}
        if not self._like:
            raise UsageError("fedattn personalizes biases, and the model has none", "--model mlp")
        self.sizes = {name: value.numel() for name, value in self._like.items()}

    @property
    def size(self) -> int:
        """Return the number of biases, d."""
        return sum(self.sizes.values())

    def divide(self, params: Params | Stacked) -> tuple[Params | Stacked, Params | Stacked]:
        """Return the parameters and buffers that are no biases, and the biases."""
        weights = {name: value for name, value in params.items() if name not in self.sizes}
        return weights, {name: params[name] for name in self.sizes}

    def flatten(self, params: Params | Stacked) -> Tensor:
        """Return the biases of one model (d,) or of a stack (m, d)."""
        lead = next(iter(self.sizes))
        shape = params[lead].shape[: params[lead].ndim - 1]
        return torch.cat([params[name].detach().reshape(*shape, -1).cpu().double() for name in self.sizes], dim=-1)

    def unflatten(self, vector: Tensor) -> Params | Stacked:
        """Return biases (..., d) as parameters, in the type and on the device of the model."""
        pieces = zip(self._like.items(), self.split(vector.detach()), strict=True)
        return {name: piece.to(like.device, like.dtype) for (name, like), piece in pieces}

    def block_mask(self) -> Tensor:
        """Return a matrix (d, d) of ones where row and column belong to the same layer, else zeros."""
        layer = torch.repeat_interleave(torch.arange(len(self.sizes)), torch.tensor(list(self.sizes.values())))
        return (layer[:, None] == layer).double()

    def split(self, vector: Tensor) -> tuple[Tensor, ...]:
        return torch.split(vector, list(self.sizes.values()), dim=-1)


@dataclass(frozen=True)
class Neighbourhood:
    """The neighbours that n clients attend to.

    ``z`` (n, d_z) are the clients' representations, ``keys`` (n, k, d_z) and ``values`` (n, k, d) the representations
    and biases of their neighbours. ``exists`` (n, k) marks the neighbours that there are.
    """

    z: Tensor
    keys: Tensor
    values: Tensor
    exists: Tensor

    def mean_values(self) -> Tensor:
        """Return the mean (n, d) of the neighbours' values, 0 without neighbours."""
        count = self.exists.sum(dim=1, keepdim=True).clamp_min(1)
        return (self.values * self.exists[..., None]).sum(dim=1) / count


def find_nearest_others(
    candidates: NDArray[np.int64],
    stored: NDArray[np.float32],
    clients: NDArray[np.int64],
    z: NDArray[np.float32],
    k: int,
) -> NDArray[np.int64]:
    """Return the ids (n, k) of the ``candidates`` (m,) nearest to each of ``clients`` (n,), without the client itself.

    The distance is L2 between ``stored`` (m, d) and ``z`` (n, d). Missing neighbours are -1.
    """
    row = find_nearest(stored, z, k + 1)[1]
    return drop_self(np.where(row >= 0, np.append(candidates, -1)[row], -1), clients, k)


def drop_self(ids: NDArray[np.int64], clients: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """Return the first k ids of each row of ``ids`` (n, > k) without -1 and without the row's client; -1 if missing."""
    other = (ids >= 0) & (ids != clients[:, None])
    order = np.argsort(~other, axis=1, kind="stable")[:, :k]
    return np.where(np.take_along_axis(other, order, axis=1), np.take_along_axis(ids, order, axis=1), -1)


@dataclass(frozen=True)
class BiasAttention:
    """The attention of a run in one of two forms: how it begins, mixes biases and is differentiated.

    It consists of W_Q and W_K (d_k, d_z), and of W_V (d, d) unless ``value`` is identity. With blocks, W_V has no
    entries between layers. If guarded, the attention mixes offsets from the global biases, and the gradient is clipped.
    """

    layout: BiasLayout
    is_guarded: bool
    value: Literal["identity", "blocks", "full"]

    def initialize(self, d_k: int, d_z: int, rng: np.random.Generator) -> Params:
        """Return the initial attention: random, or W_V = 1 and scores that begin as cosines if guarded."""
        size = self.layout.size
        if self.is_guarded:
            rows = _draw_orthonormal(d_k, d_z, rng)
            theta = {"q": rows, "k": rows.clone()}
        else:
            theta = {name: draw_xavier(d_k, d_z, rng) for name in ("q", "k")}
        if self.value != "identity":
            theta["v"] = torch.eye(size, dtype=torch.float64) if self.is_guarded else draw_xavier(size, size, rng)
        return self._mask_values(theta)

    def origin(self, global_biases: Tensor) -> Tensor:
        """Return the biases (d,) from which values are offsets: the global ones if guarded, else zeros."""
        return global_biases if self.is_guarded else torch.zeros_like(global_biases)

    def attend(self, theta: Params, neighbours: Neighbourhood, global_biases: Tensor) -> Tensor:
        """Return the clients' personal biases softmax((W_K Z_N)(W_Q Z_i) / sqrt(d_k)) W_V M_N, (n, d).

        A client without neighbours gets ``global_biases`` (d,).
        """
        personal = self.origin(global_biases) + self.mix(theta, neighbours, global_biases)
        return torch.where(neighbours.exists.any(dim=1, keepdim=True), personal, global_biases)

    def mix(self, theta: Params, neighbours: Neighbourhood, global_biases: Tensor) -> Tensor:
        """Return the mixed values (n, d) of the clients' neighbours."""
        share = compute_weights(neighbours.z @ theta["q"].T, neighbours.keys @ theta["k"].T, neighbours.exists)
        mixed = (share[..., None] * neighbours.values).sum(dim=1)
        return mixed @ theta["v"].T if "v" in theta else mixed

    def differentiate(self, theta: Params, personal: Tensor, change: Tensor) -> Params:
        """Return the gradient of ``theta``, given the gradient ``change`` (n, d) of its result ``personal``."""
        # As one number: with gradients of outputs torch.autograd.grad imports a second of symbolic algebra.
        grads = torch.autograd.grad((personal * change).sum(), list(theta.values()), materialize_grads=True)
        if self.is_guarded:
            norm = torch.stack([grad.norm() for grad in grads]).norm()
            grads = tuple(grad * (_MAX_GRADIENT_NORM / norm.clamp_min(1e-300)).clamp_max(1.0) for grad in grads)
        return self._mask_values(dict(zip(theta, grads, strict=True)))

    def _mask_values(self, matrices: Params) -> Params:
        return {**matrices, "v": matrices["v"] * self.layout.block_mask()} if self.value == "blocks" else matrices


def pulled_loss(model: Model, params: Params, batch: Batch) -> Tensor:
    """Return the cross-entropy, plus mu / 2 times the squared distance of the biases from the client's own anchor."""
    distance = torch.stack([((params[name] - anchor) ** 2).sum() for name, anchor in batch.own.items()]).sum()
    return batch.loss(model(params, batch.x)) + batch.shared["mu"] / 2 * distance


def _draw_orthonormal(rows: int, columns: int, rng: np.random.Generator) -> Tensor:
    """Return ``rows`` orthonormal rows, float64 (rows, columns): the identity if square, else drawn uniformly."""
    if rows == columns:
        return torch.eye(rows, dtype=torch.float64)
    q, r = np.linalg.qr(rng.normal(size=(columns, rows)))
    return torch.from_numpy(np.ascontiguousarray((q * np.sign(np.diag(r))).T))


def spectral_radius(matrix: Tensor) -> float:
    """Return the largest modulus of an eigenvalue of a square matrix: its gain if it is applied repeatedly."""
    return float(torch.linalg.eigvals(matrix).abs().max())
