"""FedPer, FedRep, FedBABU, LG-FedAvg, FedBN: what is shared, what stays with a client, and what travels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import worlds
from pflcli import parameters, rng
from pflcli.errors import UsageError


def body(params):
    return parameters.part(params, "body.")


def head(params):
    return parameters.part(params, "head.")


def sent(made):
    """The names that travel from now on."""
    names, count = set(), made.send
    made.send = lambda link, params, copies=1: (names.update(params), count(link, params, copies))
    return names


TRAVELS = {"fedper": "body.", "fedrep": "body.", "fedbabu": "body.", "lg-fedavg": "head."}


@pytest.mark.parametrize("method", TRAVELS)
def test_only_its_part_travels(method):
    made = worlds.run(method)
    names = sent(made)
    worlds.play(method, made)
    part = parameters.part(made.init, TRAVELS[method])
    assert names == set(part)
    drawn = sum(len(made.cohort(t)) for t in range(3))
    assert made.traffic == {"up": drawn * parameters.size(part), "down": drawn * parameters.size(part), "peer": 0}


@pytest.mark.parametrize("method", TRAVELS)
def test_a_model_without_a_body_is_refused(method):
    made = worlds.run(method)
    made.init = head(made.init)
    with pytest.raises(UsageError, match="no parameters under"):
        worlds.play(method, made)


def test_fedper_rounds_by_hand():
    made = worlds.run("fedper", epochs=2)
    state = worlds.play("fedper", made)
    data, shared, heads = made.federation, body(made.init), dict.fromkeys(range(7), head(made.init))
    for t in range(3):
        cohort = made.cohort(t).tolist()
        trained = [worlds.steps({**shared, **heads[c]}, data, c, ("sgd", t), epochs=2) for c in cohort]
        heads |= {c: head(model) for c, model in zip(cohort, trained, strict=True)}
        shared = worlds.mean([body(model) for model in trained], data.sizes("train")[cohort].tolist())
    worlds.close(state["body"], shared)
    for c, expected in heads.items():
        worlds.close(parameters.pick(state["heads"][[c]], 0), expected)
    found = worlds.answers("fedper", made, state, np.asarray([0]))["test"]
    assert 0 in state["heads"].written
    np.testing.assert_allclose(found, worlds.probabilities({**shared, **heads[0]}, data, 0), atol=1e-5)


@pytest.mark.parametrize("final", [0, 4])
def test_fedrep_rounds_by_hand(final):
    made = worlds.run("fedrep", options={"head_epochs": 3, "body_epochs": 2, "final_epochs": final})
    state = worlds.play("fedrep", made)
    data, shared, heads = made.federation, body(made.init), dict.fromkeys(range(7), head(made.init))
    for t in range(3):
        cohort, bodies = made.cohort(t).tolist(), []
        for c in cohort:
            start = {**shared, **heads[c]}
            first = worlds.steps(start, data, c, ("head", t), epochs=3, trainable="head.")
            worlds.close(body(first), shared, atol=0)
            heads[c] = head(first)
            second = worlds.steps(first, data, c, ("body", t), epochs=2, trainable="body.")
            worlds.close(head(second), heads[c], atol=0)
            bodies.append(body(second))
        shared = worlds.mean(bodies, data.sizes("train")[cohort].tolist())
    worlds.close(state["body"], shared, atol=1e-5)
    for c, expected in heads.items():
        worlds.close(parameters.pick(state["heads"][[c]], 0), expected, atol=1e-5)
    found = worlds.answers("fedrep", made, state, np.asarray([0]))["test"]
    assert 0 in state["heads"].written
    # At last the head, however old it is, meets the last body.
    last = worlds.steps({**shared, **heads[0]}, data, 0, ("head", "final"), epochs=final, trainable="head.")
    np.testing.assert_allclose(found, worlds.probabilities(last, data, 0), atol=1e-5)


def test_fedrep_without_steps_on_heads_is_fedbabu():
    """Both train bodies under the initial head."""
    made = worlds.run("fedrep", participation=1.0, options={"head_epochs": 0})
    first = worlds.play("fedrep", made, last=1)
    expected = worlds.mean(
        [worlds.steps(made.init, made.federation, c, ("body", 0), trainable="body.") for c in worlds.ABLE],
        made.federation.sizes("train")[worlds.ABLE].tolist(),
    )
    worlds.close(first["body"], body(expected))


@pytest.mark.parametrize("method", ["fedper", "fedrep"])
@pytest.mark.parametrize("epochs", [0, 2])
def test_a_newcomer_trains_its_head_alone(method, epochs):
    options = {"newcomer_epochs": epochs} if method == "fedper" else {"head_epochs": epochs, "final_epochs": 0}
    made = worlds.run(method, options=options)
    state = worlds.play(method, made)
    new = next(c for c in worlds.ABLE if c not in state["heads"].written and made.federation.sizes("test")[c])
    found = worlds.answers(method, made, state, np.asarray([new]))["test"]
    key = ("sgd" if method == "fedper" else "head", "newcomer")
    start = {**state["body"], **head(made.init)}
    model = worlds.steps(start, made.federation, new, key, epochs=epochs, trainable="head.")
    np.testing.assert_allclose(found, worlds.probabilities(model, made.federation, new), atol=1e-6)


def test_fedbabu_rounds_by_hand():
    made = worlds.run("fedbabu", weight_decay=0.0)
    found = worlds.play("fedbabu", made)["global"]
    data, shared = made.federation, made.init
    for t in range(3):
        cohort = made.cohort(t).tolist()
        trained = [worlds.steps(shared, data, c, ("sgd", t), trainable="body.") for c in cohort]
        shared = worlds.mean(trained, data.sizes("train")[cohort].tolist())
    worlds.close(found, shared)


def test_fedbabu_never_touches_the_head_before_fine_tuning():
    made = worlds.run("fedbabu", momentum=0.9, weight_decay=0.1)
    found = worlds.play("fedbabu", made)["global"]
    assert worlds.same(head(found), head(made.init))
    assert not worlds.same(body(found), body(made.init))


@pytest.mark.parametrize("tune", ["all", "head", "body"])
def test_fedbabu_fine_tunes_what_is_asked_for(tune):
    made = worlds.run("fedbabu", options={"epochs": 2, "lr": 0.05, "tune": tune})
    state = worlds.play("fedbabu", made)
    found = worlds.answers("fedbabu", made, state, np.asarray([0]))
    plan = {"epochs": 2, "lr": 0.05, "trainable": "" if tune == "all" else f"{tune}."}
    model = worlds.steps(state["global"], made.federation, 0, ("sgd", "fine-tune"), **plan)
    np.testing.assert_allclose(found["test"], worlds.probabilities(model, made.federation, 0), atol=1e-6)


def test_lg_fedavg_rounds_by_hand(monkeypatch):
    made = worlds.run("lg-fedavg", epochs=2, options={"warmup": 1})
    monkeypatch.setattr("pflcli.engine.engine._CHUNK_BYTES", {"cpu": parameters.size(made.init)})  # one client each
    state = worlds.play("lg-fedavg", made)
    cohort, data, n = made.cohort(0).tolist(), made.federation, made.federation.sizes("train")
    start = worlds.mean([worlds.steps(made.init, data, c, ("sgd", 0), epochs=2) for c in cohort], n[cohort].tolist())
    shared, bodies = head(start), dict.fromkeys(range(7), body(start))
    for t in (1, 2):
        cohort = made.cohort(t).tolist()
        trained = [worlds.steps({**bodies[c], **shared}, data, c, ("sgd", t), epochs=2) for c in cohort]
        bodies |= {c: body(model) for c, model in zip(cohort, trained, strict=True)}
        shared = worlds.mean([head(model) for model in trained], n[cohort].tolist())
    worlds.close(state["head"], shared)
    for c, expected in bodies.items():
        worlds.close(parameters.pick(state["bodies"][[c]], 0), expected, atol=1e-5)
    up = len(made.cohort(0)) * parameters.size(made.init) + 2 * len(cohort) * parameters.size(shared)
    assert made.traffic["up"] == made.traffic["down"] == up


def test_lg_fedavg_of_warm_up_alone_is_fedavg():
    runs = [worlds.run(name, options=o) for name, o in (("fedavg", {}), ("lg-fedavg", {"warmup": 3}))]
    states = [worlds.play(name, made) for name, made in zip(("fedavg", "lg-fedavg"), runs, strict=True)]
    assert worlds.same(states[0]["global"], {**states[1]["body"], **states[1]["head"]})
    found = [worlds.answers(*args) for args in zip(("fedavg", "lg-fedavg"), runs, states, strict=True)]
    np.testing.assert_array_equal(found[0]["test"], found[1]["test"])
    assert runs[0].traffic == runs[1].traffic


def test_a_newcomer_of_lg_fedavg_trains_its_body_under_the_head():
    made = worlds.run("lg-fedavg", options={"newcomer_epochs": 2})
    state = worlds.play("lg-fedavg", made)
    new = next(c for c in worlds.ABLE if c not in state["bodies"].written and made.federation.sizes("test")[c])
    found = worlds.answers("lg-fedavg", made, state, np.asarray([new]))["test"]
    start = {**body(made.init), **state["head"]}
    model = worlds.steps(start, made.federation, new, ("sgd", "newcomer"), epochs=2, trainable="body.")
    np.testing.assert_allclose(found, worlds.probabilities(model, made.federation, new), atol=1e-6)


def test_fedbn_without_batch_norm_is_fedavg():
    runs = [worlds.run(name) for name in ("fedavg", "fedbn")]
    expected, found = (worlds.play(*args) for args in zip(("fedavg", "fedbn"), runs, strict=True))
    assert worlds.same(expected["global"], found["shared"])
    assert list(found) == ["shared"]
    assert runs[0].traffic == runs[1].traffic


NORM = [f"body.2.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]


def batch_norm_steps(net, start, data, client, key, trainable=""):
    net.load_state_dict(start)
    net.train()
    optimizer = torch.optim.SGD([p for name, p in net.named_parameters() if name.startswith(trainable)], lr=0.1)
    rows = torch.from_numpy(data.rows(client, "train"))
    for part in rows[torch.from_numpy(rng.generator(0, *key, client).permutation(len(rows)))].split(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(data.inputs(part)), data.y[part]).backward()
        optimizer.step()
    return parameters.of(net)


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_fedbn_rounds_by_hand(mode):
    made, net = worlds.normalized("fedbn", mode)
    names = sent(made)
    state = worlds.play("fedbn", made)
    data, shared, n = made.federation, made.init, made.federation.sizes("train")
    own = {c: {name: made.init[name] for name in NORM} for c in range(4)}
    for t in range(2):
        cohort = made.cohort(t).tolist()
        trained = [batch_norm_steps(net, {**shared, **own[c]}, data, c, ("sgd", t)) for c in cohort]
        own |= {c: {name: model[name] for name in NORM} for c, model in zip(cohort, trained, strict=True)}
        shared = worlds.mean(trained, n[cohort].tolist())
    assert names == set(state["shared"]) == set(made.init) - set(NORM)
    worlds.close(state["shared"], {name: shared[name] for name in names})
    for c, expected in own.items():
        worlds.close(parameters.pick(state["norms"][[c]], 0), expected)
    found = worlds.answers("fedbn", made, state)["test"]
    offsets = np.concatenate([[0], np.cumsum(data.sizes("test"))])
    for c in state["norms"].written:
        model = {**shared, **own[c]}
        net.load_state_dict(model)
        with torch.no_grad():
            p = torch.softmax(net.eval()(data.inputs(data.block(c, "test"))), 1)
        np.testing.assert_allclose(found[offsets[c] : offsets[c + 1]], p, atol=1e-5)


def test_a_newcomer_of_fedbn_trains_its_normalization_alone():
    made, net = worlds.normalized("fedbn")
    made.cfg = type(made.cfg)(newcomer_epochs=1)
    state = worlds.play("fedbn", made, last=1)
    (new,) = state["norms"].unwritten(np.asarray([0, 1, 3]))
    found = worlds.answers("fedbn", made, state, np.asarray([new]))["test"]
    start = {**state["shared"], **{name: made.init[name] for name in NORM}}
    model = batch_norm_steps(net, start, made.federation, int(new), ("sgd", "newcomer"), trainable="body.2.")
    net.load_state_dict(model)
    with torch.no_grad():
        p = torch.softmax(net.eval()(made.federation.inputs(made.federation.block(int(new), "test"))), 1)
    np.testing.assert_allclose(found, p, atol=1e-6)
