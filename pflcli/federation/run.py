"""The interface of a run to its method: options, clients, keyed random numbers, training, and counted links."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from pflcli import parameters, rng
from pflcli.engine.engine import Engine, probabilities
from pflcli.engine.federation import Federation
from pflcli.engine.local_sgd import LocalSGD, is_stacked
from pflcli.errors import ComputationError, UsageError
from pflcli.federation.attendance import Attendance
from pflcli.federation.channel import Aggregator, Channel, UploadStep, WeightedMean
from pflcli.federation.local_training import LocalTraining
from pflcli.federation.predictor import ClientModel, Predictor
from pflcli.federation.private_mean import PrivateMean
from pflcli.federation.selection import Selection
from pflcli.knn.embedded import Embedded
from pflcli.knn.stores import Stores
from pflcli.parameters import Params, Stacked, TrainedClients
from pflcli.parameters.model_table import ModelTable
from pflcli.parameters.row_storage import InMemoryRows, Storage
from pflcli.settings import Settings

T = TypeVar("T")

_MODELS = 1000
"""Number of initial models that is always allowed, even for few clients."""

__all__ = ["Predictor", "Run"]


@dataclass
class Run(Channel, Selection):
    """One run of one method: its options, data and engine, and the bytes sent."""

    kind: str
    cfg: Any
    settings: Settings
    seed: int
    federation: Federation
    engine: Engine
    init: Params
    network: nn.Module | None = None
    """the network with the initial parameters"""
    whole_network: nn.Module | None = None
    """the same before an adapter was added, with all parameters"""
    backbone: Params | None = None
    embeddings: Mapping[str, Embedded] | None = None
    stores: Stores | None = None
    arrived: Embedded | None = None
    """validation samples that have arrived, if stores follow a stream; None if all have"""
    traffic: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0, "peer": 0})
    losses: list[tuple[float, float]] = field(default_factory=list)
    trained: set[int] = field(default_factory=set)
    """clients that trained in this round"""
    attendance: Attendance = field(default_factory=Attendance)
    """the clients selected in this round, and those that do not complete it"""
    unfit: set[int] = field(default_factory=set)
    """clients whose training diverged during personalization"""
    sealed: bool = False
    """whether clients are personalizing: communication is then not allowed"""
    uploads: Sequence[UploadStep] = ()
    """upload steps, in this order"""
    aggregator: Aggregator = field(default_factory=WeightedMean)
    """combines uploads: the weighted mean, or another of ``pflcli.federation.aggregators``"""
    left_out: dict[int, list[float]] = field(default_factory=dict)
    privacy: PrivateMean | None = None
    """replaces the aggregator in a run with differential privacy"""
    storage: Callable[[int], Storage] = InMemoryRows
    """returns the storage of a table, by its number"""
    tables: int = 0
    """number of tables created"""
    draw_model: Callable[[int], Params] | None = None
    """draws further initial models, by their number from 1"""
    choices: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """values (m,) tuned on validation samples in an earlier run, for a run that also trains on these samples"""
    keeps_models: bool = False
    """whether ``predictor`` keeps the models of trained parts, so that ``Predictor.model_of`` returns them"""
    _results: dict[str, Any] = field(default_factory=dict)

    @property
    def clients(self) -> NDArray[np.int64]:
        """Return all client ids (m,)."""
        return self.federation.clients

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return the result of the first ``make()`` with this ``name``; it is computed once."""
        if name not in self._results:
            self._results[name] = make()
        result: T = self._results[name]
        return result

    def read_choices(self, name: str, clients: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """Return the values (n,) of the clients from the earlier run, or None if they must be tuned now."""
        return self.choices[name][clients] if name in self.choices else None

    @property
    def predicted_splits(self) -> tuple[str, ...]:
        """Return the splits to predict."""
        return (*(("train",) if self.settings.answer_train else ()), "validation", "test")

    def rng(self, *key: str | int) -> np.random.Generator:
        """Return the random generator for ``key``, which does not depend on earlier draws."""
        return rng.generator(self.seed, *key)

    def initial_model(self) -> Params:
        """Return a copy of the initial model that all clients share."""
        return {name: value.clone() for name, value in self.init.items()}

    def initial_models(self, count: int) -> Stacked:
        """Return ``count`` independently drawn initial models, stacked; the first has the common parameters.

        Raises UsageError for more models than the larger of ``_MODELS`` and the number of clients.
        """
        if count > (most := max(len(self.clients), _MODELS)):
            raise UsageError(f"{count} models are too many; the maximum is {most}")
        if count > 1 and self.draw_model is None:
            raise ComputationError("this run has only one initial model")
        drawn = [self.draw_model(number) for number in range(1, count)] if self.draw_model else []
        return parameters.stack([self.init, *drawn])

    @property
    def representation_size(self) -> int:
        """Return the number of values in the representation of a sample."""
        return self.engine.infer(self.init, np.arange(1), features=True)[1].shape[1]

    def table(self, default: Params) -> ModelTable:
        """Return a table with a model per client, each a copy of ``default`` until it is written."""
        self.tables += 1
        copied = {name: value.clone() for name, value in default.items()}
        return ModelTable(copied, len(self.clients), self.storage(self.tables - 1))

    def client_chunks(self, clients: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
        """Split clients into chunks that fit into memory, at ``size`` bytes per client."""
        count = self.engine.clients_that_fit(size)
        return (clients[first : first + count] for first in range(0, len(clients), count))

    def local_sgd(
        self,
        clients: Sequence[int] | NDArray[np.int64],
        start: Params | Stacked | ModelTable,
        *,
        t: int | str,
        name: str = "sgd",
        epochs: int | None = None,
        lr: float | Callable[[int], float] | NDArray[np.float64] | None = None,
        also_upload: Callable[[TrainedClients], Stacked] | None = None,
        **training: Any,
    ) -> LocalTraining:
        """Train clients locally by SGD from ``start``: one model, a stack (m, ...) or a table; yields parts.

        ``t``, the round or a name, is the key of the minibatch draws, together with ``name`` if a method trains twice
        in a round. A round also determines the learning rate. Clients train for ``epochs``, by default those of the
        training settings, or for ``steps`` if either gives them instead. ``lr`` is a rate, a function of the local
        epoch or step, or a rate per client (m,). ``training`` are other options of LocalSGD; the default is the
        training settings. ``also_upload`` computes tensors (m, ...) of a part that are uploaded with its models, and
        yielded with them.

        In a round, raises Diverged with all clients whose uploads become non-finite, unless ``may_diverge``, and
        Unanswered if no client completes the round. During personalization, clients that diverge get their initial
        model back.
        """
        local, key = self._training(t, epochs, lr, training), (name, t)
        if (local.gradient or local.objective) and not isinstance(start, ModelTable):  # which take a stack of models
            is_one = any(n in start and start[n].shape == value.shape for n, value in self.init.items())
            start = parameters.repeat(start, len(clients)) if is_one else start
        return LocalTraining(self, np.asarray(clients), start, local, key, also_upload)

    def server_sgd(
        self,
        rows: NDArray[np.int64],
        start: Params,
        *,
        t: int | str,
        name: str = "server",
        epochs: int | None = None,
        lr: float | Callable[[int], float] | None = None,
        **training: Any,
    ) -> Params:
        """Train one model at the server on rows of the federation, with the options of ``local_sgd``."""
        return self.engine.train_at_server(rows, start, self._training(t, epochs, lr, training), (name, t))

    def _training(
        self,
        t: int | str,
        epochs: int | None,
        lr: float | Callable[[int], float] | NDArray[np.float64] | None,
        training: dict[str, Any],
    ) -> LocalSGD:
        settings = self.settings
        if epochs is None:
            epochs, training = settings.epochs, {"steps": settings.steps or None, **training}
        count = training.get("steps") or epochs
        if lr is None:
            lr = settings.lr_at(t) if isinstance(t, int) else settings.lr
        if callable(lr):
            rates = np.asarray([lr(number) for number in range(count)])
        else:
            rates = np.repeat(np.asarray(lr, dtype=np.float64)[..., None], count, axis=-1)
        # PyTorch raises for rates beyond float32, which a method may compute; the largest float32 also diverges.
        rates = np.minimum(rates, np.finfo(np.float32).max)
        local = LocalSGD(epochs, settings.batch_size, rates, settings.momentum, settings.weight_decay)
        common: dict[str, Any] = {"precision": settings.precision, "augment": settings.augment}
        if "optimizer" not in training:  # a method that names its optimizer trains something else than the model
            common |= {"optimizer": settings.optimizer, "clip": settings.clip_gradients}
        return replace(local, **{**common, **training})

    @property
    def last_lr(self) -> float:
        """Return the learning rate of the last round."""
        return self.settings.lr_at(self.settings.rounds - 1)

    def adapt(
        self,
        table: ModelTable,
        clients: NDArray[np.int64],
        start: Params,
        *,
        epochs: int,
        prefix: str = "",
        own: Mapping[str, torch.Tensor] | None = None,
        **training: Any,
    ) -> Stacked:
        """Return the clients' entries of ``table``, stacked (n, ...), and train an entry for each client without one.

        A client without an entry took part in no round. It trains ``start``, a model with all parameters that the
        training reads, for ``epochs`` local epochs at the learning rate of the last round. Its entry is the trained
        parameters whose names are ``prefix`` plus a name in the table. The table does not change.

        ``own`` has a row for each of ``clients`` (n, ...). ``training`` are further options of ``local_sgd``, such as
        ``trainable`` and ``gradient``; the key of the draws is "newcomer" and ``name``.
        """
        is_new = np.isin(clients, table.unwritten(clients))
        if own is not None:
            training["own"] = {name: parameters.rows(value, np.flatnonzero(is_new)) for name, value in own.items()}
        parts = self.local_sgd(clients[is_new], start, t="newcomer", epochs=epochs, lr=self.last_lr, **training)
        entries = (replace(part, params=parameters.unprefixed(part.params, prefix)) for part in parts)
        return table.replaced(clients, entries)

    @contextmanager
    def personalizing(self) -> Iterator[None]:
        """Personalize inside the block: communication is not allowed, and training is not recorded for a round."""
        self.sealed, losses, trained, unfit = True, list(self.losses), set(self.trained), set(self.unfit)
        try:
            yield
        finally:
            self.sealed, self.losses, self.trained, self.unfit = False, losses, trained, unfit

    def predictor(
        self,
        clients: NDArray[np.int64],
        models: Params | Stacked | ModelTable | Iterable[TrainedClients],
        splits: tuple[str, ...] | None = None,
    ) -> Predictor:
        """Predict with one model for all ``clients``, a stack or table of personal models, or trained parts.

        An iterator of parts is used up.
        """
        splits = splits or self.predicted_splits
        if isinstance(models, ModelTable):
            models = models[clients]
        if not isinstance(models, dict):
            return self._predictor_of_parts(models, splits)
        params = models
        if not is_stacked(params, self.init):
            shared = ClientModel((params,))
            return Predictor(
                lambda split: {"p": self._shared_model(params, clients, split)}, splits, model_of=lambda client: shared
            )

        def model_of(client: int) -> ClientModel:
            return ClientModel((parameters.pick(params, int(np.flatnonzero(clients == client)[0])),))

        return Predictor(lambda split: {"p": self.engine.infer_each(clients, params, split)}, splits, model_of=model_of)

    def _predictor_of_parts(self, parts: Iterable[TrainedClients], splits: tuple[str, ...]) -> Predictor:
        """Predict with the models of each part as soon as it is trained, since parts are not kept."""
        pieces: dict[str, list[NDArray[np.float32]]] = {split: [] for split in splits}
        models: dict[int, ClientModel] = {}
        for part in parts:
            for split in splits:
                pieces[split].append(self.engine.infer_each(part.clients, part.params, split))
            if self.keeps_models:
                models |= {int(c): ClientModel((parameters.pick(part.params, i),)) for i, c in enumerate(part.clients)}
        return Predictor(lambda split: {"p": np.concatenate(pieces[split])}, splits, model_of=models.get)

    def _shared_model(self, params: Params, clients: NDArray[np.int64], split: str) -> NDArray[np.float32]:
        return probabilities(self.engine.infer(params, self.federation.rows_of(clients, split))[0])

    def loss_per_group(self, params: Params, rows: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:
        """Return the mean cross-entropy (s,) of one model on each of s sets of rows, in one pass; nan without rows."""
        sizes = np.asarray([len(part) for part in rows])
        if not sizes.sum():
            return np.full(len(rows), np.nan)
        joined = np.concatenate(rows)
        labels = self.federation.y[torch.from_numpy(joined).to(self.federation.y.device)]
        sample_losses = functional.cross_entropy(
            self.engine.infer(params, joined, compiled=True)[0].double(), labels, reduction="none"
        )
        sums = np.bincount(
            np.repeat(np.arange(len(rows)), sizes), weights=sample_losses.cpu().numpy(), minlength=len(rows)
        )
        return np.asarray(np.divide(sums, sizes, out=np.full(len(rows), np.nan), where=sizes > 0))

    def accuracy(self, params: Params, split: str) -> float:
        """Return the accuracy of one model over all seen clients' samples of a split (nan if there are none)."""
        right = self.is_correct(self.federation.seen_clients, params, split)
        return float(right.mean()) if len(right) else float("nan")

    def client_losses(
        self, clients: NDArray[np.int64], models: Params | Stacked | ModelTable, split: str
    ) -> NDArray[np.float64]:
        """Return the mean cross-entropy (m,) of each client's samples of a split; 0 without samples.

        ``models`` is one model, or one per client (m, ...). A sample's loss is at most 16, which bounds outliers.
        """
        p, y = self._predictions(clients, models, split, compiled=True)
        sizes = self.federation.sizes(split)[clients]
        sample_losses = -np.log(np.maximum(p[np.arange(len(y)), y], np.finfo(np.float32).eps, dtype=np.float64))
        sums = np.bincount(np.repeat(np.arange(len(clients)), sizes), weights=sample_losses, minlength=len(clients))
        return np.asarray(sums / np.maximum(sizes, 1))

    def is_correct(
        self, clients: NDArray[np.int64], models: Params | Stacked | ModelTable, split: str
    ) -> NDArray[np.bool_]:
        """Return a mask (n,) of the clients' samples that one model, or one per client (m, ...), predicts correctly."""
        p, y = self._predictions(clients, models, split)
        return np.asarray(p.argmax(axis=1) == y)

    def _predictions(
        self, clients: NDArray[np.int64], models: Params | Stacked | ModelTable, split: str, *, compiled: bool = False
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return probabilities (n, C) and labels (n,) of the clients' samples of a split."""
        if compiled and isinstance(models, dict) and is_stacked(models, self.init) and len(clients):
            outputs = self.engine.outputs_each(clients, models, split, compiled=True)
            p = probabilities(torch.cat([logits for logits, _ in outputs]))
        else:
            p = self.predictor(clients, models, (split,)).answer(split)["p"]
        return p, self.federation.labels_of(clients, split)
