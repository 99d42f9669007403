"""The first layer of recurrent models: an embedding that turns tokens into series."""

from __future__ import annotations

from torch import nn

_TOKEN_DIMENSIONS = 8
"""Dimensions of a token's embedding: LEAF (Caldas et al., 2018), https://arxiv.org/abs/1812.01097."""


def create_first_layer(in_shape: tuple[int, ...], vocabulary: int) -> tuple[nn.Module, int]:
    """Return a layer and its width d: an embedding of tokens (n, L) as series (n, L, d), or the identity for series."""
    if len(in_shape) == 1:
        return nn.Embedding(vocabulary, _TOKEN_DIMENSIONS), _TOKEN_DIMENSIONS
    return nn.Identity(), in_shape[1]
