"""Mixes models and takes their inner products: those of a table in bounded memory, each of its bytes read once.

Where ``accelerated/products.py`` has products of its own these are three times as fast as PyTorch's for few rows of
many columns, which is what models are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pflcli.engine import backend
from pflcli.parameters import Params, Stacked
from pflcli.parameters.model_table import ModelTable

_LARGE = 1 << 20
"""Multiplications from which products are worth compiled loops, and to import Numba for them."""

_FEW = 0.3
"""Share of weights that are not zero up to which sums of these models alone take less time than products of all."""

_BLOCK = 32
"""Models of which the inner products with those behind them are computed at a time, as the others are the same."""


def mix(weights: Tensor, models: Tensor, out: Tensor) -> None:
    """Write the sums (r, d) of ``models`` (m, d) by ``weights`` (r, m) into ``out``."""
    products = backend.part("products") if _is_large(weights, models) else None
    if products is None:
        torch.mm(weights, models, out=out)
    else:
        products.multiply(weights, models, out, near=False)()


def mix_few(weights: Tensor, models: Tensor, out: Tensor) -> None:
    """Do as ``mix`` with ``weights`` in coordinate form, reading for each sum only models that have a weight there."""
    (receivers, senders), values = weights.indices(), weights.values()
    first = torch.searchsorted(receivers, torch.arange(len(weights)))
    out.copy_(functional.embedding_bag(senders, models, first, mode="sum", per_sample_weights=values))


def mixtures(shares: Tensor, models: Stacked) -> Stacked:
    """Return the sums (a, ...) of ``models`` (m, ...) by ``shares`` (a, m); integer buffers are those of the last."""
    mixed = {}
    for name, value in models.items():
        shape = (len(shares), *value.shape[1:])
        if value.is_floating_point():
            out = value.new_empty(len(shares), value[0].numel())
            mix(shares.to(value.dtype), value.flatten(1) if value.ndim > 1 else value[:, None], out)
            mixed[name] = out.view(shape)
        else:
            mixed[name] = value[-1].expand(shape).clone()
    return mixed


def inner_products(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner products (r, m) of rows ``a`` (r, d) and ``b`` (m, d)."""
    products = backend.part("products") if _is_large(a, b) else None
    if products is None:
        return a @ b.T
    out = a.new_empty(len(a), len(b))
    for step in products.multiply_by_rows(a, b, out, a.new_empty):
        step()
    return out


def _is_large(a: Tensor, b: Tensor) -> bool:
    """Whether a product of two matrices, the second of m rows of d numbers, is worth compiled loops."""
    return a.is_cpu and a.dtype == b.dtype == torch.float32 and len(a) * b.numel() >= _LARGE


def mixed(models: ModelTable, weights: NDArray[np.float64], chunk: int) -> Iterator[tuple[slice, Stacked]]:
    """Yield receivers, as a slice of the rows of ``weights`` (r, m), with their means of ``models``, stacked.

    ``weights[i, j] >= 0`` is the weight of client j's model for receiver i; each row is divided by its sum, which must
    be positive. As much as ``chunk`` models is read, and ``chunk`` means are computed, at a time, in the models' own
    precision; integer buffers take the largest value among models with a positive weight.
    """
    for first in range(0, len(weights), chunk):
        rows = slice(first, min(first + chunk, len(weights)))
        senders = np.flatnonzero(weights[rows].any(axis=0))
        shares = torch.from_numpy(weights[rows][:, senders] / weights[rows].sum(axis=1, keepdims=True))
        few = shares.float().to_sparse() if int((shares > 0).sum()) <= _FEW * shares.numel() else None
        means = {name: value.new_empty((len(shares), *value.shape)) for name, value in models.default.items()}
        for name, columns, piece in models.pieces(senders, models.default, chunk):
            mean = means[name].reshape(len(shares), -1)[:, columns]
            own = shares.to(piece.device)
            if few is not None and piece.is_cpu and piece.dtype == torch.float32:
                mix_few(few, piece, mean)
            elif piece.is_floating_point():
                mix(own.to(piece.dtype), piece, mean)
            else:
                mean.copy_(torch.where(own[..., None] > 0, piece, torch.iinfo(piece.dtype).min).amax(dim=1))
        yield rows, means


def gram(
    models: ModelTable, ids: NDArray[np.int64], names: Sequence[str], chunk: int, origin: Params | None = None
) -> NDArray[np.float64]:
    """Return all inner products (n, n) of the clients' parameters ``names``, minus those of ``origin``.

    As much as ``chunk`` models is read at a time. Sums over pieces of the vectors are in float64, those within a piece
    in the models' own precision. For distances give an ``origin`` that is near the models: they are differences of
    inner products.
    """
    count = len(ids)
    products = torch.zeros(count, count, dtype=torch.float64, device=models.default[names[0]].device)
    for name, columns, values in models.pieces(ids, names, chunk):
        vectors = values.sub_(origin[name].flatten()[columns]) if origin else values
        for first in range(0, count, _BLOCK):
            block = slice(first, first + _BLOCK)
            products[first:, block] += inner_products(vectors[first:], vectors[block])
    lower = np.tril(products.cpu().numpy())
    return np.asarray(lower + np.tril(lower, -1).T)
