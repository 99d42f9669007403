"""Canary clients in a run with differential privacy, which is trained again with them to bound epsilon from below.

Andrew et al. (2023), https://arxiv.org/abs/2302.03098, with all released models. Each canary takes part in a round with
the probability of the other clients, and sends an update along a random direction of its own that is longer than the
clip, so that clipping is audited as well. The attacker sees every model that the server releases. It measures how far
their changes, in units of the clip over the expected cohort, lie along the directions of the canaries, and along as
many that nobody sent.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli import config, rng
from pflcli.artifacts.kinds import partition as partitions
from pflcli.errors import InputError, UsageError
from pflcli.evaluation.metrics import canaries
from pflcli.execution import Execution
from pflcli.federation.privacy import guarantee
from pflcli.federation.private_mean import PrivateMean, Release
from pflcli.federation.run import Run
from pflcli.methods import Method
from pflcli.parameters import Params, Stacked
from pflcli.prediction.answerer import Answerer
from pflcli.training import loop, run_request
from pflcli.training.build_run import build_run

_LONGER = 10.0
"""By what factor a canary's update is longer than the clip, where that is fixed."""
_SHORTER = 0.999
"""The same for half of the canaries where the clip adapts to the median: then canaries leave it where it is."""
_CHUNK = 64


class CanaryMean(PrivateMean):
    """The differentially private mean of a run, in whose rounds ``count`` canaries take part."""

    def __init__(self, mean: PrivateMean, count: int) -> None:
        super().__init__(mean.noise, mean.clip, mean.adapts, mean.rate, mean.clients + count, mean.rng)
        self.count = count
        self.moved: dict[str, torch.Tensor] = {}
        """the changes of released models, summed, in units of the clip over the expected cohort"""

    def begin(self, downloaded: Params) -> Release:
        """Return the mean of this round, to which the canaries that take part have sent their updates."""
        release = super().begin(downloaded)
        draw = self.rng("privacy", "canary cohort", self._round)
        present = np.flatnonzero(draw.random(self.count) < self.rate)
        for numbers in np.split(present, range(_CHUNK, len(present), _CHUNK)):
            if len(numbers):
                release.add(self._uploads(downloaded, numbers), np.ones(len(numbers)))
        return release

    def end_round(self) -> dict[str, Any]:
        """Measure what was released, then end the round."""
        release = self.release
        if release is not None and release.is_released:
            released, start = release.value(), release._downloaded
            for name, value in released.items():
                change = (value.double() - start[name].double()).cpu() * (self.expected / self.clip)
                self.moved[name] = self.moved[name] + change if name in self.moved else change
        return super().end_round()

    def measured(self, first: int, count: int) -> NDArray[np.float64]:
        """Return how far released models moved along the directions of ``count`` canaries from number ``first``."""
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
        lengths = self.clip * np.where(self.adapts & (numbers % 2 == 1), _SHORTER, _LONGER)
        factor = torch.from_numpy(lengths.astype(np.float32))
        return {
            name: start[None] + (factor.reshape(-1, *[1] * start.dim()) * unit[name]).to(start)
            for name, start in downloaded.items()
        }

    def _directions(self, like: Params, numbers: NDArray[np.int64]) -> Stacked:
        """Return unit vectors of the numbered canaries over all tensors together, (k, ...) each."""
        rows = [self._direction(like, int(number)) for number in numbers]
        return {name: torch.stack([row[name] for row in rows]) for name in like}

    def _direction(self, like: Params, number: int) -> Params:
        draw = self.rng("privacy", "canary", number)
        values = {name: draw.standard_normal(tuple(value.shape), dtype=np.float32) for name, value in like.items()}
        norm = np.sqrt(sum(float(np.square(value, dtype=np.float64).sum()) for value in values.values()))
        return {name: torch.from_numpy(value / np.float32(norm)) for name, value in values.items()}


@dataclass(frozen=True)
class _Trained:
    """A run with differential privacy before its rounds, and its guarantee."""

    run: Run
    name: str
    method: Method


def audited(answerer: Answerer, count: int, execution: Execution) -> dict[str, Any]:
    """Return what ``count`` canaries show of the epsilon of the rounds behind predictions: facts for ``audit.json``.

    The rounds are trained again, with canaries beside the clients. Raises InputError for predictions without rounds of
    differential privacy, or with no delta to bound epsilon at.
    """
    trained = _prepared(answerer, execution)
    settings, mean = trained.run.settings, trained.run.privacy
    if mean is None or settings.dp_delta is None:
        raise InputError(
            f"the rounds behind {answerer.artifact.path} had no differential privacy that canaries could audit",
            "pfl personalize fedavg PARTITION -o DIR --dp-epsilon 2 --dp-delta 1e-5",
        )
    # The models of these rounds are not released, so that a seed may determine the noise: audits can be repeated.
    mean.rng = partial(rng.generator, rng.integer(trained.run.seed, "privacy", "audit"))
    canary_mean = CanaryMean(mean, count)
    trained.run.privacy = canary_mean
    play(trained.run, trained.name, trained.method, execution)
    trained.run.engine.close()
    _, epsilon = guarantee.plan(settings)
    return facts(canary_mean, settings.dp_delta, epsilon)


def check(count: int) -> None:
    """Raise UsageError for a number of canaries from which no bound follows; 0 is none."""
    if count < 0 or 0 < count < canaries.FEWEST:
        raise UsageError(f"{count} canaries say too little; give {canaries.FEWEST} at least", "--canaries 200")


def play(run: Run, name: str, method: Method, execution: Execution) -> None:
    """Play all rounds of a run, of which nothing is kept but what its mean has released."""
    state, *_ = loop.set_up(run, method)
    with execution.reporter.progress(f"{name} with canaries", run.settings.rounds) as advance:
        for t in range(run.settings.rounds):
            state, _row = loop.play_round(run, name, method, state, t)
            advance(1, "")


def facts(mean: CanaryMean, delta: float, epsilon: float) -> dict[str, Any]:
    """Return what the canaries of a finished run show, beside its accounted ``epsilon`` at ``delta``."""
    estimate = canaries.estimate(mean.measured(0, mean.count), mean.measured(mean.count, mean.count), delta)
    return {
        "canaries": mean.count,
        **asdict(estimate),
        "confidence": canaries.CONFIDENCE,
        "delta": delta,
        "accounted_epsilon": epsilon if np.isfinite(epsilon) else None,
        "contradicts": bool(estimate.epsilon_low > epsilon),
    }


def _prepared(answerer: Answerer, execution: Execution) -> _Trained:
    """Return the run whose rounds trained the models behind predictions: that of the backbone, if they have one."""
    model = answerer.run
    if model is None:
        raise InputError("a stack has no rounds of its own", "pfl audit one of the predictions that it pools")
    data, backbone = partitions.read(model.partition), model.lineage["backbone"]
    if backbone is None:
        return _Trained(model.run(data, model.execution(execution)), model.name, model.method)
    request = backbone.manifest.request
    method = run_request.method_of(backbone)
    settings = run_request.resolve_settings(request["settings"], {})
    cfg = config.build(method.Config, request["options"], request["method"])
    run = build_run(data, method, cfg, settings, int(request["seed"]), execution)
    return _Trained(run, request["method"], method)
