"""Rows of stacks: selected, and written back to their places."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pflcli.core import parameters

STACK = {"a": torch.arange(24.0).view(6, 2, 2), "steps": torch.arange(6)}


@pytest.mark.parametrize("positions", [[0, 1], [2, 3, 4], [4, 0, 5], [3], []])
def test_take_selects_rows_at_positions(positions):
    selected = parameters.take(STACK, np.asarray(positions, dtype=np.int64))
    for name, value in selected.items():
        assert torch.equal(value, STACK[name][torch.tensor(positions, dtype=torch.int64)])


@pytest.mark.parametrize("positions", [[1, 2], [5, 0, 3], []])
def test_write_rows_changes_only_the_given_positions(positions):
    part = {name: -value[: len(positions)] - 1 for name, value in STACK.items()}
    stack = {name: value.clone() for name, value in STACK.items()}
    parameters.write_rows(stack, np.asarray(positions, dtype=np.int64), part)
    for name, value in stack.items():
        expected = STACK[name].clone()
        expected[torch.tensor(positions, dtype=torch.int64)] = part[name]
        assert torch.equal(value, expected)
