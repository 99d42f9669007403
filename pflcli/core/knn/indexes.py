"""Builds, reads and searches FAISS indexes, one per store. Only this module imports FAISS, always after torch."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch  # (import torch before FAISS: both load an OpenMP runtime, and torch's must be the first)
from numpy.typing import NDArray

from pflcli.core.errors import UsageError

EXACT = "Flat"
"""FAISS's name of the exact index."""

EXAMPLES = ("Flat", "SQ8", "PQ16x4", "PCA64,Flat", "HNSW32", "IVF8,Flat")

_NEVER = 2**31 - 1

_LARGE = 1 << 17
"""Numbers in an exact index from which on a product of matrices finds neighbours faster than FAISS."""

_MAX_IN_FACTORY = 1_000_000
"""The largest number in the name of an index, such as lists of IVF: each needs a training sample, and takes memory."""

_QUERIES = 512
"""Number of queries in one product."""

_INEXACT, _ROUNDING = 1e-3, 2e-6
"""Shares of |q|^2 + |x|^2: below the first a distance by a product has fewer than four exact digits; the second is more
than such distances are rounded by."""


def faiss() -> Any:
    """Return the module of FAISS, set to one thread for the calling thread and to exact arithmetic.

    Stores are small, so that more threads per search are slower. With a matrix product (BLAS) the distance between
    near vectors would lose its digits, and equal vectors could have different distances.
    """
    import faiss

    faiss.omp_set_num_threads(1)
    faiss.cvar.distance_compute_blas_threshold = _NEVER
    return faiss


def find_nearest(
    stored: NDArray[np.float32], queries: NDArray[np.float32], k: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the *squared* L2 distances (n, k) to the nearest rows of ``stored`` (m, d), and those rows, (n, k).

    The search is exact. Of equally near rows the first comes first. A query that is not finite has no neighbours: its
    rows are -1.

    >>> import numpy as np
    >>> from pflcli.method import find_nearest
    >>> distance, row = find_nearest(np.float32([[0, 0], [3, 4]]), np.float32([[0, 1]]), 2)
    >>> distance.tolist(), row.tolist()
    ([[1.0, 18.0]], [[0, 1]])
    """
    stored, queries = (np.ascontiguousarray(array, dtype=np.float32) for array in (stored, queries))
    distance, row = faiss().knn(queries, stored, k)
    return distance, row


def check(factory: str, dimension: int, parameters: Mapping[str, str]) -> None:
    """Raise UsageError unless ``factory`` describes an index of ``dimension`` that has the search ``parameters``."""
    too_large = next((number for number in re.findall(r"\d+", factory) if int(number) > _MAX_IN_FACTORY), None)
    if too_large is not None:
        raise _refuse(f"has {too_large}, which is above the maximum of {_MAX_IN_FACTORY:,}", factory)
    if factory == EXACT and parameters:
        raise UsageError(f"--set {next(iter(parameters))}: the index {EXACT} is exact and has no search options")
    try:
        index = faiss().index_factory(dimension, factory)
    except RuntimeError as error:
        reason = str(error).rpartition("failed: ")[2] if "failed: " in str(error) else "FAISS does not know it"
        raise _refuse(f"does not fit {dimension}-d embeddings: {reason}", factory) from None
    if "LSH" in factory:
        raise _refuse("is not supported: it compares bits instead of L2 distances", factory)
    if factory.startswith(("IDMap", "NSG")):
        raise _refuse("is not supported: it needs ids or more samples than a store has", factory)
    _set_parameters(index, parameters)


def _refuse(reason: str, factory: str) -> UsageError:
    return UsageError(f"--index {factory} {reason}", *(f"--index {example}" for example in EXAMPLES))


def _set_parameters(index: Any, parameters: Mapping[str, str]) -> None:
    for name, value in parameters.items():
        try:
            faiss().ParameterSpace().set_index_parameter(index, name, float(value))
        except (RuntimeError, ValueError):
            fix = "nprobe=4 for IVF, efSearch=64 for HNSW, k_factor_rf=4 for RFlat"
            raise UsageError(f"the index has no option {name} with value {value}", fix) from None


def build(factory: str, z: NDArray[np.float32], parameters: Mapping[str, str]) -> tuple[NDArray[np.uint8], str]:
    """Return a serialised index over ``z`` (n, d), trained on it, and its kind.

    The kind is ``factory``, or ``EXACT`` if there are too few rows to train such an index.
    """
    z = np.ascontiguousarray(z, dtype=np.float32)
    if factory == EXACT or not len(z):
        return _build_flat(z), EXACT
    index = faiss().index_factory(z.shape[1], factory)
    _allow_few_samples(index)
    _set_parameters(index, parameters)
    if not index.is_trained:
        try:
            index.train(z)
        except RuntimeError:  # fewer samples than centroids or components
            return _build_flat(z), EXACT
    _delete_unused(index)
    index.add(z)
    serialised: NDArray[np.uint8] = faiss().serialize_index(index)
    return serialised, factory


def _build_flat(z: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return a serialised exact index over ``z`` (n, d)."""
    module = faiss()
    index = module.IndexFlatL2(z.shape[1])
    index.add(z)
    serialised: NDArray[np.uint8] = module.serialize_index(index)
    return serialised


def flat_indexes(stores: Sequence[NDArray[np.float32]]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return serialised exact indexes over the rows of each store (n, d), joined, and their offsets (m + 1,).

    >>> import numpy as np
    >>> from pflcli.method import flat_indexes
    >>> blob, offsets = flat_indexes([np.zeros((3, 2), "float32"), np.ones((5, 2), "float32")])
    >>> len(offsets), int(offsets[-1]) == len(blob)
    (3, True)
    """
    parts = [_build_flat(np.ascontiguousarray(z, dtype=np.float32)) for z in stores]
    return np.concatenate([*parts, np.zeros(0, np.uint8)]), np.cumsum([0, *map(len, parts)])


def flat_vectors(raw: NDArray[np.uint8], index: Any = None) -> NDArray[np.float32] | None:
    """Return a view of the vectors (n, d) in a serialised exact index; None for other kinds of index.

    ``index`` is the result of ``read``, if there is one; raises ValueError as it does.
    """
    index = read(raw) if index is None else index
    if not isinstance(index, faiss().IndexFlatL2):
        return None
    shape = index.ntotal, index.d
    if not index.ntotal:
        return np.zeros(shape, np.float32)
    start = faiss().rev_swig_ptr(index.get_xb(), 1).ctypes.data - raw.ctypes.data
    return raw[start : start + 4 * index.ntotal * index.d].view(np.float32).reshape(shape)


def _allow_few_samples(part: Any) -> None:
    """Set an index up for training on a client's few samples.

    K-means must not warn on stderr about fewer than 39 samples per centroid. A product quantizer does not need to order
    its codes for searches by Hamming distance, which would take a second per client.
    """
    module = faiss()
    if isinstance(part, module.IndexPreTransform):
        _allow_few_samples(module.downcast_index(part.index))
    if isinstance(part, module.IndexRefine):
        _allow_few_samples(module.downcast_index(part.base_index))
    if isinstance(part, module.IndexHNSW):
        _allow_few_samples(module.downcast_index(part.storage))
    if hasattr(part, "do_polysemous_training"):
        part.do_polysemous_training = False
    for owner in (part, *(getattr(part, name) for name in ("pq", "rq") if hasattr(part, name))):
        if hasattr(owner, "cp"):
            owner.cp.min_points_per_centroid = 1


def _delete_unused(index: Any) -> None:
    """Delete the components that a PCA does not use: they would take most of the bytes of a small store."""
    module = faiss()
    for position in range(index.chain.size() if isinstance(index, module.IndexPreTransform) else 0):
        step = module.downcast_VectorTransform(index.chain.at(position))
        if isinstance(step, module.PCAMatrix):
            step.PCAMat.clear()
            step.eigenvalues.clear()


_LIMITS = threading.Lock()


@contextmanager
def _limit_sizes(size: int) -> Iterator[None]:
    """Let FAISS read no vector or list of more than ``size`` bytes inside the block."""
    module = faiss()
    with _LIMITS:  # FAISS has one limit per process, and several threads read stores
        before = module.get_deserialization_vector_byte_limit(), module.get_deserialization_loop_limit()
        module.set_deserialization_vector_byte_limit(size)
        module.set_deserialization_loop_limit(size)
        try:
            yield
        finally:
            module.set_deserialization_vector_byte_limit(before[0])
            module.set_deserialization_loop_limit(before[1])


def read(raw: NDArray[np.uint8]) -> Any:
    """Return a deserialised index; raises ValueError if the bytes are not one.

    An exact index is a view of ``raw`` and must not be changed: FAISS would end the process.
    """
    module = faiss()
    if len(raw) == 0:
        raise ValueError("it is not a FAISS index: it is empty")
    try:
        # FAISS allocates the sizes that an index declares before it reads the contents. Nothing in an index is
        # compressed, so no declared size can exceed the number of bytes.
        with _limit_sizes(len(raw)):
            index = module.read_index(module.ZeroCopyIOReader(module.swig_ptr(raw), len(raw)))
            if not isinstance(index, module.IndexFlatL2):
                return module.deserialize_index(raw)
    except (RuntimeError, TypeError, AssertionError, MemoryError) as error:
        reason = str(error).rpartition("failed: ")[2].strip() or type(error).__name__
        raise ValueError(f"it is not a FAISS index: {reason}") from None
    index.referenced_objects = (raw,)  # FAISS does not copy them
    return index


def search(
    raw: NDArray[np.uint8], queries: NDArray[np.float32], k: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the distances (n, k) to the nearest rows of an index, and those rows, (n, k).

    Distances are those of the index, *squared* L2. Rows are -1 where the index finds fewer.
    """
    index = read(raw)
    vectors = flat_vectors(raw, index) if index.ntotal * index.d >= _LARGE else None
    if vectors is not None:
        parts = [
            _search_by_product(vectors, np.ascontiguousarray(queries[first : first + _QUERIES], np.float32), k)
            for first in range(0, max(1, len(queries)), _QUERIES)
        ]
        distances, rows = zip(*parts, strict=True)
        return np.concatenate(distances), np.concatenate(rows)
    distance, row = index.search(np.ascontiguousarray(queries, dtype=np.float32), k)
    return distance.astype(np.float64), row


def _search_by_product(
    stored: NDArray[np.float32], queries: NDArray[np.float32], k: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the distances to the nearest rows of ``stored``, and those rows, by one product of matrices.

    FAISS searches again where rounding could change which rows these are, or most digits of a distance.
    """
    x, q = torch.tensor(stored), torch.tensor(queries)  # copies, as arrays in files cannot be written to
    lengths, norms = x.square().sum(dim=1), q.square().sum(dim=1)[:, None]
    products = torch.addmm(lengths, q, x.T, alpha=-2).add_(norms)
    squared, row = (each.numpy() for each in torch.topk(products, min(k + 1, len(x)), largest=False))
    scale = (norms + lengths.max()).numpy()
    with np.errstate(invalid="ignore"):  # infinite numbers are not sure
        gaps = np.diff(squared, axis=1)
        gaps[:, k - 1 :] -= _ROUNDING * scale  # between the k-th and the next
        is_sure = (gaps > 0).all(axis=1) & (squared[:, 0] >= _INEXACT * scale[:, 0])
    distance, row = squared[:, :k].astype(np.float64), row[:, :k]
    if not is_sure.all():
        distance[~is_sure], row[~is_sure] = find_nearest(stored, queries[~is_sure], k)
    return distance, row
