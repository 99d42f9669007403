"""FedRep: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest

import worlds
from by_hand import body_of, head_of
from pflcli.core import parameters


@pytest.mark.parametrize("final", [0, 4])
def test_fedrep_rounds_match_hand_computed_models(final):
    run = worlds.run("fedrep", options={"head_epochs": 3, "body_epochs": 2, "final_epochs": final})
    state = worlds.play("fedrep", run)
    data, shared, heads = run.federation, body_of(run.init), dict.fromkeys(range(7), head_of(run.init))
    for t in range(3):
        cohort, bodies = run.cohort(t).tolist(), []
        for c in cohort:
            start = {**shared, **heads[c]}
            first = worlds.steps(start, data, c, ("head", t), epochs=3, trainable="head.")
            worlds.close(body_of(first), shared, atol=0)
            heads[c] = head_of(first)
            second = worlds.steps(first, data, c, ("body", t), epochs=2, trainable="body.")
            worlds.close(head_of(second), heads[c], atol=0)
            bodies.append(body_of(second))
        shared = worlds.mean(bodies, data.sizes("train")[cohort].tolist())
    worlds.close(state["body"], shared, atol=1e-5)
    for c, expected in heads.items():
        worlds.close(parameters.pick(state["heads"][[c]], 0), expected, atol=1e-5)
    actual = worlds.answers("fedrep", run, state, np.asarray([0]))["test"]
    assert 0 in state["heads"].written
    # At last the head, however old it is, meets the last body.
    last = worlds.steps({**shared, **heads[0]}, data, 0, ("head", "final"), epochs=final, trainable="head.")
    np.testing.assert_allclose(actual, worlds.probabilities(last, data, 0), atol=1e-5)


def test_fedrep_without_head_epochs_equals_fedbabu():
    """Both train bodies under the initial head."""
    run = worlds.run("fedrep", participation=1.0, options={"head_epochs": 0})
    first = worlds.play("fedrep", run, last=1)
    expected = worlds.mean(
        [worlds.steps(run.init, run.federation, c, ("body", 0), trainable="body.") for c in worlds.ABLE],
        run.federation.sizes("train")[worlds.ABLE].tolist(),
    )
    worlds.close(first["body"], body_of(expected))
