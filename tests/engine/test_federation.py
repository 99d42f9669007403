"""The samples of clients: their rows, and samples that are mapped from a file."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from pflcli.core.datasets import SPLITS
from pflcli.core.engine.federation import Federation

SIZES = np.asarray([[3, 1, 2], [0, 0, 0], [4, 0, 1], [1, 2, 0]])
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)])
N = int(OFFSETS[-1])
DRAW = np.random.default_rng(0)


def make_federation(x):
    return Federation.from_blocks(x, np.arange(N) % 3, OFFSETS, 3)


@pytest.mark.parametrize("clients", [[0, 1, 2, 3], [3, 0], [1], []])
@pytest.mark.parametrize("split", SPLITS)
def test_rows_of_several_clients_are_concatenated(split, clients):
    data = make_federation(DRAW.normal(size=(N, 2)).astype(np.float32))
    rows = data.rows_of(np.asarray(clients, dtype=np.int64), split)
    expected = [row for client in clients for row in data.rows(client, split).tolist()]
    assert rows.tolist() == expected
    assert data.labels_of(np.asarray(clients, dtype=np.int64), split).tolist() == [row % 3 for row in expected]


@pytest.mark.parametrize("rows", [[], [4], [6, 0, 6, 12], list(range(N))])
@pytest.mark.parametrize(
    ("shape", "kind"), [((4, 5), np.uint8), ((4, 5, 3), np.uint8), ((7,), np.float32), ((7,), np.int16)]
)
def test_samples_returns_rows_in_any_order_for_every_data_type(shape, kind, rows):
    x = DRAW.integers(0, 200, size=(N, *shape)).astype(kind)
    first = x if kind != np.uint8 else x[:, None] if len(shape) == 2 else x.transpose(0, 3, 1, 2)
    places = np.asarray(rows, dtype=np.int64)
    for positions in (places, torch.from_numpy(places)):
        samples = make_federation(x).samples(positions)
        assert samples.is_contiguous()
        np.testing.assert_array_equal(samples.numpy(), first[places])
        assert samples.numpy().dtype == kind
    np.testing.assert_array_equal(make_federation(x).samples(slice(2, 5)).numpy(), first[2:5])


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 3), (4, 5, 1)])
def test_memory_mapped_images_are_read_with_channels_first(shape, tmp_path):
    x = DRAW.integers(0, 256, size=(N, *shape), dtype=np.uint8)
    x.tofile(tmp_path / "x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = make_federation(np.asarray(np.memmap(tmp_path / "x", np.uint8, "r", shape=x.shape)))
    expected = torch.from_numpy(x[:, None] if len(shape) == 2 else np.ascontiguousarray(x.transpose(0, 3, 1, 2)))
    assert data.in_shape == tuple(expected.shape[1:])
    for rows in (slice(2, 9), torch.tensor([5, 0, 5])):
        assert torch.equal(data.samples(rows), expected[rows])
        assert data.samples(rows).is_contiguous()
        assert torch.equal(data.inputs(rows), expected[rows].float() / 255)
        assert data.inputs(rows).is_contiguous()
