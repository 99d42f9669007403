"""Laws that every method is held to, whoever wrote it: a file in ``methods/`` is enough to be tested here."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from safetensors.torch import load, save

import worlds
from helpers import unmeasured
from pflcli import methods, registry
from pflcli.errors import ComputationError
from pflcli.federation.channel import LINKS
from pflcli.training import state_files

METHODS = registry.names("methods")
KINDS = {name: registry.card("methods", name).facts["KIND"] for name in METHODS}


@pytest.mark.parametrize("method", METHODS)
def test_rows_are_probabilities_for_every_client(method):
    run = worlds.run(method)
    state = worlds.play(method, run)
    answers = worlds.answers(method, run, state)
    assert "test" in answers
    for split, p in answers.items():
        assert p.shape == (run.federation.sizes(split).sum(), worlds.CLASSES)
        assert p.dtype == np.float32
        assert (p >= 0).all()
        np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("mode", ["loop", "stacked"])
@pytest.mark.parametrize("method", METHODS)
def test_same_seed_same_bytes_whatever_the_threads(method, mode):
    runs = [worlds.run(method, seed=3, threads=threads, mode=mode) for threads in (1, 3)]
    states = [worlds.play(method, run) for run in runs]
    first, second = (worlds.answers(method, run, state) for run, state in zip(runs, states, strict=True))
    assert worlds.same(*states)
    for split in first:
        assert first[split].tobytes() == second[split].tobytes()


@pytest.mark.parametrize("method", METHODS)
def test_no_method_learns_from_validation_samples(method):
    """They may only choose; with what they chose given, nothing depends on them."""
    plain = worlds.run(method)
    code = methods.load(method)
    first = worlds.play(method, plain)
    plain.choices = worlds.tuned(method, plain, first) if code.choices(plain.cfg) else {}
    other = worlds.run(method, data=worlds.spoiled(worlds.federation(), "validation"))
    other.choices = plain.choices
    states = [worlds.play(method, run) for run in (plain, other)]
    assert worlds.same(*(unmeasured(state) for state in states))
    answers = [worlds.answers(method, run, state) for run, state in zip((plain, other), states, strict=True)]
    assert answers[0]["test"].tobytes() == answers[1]["test"].tobytes()


@pytest.mark.parametrize("method", METHODS)
def test_refit_learns_from_validation_samples_as_from_training_samples(method):
    """The same as if every validation sample had been a training sample from the start; test samples change nothing."""
    code, data = methods.load(method), worlds.federation()
    earlier = worlds.run(method)
    chosen = worlds.tuned(method, earlier, worlds.play(method, earlier)) if code.choices(earlier.cfg) else {}
    moved = worlds.moved_to_training(data)
    runs = [worlds.run(method, refit=True), worlds.run(method, data=moved), worlds.run(method)]
    for run in runs[:2]:
        run.choices = chosen
    states = [worlds.play(method, run) for run in runs]
    assert worlds.same(*states[:2])
    answers = [worlds.answers(method, run, state)["test"] for run, state in zip(runs, states, strict=True)]
    assert answers[0].tobytes() == answers[1].tobytes()
    if "backbone" not in code.NEEDS or method in ("fedavg-plus", "knn-per-plus"):
        assert not np.array_equal(answers[0], answers[2])


@pytest.mark.parametrize("method", METHODS)
def test_another_seed_gives_another_answer(method):
    answers = []
    for seed in (0, 1):
        run = worlds.run(method, seed=seed)
        answers.append(worlds.answers(method, run, worlds.play(method, run))["test"])
    assert not np.array_equal(*answers)


@pytest.mark.parametrize("method", METHODS)
def test_stopped_and_resumed_gives_the_same_bytes(method):
    run = worlds.run(method, rounds=4)
    expected = worlds.play(method, run)
    stopped = worlds.play(method, worlds.run(method, rounds=4), last=2)
    resumed_run = worlds.run(method, rounds=4)
    saved = state_files.nest(load(save(state_files.flatten(stopped))), resumed_run)
    resumed = worlds.play(method, resumed_run, first=2, state=saved)
    assert worlds.same(expected, resumed)
    first, second = worlds.answers(method, run, expected), worlds.answers(method, resumed_run, resumed)
    assert all(np.array_equal(first[split], second[split]) for split in first)


@pytest.mark.parametrize("method", METHODS)
def test_no_round_at_all_can_be_kept_and_answers(method):
    run = worlds.run(method, rounds=0)
    state = worlds.play(method, run)
    save(state_files.flatten(state))
    assert "test" in worlds.answers(method, run, state)


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_clients_does_not_matter(method):
    run = worlds.run(method)
    state = worlds.play(method, run)
    forward = worlds.answers(method, run, state)
    backward = worlds.answers(method, run, state, run.clients[::-1].copy())
    for split in forward:
        sizes = run.federation.sizes(split)
        forward_parts = np.split(forward[split], np.cumsum(sizes)[:-1])
        backward_parts = np.split(backward[split], np.cumsum(sizes[::-1])[:-1])[::-1]
        for a, b in zip(forward_parts, backward_parts, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("method", METHODS)
def test_a_client_answers_the_same_alone(method):
    run = worlds.run(method)
    state = worlds.play(method, run)
    together = worlds.answers(method, run, state)["test"]
    for client in run.clients:
        rows = slice(*np.concatenate([[0], np.cumsum(run.federation.sizes("test"))])[client : client + 2])
        alone = worlds.answers(method, run, state, np.asarray([client]))["test"]
        np.testing.assert_allclose(alone, together[rows], atol=2e-7)


@pytest.mark.parametrize("method", METHODS)
def test_only_links_of_its_kind_carry_bytes(method):
    run = worlds.run(method)
    state = worlds.play(method, run)
    before = dict(run.traffic)
    worlds.answers(method, run, state)
    assert run.traffic == before
    used = {link for link, sent_bytes in run.traffic.items() if sent_bytes}
    assert used <= set(LINKS[KINDS[method]])
    if methods.load(method).has_rounds and KINDS[method] == "server":
        assert used == {"up", "down"}


@pytest.mark.parametrize("method", METHODS)
def test_personalize_does_not_change_the_state(method):
    run = worlds.run(method)
    state = worlds.play(method, run)
    before, backbone = copy.deepcopy(state), copy.deepcopy(run.backbone)
    worlds.answers(method, run, state)
    assert worlds.same(before, state)
    assert worlds.same(backbone, run.backbone)


@pytest.mark.parametrize("kind", LINKS)
def test_a_link_of_another_kind_is_refused(kind):
    run = worlds.run()
    run.kind = kind
    for link in ("up", "down", "peer"):
        if link in LINKS[kind]:
            run.send(link, run.init, copies=2)
            assert run.traffic[link] == 2 * sum(v.numel() * 4 for v in run.init.values())
        else:
            with pytest.raises(ComputationError, match=link):
                run.send(link, run.init)


def test_nothing_is_sent_while_clients_personalize():
    run = worlds.run("fedavg")
    with pytest.raises(ComputationError, match="personalizing"), run.personalizing():
        run.send("up", run.init)
    assert not run.sealed  # nor does a failure leave it so
    run.send("up", run.init)


@pytest.mark.parametrize("method", METHODS)
def test_clients_answer_with_the_global_model_or_the_method_says_otherwise(method):
    """What ``rounds.csv`` says of the global model is else taken for what clients have."""
    facts = registry.card("methods", method).facts
    run = worlds.run(method)
    state = worlds.play(method, run)
    if {"PERSONAL_MODELS", "ADAPTS"} & set(facts) or facts["KIND"] in ("posthoc", "local"):
        assert not {"PERSONAL_MODELS", "ADAPTS"} <= set(facts)
    else:
        expected = run.predictor(run.clients, state["global"]).answer("validation")["p"]
        np.testing.assert_array_equal(worlds.answers(method, run, state)["validation"], expected)
