"""Weighted means and inner products of models. Those of a table take bounded memory and read each byte once.

Models are a few rows of many columns, for which the products of ``accelerated/products.py`` may be three times as fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pflcli.core.engine import backend
from pflcli.core.parameters import Params, Stacked
from pflcli.core.parameters.model_table import ModelTable

_MIN_MULTIPLICATIONS = 1 << 20
"""Least number of multiplications of a product for which compiled loops are used, and Numba is imported."""

_MAX_SPARSE_SHARE = 0.3
"""Largest share of nonzero weights for which sparse sums are faster than a matrix product."""

_GRAM_ROWS = 32
"""Number of models in a block of a Gram matrix. Blocks above the diagonal are not computed, because it is symmetric."""


def mix(weights: Tensor, models: Tensor, out: Tensor) -> None:
    """Write the sums (r, d) of ``models`` (m, d) by ``weights`` (r, m) into ``out``."""
    products = backend.part("products") if _is_large(weights, models) else None
    if products is None:
        torch.mm(weights, models, out=out)
    else:
        products.multiply(weights, models, out)()


def mix_sparse(weights: Tensor, models: Tensor, out: Tensor) -> None:
    """Do the same as ``mix`` for sparse ``weights`` in coordinate form. Each sum reads only models with a weight."""
    (receivers, senders), values = weights.indices(), weights.values()
    first = torch.searchsorted(receivers, torch.arange(len(weights)))
    out.copy_(functional.embedding_bag(senders, models, first, mode="sum", per_sample_weights=values))


def mixtures(shares: Tensor, models: Stacked) -> Stacked:
    """Return sums (a, ...) of ``models`` (m, ...) weighted by ``shares`` (a, m); integer buffers are the last ones."""
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
    for step in products.multiply_by_rows(a, b, out, a.new_empty, near=False):
        step()
    return out


def _is_large(a: Tensor, b: Tensor) -> bool:
    """Whether a product of two matrices, or of one with the transpose of the other, is worth compiled loops."""
    return a.is_cpu and a.dtype == b.dtype == torch.float32 and len(a) * b.numel() >= _MIN_MULTIPLICATIONS


def weighted_means(models: ModelTable, weights: NDArray[np.float64], chunk: int) -> Iterator[tuple[slice, Stacked]]:
    """Yield slices of the rows of ``weights`` (r, m) with the weighted means of ``models`` for these rows, stacked.

    ``weights[i, j] >= 0`` is the weight of client j's model for receiver i. Each row is divided by its sum, which must
    be positive. Means are computed in the models' own precision. At any time the memory of at most ``chunk`` models is
    read, and ``chunk`` means are computed. Integer buffers get the largest value of the models with a positive weight.
    """
    for first in range(0, len(weights), chunk):
        rows = slice(first, min(first + chunk, len(weights)))
        senders = np.flatnonzero(weights[rows].any(axis=0))
        shares = torch.from_numpy(weights[rows][:, senders] / weights[rows].sum(axis=1, keepdims=True))
        sparse = shares.float().to_sparse() if int((shares > 0).sum()) <= _MAX_SPARSE_SHARE * shares.numel() else None
        means = {name: value.new_empty((len(shares), *value.shape)) for name, value in models.default.items()}
        for name, columns, piece in models.read_columns(senders, models.default, chunk):
            mean = means[name].reshape(len(shares), -1)[:, columns]
            own = shares.to(piece.device)
            if sparse is not None and piece.is_cpu and piece.dtype == torch.float32:
                mix_sparse(sparse, piece, mean)
            elif piece.is_floating_point():
                mix(own.to(piece.dtype), piece, mean)
            else:
                mean.copy_(torch.where(own[..., None] > 0, piece, torch.iinfo(piece.dtype).min).amax(dim=1))
        yield rows, means


def gram_matrix(
    models: ModelTable, ids: NDArray[np.int64], names: Sequence[str], chunk: int, origin: Params | None = None
) -> NDArray[np.float64]:
    """Return the Gram matrix (n, n) of the clients' parameters ``names``, from which ``origin`` is subtracted first.

    At any time the memory of at most ``chunk`` models is read. Sums over pieces of the vectors are in float64, sums
    within a piece in the models' own precision. To compute distances, which are differences of inner products, give an
    ``origin`` near the models.
    """
    count = len(ids)
    products = torch.zeros(count, count, dtype=torch.float64, device=models.default[names[0]].device)
    for name, columns, values in models.read_columns(ids, names, chunk):
        vectors = values.sub_(origin[name].flatten()[columns]) if origin else values
        for first in range(0, count, _GRAM_ROWS):
            block = slice(first, first + _GRAM_ROWS)
            products[first:, block] += inner_products(vectors[first:], vectors[block])
    lower = np.tril(products.cpu().numpy())
    return np.asarray(lower + np.tril(lower, -1).T)
