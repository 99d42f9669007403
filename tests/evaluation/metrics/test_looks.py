"""Levels of repeated looks: O'Brien and Fleming's spending, by figures worked out from tables of the normal."""

from __future__ import annotations

import pytest

from pflcli.evaluation.metrics.looks import Looks, spend


def test_spending_equals_figures_from_a_table_of_the_normal():
    assert spend(1) == pytest.approx(0.05)
    assert spend(0.25) == pytest.approx(2 * 0.0000443, rel=0.01)  # P(Z > 3.92)
    assert spend(0.5) == pytest.approx(2 * 0.00279, rel=0.01)  # P(Z > 2.772)


@pytest.mark.parametrize(("first", "most"), [(3, 10), (2, 2), (5, 6)])
def test_all_looks_together_spend_five_percent(first, most):
    looks = Looks(first, most)
    assert sum(1 - looks.level(seeds) for seeds in range(first, most + 1)) == pytest.approx(0.05)
