"""LG-FedAvg: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np

import worlds
from by_hand import body_of, head_of
from pflcli.core import parameters


def test_lg_fedavg_rounds_match_hand_computed_models(monkeypatch):
    run = worlds.run("lg-fedavg", epochs=2, options={"warmup": 1})
    monkeypatch.setattr("pflcli.core.engine.engine._CHUNK_BYTES", {"cpu": parameters.size(run.init)})  # one client each
    state = worlds.play("lg-fedavg", run)
    cohort, data, n = run.cohort(0).tolist(), run.federation, run.federation.sizes("train")
    start = worlds.mean([worlds.steps(run.init, data, c, ("sgd", 0), epochs=2) for c in cohort], n[cohort].tolist())
    shared, bodies = head_of(start), dict.fromkeys(range(7), body_of(start))
    for t in (1, 2):
        cohort = run.cohort(t).tolist()
        trained = [worlds.steps({**bodies[c], **shared}, data, c, ("sgd", t), epochs=2) for c in cohort]
        bodies |= {c: body_of(model) for c, model in zip(cohort, trained, strict=True)}
        shared = worlds.mean([head_of(model) for model in trained], n[cohort].tolist())
    worlds.close(state["head"], shared)
    for c, expected in bodies.items():
        worlds.close(parameters.pick(state["bodies"][[c]], 0), expected, atol=1e-5)
    up = len(run.cohort(0)) * parameters.size(run.init) + 2 * len(cohort) * parameters.size(shared)
    assert run.traffic["up"] == run.traffic["down"] == up


def test_lg_fedavg_with_only_warm_up_rounds_equals_fedavg():
    runs = [worlds.run(name, options=o) for name, o in (("fedavg", {}), ("lg-fedavg", {"warmup": 3}))]
    states = [worlds.play(name, run) for name, run in zip(("fedavg", "lg-fedavg"), runs, strict=True)]
    assert worlds.same(states[0]["global"], {**states[1]["body"], **states[1]["head"]})
    actual = [worlds.answers(*args) for args in zip(("fedavg", "lg-fedavg"), runs, states, strict=True)]
    np.testing.assert_array_equal(actual[0]["test"], actual[1]["test"])
    assert runs[0].traffic == runs[1].traffic


def test_lg_fedavg_newcomer_trains_only_its_body():
    run = worlds.run("lg-fedavg", options={"newcomer_epochs": 2})
    state = worlds.play("lg-fedavg", run)
    new = next(c for c in worlds.ABLE if c not in state["bodies"].written and run.federation.sizes("test")[c])
    actual = worlds.answers("lg-fedavg", run, state, np.asarray([new]))["test"]
    start = {**body_of(run.init), **state["head"]}
    model = worlds.steps(start, run.federation, new, ("sgd", "newcomer"), epochs=2, trainable="body.")
    np.testing.assert_allclose(actual, worlds.probabilities(model, run.federation, new), atol=1e-6)
