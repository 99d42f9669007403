"""kNN-Per+: kNN-Per on the network that each client has fine-tuned, in place of the global model.

A combination of FedAvg+ (Jiang et al., 2019), https://arxiv.org/abs/1909.12488, and kNN-Per (Marfoq et al., 2022),
https://arxiv.org/abs/2111.09360, that is in neither paper; a cheap competitor of both. Each client fine-tunes the
global model h to h_i as in `fedavg-plus`, and embeds all its samples with h_i. It predicts as in `knn-per`, Eq. 6 and
7: p = lambda p_kNN + (1 - lambda) softmax(h_i(x)), with neighbours among all its training samples, by an exact search.
Nothing is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.method import (
    ClientModel,
    ClientStore,
    Embedded,
    Params,
    Predictor,
    Run,
    Space,
    Stores,
    flat_indexes,
    parameters,
)
from pflcli.methods import fedavg_plus, knn_per_extended
from pflcli.methods.fedavg_plus import Config as FineTuning
from pflcli.methods.knn_per_extended import Config as Interpolation
from pflcli.methods.parts.choice_samples import ChoiceSamples
from pflcli.methods.parts.folds import Folds

KIND = "posthoc"
NEEDS = ("backbone",)
PAPER = "kNN-Per+"
YEAR = 2022
GRID = {"epochs": (1, 2, 5, 10), "lr": (0.0, 0.01, 0.03, 0.1)}
TASKS = ("classes", "quantity", "count")


@dataclass(frozen=True)
class Config(FineTuning, Interpolation):
    """The options of ``fedavg-plus`` and of ``knn-per-extended``."""

    cross_validate: int = 0
    """leave no stored sample out: only 0, as the client's network has been trained on all samples in its store"""

    def __post_init__(self) -> None:
        FineTuning.__post_init__(self)
        Interpolation.__post_init__(self)
        if self.models > 1:
            raise ValueError("neighbours are searched by one network: leave out models")
        if self.vote == "noisy":
            raise ValueError("vote=noisy has no epsilon: one sample changes the client's network, and all distances")
        if self.cross_validate:
            raise ValueError("the client's network has been trained on its samples: leave out cross_validate")


choices = knn_per_extended.choices


def personalize(run: Run, state: dict[str, object], clients: NDArray[np.int64]) -> Predictor:
    """Fine-tune the backbone on each client, embed its samples with the result, then answer as kNN-Per does."""
    knn_per_extended.require_votes(run)
    splits = dict.fromkeys(("train", *run.predicted_splits))
    outputs: dict[str, list[tuple[Tensor, Tensor]]] = {split: [] for split in splits}
    networks: dict[int, Params] = {}
    for part in fedavg_plus.fine_tune(run, clients):
        if run.keeps_models:
            networks |= {int(client): parameters.pick(part.params, i) for i, client in enumerate(part.clients)}
        for split in splits:
            outputs[split] += run.engine.outputs_each(part.clients, part.params, split, features=True)
    parts = {split: _embed(run, clients, split, outputs[split]) for split in splits}
    choice = ChoiceSamples.of_split("validation", Folds.divide(parts["validation"].offsets))
    if run.cfg.spaces != [Space()]:
        found = knn_per_extended.predict_in_spaces(run, clients, parts, parts["train"], choice)
        return Predictor(lambda split: _without_global(found.answer(split)), found.splits, found.tuned)
    stores, places = _build_stores(run, parts["train"]), np.arange(len(clients))
    neighbours = {split: stores.search(places, part.z, part.offsets, run.cfg.k) for split, part in parts.items()}
    predictor, _ = knn_per_extended.build_predictor(run, clients, parts, neighbours, choice)

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        return _without_global(predictor.answer(split))

    def model_of(client: int) -> ClientModel | None:
        if client not in networks:
            return None
        first, last = parts["train"].offsets[np.flatnonzero(clients == client)[0] :][:2]
        store = ClientStore(parts["train"].y[first:last], parts["train"].z[first:last])
        return knn_per_extended.client_model(run, predictor, clients, client, networks[client], store)

    return Predictor(answer, predictor.splits, predictor.tuned, model_of)


def _without_global(answers: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """Return predictions without those of the network, which is the client's own."""
    return {"p": answers["p"], "knn": answers["knn"]}


def _embed(run: Run, clients: NDArray[np.int64], split: str, outputs: Sequence[tuple[Tensor, Tensor]]) -> Embedded:
    """Return the clients' samples of a split, of which ``outputs`` are each client's logits and representations."""
    logits, z = (torch.cat(parts).cpu().numpy() for parts in zip(*outputs, strict=True))
    y = [run.federation.y[run.federation.block(int(client), split)].cpu().numpy() for client in clients]
    sizes = run.federation.sizes(split)[clients]
    return Embedded(z, logits, np.concatenate(y), np.concatenate([[0], np.cumsum(sizes)]))


def _build_stores(run: Run, part: Embedded) -> Stores:
    """Return an exact store of each client's embedded samples."""
    blob, offsets = flat_indexes([part.z[first:last] for first, last in pairwise(part.offsets)])
    return Stores(blob, offsets, part.y, part.offsets, run.engine.threads)
