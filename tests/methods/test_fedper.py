"""FedPer: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np

import worlds
from by_hand import body_of, head_of
from pflcli.core import parameters


def test_fedper_rounds_match_hand_computed_models():
    run = worlds.run("fedper", epochs=2)
    state = worlds.play("fedper", run)
    data, shared, heads = run.federation, body_of(run.init), dict.fromkeys(range(7), head_of(run.init))
    for t in range(3):
        cohort = run.cohort(t).tolist()
        trained = [worlds.steps({**shared, **heads[c]}, data, c, ("sgd", t), epochs=2) for c in cohort]
        heads |= {c: head_of(model) for c, model in zip(cohort, trained, strict=True)}
        shared = worlds.mean([body_of(model) for model in trained], data.sizes("train")[cohort].tolist())
    worlds.close(state["body"], shared)
    for c, expected in heads.items():
        worlds.close(parameters.pick(state["heads"][[c]], 0), expected)
    actual = worlds.answers("fedper", run, state, np.asarray([0]))["test"]
    assert 0 in state["heads"].written
    np.testing.assert_allclose(actual, worlds.probabilities({**shared, **heads[0]}, data, 0), atol=1e-5)
