"""Similarity of clients' models: cosines and distances of parameter vectors, and splits of clients by similarity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.core.parameters import Params, Stacked
from pflcli.core.parameters.model_table import ModelTable

Array = NDArray[np.float64]


def vectors(stacked: Stacked, names: Sequence[str], origin: Params | None = None) -> Tensor:
    """Return parameters as rows (n, d), in the order of ``names``, minus those of ``origin``.

    Use the names of trained parameters: running statistics are unrelated to the objective.
    """
    count = len(next(iter(stacked.values())))
    parts = [(stacked[name] - origin[name] if origin else stacked[name]).reshape(count, -1) for name in names]
    return torch.cat(parts, dim=1)


def cosines_to_first(rows: Tensor, *, centred: bool = False) -> Array:
    """Return the cosines of the first row of (n, d) with the other rows, (n - 1,); 0 if a norm is 0.

    ``centred`` first subtracts the mean of all rows, which is common to them.
    """
    rows = rows - rows.mean(dim=0) if centred else rows
    norms = torch.linalg.vector_norm(rows, dim=1).double()
    products, sizes = (rows[1:] @ rows[0]).double(), norms[1:] * norms[0]
    cosine: Array = torch.where(sizes > 0, products / sizes, 0.0).clamp(-1, 1).cpu().numpy()
    return cosine


def norms(
    models: ModelTable, ids: NDArray[np.int64], names: Sequence[str], chunk: int, shares: Array
) -> tuple[float, Array]:
    """Return the norm of the mean of the clients' ``vectors``, weighted by ``shares`` (n,), and each norm, (n,)."""
    mean, squares = 0.0, np.zeros(len(ids))
    for _, _, values in models.read_columns(ids, names, chunk):
        mean += float((torch.from_numpy(shares).to(values) @ values).double().square().sum())
        squares += torch.linalg.vector_norm(values, dim=1).double().square().cpu().numpy()
    return float(np.sqrt(mean)), np.sqrt(squares)


def cosines(products: Array) -> Array:
    """Return the cosines (n, n) for inner products (n, n); 0 if a norm is 0."""
    norms = np.sqrt(np.maximum(np.diag(products), 0))
    sizes = np.outer(norms, norms)
    cosine = np.divide(products, sizes, out=np.zeros_like(products), where=sizes > 0)
    return np.asarray(np.clip(cosine, -1, 1))


def squared_distances(products: Array) -> Array:
    """Return the squared L2 distances (n, n) for inner products (n, n)."""
    squares = np.diag(products)
    distances: Array = np.maximum(squares[:, None] + squares - 2 * products, 0)
    np.fill_diagonal(distances, 0)
    return distances


def bipartition(similarity: Array, linkage: Literal["single", "complete"]) -> NDArray[np.bool_]:
    """Split n >= 2 clients into two clusters by similarities (n, n); returns a mask (n,) of the second cluster.

    The first cluster contains the first client. Agglomeration merges the two most similar clusters until two are left.
    The similarity of two clusters is that of their most similar members (``single``, which minimizes the largest
    similarity across the split: Sattler et al. (2020), Algorithm 1) or of their least similar members (``complete``).
    """
    count = len(similarity)
    similar = similarity.astype(np.float64)
    np.fill_diagonal(similar, -np.inf)
    cluster = np.arange(count)
    for _ in range(count - 2):
        first, second = sorted(divmod(int(similar.argmax()), count))
        merge = np.maximum if linkage == "single" else np.minimum
        similar[first] = similar[:, first] = merge(similar[first], similar[second])
        similar[first, first] = -np.inf
        similar[second] = similar[:, second] = -np.inf
        cluster[cluster == second] = first
    return np.asarray(cluster != cluster[0])
