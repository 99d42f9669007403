"""Settings of a process that computes: what its allocator does with freed memory, its threads, and its precision."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

MMAP_MAX, ARENA_MAX, TRIM_THRESHOLD = 0, 1, 512 << 20
"""Values of glibc's ``M_MMAP_MAX`` (blocks), ``M_ARENA_MAX`` (arenas) and ``M_TRIM_THRESHOLD`` (bytes)."""

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
"""Parameters of mallopt(3)."""

_HUGE_PAGE, _MADV_HUGEPAGE = 2 << 20, 14
"""Bytes of a huge page, and the advice of madvise(2) that asks for such pages."""


def keep_freed_memory() -> None:
    """Let glibc keep up to half a gigabyte of freed memory for the next training step; without glibc do nothing.

    By default glibc returns large blocks to the kernel immediately, and the next step allocates them again: a step of
    MobileNet-v2 then causes 1,500 page faults, which take 4 % of its time. ``M_MMAP_THRESHOLD`` cannot be set high
    enough for the stacked models of a cohort, so no block gets a mapping of its own. All threads share one arena, so
    that each of them can reuse blocks that another thread has freed.
    """
    if not sys.platform.startswith("linux"):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_MAX, MMAP_MAX)
        library.mallopt(_M_ARENA_MAX, ARENA_MAX)
        library.mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD)
        _ask_for_huge_pages()


@cache  # once per process
def _ask_for_huge_pages() -> None:
    """Ask Linux for pages of 2 MB for what glibc allocates next: pages of 4 kB make rounds up to a tenth slower."""
    library, size = ctypes.CDLL(None), TRIM_THRESHOLD // 2
    library.malloc.restype = ctypes.c_void_p
    if block := library.malloc(ctypes.c_size_t(size)):  # the end of the heap; no page of it is used yet
        first = -(-block // _HUGE_PAGE) * _HUGE_PAGE
        library.madvise(ctypes.c_void_p(first), ctypes.c_size_t(block + size - first), _MADV_HUGEPAGE)
        library.free(ctypes.c_void_p(block))


@contextmanager
def intra_op(threads: int) -> Iterator[None]:
    """Compute with this number of intra-op threads inside the block, and on a GPU never in TF32.

    By default PyTorch lets cuDNN round the inputs of float32 convolutions to TF32, which has a mantissa of ten bits.
    """
    before = torch.get_num_threads(), torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.set_num_threads(threads)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before[1:]
