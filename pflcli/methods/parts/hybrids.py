"""Attention, mixing and learning of clients that receive the same uploads, see ``ham.py``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pflcli import parameters
from pflcli.engine import model_algebra
from pflcli.engine.numerics import intra_op
from pflcli.methods.parts import ham
from pflcli.methods.parts.sketch import CountSketch
from pflcli.parameters import Params, Stacked


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
            return ham.scores(theta, self.points, self.me, self.slots)

    def mixed(self, a: Tensor, b: Tensor) -> Stacked:
        """Return the clients' hybrids (q, ...) by their attention (q, n) and (q, 3)."""
        with intra_op(1):
            return model_algebra.mixtures(ham.coefficients(a, b, self.me), self.basis)

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
            "gradient": ham.gradients,
            "lockstep": True,
            "own": {"me": self.me, "prior": self.attention(initial)[0]},
            "shared": {**self._constants(), "rho": self._number(rho)},
        }

    def hybrid_plan(
        self, theta: Stacked, share: Tensor, sketch: CountSketch, lam: float, *, centred: bool
    ) -> dict[str, Any]:
        """Return the options of ``Run.local_sgd`` by which clients train models on the hybrid's loss too (Eq. 15).

        HAM is constant. ``share`` (q, 1) is that of the own model in each hybrid; ``centred`` says whether points are
        sketches of offsets from the global model.
        """
        maps = {name: value.to(self.points.device) for name, value in sketch.constants().items()}
        return {
            "objective": ham.joint,
            "own": {"me": self.me, "share": share, **{f"theta.{name}": value for name, value in theta.items()}},
            "shared": {**self._constants(), **maps, "lam": self._number(lam), "centred": self._number(centred)},
        }

    def _constants(self) -> Params:
        basis = {f"basis.{name}": value for name, value in self.basis.items()}
        return {"points": self.points, "slots": self.slots, **basis}

    def _number(self, value: float) -> Tensor:
        return torch.tensor(float(value), device=self.points.device)
