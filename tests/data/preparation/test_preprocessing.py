"""Standardization of features over the federation or per client."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pflcli.artifacts.codebook import ClientScale, Codebook, Column
from pflcli.artifacts.kinds.partition import Partition
from pflcli.core.datasets import Scaling
from pflcli.core.errors import InputError
from pflcli.core.tasks import Labels
from pflcli.data.preparation.preprocessing import scale_partition

SIZES = ((6, 2, 3), (4, 0, 2), (0, 0, 0), (5, 1, 1))
NAMES = ["a", "b", "nobody", "c"]


def make_partition(new=None, sizes=SIZES):
    """Clients of different means and deviations; the second feature is constant at client b, the third is a word."""
    offsets = np.cumsum([0, *np.ravel(sizes)])
    draw = np.random.default_rng(0)
    client = np.repeat(np.arange(len(sizes)), np.sum(sizes, axis=1))
    x = draw.normal(size=(len(client), 3)) * (1 + client[:, None]) + 10 * client[:, None]
    x[client == 1, 1] = 7.0
    x[:, 2] = draw.integers(0, 2, len(x))
    return Partition(x, np.zeros(len(x), np.int64), np.arange(len(x)), offsets, NAMES, Labels(2), new=new)


BOOK = Codebook(columns=(Column("first"), Column("second"), Column("word", ("yes",))))
BY_CLIENT = Scaling("client")


def train_rows(partition, client):
    return slice(*partition.offsets[3 * client : 3 * client + 2])


def test_scaling_by_client_uses_the_training_samples_of_each_client():
    data = make_partition()
    scaled, book = scale_partition(data, BOOK, BY_CLIENT)
    assert scaled.x.dtype == np.float32
    assert [scale.client for scale in book.scales] == ["a", "b", "c"]
    assert book.mean == book.sd == ()
    for client in (0, 1, 3):
        train, rows = data.x[train_rows(data, client)], slice(*data.offsets[[3 * client, 3 * client + 3]])
        expected = (data.x[rows, 0] - train[:, 0].mean()) / train[:, 0].std()
        np.testing.assert_allclose(scaled.x[rows, 0], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(scaled.x[rows, 2], data.x[rows, 2])  # a word stays 0 or 1
    assert not scaled.x[data.offsets[3] : data.offsets[6], 1].any()  # a constant becomes 0
    assert book.scales[1].sd[1] == 0


def test_scale_of_a_client_depends_only_on_its_training_samples():
    data, other = make_partition(), make_partition()
    own = np.zeros(len(data.x), dtype=np.bool_)
    own[train_rows(data, 0)] = True
    other.x[~own] += 100
    books = [scale_partition(partition, BOOK, BY_CLIENT)[1] for partition in (data, other)]
    assert books[0].scales[0] == books[1].scales[0]
    assert books[0].scales[1] != books[1].scales[1]


def test_new_client_is_scaled_by_its_own_training_samples():
    new = np.asarray([False, True, False, False])
    assert (
        scale_partition(make_partition(new), BOOK, BY_CLIENT)[1].scales
        == scale_partition(make_partition(), BOOK, BY_CLIENT)[1].scales
    )


def test_medians_use_training_samples_of_clients_that_are_not_new():
    data = make_partition(np.asarray([False, False, False, True]))
    data.x[0, 0] = np.nan
    values = np.concatenate([data.x[1:6, 0], data.x[11:15, 0]])
    _, book = scale_partition(data, BOOK, Scaling("client", fill=True))
    assert book.median[0] == pytest.approx(np.median(values))
    filled = np.concatenate([[np.median(values)], data.x[1:6, 0]])
    assert book.scales[0].mean[0] == pytest.approx(filled.mean())


def test_known_client_scales_are_reused():
    known = ClientScale("b", (1.0, 2.0, 0.0), (2.0, 4.0, 1.0))
    data = make_partition()
    scaled, book = scale_partition(data, replace(BOOK, scales=(known,)), BY_CLIENT)
    assert book.scales[1].mean == (1.0, 2.0, 0.0)
    rows = slice(*data.offsets[[3, 6]])
    np.testing.assert_allclose(scaled.x[rows, 1], (data.x[rows, 1] - 2) / 4, rtol=1e-6)
    assert book.scales[0] == scale_partition(data, BOOK, BY_CLIENT)[1].scales[0]


def test_scaling_by_client_names_a_client_without_training_samples():
    data = make_partition(sizes=((6, 2, 3), (0, 2, 2), (0, 0, 0), (5, 1, 1)))
    with pytest.raises(InputError, match="client 'b' has no training samples to standardize its features by"):
        scale_partition(data, BOOK, BY_CLIENT)
    scaled, book = scale_partition(data, BOOK, Scaling("federation"))
    assert len(book.mean) == 3
    assert book.scales == ()
    assert np.isfinite(scaled.x).all()
