"""The bound of epsilon that canaries give: the formula against the accountant's package, and its coverage."""

from __future__ import annotations

import numpy as np
import pytest

from pflcli.core.federation.privacy import accounting
from pflcli.plugins.audits import canaries


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_gaussian_epsilon_equals_that_of_the_accountant(mu):
    pytest.importorskip("dp_accounting")
    assert canaries.gaussian_epsilon(mu, 1e-5) == pytest.approx(
        accounting.compute_epsilon(1 / mu, 1.0, 1, 1e-5), rel=1e-3
    )


def test_gaussian_epsilon_is_0_for_small_mu_and_finite_for_large_mu():
    assert canaries.gaussian_epsilon(0, 1e-5) == 0
    assert canaries.gaussian_epsilon(1e-6, 1e-5) == 0  # too near to be told apart but by delta
    assert canaries.gaussian_epsilon(1000.0, 1e-5) > 10**5


def test_lower_bound_of_mu_exceeds_the_truth_at_the_stated_rate():
    draw = np.random.default_rng(0)
    low = [canaries.estimate(draw.normal(1.5, 1, 100), draw.normal(0, 1, 100), 1e-5).mu_low for _ in range(400)]
    assert np.mean(np.asarray(low) > 1.5) <= 0.06
    assert np.mean(low) > 1.1


def test_estimate_matches_a_hand_computed_lower_bound():
    """20 measurements of mean 2 and 30 of mean 0, with standard deviations of 1 and less."""
    inserted = 2 + np.sqrt(19 / 20) * np.tile([-1.0, 1.0], 10)
    left_out = 0.5 * np.tile([-1.0, 1.0], 15)
    estimate = canaries.estimate(inserted, left_out, 1e-5)
    assert estimate.mu == pytest.approx(2)
    assert estimate.mu_low == pytest.approx(2 - 1.6448536 * np.sqrt(1 / 20 + 1 / 30 + 2**2 / (2 * 48)))
    assert estimate.epsilon == canaries.gaussian_epsilon(estimate.mu, 1e-5)
    assert estimate.epsilon_low == canaries.gaussian_epsilon(estimate.mu_low, 1e-5)
    # The larger standard deviation counts, whichever kind has it.
    assert canaries.estimate(2 + left_out, inserted - 2, 1e-5).mu == pytest.approx(2)


def test_estimate_is_0_without_a_signal_and_refuses_too_few_canaries():
    draw = np.random.default_rng(1)
    shows = canaries.estimate(draw.normal(size=100), draw.normal(0.5, 1, 100), 1e-5)
    assert (shows.mu_low, shows.epsilon_low) == (0, 0)
    with pytest.raises(ValueError, match="got 19"):
        canaries.estimate(np.zeros(19), np.zeros(50), 1e-5)
