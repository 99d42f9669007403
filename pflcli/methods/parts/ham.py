"""The Hierarchical Attention-enhanced Meta-learning network (HAM) computes how much of each model a client mixes.

Gao et al. (2023), https://doi.org/10.1145/3591362, Eq. 5 to 9. Layer 1 attends from client i to the models of the other
clients, whose mixture is x^a. Layer 2 attends from i to [x_i, x^a, x^g]; its mixture is the hybrid. The paper's queries
and keys are W x with W (d, d), which is too large for any client. Here they are A z(x), where z is the normalized
CountSketch of x - c and A is (r, r). Values are the models themselves.

``ReceivedModels`` applies HAM to the models that a group of clients receives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pflcli import parameters
from pflcli.engine import model_algebra
from pflcli.engine.gradients import StackedBatch, StackedNetwork
from pflcli.engine.local_sgd import Batch, Model
from pflcli.engine.process_settings import intra_op
from pflcli.methods.parts import sketch
from pflcli.methods.parts.attention import compute_weights, draw_xavier
from pflcli.methods.parts.sketch import CountSketch
from pflcli.parameters import Params, Stacked

SLOTS = ("self", "others", "global")
"""The models that layer 2 chooses among: x_i, x^a and x^g."""

_ALLOWED = {"ham": (1.0, 1.0, 1.0), "aml1": (0.0, 1.0, 0.0), "aml2": (1.0, 0.0, 1.0)}
"""Which of ``SLOTS`` each variant allows."""


def allowed(variant: str, *, guard: bool) -> Tensor:
    """Return which slots (3,) layer 2 chooses among when HAM is trained; with ``guard`` x_i is not among them."""
    me, others, common = _ALLOWED[variant]
    return torch.tensor([0.0 if guard else me, others, common])


def identity(width: int, temperature: float) -> Params:
    """Return projections with which layer 1 is softmax(temperature * cosine), and layer 2 is uniform.

    Only the keys of layer 2 are zero: if its queries were zero too, neither would have a gradient.
    """
    scaled = math.sqrt(temperature * math.sqrt(width)) * torch.eye(width)
    return {"q1": scaled, "k1": scaled.clone(), "q2": scaled.clone(), "k2": torch.zeros(width, width)}


def xavier(width: int, rng: np.random.Generator) -> Params:
    """Return random projections, the same for all clients."""
    return {name: draw_xavier(width, width, rng).float() for name in ("q1", "k1", "q2", "k2")}


def unit(sketches: Tensor) -> Tensor:
    """Return sketches (..., r) scaled to length 1; zeros stay zeros."""
    return functional.normalize(sketches, dim=-1, eps=1e-12)


def scores(theta: Params, sketches: Tensor, me: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Return clients' attention: to n models (..., n), and to the allowed ``slots`` (3,) of layer 2, (..., 3).

    ``theta`` (..., r, r) is their HAM. ``sketches`` (n + 1, r) or (..., n + 1, r) are those of the n models, minus the
    centre, and of x^g; ``me`` (..., n) is one at the client itself, which layer 1 ignores. Without another model x^a is
    x^g.
    """
    z = unit(sketches)
    own_point = _mean(me, z[..., :-1, :])
    # (k1 z_j) . (q1 z_i) = z_j . (k1^T q1 z_i): no key is computed.
    query1, query2 = (_query(theta[f"q{layer}"], theta[f"k{layer}"], own_point) for layer in (1, 2))
    return _attention(query1, query2, sketches, z, own_point, me, slots)


def _attention(
    query1: Tensor, query2: Tensor, sketches: Tensor, z: Tensor, own_point: Tensor, me: Tensor, slots: Tensor
) -> tuple[Tensor, Tensor]:
    """Return both attentions by the layers' queries (..., r), of ``sketches`` and their directions ``z``."""
    a = compute_weights(query1, z[..., :-1, :], me == 0)
    # A sketch is linear: that of x^a is the mix of sketches.
    rest = 1 - a.sum(dim=-1, keepdim=True)
    enhanced = unit(_mean(a, sketches[..., :-1, :]) + rest * sketches[..., -1, :])
    keys = torch.stack([own_point, enhanced, z[..., -1, :].expand_as(own_point)], dim=-2)
    return a, compute_weights(query2, keys, slots > 0)


def _mean(weights: Tensor, points: Tensor) -> Tensor:
    """Return the sums (..., r) of ``points`` (..., n, r) by ``weights`` (..., n)."""
    return (weights[..., None, :] @ points)[..., 0, :]


def _query(q: Tensor, k: Tensor, point: Tensor) -> Tensor:
    """Return k^T q z (..., r) for points z (..., r)."""
    return _mean(_times(q, point), k)


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    """Return the products (..., r) of matrices (..., r, r) and vectors, four times as fast as by a matrix product."""
    return (matrix * vector[..., None, :]).sum(dim=-1)


def divergence(prior: Tensor, posterior: Tensor) -> Tensor:
    """Return KL(prior || posterior) of attention weights (..., n); a key of prior weight 0 adds nothing."""
    tiny = torch.finfo(prior.dtype).tiny
    terms = prior * (prior.clamp_min(tiny).log() - posterior.clamp_min(tiny).log())
    return torch.where(prior > 0, terms, 0.0).sum(dim=-1)


def with_own_share(b: Tensor, share: float | Tensor) -> Tensor:
    """Return layer 2 (..., 3) with ``share``, one or (..., 1), on the client's own model, and the rest as in ``b``."""
    me = torch.tensor([1.0, 0.0, 0.0], dtype=b.dtype, device=b.device)
    return share * me + (1 - share) * b


def coefficients(a: Tensor, b: Tensor, me: Tensor) -> Tensor:
    """Return the shares (..., n + 1) of the n models and of x^g in the hybrid, by attention (..., n) and (..., 3)."""
    own, others, common = torch.split(b, 1, dim=-1)
    return torch.cat([own * me + others * a, common + others * (1 - a.sum(dim=-1, keepdim=True))], dim=-1)


def mix(share: Tensor, basis: Stacked) -> Params | Stacked:
    """Return models mixed from a ``basis`` (n + 1, ...) by ``share`` (..., n + 1); integer buffers are the last's."""
    lead = share.shape[:-1]
    return {
        name: torch.tensordot(share.to(value.dtype), value, dims=1)
        if value.is_floating_point()
        else value[-1].expand((*lead, *value.shape[1:])).clone()
        for name, value in basis.items()
    }


def gradients(network: StackedNetwork, params: Stacked, batch: StackedBatch) -> tuple[Tensor, Stacked]:
    """Return F(H(x^g, X)) of Eq. 13 plus the divergence from the first attention, and its gradients by HAM (a, ...).

    Without lambda, which scales a gradient whose scale Adam does not see.
    """
    shared, me = batch.shared, batch.own["me"]
    basis, z = parameters.unprefixed(shared, "basis."), unit(shared["points"])
    own_point = _mean(me, z[:-1])
    middle = {layer: _times(params[f"q{layer}"], own_point) for layer in (1, 2)}
    with torch.enable_grad():
        # Projections are differentiated by hand: their gradients are outer products of vectors.
        queries = [_mean(middle[layer], params[f"k{layer}"]).requires_grad_() for layer in (1, 2)]
        a, b = _attention(queries[0], queries[1], shared["points"], z, own_point, me, shared["slots"])
        share = coefficients(a, b, me)
        penalty = shared["rho"] * divergence(batch.own["prior"], a)
    losses, by_mixture = network.gradient(model_algebra.mixtures(share.detach(), basis), batch, network.parameters)
    by_share = torch.zeros_like(share)
    for name, value in by_mixture.items():
        by_share += model_algebra.inner_products(value.flatten(1), basis[name].flatten(1))
    with torch.enable_grad():
        total = (share * by_share).sum() + penalty.sum()  # clients are independent
    by_queries = torch.autograd.grad(total, queries, allow_unused=True, materialize_grads=True)
    by_theta: Stacked = {}
    for layer, by_query in zip((1, 2), by_queries, strict=True):
        by_middle = _times(params[f"k{layer}"], by_query)
        by_theta[f"q{layer}"] = by_middle[..., None] * own_point[..., None, :]
        by_theta[f"k{layer}"] = middle[layer][..., None] * by_query[..., None, :]
    return losses + penalty.detach(), {name: by_theta[name] for name in params}


def joint(model: Model, params: Params, batch: Batch) -> Tensor:
    """Return F(x_i) + lambda F(H(x^g, X)), client i's part of Eq. 1, as a function of x_i (Eq. 15).

    HAM and the others' uploads are constant; x_i enters the hybrid as query, key and value. ``own`` holds ``theta.``,
    ``me`` and the ``share`` of x_i. ``shared`` holds the ``points`` and ``basis.`` of the hybrids, in which the trained
    x_i replaces the client's own, and the constants of its sketch, ``centred`` (1) on x^g or not (0).
    """
    shared, me = batch.shared, batch.own["me"]
    basis = parameters.unprefixed(shared, "basis.")
    offset = {name: value - shared["centred"] * basis[name][-1] for name, value in params.items() if name in basis}
    is_other, is_own = torch.cat([1 - me, me.new_ones(1)]), torch.cat([me, me.new_zeros(1)])
    own_point = sketch.of(offset, shared, shared["points"].shape[-1])
    points = is_other[:, None] * shared["points"] + is_own[:, None] * own_point
    a, b = scores(parameters.unprefixed(batch.own, "theta."), points, me, shared["slots"])
    share = coefficients(a, with_own_share(b, batch.own["share"]), me)
    hybrid = {
        name: value + (is_own @ share).to(value.dtype) * params[name] if value.is_floating_point() else value
        for name, value in mix(share * is_other, basis).items()
    }
    own_loss = batch.cross_entropy(model(params, batch.x))
    return own_loss + shared["lam"] * _of_hybrid(model, hybrid, batch)


def _of_hybrid(model: Model, hybrid: Params, batch: Batch) -> Tensor:
    """Return F(hybrid), with constant buffers."""
    constant = {name: value if name in model.parameters else value.detach() for name, value in hybrid.items()}
    return batch.cross_entropy(model(constant, batch.x))


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

    def attention(self, theta: Stacked) -> tuple[Tensor, Tensor]:
        """Return the clients' attention (q, n) and (q, 3) by their HAM (q, ...)."""
        with intra_op(1):
            return scores(theta, self.points, self.me, self.slots)

    def mixed(self, a: Tensor, b: Tensor) -> Stacked:
        """Return the clients' hybrids (q, ...) by their attention (q, n) and (q, 3)."""
        with intra_op(1):
            return model_algebra.mixtures(coefficients(a, b, self.me), self.basis)

    def with_own(self, hybrids: Stacked, share: Tensor) -> Stacked:
        """Return hybrids (q, ...) of which ``share`` (q, 1) became the clients' own models."""
        if not share.any():
            return hybrids
        mixed = {name: value for name, value in hybrids.items() if value.is_floating_point()}
        if (share == 1).all():
            return {**hybrids, **{name: self._own[name] for name in mixed}}
        with intra_op(1):
            for name, value in mixed.items():
                mixed[name] = value.lerp(self._own[name], share.to(value).view(-1, *[1] * (value.ndim - 1)))
        return {**hybrids, **mixed}

    @cached_property
    def _own(self) -> Stacked:
        own = parameters.take(self.basis, self.me.argmax(dim=1).cpu().numpy())
        return {name: value.contiguous() for name, value in own.items()}  # no view of the basis, whose rows lie apart

    def ham_plan(self, first: Params, rho: float) -> dict[str, Any]:
        """Return the options of ``Run.local_sgd`` by which clients train HAM, which began as ``first`` (Eq. 13)."""
        initial = {name: value.expand(len(self.me), *value.shape) for name, value in first.items()}
        return {
            "gradient": gradients,
            "lockstep": True,
            "own": {"me": self.me, "prior": self.attention(initial)[0]},
            "shared": {**self._constants(), "rho": self._number(rho)},
        }

    def hybrid_plan(
        self, theta: Stacked, share: Tensor, sketched: CountSketch, lam: float, *, centred: bool
    ) -> dict[str, Any]:
        """Return the options of ``Run.local_sgd`` by which clients train models on the hybrid's loss too (Eq. 15).

        HAM is constant. ``share`` (q, 1) is that of the own model in each hybrid; ``centred`` says whether points are
        sketches of offsets from the global model.
        """
        maps = {name: value.to(self.points.device) for name, value in sketched.constants().items()}
        return {
            "objective": joint,
            "own": {"me": self.me, "share": share, **{f"theta.{name}": value for name, value in theta.items()}},
            "shared": {**self._constants(), **maps, "lam": self._number(lam), "centred": self._number(centred)},
        }

    def _constants(self) -> Params:
        basis = {f"basis.{name}": value for name, value in self.basis.items()}
        return {"points": self.points, "slots": self.slots, **basis}

    def _number(self, value: float) -> Tensor:
        return torch.tensor(float(value), device=self.points.device)
