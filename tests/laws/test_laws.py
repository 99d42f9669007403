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
from pflcli.fl.channel import LINKS
from pflcli.training import state_files

METHODS = registry.names("methods")
KINDS = {name: registry.card("methods", name).facts["KIND"] for name in METHODS}


@pytest.mark.parametrize("method", METHODS)
def test_rows_are_probabilities_for_every_client(method):
    made = worlds.run(method)
    state = worlds.play(method, made)
    found = worlds.answers(method, made, state)
    assert "test" in found
    for split, p in found.items():
        assert p.shape == (made.federation.sizes(split).sum(), worlds.CLASSES)
        assert p.dtype == np.float32
        assert (p >= 0).all()
        np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("mode", ["loop", "stacked"])
@pytest.mark.parametrize("method", METHODS)
def test_same_seed_same_bytes_whatever_the_threads(method, mode):
    runs = [worlds.run(method, seed=3, threads=threads, mode=mode) for threads in (1, 3)]
    states = [worlds.play(method, made) for made in runs]
    first, second = (worlds.answers(method, made, state) for made, state in zip(runs, states, strict=True))
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
    states = [worlds.play(method, made) for made in (plain, other)]
    assert worlds.same(*(unmeasured(state) for state in states))
    answers = [worlds.answers(method, made, state) for made, state in zip((plain, other), states, strict=True)]
    assert answers[0]["test"].tobytes() == answers[1]["test"].tobytes()


@pytest.mark.parametrize("method", METHODS)
def test_refit_learns_from_validation_samples_as_from_training_samples(method):
    """The same as if every validation sample had been a training sample from the start; test samples change nothing."""
    code, data = methods.load(method), worlds.federation()
    earlier = worlds.run(method)
    chosen = worlds.tuned(method, earlier, worlds.play(method, earlier)) if code.choices(earlier.cfg) else {}
    moved = worlds.moved_to_training(data)
    runs = [worlds.run(method, refit=True), worlds.run(method, data=moved), worlds.run(method)]
    for made in runs[:2]:
        made.choices = chosen
    states = [worlds.play(method, made) for made in runs]
    assert worlds.same(*states[:2])
    found = [worlds.answers(method, made, state)["test"] for made, state in zip(runs, states, strict=True)]
    assert found[0].tobytes() == found[1].tobytes()
    if "backbone" not in code.NEEDS or method in ("fedavg-plus", "knn-per-plus"):
        assert not np.array_equal(found[0], found[2])


@pytest.mark.parametrize("method", METHODS)
def test_another_seed_gives_another_answer(method):
    found = []
    for seed in (0, 1):
        made = worlds.run(method, seed=seed)
        found.append(worlds.answers(method, made, worlds.play(method, made))["test"])
    assert not np.array_equal(*found)


@pytest.mark.parametrize("method", METHODS)
def test_stopped_and_resumed_gives_the_same_bytes(method):
    made = worlds.run(method, rounds=4)
    whole = worlds.play(method, made)
    stopped = worlds.play(method, worlds.run(method, rounds=4), last=2)
    resumed_run = worlds.run(method, rounds=4)
    kept = state_files.nest(load(save(state_files.flatten(stopped))), resumed_run)
    resumed = worlds.play(method, resumed_run, first=2, state=kept)
    assert worlds.same(whole, resumed)
    first, second = worlds.answers(method, made, whole), worlds.answers(method, resumed_run, resumed)
    assert all(np.array_equal(first[split], second[split]) for split in first)


@pytest.mark.parametrize("method", METHODS)
def test_no_round_at_all_can_be_kept_and_answers(method):
    made = worlds.run(method, rounds=0)
    state = worlds.play(method, made)
    save(state_files.flatten(state))
    assert "test" in worlds.answers(method, made, state)


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_clients_does_not_matter(method):
    made = worlds.run(method)
    state = worlds.play(method, made)
    forward = worlds.answers(method, made, state)
    backward = worlds.answers(method, made, state, made.clients[::-1].copy())
    for split in forward:
        sizes = made.federation.sizes(split)
        there = np.split(forward[split], np.cumsum(sizes)[:-1])
        back = np.split(backward[split], np.cumsum(sizes[::-1])[:-1])[::-1]
        for a, b in zip(there, back, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("method", METHODS)
def test_a_client_answers_the_same_alone(method):
    made = worlds.run(method)
    state = worlds.play(method, made)
    together = worlds.answers(method, made, state)["test"]
    for client in made.clients:
        rows = slice(*np.concatenate([[0], np.cumsum(made.federation.sizes("test"))])[client : client + 2])
        alone = worlds.answers(method, made, state, np.asarray([client]))["test"]
        np.testing.assert_allclose(alone, together[rows], atol=2e-7)


@pytest.mark.parametrize("method", METHODS)
def test_only_links_of_its_kind_carry_bytes(method):
    made = worlds.run(method)
    state = worlds.play(method, made)
    before = dict(made.traffic)
    worlds.answers(method, made, state)
    assert made.traffic == before
    used = {link for link, sent in made.traffic.items() if sent}
    assert used <= set(LINKS[KINDS[method]])
    if methods.load(method).has_rounds and KINDS[method] == "server":
        assert used == {"up", "down"}


@pytest.mark.parametrize("method", METHODS)
def test_personalize_does_not_change_the_state(method):
    made = worlds.run(method)
    state = worlds.play(method, made)
    before, backbone = copy.deepcopy(state), copy.deepcopy(made.backbone)
    worlds.answers(method, made, state)
    assert worlds.same(before, state)
    assert worlds.same(backbone, made.backbone)


@pytest.mark.parametrize("kind", LINKS)
def test_a_link_of_another_kind_is_refused(kind):
    made = worlds.run()
    made.kind = kind
    for link in ("up", "down", "peer"):
        if link in LINKS[kind]:
            made.send(link, made.init, copies=2)
            assert made.traffic[link] == 2 * sum(v.numel() * 4 for v in made.init.values())
        else:
            with pytest.raises(ComputationError, match=link):
                made.send(link, made.init)


def test_nothing_is_sent_while_clients_personalize():
    made = worlds.run("fedavg")
    with pytest.raises(ComputationError, match="personalizing"), made.personalizing():
        made.send("up", made.init)
    assert not made.sealed  # nor does a failure leave it so
    made.send("up", made.init)


@pytest.mark.parametrize("method", METHODS)
def test_clients_answer_with_the_global_model_or_the_method_says_otherwise(method):
    """What ``rounds.csv`` says of the global model is else taken for what clients have."""
    facts = registry.card("methods", method).facts
    made = worlds.run(method)
    state = worlds.play(method, made)
    if {"PERSONAL_MODELS", "ADAPTS"} & set(facts) or facts["KIND"] in ("posthoc", "local"):
        assert not {"PERSONAL_MODELS", "ADAPTS"} <= set(facts)
    else:
        expected = made.predictor(made.clients, state["global"]).answer("validation")["p"]
        np.testing.assert_array_equal(worlds.answers(method, made, state)["validation"], expected)
