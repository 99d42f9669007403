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


def sent_names(run):
    """The names that travel from now on."""
    names, count = set(), run.send
    run.send = lambda link, params, copies=1: (names.update(params), count(link, params, copies))
    return names


TRAVELS = {"fedper": "body.", "fedrep": "body.", "fedbabu": "body.", "lg-fedavg": "head."}


@pytest.mark.parametrize("method", TRAVELS)
def test_only_its_part_travels(method):
    run = worlds.run(method)
    names = sent_names(run)
    worlds.play(method, run)
    part = parameters.part(run.init, TRAVELS[method])
    assert names == set(part)
    drawn = sum(len(run.cohort(t)) for t in range(3))
    assert run.traffic == {"up": drawn * parameters.size(part), "down": drawn * parameters.size(part), "peer": 0}


@pytest.mark.parametrize("method", TRAVELS)
def test_a_model_without_a_body_is_refused(method):
    run = worlds.run(method)
    run.init = head(run.init)
    with pytest.raises(UsageError, match="no parameters under"):
        worlds.play(method, run)


def test_fedper_rounds_by_hand():
    run = worlds.run("fedper", epochs=2)
    state = worlds.play("fedper", run)
    data, shared, heads = run.federation, body(run.init), dict.fromkeys(range(7), head(run.init))
    for t in range(3):
        cohort = run.cohort(t).tolist()
        trained = [worlds.steps({**shared, **heads[c]}, data, c, ("sgd", t), epochs=2) for c in cohort]
        heads |= {c: head(model) for c, model in zip(cohort, trained, strict=True)}
        shared = worlds.mean([body(model) for model in trained], data.sizes("train")[cohort].tolist())
    worlds.close(state["body"], shared)
    for c, expected in heads.items():
        worlds.close(parameters.pick(state["heads"][[c]], 0), expected)
    actual = worlds.answers("fedper", run, state, np.asarray([0]))["test"]
    assert 0 in state["heads"].written
    np.testing.assert_allclose(actual, worlds.probabilities({**shared, **heads[0]}, data, 0), atol=1e-5)


@pytest.mark.parametrize("final", [0, 4])
def test_fedrep_rounds_by_hand(final):
    run = worlds.run("fedrep", options={"head_epochs": 3, "body_epochs": 2, "final_epochs": final})
    state = worlds.play("fedrep", run)
    data, shared, heads = run.federation, body(run.init), dict.fromkeys(range(7), head(run.init))
    for t in range(3):
        cohort, bodies = run.cohort(t).tolist(), []
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
    actual = worlds.answers("fedrep", run, state, np.asarray([0]))["test"]
    assert 0 in state["heads"].written
    # At last the head, however old it is, meets the last body.
    last = worlds.steps({**shared, **heads[0]}, data, 0, ("head", "final"), epochs=final, trainable="head.")
    np.testing.assert_allclose(actual, worlds.probabilities(last, data, 0), atol=1e-5)


def test_fedrep_without_steps_on_heads_is_fedbabu():
    """Both train bodies under the initial head."""
    run = worlds.run("fedrep", participation=1.0, options={"head_epochs": 0})
    first = worlds.play("fedrep", run, last=1)
    expected = worlds.mean(
        [worlds.steps(run.init, run.federation, c, ("body", 0), trainable="body.") for c in worlds.ABLE],
        run.federation.sizes("train")[worlds.ABLE].tolist(),
    )
    worlds.close(first["body"], body(expected))


@pytest.mark.parametrize("method", ["fedper", "fedrep"])
@pytest.mark.parametrize("epochs", [0, 2])
def test_a_newcomer_trains_its_head_alone(method, epochs):
    options = {"newcomer_epochs": epochs} if method == "fedper" else {"head_epochs": epochs, "final_epochs": 0}
    run = worlds.run(method, options=options)
    state = worlds.play(method, run)
    new = next(c for c in worlds.ABLE if c not in state["heads"].written and run.federation.sizes("test")[c])
    actual = worlds.answers(method, run, state, np.asarray([new]))["test"]
    key = ("sgd" if method == "fedper" else "head", "newcomer")
    start = {**state["body"], **head(run.init)}
    model = worlds.steps(start, run.federation, new, key, epochs=epochs, trainable="head.")
    np.testing.assert_allclose(actual, worlds.probabilities(model, run.federation, new), atol=1e-6)


def test_fedbabu_rounds_by_hand():
    run = worlds.run("fedbabu", weight_decay=0.0)
    actual = worlds.play("fedbabu", run)["global"]
    data, shared = run.federation, run.init
    for t in range(3):
        cohort = run.cohort(t).tolist()
        trained = [worlds.steps(shared, data, c, ("sgd", t), trainable="body.") for c in cohort]
        shared = worlds.mean(trained, data.sizes("train")[cohort].tolist())
    worlds.close(actual, shared)


def test_fedbabu_never_touches_the_head_before_fine_tuning():
    run = worlds.run("fedbabu", momentum=0.9, weight_decay=0.1)
    actual = worlds.play("fedbabu", run)["global"]
    assert worlds.same(head(actual), head(run.init))
    assert not worlds.same(body(actual), body(run.init))


@pytest.mark.parametrize("tune", ["all", "head", "body"])
def test_fedbabu_fine_tunes_what_is_asked_for(tune):
    run = worlds.run("fedbabu", options={"epochs": 2, "lr": 0.05, "tune": tune})
    state = worlds.play("fedbabu", run)
    actual = worlds.answers("fedbabu", run, state, np.asarray([0]))
    plan = {"epochs": 2, "lr": 0.05, "trainable": "" if tune == "all" else f"{tune}."}
    model = worlds.steps(state["global"], run.federation, 0, ("sgd", "fine-tune"), **plan)
    np.testing.assert_allclose(actual["test"], worlds.probabilities(model, run.federation, 0), atol=1e-6)


def test_lg_fedavg_rounds_by_hand(monkeypatch):
    run = worlds.run("lg-fedavg", epochs=2, options={"warmup": 1})
    monkeypatch.setattr("pflcli.engine.engine._CHUNK_BYTES", {"cpu": parameters.size(run.init)})  # one client each
    state = worlds.play("lg-fedavg", run)
    cohort, data, n = run.cohort(0).tolist(), run.federation, run.federation.sizes("train")
    start = worlds.mean([worlds.steps(run.init, data, c, ("sgd", 0), epochs=2) for c in cohort], n[cohort].tolist())
    shared, bodies = head(start), dict.fromkeys(range(7), body(start))
    for t in (1, 2):
        cohort = run.cohort(t).tolist()
        trained = [worlds.steps({**bodies[c], **shared}, data, c, ("sgd", t), epochs=2) for c in cohort]
        bodies |= {c: body(model) for c, model in zip(cohort, trained, strict=True)}
        shared = worlds.mean([head(model) for model in trained], n[cohort].tolist())
    worlds.close(state["head"], shared)
    for c, expected in bodies.items():
        worlds.close(parameters.pick(state["bodies"][[c]], 0), expected, atol=1e-5)
    up = len(run.cohort(0)) * parameters.size(run.init) + 2 * len(cohort) * parameters.size(shared)
    assert run.traffic["up"] == run.traffic["down"] == up


def test_lg_fedavg_of_warm_up_alone_is_fedavg():
    runs = [worlds.run(name, options=o) for name, o in (("fedavg", {}), ("lg-fedavg", {"warmup": 3}))]
    states = [worlds.play(name, run) for name, run in zip(("fedavg", "lg-fedavg"), runs, strict=True)]
    assert worlds.same(states[0]["global"], {**states[1]["body"], **states[1]["head"]})
    actual = [worlds.answers(*args) for args in zip(("fedavg", "lg-fedavg"), runs, states, strict=True)]
    np.testing.assert_array_equal(actual[0]["test"], actual[1]["test"])
    assert runs[0].traffic == runs[1].traffic


def test_a_newcomer_of_lg_fedavg_trains_its_body_under_the_head():
    run = worlds.run("lg-fedavg", options={"newcomer_epochs": 2})
    state = worlds.play("lg-fedavg", run)
    new = next(c for c in worlds.ABLE if c not in state["bodies"].written and run.federation.sizes("test")[c])
    actual = worlds.answers("lg-fedavg", run, state, np.asarray([new]))["test"]
    start = {**body(run.init), **state["head"]}
    model = worlds.steps(start, run.federation, new, ("sgd", "newcomer"), epochs=2, trainable="body.")
    np.testing.assert_allclose(actual, worlds.probabilities(model, run.federation, new), atol=1e-6)


def test_fedbn_without_batch_norm_is_fedavg():
    runs = [worlds.run(name) for name in ("fedavg", "fedbn")]
    expected, actual = (worlds.play(*args) for args in zip(("fedavg", "fedbn"), runs, strict=True))
    assert worlds.same(expected["global"], actual["shared"])
    assert list(actual) == ["shared"]
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
    return parameters.copy_params(net)


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_fedbn_rounds_by_hand(mode):
    run, net = worlds.normalized("fedbn", mode)
    names = sent_names(run)
    state = worlds.play("fedbn", run)
    data, shared, n = run.federation, run.init, run.federation.sizes("train")
    own = {c: {name: run.init[name] for name in NORM} for c in range(4)}
    for t in range(2):
        cohort = run.cohort(t).tolist()
        trained = [batch_norm_steps(net, {**shared, **own[c]}, data, c, ("sgd", t)) for c in cohort]
        own |= {c: {name: model[name] for name in NORM} for c, model in zip(cohort, trained, strict=True)}
        shared = worlds.mean(trained, n[cohort].tolist())
    assert names == set(state["shared"]) == set(run.init) - set(NORM)
    worlds.close(state["shared"], {name: shared[name] for name in names})
    for c, expected in own.items():
        worlds.close(parameters.pick(state["norms"][[c]], 0), expected)
    actual = worlds.answers("fedbn", run, state)["test"]
    offsets = np.concatenate([[0], np.cumsum(data.sizes("test"))])
    for c in state["norms"].written:
        model = {**shared, **own[c]}
        net.load_state_dict(model)
        with torch.no_grad():
            p = torch.softmax(net.eval()(data.inputs(data.block(c, "test"))), 1)
        np.testing.assert_allclose(actual[offsets[c] : offsets[c + 1]], p, atol=1e-5)


def test_a_newcomer_of_fedbn_trains_its_normalization_alone():
    run, net = worlds.normalized("fedbn")
    run.cfg = type(run.cfg)(newcomer_epochs=1)
    state = worlds.play("fedbn", run, last=1)
    (new,) = state["norms"].unwritten(np.asarray([0, 1, 3]))
    actual = worlds.answers("fedbn", run, state, np.asarray([new]))["test"]
    start = {**state["shared"], **{name: run.init[name] for name in NORM}}
    model = batch_norm_steps(net, start, run.federation, int(new), ("sgd", "newcomer"), trainable="body.2.")
    net.load_state_dict(model)
    with torch.no_grad():
        p = torch.softmax(net.eval()(run.federation.inputs(run.federation.block(int(new), "test"))), 1)
    np.testing.assert_allclose(actual, p, atol=1e-6)
