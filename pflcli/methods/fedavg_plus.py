"""FedAvg+: the global model, fine-tuned by each client on its own samples.

Jiang et al. (2019), https://arxiv.org/abs/1909.12488; a baseline of kNN-Per (Marfoq et al., 2022), section 5. With
`upper`, only the upper layers are trained: this is the federated transfer learning (FTL) with which FedHAM (Gao et al.,
2023) compares. With `models`, each client fine-tunes several models on parts of its samples and averages their
predictions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray

from pflcli.method import ClientModel, Predictor, Run, TrainedClients, parameters

KIND = "posthoc"
NEEDS = ("backbone",)
PAPER = "FedAvg+"
YEAR = 2019
TASKS = ("any",)
GRID = {"epochs": (1, 2, 5, 10), "lr": (0.0, 0.01, 0.03, 0.1)}


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    epochs: Annotated[int, Ge(0)] = 5
    """fine-tune for this many local epochs; 0 leaves the backbone as it is"""
    steps: Annotated[int, Ge(0)] = 0
    """fine-tune for this many local steps, the same for every client, instead of epochs; 0 uses epochs"""
    lr: Annotated[float, Ge(0)] = 0.0
    """fine-tune with this learning rate; 0 uses that of the last round"""
    trainable: str = ""
    """fine-tune only parameters whose names start or end with this, such as `head.` or `bias`; empty fine-tunes all"""
    upper: Annotated[int, Ge(0)] = 0
    """fine-tune only this many layers, counted from the last; 1 is the head, 0 all layers"""
    models: Annotated[int, Ge(1), Le(100)] = 1
    """fine-tune this many models, each on its own part of a client's training samples"""
    pool: Literal["mean", "votes"] = "mean"
    """predict with the mean of their probabilities, or with the share of models that choose a class"""

    def __post_init__(self) -> None:
        if self.steps and self.epochs != type(self).epochs:
            raise ValueError("epochs and steps both say how long clients fine-tune; give one")
        if self.trainable and self.upper:
            raise ValueError("trainable and upper both say what to fine-tune; give one")


def personalize(run: Run, state: dict[str, object], clients: NDArray[np.int64]) -> Predictor:
    """Fine-tune the backbone on each client, and predict with the result or with several pooled results."""
    if run.cfg.models == 1:
        return run.predictor(clients, fine_tune(run, clients))
    predictors = [run.predictor(clients, models) for models in fine_tune_on_parts(run, clients)]

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        each = [predictor.answer(split)["p"] for predictor in predictors]
        if run.cfg.pool == "votes":
            # Predictions that are not finite are no votes; they stay visible in the mean.
            each = [np.where(np.isfinite(p), np.eye(p.shape[1])[p.argmax(axis=1)], p) for p in each]
        return {"p": np.asarray(np.mean(each, axis=0, dtype=np.float64), dtype=np.float32)}

    def model_of(client: int) -> ClientModel | None:
        models = [model for predictor in predictors if (model := predictor.model_of(client)) is not None]
        if run.cfg.pool == "votes" or len(models) < len(predictors):
            return None
        return ClientModel(tuple(model.networks[0] for model in models), (1 / len(models),) * len(models))

    return Predictor(answer, predictors[0].splits, model_of=model_of)


def fine_tune_on_parts(run: Run, clients: NDArray[np.int64]) -> Iterator[Iterable[TrainedClients]]:
    """Fine-tune several models of each client, each on another part of its training samples.

    Gao et al. (2023), FedHAM, https://doi.org/10.1145/3591362, section 7, ensemble learning: models without a
    sample hide its influence on the model that has seen it. The sizes of parts differ by at most one sample;
    weights make up for the samples that a model does not learn from.
    """
    count, sizes = run.cfg.models, run.federation.sizes("train")[clients]
    part = np.full((len(clients), int(sizes.max(initial=0))), -1)
    for row, (client, size) in enumerate(zip(clients.tolist(), sizes.tolist(), strict=True)):
        part[row, :size] = run.rng("ensemble", client).permutation(size) % count
    for number in range(count):
        weights = torch.from_numpy((count * (part == number)).astype(np.float32)).to(run.federation.y.device)
        yield fine_tune(run, clients, name=f"model {number}", sample_weights=weights)


def fine_tune(run: Run, clients: NDArray[np.int64], **training: Any) -> Iterable[TrainedClients]:
    """Return the fine-tuned models of the clients, in parts; raises UsageError if ``trainable`` names no parameters.

    ``training`` are further options of ``run.local_sgd``.
    """
    assert run.backbone is not None
    return run.local_sgd(
        clients,
        run.backbone,
        t="fine-tune",
        epochs=run.cfg.epochs,
        steps=run.cfg.steps or None,
        lr=run.cfg.lr or run.settings.lr_at(run.settings.rounds - 1),
        trainable=_trainable(run),
        **training,
    )


def _trainable(run: Run) -> str | tuple[str, ...]:
    """Return the prefixes of the parameters that are fine-tuned."""
    name: str = run.cfg.trainable
    if run.cfg.upper:
        return parameters.upper(run.init, run.cfg.upper)
    if name and (whole := tuple(each for each in run.init if each.endswith(name))):
        return whole
    parameters.part(run.init, name)  # raises for a misspelt name, which would train nothing
    return name
