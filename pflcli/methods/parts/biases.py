"""A model's biases as one vector, and attention that mixes new biases from those of other clients.

FedAttn (Luo, Panchal & Guan, 2022), Definition 3.1 and section 4.1. Vectors are float64 on the CPU: they are short, and
the attention is trained through them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pflcli.engine.local_sgd import Batch, Model
from pflcli.errors import UsageError
from pflcli.methods.parts import attention
from pflcli.parameters import Params, Stacked


def layers(params: Params, names: Iterable[str]) -> dict[str, int]:
    """Return the number of biases of each layer, by parameter name, in the order of ``names``.

    Biases of linear, convolutional, recurrent and normalizing layers count. Raises UsageError if there are none.
    """
    sizes = {name: params[name].numel() for name in names if name.rsplit(".", 1)[-1].startswith("bias")}
    if not sizes:
        raise UsageError("fedattn personalizes biases, and the model has none", "--model mlp")
    return sizes


def flat(params: Params | Stacked, sizes: Mapping[str, int]) -> Tensor:
    """Return the biases of one model (d,) or of a stack (m, d)."""
    lead = next(iter(sizes))
    shape = params[lead].shape[: params[lead].ndim - 1]
    return torch.cat([params[name].detach().reshape(*shape, -1).cpu().double() for name in sizes], dim=-1)


def shaped(vector: Tensor, like: Params, sizes: Mapping[str, int]) -> Params | Stacked:
    """Undo ``flat``: biases (..., d) as parameters in the type and on the device of ``like``."""
    pieces = torch.split(vector.detach(), list(sizes.values()), dim=-1)
    return {n: p.to(like[n].device, like[n].dtype) for n, p in zip(sizes, pieces, strict=True)}


def block_mask(sizes: Mapping[str, int]) -> Tensor:
    """Return a matrix (d, d) of ones where row and column belong to the same layer, else zeros."""
    layer = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(list(sizes.values())))
    return (layer[:, None] == layer).double()


def bounded(offsets: Tensor, reference: Tensor, sizes: Mapping[str, int], factor: float) -> Tensor:
    """Shrink each layer of ``offsets`` (..., d) to a norm of at most ``factor`` times that of ``reference`` (d,)."""
    shrunk, lengths = [], list(sizes.values())
    for piece, layer in zip(torch.split(offsets, lengths, dim=-1), torch.split(reference, lengths), strict=True):
        norm = piece.norm(dim=-1, keepdim=True)
        limit = factor * layer.norm()
        shrunk.append(piece * (limit / norm.clamp_min(1e-300)).clamp_max(1.0))
    return torch.cat(shrunk, dim=-1)


@dataclass(frozen=True)
class Neighbourhood:
    """Clients' representations ``z`` (n, d_z), their neighbours' ``keys`` (n, k, d_z) and ``values`` (n, k, d).

    ``exists`` (n, k) tells which neighbours there are.
    """

    z: Tensor
    keys: Tensor
    values: Tensor
    exists: Tensor

    def mean(self) -> Tensor:
        """Return the mean (n, d) of the neighbours' values, 0 without neighbours."""
        count = self.exists.sum(dim=1, keepdim=True).clamp_min(1)
        return (self.values * self.exists[..., None]).sum(dim=1) / count


def attended(theta: Params, neighbours: Neighbourhood) -> Tensor:
    """Return softmax((W_K Z_N)(W_Q Z_i) / sqrt(d_k)) W_V M_N for every client, (n, d); W_V is 1 if not in ``theta``."""
    share = attention.weights(neighbours.z @ theta["q"].T, neighbours.keys @ theta["k"].T, neighbours.exists)
    mixed = (share[..., None] * neighbours.values).sum(dim=1)
    return mixed @ theta["v"].T if "v" in theta else mixed


def gradients(theta: Params, personal: Tensor, change: Tensor, largest: float) -> Params:
    """Return the gradient of the attention, from that of the ``personal`` biases, ``change`` (n, d), by the chain rule.

    Its norm, over all matrices, is at most ``largest``.
    """
    # As one number: with gradients of outputs torch.autograd.grad imports a second of symbolic algebra.
    grads = torch.autograd.grad((personal * change).sum(), list(theta.values()), materialize_grads=True)
    norm = torch.stack([grad.norm() for grad in grads]).norm()
    scale = (largest / norm.clamp_min(1e-300)).clamp_max(1.0)
    return {name: grad * scale for name, grad in zip(theta, grads, strict=True)}


def pulled_loss(model: Model, params: Params, batch: Batch) -> Tensor:
    """Return the cross-entropy, plus mu / 2 times the squared distance of the biases from the client's own anchor."""
    distance = torch.stack([((params[name] - anchor) ** 2).sum() for name, anchor in batch.own.items()]).sum()
    return batch.cross_entropy(model(params, batch.x)) + batch.shared["mu"] / 2 * distance
