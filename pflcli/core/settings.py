"""Training settings that all methods share. This module imports no torch, so that the command line starts fast."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

AUTO = "auto"
"""The name of a model that is chosen by the shape of the samples."""
TRAINING = "training."
"""Prefix that distinguishes a training setting from an option of the method with the same name."""


ADDED: frozenset[str] = frozenset({"apart"})
"""Settings that requests record only if they differ from their defaults, so that artifacts made before these settings
were added stay up to date. All other settings are always recorded."""


@dataclass(frozen=True)
class Settings:
    """How clients are selected and trained; every method has these settings. A new setting is named in ``ADDED``."""

    model: str = AUTO
    """train this model (`pfl list models`); auto is cnn for images, mlp for features, lstm for text, gru for series"""
    adapter: str | None = None
    """freeze the body of the network in --weights, and train low-rank adapters beside its linear layers and 1x1
    convolutions: lora:8 has rank 8; only adapters and head are trained and sent"""
    rounds: Annotated[int, Ge(0)] = 60
    """run this many communication rounds"""
    participation: Annotated[float, Gt(0), Le(1)] = 0.2
    """select this fraction of the clients for each round, above 0 and up to 1"""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0
    """let each selected client drop out with this probability, from 0 to below 1; the selection stays the same"""
    upload: tuple[str, ...] = ()
    """change what clients upload, such as clip:1.0 or int8 (`pfl list uploads`); repeat the option for more steps"""
    aggregator: str = "mean"
    """combine uploads at the server by this rule (`pfl list aggregators`), such as median or trimmed-mean:0.25"""
    dp_epsilon: Annotated[float, Gt(0)] | None = None
    """add as much noise to the mean of updates as this epsilon requires (client-level differential privacy)"""
    dp_delta: Annotated[float, Gt(0), Lt(1)] | None = None
    """guarantee epsilon except with this probability, well below 1 / clients"""
    dp_noise: Annotated[float, Ge(0)] | None = None
    """add noise to the sum of updates with this many clips as standard deviation, instead of --dp-epsilon"""
    dp_clip: str | None = None
    """clip each client's update to this L2 norm before noise is added; adaptive, the default, follows the median"""
    dp_seed: int | None = None
    """draw noise that protects clients from this seed instead of a secret of the run, to repeat the run; never release
    such a run"""
    epochs: Annotated[int, Ge(1)] = 1
    """train each selected client for this many local epochs per round"""
    steps: Annotated[int, Ge(0)] = 0
    """train each selected client for this many SGD steps per round instead of --epochs; 0 uses --epochs"""
    batch_size: Annotated[int, Ge(1)] = 32
    """use this many samples per minibatch"""
    lr: Annotated[float, Gt(0)] = 0.1
    """use this learning rate for local SGD"""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """train models locally with SGD, Adam or AdamW, whose state starts anew in each round; what a method learns by a
    rule of its own, such as mixing weights, is not affected"""
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.0
    """use this momentum for local SGD of models, from 0 to below 1; it is reset to zero in each round"""
    weight_decay: Annotated[float, Ge(0)] = 0.0
    """add the weights times this factor to the gradient (L2 penalty); adamw subtracts lr times them instead"""
    clip_gradients: Annotated[float, Gt(0)] | None = None
    """scale the gradient of each minibatch of a model down to at most this L2 norm; what a method learns by a rule of
    its own, such as mixing weights, is not affected"""
    precision: Literal["float32", "bfloat16"] = "float32"
    """compute forward and backward passes in float32 (never TF32) or bfloat16; weights stay in float32"""
    normalize: Literal["none", "imagenet", "dataset"] = "none"
    """normalize image channels: none keeps [0, 1]; imagenet or dataset (training samples) standardize them"""
    augment: tuple[Literal["flip", "crop"], ...] = ()
    """change training images at random in each minibatch: flip mirrors half of them left to right, crop shifts each by
    up to an eighth of its sides; flip,crop does both"""
    lr_schedule: Literal["constant", "milestones", "cosine"] | None = None
    """change the learning rate over rounds: constant, by --gamma at each of --milestones, or to --gamma times its first
    value along a half cosine; none is milestones if there are any, else constant"""
    lr_warmup: Annotated[int, Ge(0)] = 0
    """raise the learning rate linearly over this many rounds first"""
    milestones: tuple[Annotated[int, Ge(0)], ...] = ()
    """multiply the learning rate by --gamma at these rounds, such as 100,150"""
    gamma: Annotated[float, Gt(0), Le(1)] = 0.1
    """multiply the learning rate by this factor at each of --milestones, above 0 and up to 1"""
    refit: bool = False
    """also train on validation samples, with the choices of a run without --refit; they then get no predictions"""
    eval_every: Annotated[int, Ge(1)] = 5
    """measure the global model's validation accuracy every N rounds, and after the last one"""
    report: Literal["last", "best"] = "last"
    """keep and evaluate the models of this round: last, or best (with the highest measured validation accuracy)"""
    patience: Annotated[int, Ge(0)] | Literal["flat"] = 0
    """stop at a measurement (--eval-every) if validation accuracy has not risen for this many rounds, or, with flat, if
    twice as many rounds would gain less than half a point; 0 never stops"""
    round_metric: str | None = None
    """compare rounds for --report best and --patience by this metric on validation samples instead of accuracy, such as
    log_loss; in `pfl compare` and `pfl tune` it is the one of --metric"""
    test_last: Annotated[int, Ge(0)] = 0
    """also predict test samples after each of the last N rounds and report the mean accuracy; this chooses nothing"""
    answer_train: bool = False
    """also predict training samples, to report accuracy on them beside that on test samples"""
    apart: bool = False
    """compute one client after the other, so that a simulation has the bytes of real sites; slower"""

    @property
    def dp(self) -> bool:
        """Whether the server's mean is differentially private."""
        return self.dp_epsilon is not None or self.dp_noise is not None

    @property
    def first_clip(self) -> float | None:
        """The norm to which updates are clipped at first: infinite without clipping, None if it is adaptive."""
        return None if self.dp_clip in (None, "adaptive") else float(str(self.dp_clip))

    def _check_dp(self) -> None:
        if self.dp_epsilon is not None and self.dp_noise is not None:
            raise ValueError("give dp_epsilon or dp_noise, not both: each determines the other")
        if not self.dp and any(value is not None for value in (self.dp_clip, self.dp_delta)):
            raise ValueError("dp_clip and dp_delta have no effect without dp_epsilon or dp_noise")
        if self.dp_delta is None and (self.dp_epsilon or self.dp_noise):
            raise ValueError("differential privacy also needs dp_delta, such as 1e-5")
        if self.dp and self.aggregator != "mean":
            raise ValueError(f"differential privacy requires aggregator=mean, not {self.aggregator}")
        try:
            clip = self.first_clip
        except ValueError:
            clip = 0.0
        if clip is not None and not clip > 0:
            raise ValueError(f"dp_clip={self.dp_clip} is neither a number above 0 nor 'adaptive'")
        if clip == float("inf") and (self.dp_epsilon or self.dp_noise):
            raise ValueError("dp_clip=inf would need infinite noise: give a number, or adaptive")

    def __post_init__(self) -> None:
        self._check_dp()
        if self.adapter is not None and not re.fullmatch(r"lora:[1-9]\d{0,5}", self.adapter):
            raise ValueError(f"adapter={self.adapter} is not lora:RANK, such as lora:8")
        if self.steps and self.epochs != 1:
            raise ValueError(f"steps={self.steps} and epochs={self.epochs} both set how long clients train; give one")
        if self.milestones and self.lr_schedule not in (None, "milestones"):
            raise ValueError(f"lr_schedule={self.lr_schedule} does not use milestones: give lr_schedule=milestones")
        if self.lr_schedule == "milestones" and not self.milestones:
            raise ValueError("lr_schedule=milestones also needs milestones, such as 100,150")
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum={self.momentum} is an option of SGD; {self.optimizer} has its own")
        if self.refit and self.report == "best":
            raise ValueError(
                "refit leaves no validation samples to choose the best round: give report=last, and set rounds to the "
                "best round of a run without refit"
            )

    personal_every: Annotated[int, Ge(0)] = 0
    """measure personal accuracy every N rounds for methods whose clients adapt after the rounds; 0 never does"""

    def is_due(self, t: int, every: int) -> bool:
        """Whether a measurement that is due ``every`` N rounds (0: never) is made after round ``t``, from 0."""
        return every > 0 and ((t + 1) % every == 0 or t + 1 == self.rounds) and t >= 0

    @property
    def compares_rounds(self) -> bool:
        """Whether rounds are compared, by --report best or by a number of rounds as --patience."""
        return self.report == "best" or self.patience not in (0, "flat")

    @property
    def compares_rounds_by(self) -> str | None:
        """The metric by which rounds are compared; None for the score of the task, or if no round is chosen."""
        return self.round_metric if self.compares_rounds and self.round_metric != "accuracy" else None

    @property
    def is_plain_sgd(self) -> bool:
        """Whether models are trained by SGD without momentum, weight decay or clipping."""
        return self.optimizer == "sgd" and not (self.momentum or self.weight_decay or self.clip_gradients)

    def lr_at(self, t: int) -> float:
        """Return the learning rate of round ``t``, from 0."""
        if t < self.lr_warmup:
            return float(self.lr * (t + 1) / (self.lr_warmup + 1))
        if self.lr_schedule == "cosine":  # Loshchilov & Hutter (2017), https://arxiv.org/abs/1608.03983, Eq. 5
            done = (t - self.lr_warmup) / max(self.rounds - 1 - self.lr_warmup, 1)
            return float(self.lr * (self.gamma + (1 - self.gamma) * (1 + math.cos(math.pi * min(done, 1.0))) / 2))
        return float(self.lr * self.gamma ** sum(t >= milestone for milestone in self.milestones))


_ALTERNATIVES = (("steps", "epochs"), ("epochs", "steps"), ("dp_epsilon", "dp_noise"), ("dp_noise", "dp_epsilon"))
"""Pairs of settings; setting the first one removes the second."""


def changed(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings ``base`` with ``changes``; steps replace epochs, and so on as listed in ``_ALTERNATIVES``."""
    settings = dict(base)
    for name, other in _ALTERNATIVES:
        if name in changes and other not in changes and str(changes[name]) not in ("0", "none"):
            settings.pop(other, None)
    return {**settings, **changes}
