"""FedProx: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import worlds


def test_fedprox_with_mu_0_equals_fedavg():
    runs = [worlds.run(name, options=o) for name, o in (("fedavg", {}), ("fedprox", {"mu": 0.0}))]
    assert worlds.same(worlds.play("fedavg", runs[0]), worlds.play("fedprox", runs[1]))
    assert runs[0].traffic == runs[1].traffic


def test_fedprox_differs_from_fedavg_by_default():
    """An implementation is known whose default weight is zero."""
    runs = [worlds.run(name, epochs=2) for name in ("fedavg", "fedprox")]
    assert not worlds.same(worlds.play("fedavg", runs[0]), worlds.play("fedprox", runs[1]))


def test_fedprox_rounds_match_hand_computed_models():
    run = worlds.run("fedprox", participation=1.0, epochs=2, options={"mu": 0.7})
    state = worlds.play("fedprox", run, last=2)["global"]
    data, expected = run.federation, run.init
    for t in range(2):
        models = [worlds.steps(expected, data, c, ("sgd", t), epochs=2, anchor=expected, pull=0.7) for c in worlds.ABLE]
        expected = worlds.mean(models, data.sizes("train")[worlds.ABLE].tolist())
    worlds.close(state, expected)


def test_fedprox_with_a_huge_mu_keeps_the_initial_model():
    run = worlds.run("fedprox", participation=1.0, lr=1e-6, options={"mu": 1e6})
    worlds.close(worlds.play("fedprox", run)["global"], run.init, atol=1e-4)
