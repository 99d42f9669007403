"""The first layer of recurrent models: an embedding that turns tokens into series."""

from __future__ import annotations

from torch import nn

_EMBEDDING = 8
"""Dimensions of a token's embedding: LEAF (Caldas et al., 2018), https://arxiv.org/abs/1812.01097."""


def as_series(in_shape: tuple[int, ...], vocabulary: int) -> tuple[nn.Module, int]:
    """Return the layer that makes series (n, L, d) of samples, and d: an embedding of tokens (L,), or the identity."""
    if len(in_shape) == 1:
        return nn.Embedding(vocabulary, _EMBEDDING), _EMBEDDING
    return nn.Identity(), in_shape[1]
