"""Tests that concern several methods: neutral settings, what travels, cohorts and steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import worlds
from by_hand import head_of, sent_names, unpack_graph
from pflcli.core import methods, parameters, registry
from pflcli.core.errors import UsageError
from pflcli.core.settings import Settings, changed


def test_cohorts_are_sorted_uniform_draws_of_clients_with_samples():
    run = worlds.run("fedavg", participation=0.5)
    drawn = np.zeros(len(run.clients))
    for t in range(600):
        cohort = run.cohort(t)
        assert len(set(cohort)) == len(cohort) == 3
        assert (np.diff(cohort) > 0).all()
        drawn[cohort] += 1
    assert drawn[5] == 0
    np.testing.assert_allclose(drawn[[0, 1, 2, 3, 4, 6]] / 600, 0.5, atol=0.08)


def test_learning_rate_falls_at_milestones():
    plan = Settings(lr=1.0, milestones=(2, 4), gamma=0.1)
    assert [plan.lr_at(t) for t in range(6)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_fine_tuning_steps_equal_the_same_number_of_epochs():
    run = worlds.run("fedavg-plus", options={"steps": 6})
    actual = worlds.answers("fedavg-plus", run, {}, np.asarray([0]))["test"]  # 12 samples in batches of 4
    run = worlds.run("fedavg-plus", options={"epochs": 2})
    np.testing.assert_array_equal(actual, worlds.answers("fedavg-plus", run, {}, np.asarray([0]))["test"])


@pytest.mark.parametrize(
    ("method", "options"),
    [("local", {"epochs": 3, "steps": 6}), ("fedavg-plus", {"epochs": 3, "steps": 6}), ("", {"epochs": 2, "steps": 6})],
)
def test_epochs_and_steps_exclude_each_other(method, options):
    with pytest.raises(UsageError, match=r"how long clients .*; give one"):
        worlds.run(method, options=options) if method else worlds.run("fedavg", **options)


def test_changed_steps_replace_epochs_and_vice_versa():
    assert changed({"epochs": 5, "lr": 0.1}, {"steps": 100}) == {"lr": 0.1, "steps": 100}
    assert changed({"steps": 100, "epochs": 1}, {"epochs": "3"}) == {"epochs": "3"}
    assert changed({"epochs": 5}, {"steps": "0"}) == {"epochs": 5, "steps": "0"}
    assert changed({"epochs": 5}, {"lr": 1.0}) == {"epochs": 5, "lr": 1.0}


NEUTRAL = {
    "knn-per at weight 0": ("knn-per", {"weight": 0.0}),
    "fedavg-plus of no epochs": ("fedavg-plus", {"epochs": 0}),
    "knn-per-plus at weight 0 of no epochs": ("knn-per-plus", {"weight": 0.0, "epochs": 0}),
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_method_with_a_neutral_setting_equals_fedavg(name):
    method, options = NEUTRAL[name]
    run = worlds.run(method, options=options)
    actual = worlds.answers(method, run, {})["test"]
    expected = worlds.answers("fedavg", run, {"global": run.backbone})["test"]
    np.testing.assert_allclose(actual, expected, atol=1e-6)


@pytest.mark.parametrize("method", ["apfl", "fedhealth", "moon", "per-fedavg", "pfedme", "scaffold"])
def test_loop_and_stacked_agree_with_batch_norm(method):
    states = []
    for mode in ("loop", "stacked"):
        run, _ = worlds.normalized(method, mode)
        state = worlds.play(method, run)
        states.append((state, worlds.answers(method, run, state)["test"]))
    worlds.close(states[0][0]["global"], states[1][0]["global"], atol=1e-5)
    np.testing.assert_allclose(states[0][1], states[1][1], atol=1e-5)
    statistics = states[0][0]["global"]["body.2.running_mean"]
    assert statistics.abs().sum() > 0
    if method == "apfl":
        local = parameters.pick(states[0][0]["local"][[0]], 0)
        assert not torch.equal(local["body.2.running_mean"], statistics)
        assert local["body.2.running_mean"].abs().sum() > 0


@pytest.mark.parametrize("method", ["panm", "gossip"])
def test_peer_method_with_k_0_equals_local_training(method):
    """Each client trains on from its own model, round after round, and nothing is sent."""
    run = worlds.run(method, participation=1.0, options={"k": 0})
    state = worlds.play(method, run)
    alone = worlds.run()
    models = alone.table(alone.initial_model())
    for t in range(3):
        for part in alone.local_sgd(worlds.ABLE, models, t=t):
            models[part.clients] = part.params
    assert worlds.same(state["model"], models)
    assert run.traffic["peer"] == 0
    assert not unpack_graph(run, state).any()


@pytest.mark.parametrize("method", ["fedrod", "fedala", "feddbe"])
@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_running_statistics_belong_to_the_global_model(method, mode):
    run, _ = worlds.normalized(method, mode)
    state = worlds.play(method, run)
    assert set(state["global"]) == set(run.init)
    assert not torch.equal(state["global"]["body.2.running_mean"], run.init["body.2.running_mean"])
    p = worlds.answers(method, run, state)["test"]
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-6)


TRAVELS = {"fedas": "body.", "fedper": "body.", "fedrep": "body.", "fedbabu": "body.", "lg-fedavg": "head."}


@pytest.mark.parametrize("method", TRAVELS)
def test_method_sends_only_its_shared_part_of_the_model(method):
    run = worlds.run(method)
    names = sent_names(run)
    worlds.play(method, run)
    part = parameters.part(run.init, TRAVELS[method])
    assert names == set(part)
    drawn = sum(len(run.cohort(t)) for t in range(3))
    assert run.traffic == {"up": drawn * parameters.size(part), "down": drawn * parameters.size(part), "peer": 0}


@pytest.mark.parametrize("method", TRAVELS)
def test_method_refuses_a_model_without_a_body(method):
    run = worlds.run(method)
    run.init = head_of(run.init)
    with pytest.raises(UsageError, match="no parameters under"):
        worlds.play(method, run)


@pytest.mark.parametrize("method", ["fedper", "fedrep"])
@pytest.mark.parametrize("epochs", [0, 2])
def test_newcomer_trains_only_its_head(method, epochs):
    options = {"newcomer_epochs": epochs} if method == "fedper" else {"head_epochs": epochs, "final_epochs": 0}
    run = worlds.run(method, options=options)
    state = worlds.play(method, run)
    new = next(c for c in worlds.ABLE if c not in state["heads"].written and run.federation.sizes("test")[c])
    actual = worlds.answers(method, run, state, np.asarray([new]))["test"]
    key = ("sgd" if method == "fedper" else "head", "newcomer")
    start = {**state["body"], **head_of(run.init)}
    model = worlds.steps(start, run.federation, new, key, epochs=epochs, trainable="head.")
    np.testing.assert_allclose(actual, worlds.probabilities(model, run.federation, new), atol=1e-6)


WITHOUT_VALIDATION = {
    "ditto": ({}, {"lam": 1.0}),
    "fedham": ({"warmup": 1}, {"warmup": 1, "answer": "final", "self_share": 1 / 3}),
    "fedham, one share": ({"warmup": 1, "self_share": 0.5}, {"warmup": 1, "answer": "final", "self_share": 0.5}),
    "fedham, joint": ({"warmup": 1, "form": "joint", "answer": "best"}, {"warmup": 1, "form": "joint"}),
    "gaussian-head": ({}, {"temperature": 10.0}),
    "knn-peers": ({}, {"weight": 0.5}),
    "knn-per": ({"cross_validate": 0}, {"weight": 0.5}),
    "knn-per-extended": ({"cross_validate": 0}, {"weight": 0.5}),
    "knn-per-extended, all": (
        {"sigma": "auto", "representation": "auto", "distance": "auto", "decay": "auto", "cross_validate": 0},
        {"weight": 0.5, "sigma": 1.0, "representation": "features", "distance": "euclidean", "decay": 0},
    ),
    "knn-per-plus": ({}, {"weight": 0.5}),
}
"""Options with which clients choose, and the values that a client without validation samples gets."""


def test_every_method_that_chooses_is_tested_without_validation_samples():
    choosing = {n for n in registry.names("methods") if methods.load(n).choices(methods.load(n).Config())}
    assert choosing == {case.partition(",")[0] for case in WITHOUT_VALIDATION}


@pytest.mark.parametrize("case", WITHOUT_VALIDATION)
def test_clients_without_validation_samples_get_the_documented_values(case):
    method, data = case.partition(",")[0], worlds.federation(client_sizes=[(train, 0, 9) for train, *_ in worlds.SIZES])
    chosen, given = (
        worlds.run(method, data=data, options=options, rounds=4, participation=1.0)
        for options in WITHOUT_VALIDATION[case]
    )
    for clients in (chosen.clients, np.asarray([0])):
        p, expected = (
            worlds.answers(method, run, worlds.play(method, run), clients)["test"] for run in (chosen, given)
        )
        np.testing.assert_allclose(p, expected, atol=1e-6)
