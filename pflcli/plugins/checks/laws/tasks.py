"""The laws of tasks."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.core import registry, rng
from pflcli.core.engine.tasks import Task
from pflcli.core.errors import InputError, UsageError
from pflcli.core.metrics import catalogue
from pflcli.plugins.checks.laws import Subject, law
from pflcli.workflow.admission import NotApplicable, require

_SAMPLES = 24
_STEPS = 200


def _make_task(subject: Subject) -> tuple[Task, NDArray[Any]]:
    """Return the task with its default option, fitted to labels (n,), and these: small whole numbers that it allows."""
    module = registry.import_file("tasks", subject.name)
    try:
        task: Task = module.TASK.from_word("", "")
    except UsageError as error:
        raise NotApplicable(f"the task needs an option: {error.message}") from None
    labels = _list_labels(task)
    if len(labels) < 2:  # more outputs allow more classes
        task = replace(task, outputs=3)
        labels = _list_labels(task)
    require(len(labels) > 1, "find_invalid refuses all but one of the labels 0 to 5")
    y = task.check(subject.name, np.resize(labels, _SAMPLES))
    return task.fitted(y), y


def _list_labels(task: Task) -> list[float]:
    """Return the labels among 0 to 5 that a task allows."""
    allowed = []
    for label in range(6):
        try:
            task.check("", np.asarray([label], np.float64))
        except InputError:
            continue
        allowed.append(float(label))
    return allowed


def _draw_outputs(task: Task, seed: int = 0) -> torch.Tensor:
    draw = rng.generator(seed, "outputs")
    return torch.from_numpy(draw.normal(size=(_SAMPLES, task.outputs)).astype(np.float32))


@law("tasks")
def the_task_can_be_stored(subject: Subject) -> None:
    """``TASK`` has the name of its file as ``kind``, is the same after pickling, and has fields that JSON has.

    Artifacts have the kind and the fields of their task, and workers get the task with their batches.
    """
    task, _ = _make_task(subject)
    stem = registry.path("tasks", subject.name).stem
    require(task.kind == stem, f"kind is '{task.kind}', and the name of the file '{stem}'")
    require(pickle.loads(pickle.dumps(task)) == task, "it is another task after pickling")
    fields, kind = json.loads(json.dumps(asdict(task))), registry.import_file("tasks", subject.name).TASK
    made = kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})
    require(made == task, "it is another task after it was stored as JSON")


@law("tasks")
def values_have_the_right_shapes(subject: Subject) -> None:
    """Losses, scores and bounded losses have a finite value for each sample, scores are at most 1, and predictions
    have the shape of ``default``.

    What is summed over samples otherwise counts some twice, without an error.
    """
    task, y = _make_task(subject)
    outputs = _draw_outputs(task)
    p, default = task.predict(outputs), task.default()
    require(p.shape == (_SAMPLES, *default.shape), f"predictions are {p.shape}, and default() is {default.shape}")
    losses = task.losses(outputs, torch.from_numpy(y)).numpy()
    for name, values in (
        ("losses", losses), ("scores", task.scores(p, y)), ("bounded_losses", task.bounded_losses(p, y))
    ):  # fmt: skip
        require(np.shape(values) == (_SAMPLES,), f"{name} of {_SAMPLES} samples are {np.shape(values)}")
        require(bool(np.isfinite(values).all()), f"{name} are not finite")
    require(bool(np.max(task.scores(p, y)) <= 1), "a score is above 1")
    facts = task.describe(y)
    require(all(isinstance(value, int | float) for value in facts.values()), f"describe returns {facts}")


@law("tasks")
def missing_labels_are_refused(subject: Subject) -> None:
    """A label that is missing or infinite is refused.

    It would make all weights nan in the first round.
    """
    task, y = _make_task(subject)
    if y.dtype.kind == "i":
        raise NotApplicable("labels are whole numbers, of which none is missing")
    for wrong in (np.nan, np.inf):
        try:
            task.check(subject.name, np.append(y.astype(np.float64), wrong))
        except InputError:
            continue
        require(False, f"the label {wrong} is allowed")


@law("tasks")
def gradients_are_those_of_the_losses(subject: Subject) -> None:
    """``mean_losses`` returns the weighted sum of ``losses``, and its gradient by the outputs.

    Clients are trained by ``mean_losses``, and judged by ``losses``.
    """
    task, y = _make_task(subject)
    outputs, labels = _draw_outputs(task).double(), torch.from_numpy(y)
    weight = torch.from_numpy(rng.generator(0, "weight").random((1, _SAMPLES)))
    given = outputs.clone().requires_grad_()
    expected = (task.losses(given, labels) * weight[0]).sum()
    (grad,) = torch.autograd.grad(expected, given)
    losses, found = task.mean_losses(outputs[None], labels[None], weight, 2.0)
    require(bool(torch.allclose(losses, expected.detach()[None])), "mean_losses returns another sum than losses")
    require(bool(torch.allclose(found[0], 2 * grad, atol=1e-6)), "mean_losses returns another gradient than losses")


@law("tasks")
def lower_losses_have_higher_scores(subject: Subject) -> None:
    """Descent on the losses of samples raises their mean score.

    Rounds are chosen by scores: with another sign, the worst is chosen.
    """
    task, y = _make_task(subject)
    outputs, labels, weight = _draw_outputs(task)[None], torch.from_numpy(y)[None], torch.ones(1, _SAMPLES)
    before = float(np.mean(task.scores(task.predict(outputs[0]), y)))
    for _ in range(_STEPS):
        outputs = outputs - 0.05 * task.mean_losses(outputs, labels, weight)[1]
    after = float(np.mean(task.scores(task.predict(outputs[0]), y)))
    require(after > before, f"the mean score is {before:.2f} at the start, and {after:.2f} after {_STEPS} steps")


@law("tasks")
def metrics_are_known(subject: Subject) -> None:
    """Each name in ``METRICS`` is a metric, of ``ENTRIES`` or of pfl, and finite for predictions.

    A comparison computes them when all its runs are finished.
    """
    task, y = _make_task(subject)
    module = registry.import_file("tasks", subject.name)
    known = {**catalogue.METRICS, **{entry.name: entry for entry in getattr(module, "ENTRIES", ())}}
    p = task.predict(_draw_outputs(task))
    for name in module.METRICS:
        require(name in known, f"METRICS has '{name}', which is no metric")
        entry: Any = known[name]
        if entry.per_sample is not None:
            values = np.asarray(entry.per_sample(p, y, **({"task": task} if entry.reads_task else {})))
            require(values.shape == (_SAMPLES,), f"{name} of {_SAMPLES} samples is {values.shape}")
            require(bool(np.isfinite(values).all()), f"{name} is not finite")
