"""What several answers spend together, against the plain sum and dp-accounting."""

from __future__ import annotations

import math

import pytest

from pflcli.federation.privacy.composition import compose_epsilon


@pytest.mark.parametrize(("each", "count"), [(0.1, 100), (1.0, 10), (0.5, 1)])
def test_without_a_delta_epsilons_add_up(each, count):
    assert compose_epsilon(each, count, 0.0) == pytest.approx(each * count, rel=1e-6)
    assert compose_epsilon(each, count, 1e-5) < each * count


def test_one_answer_by_hand():
    """delta(epsilon) of one bit told with odds e: (e - e^epsilon) / (1 + e), here at epsilon 1/2."""
    delta = (math.e - math.sqrt(math.e)) / (1 + math.e)
    assert compose_epsilon(1.0, 1, delta) == pytest.approx(0.5)
    assert compose_epsilon(1.0, 0, 1e-5) == compose_epsilon(1.0, 1, 0.9) == 0


@pytest.mark.parametrize(("each", "count"), [(0.1, 50), (1.0, 20)])
def test_it_is_that_of_the_worst_mechanism_and_a_bound_for_laplace(each, count):
    losses = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    worst = losses.from_randomized_response(2 / (1 + math.exp(each)), 2).self_compose(count)
    bound = compose_epsilon(each, count, 1e-5)
    assert bound == pytest.approx(worst.get_epsilon_for_delta(1e-5), rel=0.01)
    laplace = losses.from_laplace_mechanism(1 / each).self_compose(count)
    assert laplace.get_epsilon_for_delta(1e-5) < bound
