"""FedBABU: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest

import worlds
from by_hand import body_of, head_of


def test_fedbabu_rounds_match_hand_computed_models():
    run = worlds.run("fedbabu", weight_decay=0.0)
    actual = worlds.play("fedbabu", run)["global"]
    data, shared = run.federation, run.init
    for t in range(3):
        cohort = run.cohort(t).tolist()
        trained = [worlds.steps(shared, data, c, ("sgd", t), trainable="body.") for c in cohort]
        shared = worlds.mean(trained, data.sizes("train")[cohort].tolist())
    worlds.close(actual, shared)


def test_fedbabu_does_not_train_the_head_before_fine_tuning():
    run = worlds.run("fedbabu", momentum=0.9, weight_decay=0.1)
    actual = worlds.play("fedbabu", run)["global"]
    assert worlds.same(head_of(actual), head_of(run.init))
    assert not worlds.same(body_of(actual), body_of(run.init))


@pytest.mark.parametrize("tune", ["all", "head", "body"])
def test_fedbabu_fine_tunes_the_part_that_tune_names(tune):
    run = worlds.run("fedbabu", options={"epochs": 2, "lr": 0.05, "tune": tune})
    state = worlds.play("fedbabu", run)
    actual = worlds.answers("fedbabu", run, state, np.asarray([0]))
    plan = {"epochs": 2, "lr": 0.05, "trainable": "" if tune == "all" else f"{tune}."}
    model = worlds.steps(state["global"], run.federation, 0, ("sgd", "fine-tune"), **plan)
    np.testing.assert_allclose(actual["test"], worlds.probabilities(model, run.federation, 0), atol=1e-6)
