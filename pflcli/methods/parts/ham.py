"""The Hierarchical Attention-enhanced Meta-learning network (HAM) computes how much of each model a client mixes.

Gao et al. (2023), https://doi.org/10.1145/3591362, Eq. 5 to 9. Layer 1 attends from client i to the models of the other
clients, whose mixture is x^a. Layer 2 attends from i to [x_i, x^a, x^g]; its mixture is the hybrid. In the paper,
queries and keys are W x with W (d, d), which is too large for any client. Here they are A z(x), where z is the
normalized CountSketch of x - c and A is (r, r). Values are the models themselves.

``ReceivedModels`` applies HAM to the models that a group of clients receives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pflcli.method import Batch, Model, Params, Stacked, StackedBatch, StackedNetwork, model_algebra, parameters
from pflcli.methods.parts.attention import compute_weights, draw_xavier

SLOTS = ("self", "others", "global")
"""The models that layer 2 chooses among: x_i, x^a and x^g."""

_ALLOWED = {"ham": (1.0, 1.0, 1.0), "aml1": (0.0, 1.0, 0.0), "aml2": (1.0, 0.0, 1.0)}
"""Which of ``SLOTS`` each variant allows."""


def allowed_slots(variant: str, *, guard: bool) -> Tensor:
    """Return a mask (3,) of the slots that layer 2 chooses among when HAM is trained; ``guard`` excludes x_i."""
    me, others, common = _ALLOWED[variant]
    return torch.tensor([0.0 if guard else me, others, common])


def initial_projections(width: int, temperature: float) -> Params:
    """Return projections by which layer 1 is softmax(temperature * cosine) and layer 2 is uniform.

    Only the keys of layer 2 are zero: if its queries were also zero, neither would have a gradient.
    """
    scaled = math.sqrt(temperature * math.sqrt(width)) * torch.eye(width)
    return {"q1": scaled, "k1": scaled.clone(), "q2": scaled.clone(), "k2": torch.zeros(width, width)}


def draw_projections(width: int, rng: np.random.Generator) -> Params:
    """Draw random projections, the same for all clients."""
    return {name: draw_xavier(width, width, rng).float() for name in ("q1", "k1", "q2", "k2")}


_LEAST_LENGTH = 0.3
"""Least length by which Eq. 15 divides a sketch, as a share of the mean length of those that were received. The
derivative of a direction is 1 / length, which has no bound if training moves x_i through x^g."""


def normalize(sketches: Tensor, least: Tensor | None = None) -> Tensor:
    """Return sketches (..., r) divided by their length, or by ``least`` if that is larger; zeros stay zeros."""
    if least is None:
        return functional.normalize(sketches, dim=-1, eps=1e-12)
    length: Tensor = torch.linalg.vector_norm(sketches, dim=-1, keepdim=True)
    return sketches / length.maximum(least).clamp_min(1e-12)


def attend(
    theta: Params, sketches: Tensor, me: Tensor, slots: Tensor, least: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the attention of clients to n models (..., n), and of layer 2 to the allowed ``slots`` (3,), (..., 3).

    ``theta`` (..., r, r) is the HAM of each client. ``sketches`` (n + 1, r) or (..., n + 1, r) are those of the n
    models and of x^g, minus the centre. ``me`` (..., n) is one at the client itself, which layer 1 ignores. Without
    another model x^a is x^g. Sketches are divided by ``least`` if they are shorter.
    """
    z = normalize(sketches, least)
    own_point = _weighted_sum(me, z[..., :-1, :])
    # (k1 z_j) . (q1 z_i) = z_j . (k1^T q1 z_i): no key is computed.
    query1, query2 = (_query(theta[f"q{layer}"], theta[f"k{layer}"], own_point) for layer in (1, 2))
    return _attend_by_queries(query1, query2, sketches, z, own_point, me, slots, least)


def _attend_by_queries(
    query1: Tensor,
    query2: Tensor,
    sketches: Tensor,
    z: Tensor,
    own_point: Tensor,
    me: Tensor,
    slots: Tensor,
    least: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return both attentions, given the layers' queries (..., r), the ``sketches`` and their directions ``z``."""
    a = compute_weights(query1, z[..., :-1, :], me == 0)
    # A sketch is linear: the sketch of x^a is the mixture of sketches.
    rest = 1 - a.sum(dim=-1, keepdim=True)
    enhanced = normalize(_weighted_sum(a, sketches[..., :-1, :]) + rest * sketches[..., -1, :], least)
    keys = torch.stack([own_point, enhanced, z[..., -1, :].expand_as(own_point)], dim=-2)
    return a, compute_weights(query2, keys, slots > 0)


def _weighted_sum(weights: Tensor, points: Tensor) -> Tensor:
    """Return the sums (..., r) of ``points`` (..., n, r) by ``weights`` (..., n)."""
    return (weights[..., None, :] @ points)[..., 0, :]


def _query(q: Tensor, k: Tensor, point: Tensor) -> Tensor:
    """Return k^T q z (..., r) for points z (..., r)."""
    return _weighted_sum(_multiply(q, point), k)


def _multiply(matrix: Tensor, vector: Tensor) -> Tensor:
    """Return the products (..., r) of matrices (..., r, r) and vectors (..., r)."""
    return _weighted_sum(vector, matrix.mT)  # twice as fast as with the matrix on the left


def divergence(prior: Tensor, posterior: Tensor) -> Tensor:
    """Return KL(prior || posterior) of attention weights (..., n); a key of prior weight 0 adds nothing."""
    tiny = torch.finfo(prior.dtype).tiny
    terms = prior * (prior.clamp_min(tiny).log() - posterior.clamp_min(tiny).log())
    return torch.where(prior > 0, terms, 0.0).sum(dim=-1)


def add_own_share(b: Tensor, share: float | Tensor) -> Tensor:
    """Give the own model a ``share``, one or (..., 1), of layer 2; the rest is distributed as in ``b`` (..., 3)."""
    me = torch.tensor([1.0, 0.0, 0.0], dtype=b.dtype, device=b.device)
    return share * me + (1 - share) * b


def hybrid_shares(a: Tensor, b: Tensor, me: Tensor) -> Tensor:
    """Return the shares (..., n + 1) of the models and x^g in the hybrid, by attention (..., n) and (..., 3)."""
    own, others, common = torch.split(b, 1, dim=-1)
    return torch.cat([own * me + others * a, common + others * (1 - a.sum(dim=-1, keepdim=True))], dim=-1)


def mix(share: Tensor, basis: Stacked) -> Params | Stacked:
    """Mix models of a ``basis`` (n + 1, ...) by ``share`` (..., n + 1); integer buffers are those of the last one."""
    lead = share.shape[:-1]
    return {
        name: torch.tensordot(share.to(value.dtype), value, dims=1)
        if value.is_floating_point()
        else value[-1].expand((*lead, *value.shape[1:])).clone()
        for name, value in basis.items()
    }


def gradients(network: StackedNetwork, params: Stacked, batch: StackedBatch) -> tuple[Tensor, Stacked]:
    """Return F(H(x^g, X)) of Eq. 13 plus the divergence from the first attention, and its gradients by HAM (a, ...).

    Lambda is left out: it scales the gradient, and Adam does not depend on this scale.
    """
    shared, me = batch.shared, batch.own["me"]
    basis, z = parameters.unprefixed(shared, "basis."), normalize(shared["points"])
    own_point = _weighted_sum(me, z[:-1])
    middle = {layer: _multiply(params[f"q{layer}"], own_point) for layer in (1, 2)}
    with torch.enable_grad():
        # Projections are differentiated by hand: their gradients are outer products of vectors.
        queries = [_weighted_sum(middle[layer], params[f"k{layer}"]).requires_grad_() for layer in (1, 2)]
        a, b = _attend_by_queries(queries[0], queries[1], shared["points"], z, own_point, me, shared["slots"])
        share = hybrid_shares(a, b, me)
        penalty = shared["rho"] * divergence(batch.own["prior"], a)
    hybrids = model_algebra.mixtures(share.detach(), basis)
    losses, by_mixture = network.gradient(hybrids, batch, network.parameters)
    for layer_name, eps in parameters.unprefixed(shared, "eps.").items():
        by_mixture |= differentiate_statistics(layer_name, hybrids, by_mixture, eps)
    by_share = torch.zeros_like(share)
    for name, value in by_mixture.items():
        by_share += model_algebra.inner_products(value.flatten(1), basis[name].flatten(1))
    with torch.enable_grad():
        total = (share * by_share).sum() + penalty.sum()  # clients are independent
    by_queries = torch.autograd.grad(total, queries, allow_unused=True, materialize_grads=True)
    by_theta: Stacked = {}
    for layer, by_query in zip((1, 2), by_queries, strict=True):
        by_middle = _multiply(params[f"k{layer}"], by_query)
        by_theta[f"q{layer}"] = by_middle[..., None] * own_point[..., None, :]
        by_theta[f"k{layer}"] = middle[layer][..., None] * by_query[..., None, :]
    return losses + penalty.detach(), {name: by_theta[name] for name in params}


def differentiate_statistics(layer: str, models: Stacked, grads: Stacked, eps: Tensor) -> Stacked:
    """Return the gradients by the running statistics by which a ``layer`` of BatchNorm normalizes.

    They follow from those by its weight and bias: its output is weight (h - mean) / sqrt(var + eps) + bias.
    """
    scale = (models[f"{layer}.running_var"] + eps).rsqrt()
    slope = -models[f"{layer}.weight"] * scale
    return {
        f"{layer}.running_mean": slope * grads[f"{layer}.bias"],
        f"{layer}.running_var": slope * scale / 2 * grads[f"{layer}.weight"],
    }


def joint_loss(model: Model, params: Params, batch: Batch) -> Tensor:
    """Return F(x_i) + lambda F(H(x^g, X)), client i's part of Eq. 1, as a function of x_i (Eq. 15).

    HAM and the others' uploads are constant; x_i enters the hybrid as query, key and value. ``own`` holds ``theta.``,
    ``me`` and the ``share`` of x_i. ``shared`` holds the ``points`` and ``basis.`` of the hybrids, in which the trained
    x_i replaces the client's own, and the constants of its sketch, ``centred`` (1) on x^g or not (0).
    """
    shared, me = batch.shared, batch.own["me"]
    basis = parameters.unprefixed(shared, "basis.")
    offset = {name: value - shared["centred"] * basis[name][-1] for name, value in params.items() if name in basis}
    is_other, is_own = torch.cat([1 - me, me.new_ones(1)]), torch.cat([me, me.new_zeros(1)])
    own_point = sketch_model(offset, shared, shared["points"].shape[-1])
    points = is_other[:, None] * shared["points"] + is_own[:, None] * own_point
    least = _LEAST_LENGTH * torch.linalg.vector_norm(shared["points"][:-1], dim=-1).mean()
    a, b = attend(parameters.unprefixed(batch.own, "theta."), points, me, shared["slots"], least)
    share = hybrid_shares(a, add_own_share(b, batch.own["share"]), me)
    hybrid = {
        name: value + (is_own @ share).to(value.dtype) * params[name] if value.is_floating_point() else value
        for name, value in mix(share * is_other, basis).items()
    }
    own_loss = batch.loss(model(params, batch.x))
    return own_loss + shared["lam"] * _hybrid_loss(model, hybrid, batch)


def _hybrid_loss(model: Model, hybrid: Params, batch: Batch) -> Tensor:
    """Return F(hybrid), with constant buffers."""
    constant = {name: value if name in model.parameters else value.detach() for name, value in hybrid.items()}
    return batch.loss(model(constant, batch.x))


class CountSketch:
    """A random linear map of models to a few numbers that preserves inner products.

    Every parameter is added, with a random sign, to one random bucket (Charikar, Chen & Farach-Colton, 2002,
    https://doi.org/10.1007/3-540-45465-9_59; as a projection of features Weinberger et al., 2009,
    https://arxiv.org/abs/0902.2206). The inner product of two sketches is unbiased, and the cosine of width r errs by
    about 1 / sqrt(r). ``rng`` draws the map to ``width`` buckets for the parameters ``names``, in their order in
    ``like``.
    """

    def __init__(self, like: Params, names: Iterable[str], width: int, rng: np.random.Generator) -> None:
        sketched = set(names)
        self._width = width
        self._maps = {
            name: (
                torch.from_numpy(rng.integers(0, width, value.numel())),
                torch.from_numpy(rng.integers(0, 2, value.numel()) * 2.0 - 1),
            )
            for name, value in like.items()
            if name in sketched
        }

    def constants(self) -> Params:
        """Return the constants that ``sketch_model`` needs: the buckets and the signs of each parameter, flat."""
        return {
            f"{kind}.{name}": value
            for name, (bucket, sign) in self._maps.items()
            for kind, value in (("bucket", bucket), ("sign", sign.float()))
        }

    def __call__(self, stacked: Stacked) -> Tensor:
        """Return the sketches (m, width) of a stack of models, float64, on the CPU, where sums have a fixed order."""
        buckets, signs = (torch.cat(values).numpy() for values in zip(*self._maps.values(), strict=True))
        values = [stacked[name].detach().flatten(1).cpu().numpy() for name in self._maps]
        # NumPy adds in the order of the numbers, in half the time of ``index_add_``.
        sums = [np.bincount(buckets, np.concatenate(own) * signs, self._width) for own in zip(*values, strict=True)]
        return torch.from_numpy(np.stack(sums))


def sketch_model(params: Params, constants: Params, width: int) -> Tensor:
    """Return the sketch (width,) of one model, differentiable, in its precision; ``constants`` are those of the map."""
    sketch = next(iter(params.values())).new_zeros(width)
    for name, value in params.items():
        if f"bucket.{name}" in constants:
            signed = value.flatten() * constants[f"sign.{name}"].to(value.dtype)
            sketch = sketch.index_add(0, constants[f"bucket.{name}"], signed)
    return sketch


@dataclass(frozen=True)
class ReceivedModels:
    """The uploads of n clients and the global model, as q of these clients receive them.

    ``basis`` (n + 1, ...) holds the models, ``points`` (n + 1, r) their sketches, the global one last; ``me`` (q, n) is
    one at each client itself; ``slots`` (3,) marks the models that layer 2 chooses among when HAM is trained.
    """

    basis: Stacked
    points: Tensor
    me: Tensor
    slots: Tensor

    def attend(self, theta: Stacked) -> tuple[Tensor, Tensor]:
        """Return the clients' attention (q, n) and (q, 3), given their HAM (q, ...)."""
        return attend(theta, self.points, self.me, self.slots)

    def mix(self, a: Tensor, b: Tensor) -> Stacked:
        """Return the clients' hybrids (q, ...), given their attention (q, n) and (q, 3)."""
        return model_algebra.mixtures(hybrid_shares(a, b, self.me), self.basis)

    def add_own(self, hybrids: Stacked, share: Tensor) -> Stacked:
        """Return hybrids (q, ...) in which the clients' own models have the ``share`` (q, 1)."""
        if not share.any():
            return hybrids
        mixed = {name: value for name, value in hybrids.items() if value.is_floating_point()}
        if (share == 1).all():
            return {**hybrids, **{name: self._own[name] for name in mixed}}
        for name, value in mixed.items():
            mixed[name] = value.lerp(self._own[name], share.to(value).view(-1, *[1] * (value.ndim - 1)))
        return {**hybrids, **mixed}

    @cached_property
    def _own(self) -> Stacked:
        own = parameters.take(self.basis, self.me.argmax(dim=1).cpu().numpy())
        return {name: value.contiguous() for name, value in own.items()}  # the rows of the basis are padded

    def ham_plan(self, first: Params, rho: float, norms: Mapping[str, float]) -> dict[str, Any]:
        """Return the options of ``Run.local_sgd`` for training HAM, whose initial state is ``first`` (Eq. 13).

        ``norms`` are the layers of BatchNorm with a weight and a bias, and their epsilon.
        """
        initial = {name: value.expand(len(self.me), *value.shape) for name, value in first.items()}
        return {
            "gradient": gradients,
            "lockstep": True,
            "own": {"me": self.me, "prior": self.attend(initial)[0]},
            "shared": {
                **self._constants(),
                "rho": self._number(rho),
                **{f"eps.{layer}": self._number(eps) for layer, eps in norms.items()},
            },
        }

    def hybrid_plan(
        self, theta: Stacked, share: Tensor, sketched: CountSketch, lam: float, *, centred: bool
    ) -> dict[str, Any]:
        """Return the options of ``Run.local_sgd`` for training models also on the loss of their hybrids (Eq. 15).

        HAM is constant. ``share`` (q, 1) is the own model's share of each hybrid; ``centred`` says whether points are
        sketches of offsets from the global model.
        """
        maps = {name: value.to(self.points.device) for name, value in sketched.constants().items()}
        return {
            "objective": joint_loss,
            "own": {"me": self.me, "share": share, **{f"theta.{name}": value for name, value in theta.items()}},
            "shared": {**self._constants(), **maps, "lam": self._number(lam), "centred": self._number(centred)},
        }

    def _constants(self) -> Params:
        basis = {f"basis.{name}": value for name, value in self.basis.items()}
        return {"points": self.points, "slots": self.slots, **basis}

    def _number(self, value: float) -> Tensor:
        return torch.tensor(float(value), device=self.points.device)
