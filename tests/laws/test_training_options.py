"""--optimizer, --momentum, --weight-decay and --clip-gradients act on the training of models, and on nothing else."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.nn import functional

import worlds
from helpers import CLASSIFYING, ONE_OF_EACH_KIND
from pflcli.core import models, rng
from pflcli.core.engine.gradients import Pass, StackedBatch
from pflcli.core.engine.local_sgd import Batch, Model
from pflcli.core.engine.networks import AutogradNetwork
from pflcli.core.parameters import TrainedClients
from pflcli.core.parameters.model_table import ModelTable

SETTINGS = {
    "sgd": {},
    "sgd with all": {"momentum": 0.8, "weight_decay": 0.1, "clip_gradients": 0.5},
    "adam": {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1},
    "adamw": {"optimizer": "adamw", "lr": 0.003, "weight_decay": 0.5, "clip_gradients": 0.5},
}

CASES = [
    *itertools.product(CLASSIFYING, ("sgd with all", "adamw")),
    *itertools.product(ONE_OF_EACH_KIND, ("sgd", "adam")),
]

OWN_LEARNING = {
    "apfl": [("alpha", 0), ("alpha", 1), ("alpha", 2)],
    "fedala": [("weights", 0), ("weights", 1), ("weights", 2), ("weights", "personalize")],
    "fedas": [("fisher", 0), ("fisher", 1), ("fisher", 2)],
    "fedham": [("ham", 0), ("ham", 1), ("ham", 2)],
    "per-fedavg": [("sgd", "fine-tune")],
    "pfedme": [("sgd", "theta")],
}
"""By method, the keys of the trainings of something that is no model, or that the method defines as plain descent."""

OWN_LOSSES = {"apfl": "local:", "fedrod": "own:"}
"""By method, the prefix of parameters that are trained beside the global model, on a loss of their own."""

TOLERANCE = {"pfedfda": 1e-3}
"""By method, the mean difference of numbers, if not 1e-4: statistics of features follow each weight that Adam moves for
a gradient of rounding errors."""

OPTIONS = {"apfl": {"adaptive": True, "alpha_lr": 0.5}, "fedala": {"eta": 20.0}, "fedham": {"warmup": 1}}
"""Options by which a method learns enough in three rounds to compare."""


def make_optimizer(weights, settings):
    """The optimizer of PyTorch that the settings name."""
    if settings.optimizer == "sgd":
        return torch.optim.SGD(weights, lr=1.0, momentum=settings.momentum, weight_decay=settings.weight_decay)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[settings.optimizer]
    return kind(weights, lr=1.0, weight_decay=settings.weight_decay)


def to_double(values):
    return {name: value.double() if value.is_floating_point() else value for name, value in values.items()}


def clip(grads, names, largest):
    """Scale the gradients of these parameters to a joint norm of at most ``largest``."""
    norm = sum(float(grads[name].square().sum()) for name in names) ** 0.5
    for name in names if norm > largest else ():
        grads[name] = grads[name] * (largest / norm)


def differentiate(net, passes, params, trained):
    """Return the sum of the losses of passes, and its gradients by the trained tensors."""
    total, grads = torch.zeros(()), {name: torch.zeros_like(params[name]) for name in trained}
    for each in passes:
        at, batch, model = {name: value[0].clone() for name, value in each.at.items()}, each.batch, Model(net)
        leaves = {name: value.requires_grad_(value.is_floating_point()) for name, value in at.items()}
        z = model.features(leaves, batch.x[0])
        logits = model.head(leaves, z)
        if each.loss:
            loss = each.loss(logits[None], z[None], {name: value[None] for name, value in leaves.items()}, batch)[0]
        else:
            loss = functional.cross_entropy(logits, batch.y[0], reduction="none") @ batch.weight[0]
        moved = [name for name in leaves if each.moves + name in trained]
        scale = 1 if each.scale is None else each.scale[0]
        found = torch.autograd.grad(loss * scale, [leaves[name] for name in moved], materialize_grads=True)
        for name, grad in zip(moved, found, strict=True):
            grads[each.moves + name] += grad
        total = total + loss.detach()
    return total, grads


def make_reference_training(run, method):
    """Training as ``Engine.local_sgd`` does it, client by client in float64 with the optimizers of PyTorch.

    The options of the optimizer are those of the run's settings, or none for what ``OWN_LEARNING`` lists: not what the
    method asks for.
    """
    settings, data = run.settings, run.federation
    net = models.create("mlp", data.in_shape, worlds.CLASSES, 0).double()

    def train_client(start, plan, key, index, client, rows):
        is_own = key in OWN_LEARNING.get(method, ())
        params = to_double({name: value.clone() for name, value in start.items()})
        trained = [name for name in params if name.startswith(plan.trainable)]
        weights = [params[name] for name in trained]
        if is_own:
            stepper = (torch.optim.Adam if method == "fedham" else torch.optim.SGD)(weights, lr=1.0)
        else:
            stepper = make_optimizer(weights, settings)
        network, draw = AutogradNetwork(net, trained, "float32"), rng.generator(run.seed, *key, client)
        steps = []
        for epoch in itertools.count() if plan.steps else range(plan.epochs if len(rows) else 0):
            order = draw.permutation(len(rows))
            parts = np.split(order, range(plan.batch_size, len(order), plan.batch_size))[: plan.batches]
            steps += [(epoch, part) for part in parts]
            if plan.steps and (len(steps) >= plan.steps or not len(rows)):
                break
        own = to_double({name: value[index : index + 1] for name, value in plan.own.items()})
        shared, losses = to_double(plan.shared), []
        rates = plan.lr[index] if plan.lr.ndim == 2 else plan.lr
        for number, (epoch, part) in enumerate(steps[: plan.steps] if len(rows) else ()):
            chosen = torch.from_numpy(rows[part])
            x, y, weight = (
                data.inputs(chosen).double(),
                data.y[chosen],
                torch.full((len(part),), 1 / len(part)).double(),
            )
            if plan.sample_weights is not None:
                weight = weight * plan.sample_weights[index][torch.from_numpy(part)].double()
            if plan.gradient:
                stack = {name: value[None] for name, value in params.items()}
                batch = StackedBatch(x[None], y[None], weight[None], own, shared, data.task, [draw])
                with torch.no_grad():
                    loss, found = plan.gradient(network, stack, batch)
                grads = {name: found[name][0] for name in trained}
            elif plan.loss or plan.pass_rule:
                stack = {name: value[None] for name, value in params.items()}
                batch = StackedBatch(x[None], y[None], weight[None], own, shared, data.task, [draw])
                with torch.no_grad():
                    passes = (
                        plan.pass_rule(network, stack, batch) if plan.pass_rule else [Pass(stack, batch, plan.loss)]
                    )
                loss, grads = differentiate(net, passes, params, trained)
            else:
                leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
                if plan.objective:
                    one = {name: value[0] for name, value in own.items()}
                    loss = plan.objective(Model(net), leaves, Batch(x, y, weight, one, shared, data.task))
                else:
                    logits = functional_call(net, leaves, (x,))
                    loss = functional.cross_entropy(logits, y, reduction="none") @ weight
                found = torch.autograd.grad(loss, [leaves[name] for name in trained], materialize_grads=True)
                grads = dict(zip(trained, found, strict=True))
            losses.append(float(loss.detach()))
            if settings.clip_gradients and not is_own:
                apart = [name for name in trained if name.startswith(OWN_LOSSES.get(method, "-"))]
                for names in ([name for name in trained if name not in apart], apart):
                    clip(grads, names, settings.clip_gradients)
            for name in trained:
                grad = grads[name].clone()
                if plan.prox and plan.prox[1]:
                    anchor = plan.prox[0][name]
                    anchor = anchor[index] if anchor.ndim > params[name].ndim else anchor
                    grad += plan.prox[1] * (params[name] - anchor.double())
                if plan.adds_own:
                    grad += own[name][0]
                params[name].grad = grad
            stepper.param_groups[0]["lr"] = float(rates[number if plan.steps else epoch])
            stepper.step()
            if plan.bounds:
                for value in weights:
                    value.clamp_(*plan.bounds)
        single = {name: value.detach().to(start[name].dtype) for name, value in params.items()}
        return single, float(np.mean(losses)) if losses else 0.0

    def local_sgd(clients, start, plan, key, *, restore=False):
        ids, trained = np.asarray(clients, dtype=np.int64), []
        if isinstance(start, ModelTable):
            start, is_stack = start[ids], True
        else:
            known = [name for name in start if name in run.init]
            is_stack = not known or start[known[0]].ndim > run.init[known[0]].ndim
        for index, client in enumerate(ids.tolist()):
            one = {name: value[index] for name, value in start.items()} if is_stack else start
            trained.append(train_client(one, plan, key, index, client, data.rows(client, *plan.splits)))
        if not trained:
            return
        params = {name: torch.stack([one[name] for one, _ in trained]) for name in trained[0][0]}
        sizes = data.sizes(*plan.splits)[ids].astype(np.float64)
        losses = np.asarray([loss for _, loss in trained])
        yield TrainedClients(ids, params, sizes, losses, np.ones(len(ids), dtype=bool))

    def train_at_server(rows, start, plan, key):
        return train_client(start, plan, key, 0, 0, rows)[0]

    return local_sgd, train_at_server


def iterate_numbers(state, prefix=""):
    """All numbers of a state, by name."""
    if isinstance(state, ModelTable):
        return iterate_numbers(state[range(len(state))], prefix)
    if isinstance(state, torch.Tensor):
        return {prefix: state.double().numpy()} if state.is_floating_point() else {}
    if isinstance(state, dict):
        found = {}
        for name, value in state.items():
            found |= iterate_numbers(value, f"{prefix}/{name}")
        return found
    return {}


@pytest.mark.parametrize(("method", "settings"), CASES)
def test_method_trains_like_the_float64_reference_with_each_training_option(method, settings):
    """Numbers are compared on average: Adam turns a gradient that is zero but for rounding into a whole step."""
    chosen = SETTINGS[settings]
    if method == "scaffold" and settings != "sgd":
        chosen = {"weight_decay": 0.1}  # which it can correct
    results = []
    for is_reference in (False, True):
        run = worlds.run(method, options=OPTIONS.get(method), **{"lr": 0.1, **chosen})
        if is_reference:
            run.engine.local_sgd, run.engine.train_at_server = make_reference_training(run, method)
        state = worlds.play(method, run)
        results.append(({**iterate_numbers(state)}, worlds.answers(method, run, state)))
    (actual, actual_answers), (expected, expected_answers) = results
    assert actual.keys() == expected.keys()
    tolerance = TOLERANCE.get(method, 1e-4)
    for name, values in expected.items():
        difference = float(np.abs(actual[name] - values).mean()) if values.size else 0.0
        assert difference < tolerance, name
    for split, values in expected_answers.items():
        np.testing.assert_allclose(actual_answers[split], values, rtol=0, atol=10 * tolerance, err_msg=split)
