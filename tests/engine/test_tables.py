"""Products of few rows with many columns, whatever computes them."""

from __future__ import annotations

import pytest
import torch

from pflcli.engine import tables


@pytest.mark.parametrize("is_slice", [True, False])
@pytest.mark.parametrize(("r", "m", "d"), [(5, 61, 5003), (33, 40, 1030), (1, 70, 20000), (40, 3, 9001), (2, 3, 5)])
def test_products_are_those_in_double_precision(r, m, d, is_slice):
    weights, models = torch.rand(r, m), torch.randn(m, d + 7)[:, : d if is_slice else None]
    expected, out = weights.double() @ models.double(), torch.zeros(r, 2 * models.shape[1])[:, 3 : 3 + models.shape[1]]
    tables.mix(weights, models, out)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-4)
    others = torch.randn(r, models.shape[1])
    actual = tables.inner_products(others, models)
    torch.testing.assert_close(actual.double(), others.double() @ models.double().T, rtol=1e-5, atol=1e-2)
