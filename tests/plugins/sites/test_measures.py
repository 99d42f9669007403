"""What a site measures of a column: rounding, pooling, and means in another unit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pflcli.plugins.sites.columns import measures
from pflcli.plugins.sites.columns.measures import Moments


def test_counts_leave_a_site_as_multiples_of_five():
    assert [measures.count(rows) for rows in (0, 2, 3, 7, 8, 12, 13)] == [0, 0, 5, 5, 10, 10, 15]


def test_moments_by_hand():
    assert measures.measure(np.asarray([1.0, 2.0, 3.0, 6.0])) == Moments(4, 3.0, math.sqrt(3.5), 2.5)
    # The deviation is 20 / sqrt(12) = 5.8, divided by 200 rows 0.029, so the unit is 0.05.
    found = measures.measure_rounded(np.linspace(40, 60, 200), 200)
    assert (found.known, found.mean, found.median) == (200, 50.0, 50.0)
    assert found.deviation == pytest.approx(5.8, abs=1e-12)


@pytest.mark.parametrize("rows", [5, 23, 400])
@pytest.mark.parametrize("scale", [1e-9, 0.03, 1.0, 750.0, 1e12])
def test_a_rounded_mean_hides_a_row_and_is_near(rows, scale):
    """The sums of n values that the mean allows differ by at least a deviation, and at most by 2.5."""
    values = np.random.default_rng(rows).normal(3 * scale, scale, rows)
    exact, found = measures.measure(values), measures.measure_rounded(values, rows)
    size, _ = measures.unit(exact.deviation / rows)
    assert exact.deviation * (1 - 1e-9) <= size * rows <= 2.5 * exact.deviation * (1 + 1e-9)
    for name in ("mean", "deviation", "median"):
        value = getattr(found, name)
        assert abs(value - getattr(exact, name)) <= size / 2 * (1 + 1e-6)
        assert value == pytest.approx(size * round(value / size), rel=1e-9, abs=size * 1e-9)


def test_a_number_with_two_values_is_rounded_as_a_count():
    shares = set()
    for ones in range(41):
        found = measures.measure_rounded(np.repeat([0.0, 1.0], [40 - ones, ones]), 40)
        assert found.mean * 40 == measures.count(ones)
        shares.add((found.mean, found.deviation))
        assert found.deviation == pytest.approx(math.sqrt(found.mean * (1 - found.mean)), abs=1e-4)
    assert len(shares) == 9  # 0, 5, ..., 40


def test_few_values_and_constants():
    assert measures.measure_rounded(np.arange(4.0), 5) is None
    assert measures.measure_rounded(np.arange(7.0), 0) is None
    assert measures.measure_rounded(np.full(9, 0.1), 10) == Moments(10, 0.1, 0.0, 0.1)


def test_pooled_moments_are_those_of_all_values():
    draw = np.random.default_rng(0)
    groups = [draw.normal(at, 1 + at, size) for at, size in enumerate((7, 120, 31))]
    everything = np.concatenate([*groups, np.full(12, 4.5)])
    mean, deviation = measures.pool([measures.measure(group) for group in groups], 12, 4.5)
    assert (mean, deviation) == pytest.approx((everything.mean(), everything.std()), rel=1e-13)
    assert measures.pool([], 0) == (0.0, 0.0)
    assert measures.pool([measures.measure(np.full(9, 0.1))] * 3) == (pytest.approx(0.1), 0.0)
    assert measures.pool([measures.measure(np.full(9, 0.1))], 3, 0.1)[1] == 0


def test_the_pooled_median_is_that_of_normal_sites():
    """By hand: between two alike sites it is in the middle; and if one of four values is far away, at a quantile."""
    assert measures.pool_medians([Moments(10, 3, 2, 3.0), Moments(10, 5, 2, 5.0)]) == pytest.approx(4.0)
    found = measures.pool_medians([Moments(30, 0, 1, 0.0), Moments(10, 99, 1, 99.0)])
    assert found == pytest.approx(0.430727, abs=1e-5)  # the normal quantile at 2/3
    assert measures.pool_medians([Moments(30, 7, 0, 7.0), Moments(10, 9, 0, 9.0)]) == pytest.approx(7.0)
    assert measures.pool_medians([Moments(30, 7, 2, 7.0)]) == 7.0
    assert measures.pool_medians([]) == 0.0


def test_the_pooled_median_is_between_those_of_sites_and_near_that_of_all_values():
    draw = np.random.default_rng(1)
    groups = [draw.normal(at, 1, size) for at, size in enumerate((90, 400, 310))]
    parts = [measures.measure(group) for group in groups]
    found = measures.pool_medians(parts)
    assert min(part.median for part in parts) <= found <= max(part.median for part in parts)
    assert found == pytest.approx(np.median(np.concatenate(groups)), abs=0.1)


@pytest.mark.parametrize("ones", [(3, 50, 20), (20, 50, 60)])
def test_the_pooled_median_of_two_values_is_the_more_frequent_one(ones):
    groups = [np.repeat([2.0, 5.0], [70 - count, count]) for count in ones]
    assert {float(np.median(group)) for group in groups} == {2.0, 5.0}
    found = measures.pool_medians([measures.measure_rounded(group, 70) for group in groups])
    assert found == np.median(np.concatenate(groups))


HEIGHTS, WEIGHTS, TEMPERATURES = (
    np.random.default_rng(2).normal(*each, (4, 90)) for each in ((170, 9), (75, 14), (37, 0.8))
)


@pytest.mark.parametrize(
    ("values", "convert", "words"),
    [
        (HEIGHTS, lambda x: x * 10, "mm and not cm"),
        (HEIGHTS, lambda x: x / 100, "(a factor of 100)"),
        (HEIGHTS, lambda x: x / 2.54, "inch and not cm"),
        (WEIGHTS, lambda x: x * 2.2046, "lb and not kg"),
        (WEIGHTS, lambda x: x * 1000, "g and not kg"),
        (TEMPERATURES, lambda x: 1.8 * x + 32, "°F and not °C"),
    ],
)
def test_a_site_in_another_unit_is_named_with_both_means(values, convert, words):
    sites = {f"s{at}": measures.measure(row if at != 2 else convert(row)) for at, row in enumerate(values)}
    found = measures.describe_outliers(sites)
    assert list(found) == ["s2"]
    assert f"{sites['s2'].mean:.6g}" in found["s2"]
    assert any(f"{sites[f's{at}'].mean:.6g}" in found["s2"] for at in (0, 1, 3))
    assert words in found["s2"]


def test_skewed_numbers_in_another_unit_are_found_by_mean_and_deviation():
    """Means of creatinine in mg/dl and µmol/l are less than three of the larger deviation apart."""
    groups = np.random.default_rng(3).exponential(1.1, (3, 5000))
    sites = {f"s{at}": measures.measure(row * (88.42 if at == 0 else 1)) for at, row in enumerate(groups)}
    assert abs(sites["s0"].mean - sites["s1"].mean) < 3 * sites["s0"].deviation
    assert list(measures.describe_outliers(sites)) == ["s0"]
    assert "88.42" in measures.describe_outliers(sites)["s0"]


def test_sites_that_differ_as_hospitals_do_are_not_named():
    draw = np.random.default_rng(4)
    sites = {f"s{at}": measures.measure(draw.normal(50 + 6 * at, 8 + at, 80)) for at in range(4)}
    assert measures.describe_outliers(sites) == {}
    assert measures.describe_outliers({"s0": sites["s0"]}) == {}


def test_most_values_decide_who_is_far_from_whom():
    one, other = Moments(100, 170, 9, 170), Moments(40, 1700, 90, 1700)
    assert list(measures.describe_outliers({"a": one, "b": other})) == ["b"]
    assert list(measures.describe_outliers({"a": one, "b": Moments(100, 1700, 90, 1700)})) == ["a", "b"]
    zero = Moments(30, 0, 0, 0)
    assert "same unit?" in measures.describe_outliers({"a": one, "zero": zero})["zero"]
