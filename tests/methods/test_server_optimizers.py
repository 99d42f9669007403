"""FedOpt: two rounds of every optimizer of the server by hand, and FedAvg as what is left without one."""

from __future__ import annotations

import math

import pytest
import torch

import worlds
from pflcli.core import registry

RATE, BETA1, BETA2, TAU = 0.3, 0.6, 0.8, 0.05


def step_by_hand(server, x, towards, memory):
    """One value after a step of the server; ``memory`` holds its m and v."""
    m, v = memory
    if server == "sgd":
        return x + RATE * towards, memory
    if server == "avgm":
        m = BETA1 * m + towards
        return x + RATE * m, (m, v)
    m, square = BETA1 * m + (1 - BETA1) * towards, towards * towards
    if server == "adagrad":
        v = v + square
    elif server == "adam":
        v = BETA2 * v + (1 - BETA2) * square
    else:
        v = v - (1 - BETA2) * square * ((v > square) - (v < square))
    return x + RATE * m / (math.sqrt(v) + TAU), (m, v)


@pytest.mark.parametrize("server", ["sgd", "avgm", "adagrad", "adam", "yogi"])
@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_two_rounds_match_hand_computed_server_steps(method, server):
    options = {"server": server, "server_lr": RATE, "beta1": BETA1, "beta2": BETA2, "tau": TAU}
    options |= {"mu": 0.7} if method == "fedprox" else {}
    run = worlds.run(method, participation=1.0, options=options)
    actual, data, model = worlds.play(method, run, last=2)["global"], run.federation, run.init
    pull = options.get("mu", 0.0)
    memory = {name: [(0.0, TAU * TAU)] * value.numel() for name, value in model.items()}
    for t in range(2):
        trained = [worlds.steps(model, data, c, ("sgd", t), anchor=model, pull=pull) for c in worlds.ABLE]
        mean, after = worlds.mean(trained, data.sizes("train")[worlds.ABLE].tolist()), {}
        for name, before in model.items():
            steps = [
                step_by_hand(server, x, goal - x, known)
                for x, goal, known in zip(
                    before.flatten().tolist(), mean[name].flatten().tolist(), memory[name], strict=True
                )
            ]
            after[name] = torch.tensor([x for x, _ in steps]).view(before.shape)
            memory[name] = [known for _, known in steps]
        model = after
    worlds.close(actual, model, atol=1e-5)


@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_default_server_lr_and_beta1_depend_on_the_server_optimizer(method):
    for server, rate, beta1 in (("avgm", 1.0, 0.9), ("adagrad", 0.1, 0.0), ("adam", 0.03, 0.9), ("yogi", 0.03, 0.9)):
        runs = [
            worlds.run(method, options={"server": server}),
            worlds.run(method, options={"server": server, "server_lr": rate, "beta1": beta1}),
        ]
        assert worlds.same(*(worlds.play(method, run) for run in runs))


def test_server_sgd_with_rate_1_is_identical_to_plain_averaging():
    runs = [worlds.run("fedavg"), worlds.run("fedavg", options={"server": "sgd", "server_lr": 1.0})]
    states = [worlds.play("fedavg", run) for run in runs]
    assert worlds.same(*states)
    model = runs[0].init
    for t in range(3):
        model = runs[0].average(runs[0].local_sgd(runs[0].cohort(t), model, t=t), model)
    assert worlds.same(states[0], {"global": model})


def test_server_momentum_with_beta1_0_equals_sgd():
    runs = [
        worlds.run("fedavg", options={"server": "avgm", "beta1": 0.0, "server_lr": 0.5}),
        worlds.run("fedavg", options={"server": "sgd", "server_lr": 0.5}),
    ]
    first, second = (worlds.play("fedavg", run)["global"] for run in runs)
    worlds.close(first, second)


def test_run_with_server_optimizer_state_resumes_with_the_same_bytes():
    plan = {"rounds": 4, "options": {"server": "yogi"}}
    expected = worlds.play("fedavg", worlds.run("fedavg", **plan))
    stopped = worlds.play("fedavg", worlds.run("fedavg", **plan), last=2)
    assert set(stopped["server"]) == {"first", "second"}
    assert worlds.same(expected, worlds.play("fedavg", worlds.run("fedavg", **plan), first=2, state=stopped))


def test_running_statistics_are_averaged_for_any_server_optimizer():
    run, _ = worlds.normalized("fedavg")
    expected = worlds.play("fedavg", run, last=1)["global"]
    run, _ = worlds.normalized("fedavg")
    run.cfg = type(run.cfg)(server="adam")
    state = worlds.play("fedavg", run, last=1)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(state["global"][f"body.2.{name}"], expected[f"body.2.{name}"])
        assert f"body.2.{name}" not in state["server"]["first"]
    assert not torch.equal(state["global"]["head.weight"], expected["head.weight"])


def test_card_lists_inherited_server_options():
    for method in ("fedavg", "fedprox"):
        options = {option.name: option.doc for option in registry.card("methods", method).options}
        assert {"server", "server_lr", "beta1", "beta2", "tau"} <= options.keys()
        assert all(options.values())
