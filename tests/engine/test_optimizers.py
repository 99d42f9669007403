"""Optimizers, clipping and schedules: against torch.optim on one client, in loops and stacks, and for every method."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

import worlds
from helpers import CLASSIFYING
from pflcli.core import config, models, parameters, rng
from pflcli.core.errors import UsageError
from pflcli.core.settings import Settings
from pflcli.workflow.admission import small_federation as small

OPTIMIZERS = {
    "sgd": lambda weights: torch.optim.SGD(weights, 0.05, momentum=0.9, weight_decay=0.1),
    "adam": lambda weights: torch.optim.Adam(weights, 0.05, weight_decay=0.1),
    "adamw": lambda weights: torch.optim.AdamW(weights, 0.05, weight_decay=0.1),
}


@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizer_equals_torch_optim(optimizer, clip):
    momentum = 0.9 if optimizer == "sgd" else 0.0
    settings = {"optimizer": optimizer, "momentum": momentum, "weight_decay": 0.1, "clip_gradients": clip, "lr": 0.05}
    run = worlds.run(mode="loop", epochs=3, **settings)
    (part,) = run.local_sgd([0], run.init, t=0)
    data, net = run.federation, models.create("mlp", run.federation.in_shape, worlds.CLASSES, 0)
    stepper = OPTIMIZERS[optimizer]([*net.parameters()])
    rows, draw = torch.from_numpy(data.rows(0, "train")), rng.generator(0, "sgd", 0, 0)
    for _ in range(3):
        for batch in rows[torch.from_numpy(draw.permutation(len(rows)))].split(4):
            stepper.zero_grad()
            functional.cross_entropy(net(data.inputs(batch)), data.y[batch]).backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
            stepper.step()
    worlds.close(parameters.pick(part.params, 0), parameters.copy_params(net), atol=1e-4)


@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_loop_and_stacked_agree_for_every_optimizer(model, optimizer, clip):
    trained = []
    for mode in ("loop", "stacked"):
        run = worlds.run(mode=mode, optimizer=optimizer, weight_decay=0.1, clip_gradients=clip, lr=0.01)
        if model == "cnn":
            run = use_images(run, mode)
        (part,) = run.local_sgd(run.clients, run.init, t=0)
        trained.append(part.params)
    worlds.close(trained[1], trained[0], atol=2e-5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_stacked_clients_train_at_their_own_learning_rates(optimizer):
    """Clients have numbers of steps of their own, so that in one step of a stack they are in different epochs."""
    rates = {
        "of each epoch": lambda epoch: 0.03 / (epoch + 1) ** 2,
        "of each client": 0.01 * np.arange(1, len(worlds.run().clients) + 1),
    }
    for rate in rates.values():
        trained = []
        for mode in ("loop", "stacked"):
            run = worlds.run(mode=mode, optimizer=optimizer, weight_decay=0.1)
            (part,) = run.local_sgd(run.clients, run.init, t=0, epochs=3, lr=rate)
            trained.append(part.params)
        worlds.close(trained[1], trained[0], atol=2e-5)


def use_images(run, mode):
    """The run with images of 28 x 28 and a network that is no chain of linear layers."""
    from pflcli.core.engine.engine import Engine
    from pflcli.core.engine.federation import Federation

    draw = np.random.default_rng(0)
    data = run.federation
    x = draw.random((len(data.y), 1, 28, 28)).astype(np.float32)
    run.federation = Federation(torch.from_numpy(x), data.y, data.offsets, data.task, data.new, data.cluster)
    net = models.create("cnn", (1, 28, 28), worlds.CLASSES, 0)
    run.engine, run.init = Engine(net, run.federation, seed=0, threads=1, mode=mode), parameters.copy_params(net)
    return run


@pytest.mark.parametrize("method", [name for name in CLASSIFYING if name != "scaffold"])
def test_method_trains_with_adamw_and_clipping(method):
    run = worlds.run(method, optimizer="adamw", weight_decay=0.01, clip_gradients=1.0, lr=0.01, lr_schedule="cosine")
    answers = worlds.answers(method, run, worlds.play(method, run))
    assert np.isfinite(answers["test"]).all()


def test_scaffold_refuses_other_optimizers():
    with pytest.raises(UsageError, match="plain steps of SGD"):
        worlds.play("scaffold", worlds.run("scaffold", optimizer="adam"))


def test_lr_at_follows_the_learning_rate_schedule():
    def rates(**settings):
        plan = Settings(lr=1.0, rounds=6, **settings)
        return [round(plan.lr_at(t), 4) for t in range(6)]

    assert rates() == rates(lr_schedule="constant") == [1] * 6
    assert (
        rates(milestones=(2, 4)) == rates(lr_schedule="milestones", milestones=(2, 4)) == [1, 1, 0.1, 0.1, 0.01, 0.01]
    )
    assert rates(lr_warmup=3) == [0.25, 0.5, 0.75, 1, 1, 1]
    cosine = rates(lr_schedule="cosine", gamma=0.2)
    assert (cosine[0], cosine[-1]) == (1, 0.2)
    assert cosine[2] + cosine[3] == pytest.approx(1.2)
    assert rates(lr_schedule="cosine", lr_warmup=2, gamma=0.2)[:3] == [0.3333, 0.6667, 1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr_schedule": "cosine", "milestones": "3"}, "does not use milestones"),
        ({"lr_schedule": "milestones"}, "also needs milestones"),
        ({"optimizer": "adam", "momentum": "0.9"}, "is an option of SGD"),
        ({"clip_gradients": "0"}, "clip_gradients"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        config.build(Settings, settings, "the training settings")


def test_each_local_step_has_its_own_learning_rate():
    run = worlds.run(mode="loop", steps=3, lr=0.1)
    rates = np.asarray([0.1, 0.05, 0.01])
    (stepped,) = run.local_sgd([0], run.init, t=0, lr=lambda number: rates[number])
    (constant,) = run.local_sgd([0], run.init, t=0, lr=0.1)
    plan = run.local_sgd([0], run.init, t=0, lr=lambda number: rates[number]).plan
    drawn = [rate for _, rate in plan.schedule(0, 12, np.random.default_rng(0), join_single=False)]
    assert drawn == pytest.approx(rates)
    name = next(iter(run.init))
    assert not torch.equal(stepped.params[name], constant.params[name])


@pytest.mark.parametrize("method", ["local", "pooled"])
def test_with_steps_methods_without_rounds_follow_the_schedule(method):
    def predict(**settings):
        run = small.make_run(method, steps=2, rounds=3, participation=1.0, **settings)
        return small.predict(method, run, small.play_rounds(method, run))["test"]

    constant, falling = predict(), predict(lr_schedule="cosine")
    assert not np.allclose(constant, falling, atol=1e-3)
