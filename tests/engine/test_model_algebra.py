"""Products of matrices with few rows and many columns, on every backend."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers import set_own_products
from pflcli.core.engine import model_algebra
from pflcli.core.parameters.model_table import ModelTable, allocate_padded_rows
from pflcli.core.parameters.row_storage import InMemoryRows


@pytest.mark.parametrize("is_slice", [True, False])
@pytest.mark.parametrize(("r", "m", "d"), [(5, 61, 5003), (33, 40, 1030), (1, 70, 20000), (40, 3, 9001), (2, 3, 5)])
def test_mix_and_inner_products_match_double_precision(r, m, d, is_slice):
    weights, models = torch.rand(r, m), torch.randn(m, d + 7)[:, : d if is_slice else None]
    expected, out = weights.double() @ models.double(), torch.zeros(r, 2 * models.shape[1])[:, 3 : 3 + models.shape[1]]
    model_algebra.mix(weights, models, out)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-4)
    others = torch.randn(r, models.shape[1])
    actual = model_algebra.inner_products(others, models)
    torch.testing.assert_close(actual.double(), others.double() @ models.double().T, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("is_slice", [True, False])
@pytest.mark.parametrize(("r", "m", "d"), [(5, 61, 5003), (1, 70, 20), (40, 3, 901), (2, 1, 1)])
def test_mix_sparse_matches_double_precision_and_skips_unused_models(r, m, d, is_slice):
    models, weights = torch.randn(m, d), torch.rand(r, m).where(torch.rand(r, m) < 0.2, 0.0)
    weights[torch.arange(r), torch.arange(r) % m] = 1.0
    models[weights.sum(dim=0) == 0] = torch.nan
    expected = weights.double() @ models.double().nan_to_num()
    out = torch.zeros(r, 2 * d)[:, 1 : 1 + d] if is_slice else torch.zeros(r, d)
    model_algebra.mix_sparse(weights.to_sparse(), models, out)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("room", [3, 40, 1000])
def test_weighted_means_of_few_models_match_double_precision(room, monkeypatch):
    count = 40
    models = ModelTable({"a": torch.zeros(70, 90), "b": torch.zeros(()), "n": torch.tensor(0)}, count, InMemoryRows())
    models[range(count)] = {
        "a": torch.randn(count, 70, 90),
        "b": torch.randn(count),
        "n": torch.arange(count),
    }
    weights = np.zeros((6, count))
    for receiver in range(6):
        weights[receiver, receiver : 7 * receiver + 1 : 5] = 3.0 + receiver
    weights[3, 39] = 1e-60  # which single precision has no number for
    calls, plain = [], models[range(count)]
    few = model_algebra.mix_sparse
    monkeypatch.setattr(model_algebra, "mix_sparse", lambda *args: calls.append(few(*args)))
    for rows, means in model_algebra.weighted_means(models, weights, room):
        own = torch.from_numpy(weights[rows] / weights[rows].sum(axis=1, keepdims=True))
        for name in ("a", "b"):
            expected = torch.einsum("rm,m...->r...", own, plain[name].double())
            torch.testing.assert_close(means[name].double(), expected, rtol=1e-5, atol=1e-6)
        assert means["n"].tolist() == [int(np.flatnonzero(row).max()) for row in weights[rows]]
    assert bool(calls) == (room > 3)  # of three receivers, each model that one of them takes is a third of all


def test_weighted_means_of_most_models_use_a_dense_product(monkeypatch):
    models = ModelTable({"a": torch.zeros(30)}, 4, InMemoryRows())
    models[range(4)] = {"a": torch.randn(4, 30)}
    monkeypatch.delattr(model_algebra, "mix_sparse")
    ((_, means),) = model_algebra.weighted_means(models, np.ones((3, 4)), 9)
    torch.testing.assert_close(means["a"], models[range(4)]["a"].mean(dim=0).expand(3, -1))


@pytest.mark.parametrize("own", [False, pytest.param(True, marks=pytest.mark.compiled)])
@pytest.mark.parametrize("stride", [4096, 4097])
def test_mixtures_support_tensors_of_any_shape(stride, own, monkeypatch):
    set_own_products(monkeypatch, own)
    monkeypatch.setattr(model_algebra, "_MIN_MULTIPLICATIONS", 0)
    shares = torch.rand(5, 3)
    models = {"w": torch.randn(3, stride)[:, :4095].view(3, 15, 273), "b": torch.randn(3, 2), "one": torch.randn(3)}
    models |= {"none": torch.randn(3, 0), "count": torch.tensor([1, 2, 3])}
    mixed = model_algebra.mixtures(shares, models)
    for name in ("w", "b", "one", "none"):
        expected = torch.tensordot(shares.double(), models[name].double(), dims=1)
        torch.testing.assert_close(mixed[name].double(), expected, rtol=1e-5, atol=1e-5)
    assert mixed["count"].tolist() == [3] * 5


def test_allocate_padded_rows_avoids_strides_of_whole_pages():
    for numbers in (2048, 4096, 16384, 51200, 156800, 1605632):
        rows = allocate_padded_rows(61, numbers, torch.float32)
        assert rows.shape == (61, numbers)
        starts = [row.data_ptr() % 65536 // 64 for row in rows]
        assert max(starts.count(place) for place in starts) == 1
        assert rows.stride(0) - numbers <= 3104
    assert allocate_padded_rows(2, 2047, torch.float32).is_contiguous()
    assert allocate_padded_rows(3, 0, torch.int64).shape == (3, 0)
