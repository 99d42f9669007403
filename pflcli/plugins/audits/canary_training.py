"""Canary clients: train the rounds of a differentially private run again to bound its epsilon from below.

Andrew et al. (2023), https://arxiv.org/abs/2302.03098, the variant in which all models are released. Each canary takes
part in a round with the same probability as the other clients. It uploads an update along its own random direction,
longer than the clip, so that clipping is audited as well. The attacker sees every model that the server releases. It
projects the changes of these models, in units of clip / expected cohort, on the directions of the canaries and on
equally many directions that were not used.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.artifacts.kinds import partition as partitions
from pflcli.core import rng
from pflcli.core.errors import InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.federation.privacy import guarantee
from pflcli.core.federation.private_mean import PrivateMean, Release
from pflcli.core.federation.run import Run
from pflcli.core.methods import Method
from pflcli.core.parameters import Params, Stacked
from pflcli.core.simulation import loop
from pflcli.plugins.audits import canaries
from pflcli.workflow.prediction.stored_predictor import StoredPredictor
from pflcli.workflow.training.run_spec import RunSpec

_LENGTH = 10.0
"""Length of a canary's update, in clips."""
_SHORT_LENGTH = 0.999
"""The same for half of the canaries if the clip adapts to the median, so that canaries do not move the median."""
_CHUNK = 64
"""Canaries whose directions are in memory at a time."""
_MAX_CANARIES = 10**6


class CanaryMean(PrivateMean):
    """The differentially private mean of a run with ``count`` additional canaries."""

    def __init__(self, mean: PrivateMean, count: int) -> None:
        super().__init__(mean.noise, mean.clip, mean.adapts, mean.rate, mean.clients + count, mean.rng)
        self.count = count
        self.moved: dict[str, torch.Tensor] = {}
        """summed changes of the released models, in units of clip / expected cohort"""

    def begin(self, downloaded: Params) -> Release:
        """Return the mean of this round with the uploads of the participating canaries."""
        release = super().begin(downloaded)
        draw = self.rng("privacy", "canary cohort", self._round)
        present = np.flatnonzero(draw.random(self.count) < self.rate)
        for numbers in np.split(present, range(_CHUNK, len(present), _CHUNK)):
            if len(numbers):
                release.add(self._uploads(downloaded, numbers), np.ones(len(numbers)))
        return release

    def end_round(self) -> dict[str, Any]:
        """Record the change of the released model, then end the round."""
        release = self.release
        if release is not None and release.is_released:
            released, start = release.value(), release._downloaded
            for name, value in released.items():
                change = (value.double() - start[name].double()).cpu() * (self.expected / self.clip)
                self.moved[name] = self.moved[name] + change if name in self.moved else change
        return super().end_round()

    def project(self, first: int, count: int) -> NDArray[np.float64]:
        """Return the projections (count,) of the summed changes on the directions of canaries ``first`` and up."""
        like = {name: value.float() for name, value in self.moved.items()}
        parts = []
        for numbers in np.split(np.arange(first, first + count), range(_CHUNK, count, _CHUNK)):
            unit = self._directions(like, numbers)
            parts.append(
                sum((unit[name].double().flatten(1) @ value.flatten()).numpy() for name, value in self.moved.items())
            )
        return np.concatenate(parts)

    def _uploads(self, downloaded: Params, numbers: NDArray[np.int64]) -> Stacked:
        unit = self._directions(downloaded, numbers)
        lengths = self.clip * np.where(self.adapts & (numbers % 2 == 1), _SHORT_LENGTH, _LENGTH)
        factor = torch.from_numpy(lengths.astype(np.float32))
        return {
            name: start[None] + (factor.reshape(-1, *[1] * start.dim()) * unit[name]).to(start)
            for name, start in downloaded.items()
        }

    def _directions(self, like: Params, numbers: NDArray[np.int64]) -> Stacked:
        """Return the directions of k canaries as tensors (k, ...); each has norm 1 over all tensors together."""
        rows = [self._direction(like, int(number)) for number in numbers]
        return {name: torch.stack([row[name] for row in rows]) for name in like}

    def _direction(self, like: Params, number: int) -> Params:
        draw = self.rng("privacy", "canary", number)
        values = {name: draw.standard_normal(tuple(value.shape), dtype=np.float32) for name, value in like.items()}
        norm = np.sqrt(sum(float(np.square(value, dtype=np.float64).sum()) for value in values.values()))
        return {name: torch.from_numpy(value / np.float32(norm)) for name, value in values.items()}


def audit_epsilon(predictor: StoredPredictor, count: int, execution: Execution) -> dict[str, Any]:
    """Train the rounds again with ``count`` canaries and return the bounds on epsilon, for ``audit.json``.

    Raises InputError if the rounds had no differential privacy, or no delta.
    """
    run, name, method = _build_run(predictor, count, execution)
    settings, mean = run.settings, run.privacy
    if not isinstance(mean, CanaryMean) or settings.dp_delta is None:
        raise InputError(
            f"canaries audit differential privacy, but {predictor.artifact.path} was trained with no differential "
            "privacy, or without dp_delta",
            "pfl personalize fedavg PARTITION -o DIR --dp-epsilon 2 --dp-delta 1e-5",
        )
    state = loop.set_up(run, name, method).state
    with execution.reporter.progress(f"{name} with canaries", settings.rounds) as advance:
        for t in range(settings.rounds):
            state, _row = loop.play_round(run, name, method, state, t)
            advance(1, "")
    run.engine.close()
    _, epsilon = guarantee.plan_noise(settings)
    return summarize(mean, settings.dp_delta, epsilon)


def require_count(count: int) -> None:
    """Raise UsageError for too few canaries to bound epsilon, or too many to draw; 0 (no canaries) is allowed."""
    if 0 < count < canaries.MIN_CANARIES:
        raise UsageError(f"got {count} canaries; need at least {canaries.MIN_CANARIES}", "--canaries 200")
    if count > _MAX_CANARIES:
        raise UsageError(f"got {count} canaries; the maximum is {_MAX_CANARIES:,}", "--canaries 200")


def summarize(mean: CanaryMean, delta: float, epsilon: float) -> dict[str, Any]:
    """Return the estimated epsilon of a finished run beside its accounted ``epsilon``, both at ``delta``."""
    estimate = canaries.estimate(mean.project(0, mean.count), mean.project(mean.count, mean.count), delta)
    return {
        "canaries": mean.count,
        **asdict(estimate),
        "confidence": canaries.CONFIDENCE,
        "delta": delta,
        "accounted_epsilon": epsilon if np.isfinite(epsilon) else None,
        "contradicts": bool(estimate.epsilon_low > epsilon),
    }


def _build_run(predictor: StoredPredictor, count: int, execution: Execution) -> tuple[Run, str, Method]:
    """Return the run whose rounds are audited with ``count`` canaries; that of the backbone if there is one."""
    model = predictor.run
    if model is None:
        raise InputError(
            "a stack has no rounds to train with canaries", "pfl audit one of the predictions that it pools"
        )
    data, backbone = partitions.read(model.partition), model.lineage["backbone"]
    spec: RunSpec = model
    if backbone is not None:
        spec = RunSpec.of_backbone(backbone)
    else:
        execution = model.execution(execution)
    # These models are never released, so their noise may come from the seed: an audit can be repeated.
    draws = partial(rng.generator, rng.integer(spec.seed, "privacy", "audit"))
    inputs = spec.read_inputs(data, execution)
    inputs = replace(inputs, private_mean=lambda mean: CanaryMean(replace(mean, rng=draws), count))
    return spec.build(data, execution, inputs), spec.name, spec.method
