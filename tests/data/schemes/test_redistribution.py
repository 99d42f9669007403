"""Samples move from the largest clients to those with too few."""

from __future__ import annotations

import numpy as np
import pytest

from pflcli.core.schemes import redistribute


def redistribute_by_search(parts, minimum, rng):
    """The same by a search for the largest client at every step."""
    rows = [list(part) for part in parts]
    for taker in sorted(range(len(rows)), key=lambda client: len(rows[client])):
        while len(rows[taker]) < minimum:
            giver = max(range(len(rows)), key=lambda client: len(rows[client]))
            spare = min(minimum - len(rows[taker]), len(rows[giver]) - minimum)
            rng.shuffle(rows[giver])
            rows[taker] += rows[giver][:spare]
            rows[giver] = rows[giver][spare:]
    return [sorted(map(int, part)) for part in rows]


@pytest.mark.parametrize("seed", range(10))
def test_redistribute_takes_samples_from_the_currently_largest_client(seed):
    draw = np.random.default_rng(seed)
    parts, minimum = np.split(np.arange(200), np.sort(draw.integers(0, 200, 24))), 1 + seed % 8
    moved = redistribute(parts, minimum, np.random.default_rng(seed))
    assert [part.tolist() for part in moved] == redistribute_by_search(parts, minimum, np.random.default_rng(seed))
