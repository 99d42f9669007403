"""Epsilon and noise: those of dp-accounting itself, in the right order, and never too little noise."""

from __future__ import annotations

import math
import sys

import dp_accounting
import pytest
from dp_accounting import pld

from pflcli.core.errors import UsageError
from pflcli.core.federation.privacy import accounting

PLANS = (
    (1.5, 0.01, 10, 1e-5),
    (1.5, 1.0, 10, 1e-4),
    (2.0, 0.05, 20, 1e-6),
    (2.0, 0.5, 20, 1e-2),
    (4.0, 0.2, 50, 1e-3),
    (8.0, 0.01, 200, 1e-5),
    (8.0, 1.0, 200, 1e-4),
)
"""Noise, rate, rounds and delta: small and large values of each, with and without sampling."""


@pytest.mark.parametrize(("noise", "rate", "rounds", "delta"), PLANS)
def test_compute_epsilon_equals_dp_accounting(noise, rate, rounds, delta):
    gaussian = dp_accounting.GaussianDpEvent(noise)
    event = gaussian if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, gaussian)
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, rounds))
    assert accounting.compute_epsilon(noise, rate, rounds, delta) == pytest.approx(
        accountant.get_epsilon(delta), rel=1e-9
    )


def test_epsilon_of_one_gaussian_matches_the_closed_form():
    """Balle & Wang (2018), Theorem 8: delta = Phi(1/2z - eps z) - e^eps Phi(-1/2z - eps z)."""

    def below(x):
        return 0.5 * math.erfc(-x / math.sqrt(2))

    noise, delta = 1.5, 1e-3
    epsilon = accounting.compute_epsilon(noise, 1.0, 1, delta)
    spent = below(0.5 / noise - epsilon * noise) - math.exp(epsilon) * below(-0.5 / noise - epsilon * noise)
    assert spent == pytest.approx(delta, rel=2e-3)


def test_epsilon_falls_with_noise_and_delta_and_rises_with_rate_and_rounds():
    epsilon = accounting.compute_epsilon(4.0, 0.2, 8, 1e-4)
    assert accounting.compute_epsilon(4.4, 0.2, 8, 1e-4) < epsilon < accounting.compute_epsilon(4.0, 0.25, 8, 1e-4)
    assert accounting.compute_epsilon(4.0, 0.2, 8, 1e-3) < epsilon < accounting.compute_epsilon(4.0, 0.2, 9, 1e-4)
    assert accounting.compute_epsilon(1.0, 0.2, 0, 1e-4) == 0
    assert accounting.compute_epsilon(0.0, 0.2, 8, 1e-4) == math.inf


@pytest.mark.parametrize(
    ("target", "rate", "rounds", "delta"),
    [(1.0, 0.05, 20, 1e-3), (0.07, 1.0, 1, 1e-4), pytest.param(8.0, 0.5, 4, 1e-3, marks=pytest.mark.long)],
)
def test_find_noise_returns_nearly_the_least_sufficient_noise(target, rate, rounds, delta):
    noise = accounting.find_noise(target, rate, rounds, delta)
    assert accounting.compute_epsilon(noise, rate, rounds, delta) <= target
    assert accounting.compute_epsilon(0.995 * noise, rate, rounds, delta) > target
    assert noise == round(noise, 3)


def test_compute_epsilon_bounds_a_large_epsilon():
    assert 50 < accounting.compute_epsilon(0.4, 1.0, 20, 1e-5) < 200


def test_accounting_errors_name_impossible_targets_and_a_missing_package(monkeypatch):
    with pytest.raises(UsageError, match="no noise"):
        accounting.find_noise(1e-9, 1.0, 1000, 1e-12)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(UsageError, match="needs dp-accounting") as error:
        accounting._import_accounting()
    assert "pip install 'pflcli[privacy]'" in "".join(error.value.fix)


@pytest.mark.parametrize(("each", "count"), [(0.1, 100), (1.0, 10), (0.5, 1)])
def test_compose_epsilon_adds_epsilons_when_delta_is_0(each, count):
    assert accounting.compose_epsilon(each, count, 0.0) == pytest.approx(each * count, rel=1e-6)
    assert accounting.compose_epsilon(each, count, 1e-5) < each * count


def test_compose_epsilon_of_one_prediction_matches_a_hand_computed_value():
    """delta(epsilon) of one bit told with odds e: (e - e^epsilon) / (1 + e), here at epsilon 1/2."""
    delta = (math.e - math.sqrt(math.e)) / (1 + math.e)
    assert accounting.compose_epsilon(1.0, 1, delta) == pytest.approx(0.5)
    assert accounting.compose_epsilon(1.0, 0, 1e-5) == accounting.compose_epsilon(1.0, 1, 0.9) == 0


@pytest.mark.parametrize(("each", "count"), [(0.1, 50), (1.0, 20)])
def test_compose_epsilon_equals_randomized_response_and_bounds_laplace(each, count):
    losses = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    worst = losses.from_randomized_response(2 / (1 + math.exp(each)), 2).self_compose(count)
    bound = accounting.compose_epsilon(each, count, 1e-5)
    assert bound == pytest.approx(worst.get_epsilon_for_delta(1e-5), rel=0.01)
    laplace = losses.from_laplace_mechanism(1 / each).self_compose(count)
    assert laplace.get_epsilon_for_delta(1e-5) < bound
