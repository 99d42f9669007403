"""A compiled loop for sketches of many models, see ``sketch.py``."""

from __future__ import annotations

import numpy as np

from pflcli.accelerated.compiler import compiled
from pflcli.accelerated.kernels import Array

_BLOCK = 4096
"""Numbers of each model at a time: their buckets and signs stay in the cache for all models."""


@compiled
def add(values: Array, bucket: Array, sign: Array, sums: Array) -> None:
    """Add to ``sums`` (m, r), in their order, the ``values`` (m, d) times ``sign`` (d,), each to its ``bucket`` (d,).

    Two models take turns, as a sum waits for the one before it in its bucket.
    """
    spare = np.empty_like(sums[0])
    for first in range(0, len(bucket), _BLOCK):
        last = min(first + _BLOCK, len(bucket))
        for model in range(0, len(values), 2):
            other = min(model + 1, len(values) - 1)
            one, to_one, two, to_two = values[model], sums[model], values[other], sums[other]
            if other == model:
                to_two = spare
            for i in range(first, last):
                to_one[bucket[i]] += one[i] * sign[i]
                to_two[bucket[i]] += two[i] * sign[i]
