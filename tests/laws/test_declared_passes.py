"""Methods declare the forward and backward passes of a step truthfully: estimates of work and time multiply by them."""

from __future__ import annotations

import pytest

import worlds
from helpers import CLASSIFYING
from pflcli.core.engine.linear_chain import ChainNetwork


@pytest.mark.parametrize("method", CLASSIFYING)
def test_declared_passes_per_step_equal_those_counted_in_the_network(method, monkeypatch):
    """A forward pass of a sample counts a third, and its backward pass two thirds."""
    counted, samples = [], {}

    def count(name):
        run_pass = getattr(ChainNetwork, name)

        def counting(network, *arguments, **options):
            if name == "forward":
                weight = arguments[2] if len(arguments) > 2 else options.get("weight")
                shape = arguments[1].shape
                samples[network] = shape[0] * shape[1] if weight is None else int((weight > 0).sum())
            counted.append(samples[network] / 3 if name == "forward" else 2 * samples[network] / 3)
            return run_pass(network, *arguments, **options)

        monkeypatch.setattr(ChainNetwork, name, counting)

    for name in ("forward", "_gradients"):
        count(name)
    options = {"adaptive": True} if method == "apfl" else None
    run = worlds.run(method, participation=1.0, options=options)
    worlds.play(method, run)
    # Clients with fewer than four samples use them twice in a step of Per-FedAvg.
    assert sum(counted) == pytest.approx(run.engine.passes.trained, rel=0.05)
