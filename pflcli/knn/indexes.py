"""Builds, reads and searches FAISS indexes, one per store. No other module imports FAISS, which must come after torch.

An index is trained on a client's training samples alone, and holds its validation samples behind them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch  # noqa: F401  (before FAISS: each brings an OpenMP runtime, and torch's must be the first)
from numpy.typing import NDArray

from pflcli.errors import UsageError

EXACT = "Flat"
"""The exact index, which ``flat_format`` writes and ``exact`` searches without FAISS."""

EXAMPLES = ("Flat", "SQ8", "PQ16x4", "PCA64,Flat", "HNSW32", "IVF8,Flat")


def faiss() -> Any:
    """Return the module of FAISS, set to one thread for the calling thread."""
    import faiss

    faiss.omp_set_num_threads(1)  # one thread a search: stores are small, and more threads made it slower
    return faiss


def check(factory: str, dimension: int, parameters: Mapping[str, str]) -> None:
    """Raise UsageError unless ``factory`` describes an index over ``dimension`` that has the search ``parameters``."""
    if factory == EXACT and parameters:
        raise UsageError(f"--set {next(iter(parameters))}: the index {EXACT} is exact and has no search options")
    try:
        index = faiss().index_factory(dimension, factory)
    except RuntimeError as error:
        reason = str(error).rpartition("failed: ")[2] if "failed: " in str(error) else "FAISS knows none such"
        raise _refused(f"makes no index over {dimension}-d embeddings: {reason}", factory) from None
    if "LSH" in factory:
        raise _refused("compares bits: its distances are none between embeddings", factory)
    if factory.startswith(("IDMap", "NSG")):
        raise _refused("cannot be built for a store: it takes ids of its own, or many samples", factory)
    _parametrize(index, parameters)


def _refused(why: str, factory: str) -> UsageError:
    return UsageError(f"--index {factory} {why}", *(f"--index {example}" for example in EXAMPLES))


def _parametrize(index: Any, parameters: Mapping[str, str]) -> None:
    for name, value in parameters.items():
        try:
            faiss().ParameterSpace().set_index_parameter(index, name, float(value))
        except (RuntimeError, ValueError):
            fix = "nprobe=4 for IVF, efSearch=64 for HNSW, k_factor_rf=4 for RFlat"
            raise UsageError(f"the index has no option {name} of value {value}", fix) from None


def built(factory: str, z: NDArray[np.float32], train: int, parameters: Mapping[str, str]) -> bytes | None:
    """Return a serialised index over ``z`` (n, d), trained on the first ``train`` rows; None if these are too few."""
    if train == 0:
        return None
    index = faiss().index_factory(z.shape[1], factory)
    _allow_few_samples(index)
    _parametrize(index, parameters)
    z = np.ascontiguousarray(z, dtype=np.float32)
    if not index.is_trained:
        try:
            index.train(z[:train])
        except RuntimeError:  # fewer samples than centroids or than components
            return None
    _delete_unused(index)
    index.add(z)
    serialised: bytes = faiss().serialize_index(index).tobytes()
    return serialised


def _allow_few_samples(part: Any) -> None:
    """Set an index up for training on a client's few samples.

    K-means must not warn, on stderr, of fewer than 39 samples per centroid. A product quantizer need not order its
    codes for searches by Hamming distance: there are none, and ordering would take a second per client.
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
    """Delete the components that a projection by PCA does not use: they would be most of a small store's bytes."""
    module = faiss()
    for position in range(index.chain.size() if isinstance(index, module.IndexPreTransform) else 0):
        step = module.downcast_VectorTransform(index.chain.at(position))
        if isinstance(step, module.PCAMatrix):
            step.PCAMat.clear()
            step.eigenvalues.clear()


_LIMITS = threading.Lock()


@contextmanager
def _limited(size: int) -> Iterator[None]:
    """Let FAISS read no vector or list of more than ``size`` bytes within the block; restore its limits afterwards."""
    module = faiss()
    with _LIMITS:  # FAISS has one limit per process, and threads read stores in parallel
        before = module.get_deserialization_vector_byte_limit(), module.get_deserialization_loop_limit()
        module.set_deserialization_vector_byte_limit(size)
        module.set_deserialization_loop_limit(size)
        try:
            yield
        finally:
            module.set_deserialization_vector_byte_limit(before[0])
            module.set_deserialization_loop_limit(before[1])


def read(raw: NDArray[np.uint8]) -> Any:
    """Return the index of these bytes; raises ValueError if they are not one.

    FAISS allocates the sizes that an index declares before it reads it. Nothing is compressed, so no declared size can
    exceed the number of bytes.
    """
    module = faiss()
    try:
        with _limited(max(len(raw), 1)):
            return module.deserialize_index(raw)
    except (RuntimeError, TypeError, AssertionError, MemoryError) as error:
        reason = str(error).rpartition("failed: ")[2].strip() or type(error).__name__
        raise ValueError(f"it is no index of FAISS: {reason}") from None


def search(
    raw: NDArray[np.uint8], queries: NDArray[np.float32], k: int, size: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return distances (n, k), as the index has them, and rows (n, k) of its nearest among the first ``size`` rows.

    Rows are -1 where the index finds fewer.
    """
    index = read(raw)
    if index.ntotal > size:
        _cut(index, size)
    # An index that cannot be cut returns rows behind ``size`` too: ask for that many more, and drop them.
    distance, row = index.search(np.ascontiguousarray(queries, dtype=np.float32), k + index.ntotal - size)
    outside = (row >= size) | (row < 0)
    order = np.argsort(outside, axis=1, kind="stable")[:, :k]
    distance, row, outside = (np.take_along_axis(array, order, axis=1) for array in (distance, row, outside))
    return distance.astype(np.float64), np.where(outside, -1, row)


def first_rows(raw: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Return an index with the first ``size`` rows alone, if this kind of index can be cut; see ``read``."""
    index = read(raw)
    if index.ntotal > size:
        _cut(index, size)
    serialised: NDArray[np.uint8] = faiss().serialize_index(index)
    return serialised


def _cut(index: Any, size: int) -> None:
    """Remove the rows from ``size`` on, if this kind of index can: graphs cannot."""
    module = faiss()
    behind = module.IDSelectorRange(size, index.ntotal)
    try:
        if isinstance(index, module.IndexRefine):
            index.base_index.remove_ids(behind)
            index.refine_index.remove_ids(behind)
            index.ntotal = size
        else:
            index.remove_ids(behind)
    except RuntimeError:
        return
