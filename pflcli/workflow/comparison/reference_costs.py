"""Estimate the processor seconds of the references without a network, which comparisons add only if they are cheap."""

from __future__ import annotations

import math

from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import Artifact
from pflcli.core import models
from pflcli.core.errors import UnsuitedError
from pflcli.core.settings import Settings

MAX_RATIO = 10
"""A reference that takes more than this many times the seconds of `local` is left out unless it is named."""
_CLIENTS = {"alone": True, "alone-pooled": False}
"""Whether each client trains classifiers of its own."""
_PER_WEIGHT, _PER_TREE, _PER_CUT, _PER_PRODUCT = 3e-11, 1.5e-3, 9e-8, 1.5e-9
"""Seconds for a weight and sample of SGD, a tree, a sample and feature of a tree's level, and a product of logistic
regression: measured on one core with 20 clients of 230 images each."""
_TREES, _ITERATIONS = 160, 300
"""Trees and steps of the solver for a choice by cross-validation."""


def require_cheap(name: str, training: Settings, partition: Artifact, command: str) -> None:
    """Raise UnsuitedError if the reference ``name`` would take too long beside `local`; ``command`` has it too."""
    if name not in _CLIENTS:
        return
    summary, form = partition.manifest.summary, partitions.read_form(partition)
    clients, samples = int(summary["clients"]), int(summary["train"])
    tokens = form.dtype == "int16"
    network = models.outline(
        training.model, form.input_shape, form.labels.outputs, tokens=tokens, adapter=training.adapter
    )
    weights = sum(weight.numel() for weight in network.parameters())
    seen = training.steps * training.batch_size * clients if training.steps else training.epochs * samples
    local = _PER_WEIGHT * weights * seen * training.rounds * training.participation
    parts = clients if _CLIENTS[name] else 1
    seconds = parts * _estimate(samples / parts, math.prod(form.shape), form.labels.outputs)
    if seconds > MAX_RATIO * local:
        raise UnsuitedError(
            f"it may take {seconds:.1f} s of one core, more than {MAX_RATIO} times as long as local ({local:.1f} s); "
            f"to compare it, type {command}"
        )


def _estimate(samples: float, features: int, classes: int) -> float:
    """Return the seconds to choose and train a classifier of so many samples, features and classes."""
    levels = math.log2(max(samples, 2))
    forest = _TREES * (_PER_TREE + _PER_CUT * samples * levels * math.sqrt(features))
    return forest + _ITERATIONS * _PER_PRODUCT * samples * min(samples, features) * classes
