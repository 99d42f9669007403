"""CountSketch: a random linear map of a model's parameters to a few numbers that keeps inner products.

Charikar, Chen & Farach-Colton (2002), https://doi.org/10.1007/3-540-45465-9_59; as a projection of features Weinberger
et al. (2009), https://arxiv.org/abs/0902.2206: every parameter is added, with a random sign, to one random bucket. The
inner product of two sketches is unbiased, and the cosine of width r errs by about 1 / sqrt(r).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from pflcli.parameters import Params, Stacked


class CountSketch:
    """The map to ``width`` buckets that ``rng`` draws for ``names`` of ``like``, in their order there."""

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
        """Return the constants that ``of`` needs: the buckets and the signs of each parameter, flat."""
        return {
            f"{kind}.{name}": value
            for name, (bucket, sign) in self._maps.items()
            for kind, value in (("bucket", bucket), ("sign", sign.float()))
        }

    def __call__(self, stacked: Stacked) -> Tensor:
        """Return the sketches (m, width) of a stack of models, float64, on the CPU, where sums have a fixed order."""
        count = len(next(iter(stacked.values())))
        out = torch.zeros((count, self._width), dtype=torch.float64)
        for name, (bucket, sign) in self._maps.items():
            values = stacked[name].detach().reshape(count, len(bucket)).cpu()
            for row, value in zip(out, values, strict=True):
                row.index_add_(0, bucket, value.double() * sign)
        return out


def of(params: Params, constants: Params, width: int) -> Tensor:
    """Return the sketch (width,) of one model, differentiable, in its precision; ``constants`` are the map's."""
    sketch = next(iter(params.values())).new_zeros(width)
    for name, value in params.items():
        if f"bucket.{name}" in constants:
            signed = value.flatten() * constants[f"sign.{name}"].to(value.dtype)
            sketch = sketch.index_add(0, constants[f"bucket.{name}"], signed)
    return sketch
