"""What a method sees of a run: options, clients, keyed random numbers, communication, training and prediction.

``Run`` selects the clients of a round (``cohort``), exchanges models and counts their bytes (``deliver``, ``collect``,
``average``, ``send``), trains clients (``local_sgd``) and predicts with their models (``predictor``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pflcli.core import parameters, rng
from pflcli.core.engine.engine import Engine
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.local_sgd import LocalSGD, is_stacked
from pflcli.core.engine.process_settings import intra_op
from pflcli.core.engine.tasks import Task
from pflcli.core.errors import ComputationError, UnsuitedError, UsageError
from pflcli.core.federation import aggregators
from pflcli.core.federation.aggregators import Aggregator, Uploads
from pflcli.core.federation.attendance import AllAbsent, Attendance, Diverged, RoundNotes
from pflcli.core.federation.predictor import ClientModel, Predictor
from pflcli.core.federation.uploads import Draw, Encoding, Step
from pflcli.core.parameters import Mean, Params, Stacked, TrainedClients, WeightedSum
from pflcli.core.parameters.model_table import ModelTable
from pflcli.core.parameters.row_storage import InMemoryRows, Storage
from pflcli.core.settings import Settings

if TYPE_CHECKING:  # most simulations need none of them
    from pflcli.core.federation.attack import Attack
    from pflcli.core.federation.private_mean import PrivateMean
    from pflcli.core.knn.embedded import Embedded
    from pflcli.core.knn.stores import Stores
    from pflcli.core.models import Net

T = TypeVar("T")

LINKS = {"local": (), "posthoc": (), "server": ("up", "down"), "peer": ("peer",)}
"""The links that a method of each KIND may use."""

_MODELS_PER_CLIENT = 3
"""Number of models per client that are in memory at a time: what a client trains, and constants such as an anchor."""

_MAX_INITIAL_MODELS = 1000
"""Maximum number of initial models; with more clients, one per client."""

__all__ = ["Average", "Channel", "Delivery", "Package", "Place", "Predictor", "Run"]

NOBODY = np.zeros(0, dtype=np.int64)
Package = tuple[NDArray[np.int64], Params]
"""Clients (n,) with what each of them receives, or with a row for each (n, ...)."""
Packages = Iterable[Package | tuple[None, Params]]
"""What a server sends; None stands for all clients that take part."""


@dataclass(frozen=True)
class Delivery:
    """What the server sends to clients; ``make`` is called only where there is a server.

    Each package has the names, types and shapes of ``like``. With ``rows``, ``make`` yields a row for each client; with
    ``most``, each tensor of a package has one more axis in front, of at most so many entries. ``counted`` bytes are
    those of the packages; a method that counts by ``Run.send`` sets it to False.
    """

    make: Callable[[], Packages]
    like: Params
    rows: bool = False
    most: int | None = None
    counted: bool = True


@dataclass(frozen=True)
class Channel:
    """What each of the ``senders`` sends to the server: tensors with the names, types and shapes of ``like``.

    With ``start``, the model from which clients trained or a function that returns it for a part, they are an update,
    as in ``Run.upload``. ``also`` are further tensors, without bytes; those of ``like`` are counted if ``counted``.
    No model depends on what ``is_record``: it has no bytes, and a site may refuse to send it.
    """

    like: Params
    senders: NDArray[np.int64] | None = None
    start: Params | Callable[[TrainedClients], Params | Stacked] | None = None
    is_averaged: bool = True
    also: Params = field(default_factory=dict)
    counted: bool = True
    is_record: bool = False

    def upload(self, run: Run, part: TrainedClients) -> TrainedClients:
        """Send a part, count its bytes, and return what the server receives."""
        sent = {name: part.params[name] for name in self.like}
        if self.start is not None:
            start = self.start(part) if callable(self.start) else self.start
            sent = run.upload(sent, start, part.clients, is_averaged=self.is_averaged)
        elif self.counted and not self.is_record:
            run.send("up", sent)
        return replace(part, params={**sent, **{name: part.params[name] for name in self.also}})

    def size(self, run: Run) -> int:
        """Return the counted bytes of what one client sends."""
        if self.start is not None:
            return Encoding(self.like, run.uploads).size(self.like)
        return parameters.size(self.like) if self.counted and not self.is_record else 0


class Average:
    """The server's aggregate of uploads, by default their weighted mean.

    Only parameters with names in ``downloaded`` are uploaded.
    """

    def __init__(self, run: Run, downloaded: Params) -> None:
        self._run, self._downloaded = run, downloaded
        self._uploads = (run.privacy or run.aggregator).begin(downloaded)
        self._clients: list[NDArray[np.int64]] = []

    def add(self, params: Stacked, weights: NDArray[np.float64], clients: NDArray[np.int64]) -> None:
        """Upload ``params`` (m, ...) of ``clients`` (m,) and add them with ``weights`` (m,)."""
        self._uploads.add(self._run.upload(params, self._downloaded, clients), weights)
        self._clients.append(clients)

    @property
    def is_plain(self) -> bool:
        """Whether this is the weighted mean of clients that are here, so that the sum of all uploads is enough."""
        return isinstance(self._uploads, Mean)

    @property
    def is_defined(self) -> bool:
        """Whether there is a mean: it needs an upload, except with differential privacy."""
        return bool(self._clients) or self._run.privacy is not None

    def value(self) -> Params:
        """Return the mean; raises ValueError if nothing with a positive weight was added."""
        clients = np.concatenate(self._clients) if self._clients else NOBODY
        return self._run.aggregate_uploads(self._uploads, clients)


@dataclass
class Place:
    """Where a run takes place: by default everywhere, as a simulation has the server and all clients in this process.

    Functions are those of ``Run`` that have the same names.
    """

    absent: Mapping[int, Collection[int]] = field(default_factory=dict)
    """clients that drop out, by round from 0, beside those that ``--dropout`` draws"""

    def cohort(self, run: Run, t: int) -> NDArray[np.int64]:
        """Return the clients of round ``t`` that are here."""
        return run.draw_cohort(t, self.absent.get(t, ()))

    def participants(self, run: Run) -> NDArray[np.int64]:
        """Return the participants that are here."""
        return run.federation.participants

    def everyone(self, here: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return all clients that take part and that the place knows of, of which ``here`` are here."""
        return here

    def declared(self, run: Run) -> NDArray[np.int64]:
        """Return the numbers of training samples (m,) of all clients."""
        return run.federation.sizes("train")

    def serve(self, make: Callable[[], T], otherwise: T) -> T:
        """Return what the server makes, or ``otherwise`` where there is none."""
        return make()

    def deliver(self, run: Run, clients: NDArray[np.int64], delivery: Delivery) -> Iterator[Package]:
        """Count the bytes of packages, and yield those of ``clients`` that receive one here with what they receive."""
        for ids, package in delivery.make():
            receivers = clients if ids is None else ids
            if delivery.counted:
                run.send("down", package, copies=1 if delivery.rows else len(receivers))
            yield receivers, package

    def collect(self, run: Run, parts: Iterable[TrainedClients], channel: Channel) -> Iterator[TrainedClients]:
        """Send the parts of clients that are here, and yield those of all senders where there is a server."""
        return (channel.upload(run, part) for part in parts)

    def relay(self, run: Run, table: ModelTable, wanted: Mapping[int, NDArray[np.int64]]) -> None:
        """Count the bytes of the rows of ``table`` that clients here want of others, and write them; here they are."""
        run.send("peer", table.default, copies=sum(map(len, wanted.values())))

    def mean(self, run: Run, downloaded: Params) -> Average:
        """Return an empty mean for the uploads of clients that received ``downloaded``."""
        return Average(run, downloaded)


@dataclass(frozen=True, kw_only=True)
class RunInputs:
    """What a run needs besides its method, settings, seed and samples; by default, a simulation without a backbone."""

    draw_network: Callable[[int], Net] | None = None
    """returns a network with initial parameters drawn from a seed; by default the network of ``settings.model``"""
    initial_weights: Callable[[Params], Params] | None = None
    """returns the initial parameters in place of those that were drawn"""
    normalized_like: Federation | None = None
    """the images by which those of the run are normalized; by default its own"""
    backbone: Params | None = None
    """the trained global model"""
    embeddings: Mapping[str, Embedded] | None = None
    """representations of all samples by the backbone, by split"""
    stores: Stores | None = None
    """each client's store of representations"""
    arrived: Embedded | None = None
    """validation samples that have arrived, if stores follow a stream; None if all have"""
    choices: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """values (m,) tuned on validation samples in an earlier run, for a run that also trains on these samples"""
    attack: Attack | None = None
    """the attack of poisoned clients on their updates"""
    private_rng: Callable[..., np.random.Generator] | None = None
    """returns the generator for a key of noise that protects people; by default from a new secret"""
    uploads: Sequence[Step] | None = None
    """the upload steps that are applied here; by default those of the settings"""
    private_mean: Callable[[PrivateMean], PrivateMean | None] | None = None
    """returns what replaces the differentially private mean of the settings, None without one"""
    place: Place = field(default_factory=Place)
    """where the run takes place, and which clients are there"""
    storage: Callable[[int], Storage] = InMemoryRows
    """returns the storage of a table, by its number"""


@dataclass
class Run:
    """One run of one method: its options, data, engine and inputs, and the bytes sent."""

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
    inputs: RunInputs = field(default_factory=RunInputs)
    traffic: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0, "peer": 0})
    notes: RoundNotes = field(default_factory=RoundNotes)
    """what is noted in this round"""
    sealed: bool = False
    """whether clients are personalizing: communication is then not allowed"""
    uploads: Sequence[Step] = ()
    """upload steps, in this order"""
    aggregator: Aggregator = field(default_factory=partial(aggregators.load, "mean"))
    private_rng: Callable[..., np.random.Generator] = field(default_factory=rng.secret_generators)
    """returns the generator for a key, as ``rng`` does, but from a secret of the run: for noise that protects people"""
    privacy: PrivateMean | None = None
    """replaces the aggregator in a run with differential privacy"""
    tables: int = 0
    """number of tables created"""
    draw_model: Callable[[int], Params] | None = None
    """draws further initial models, by their number from 1"""
    keeps_models: bool = False
    """whether ``predictor`` keeps the models of trained parts, so that ``Predictor.model_of`` returns them"""
    _results: dict[str, Any] = field(default_factory=dict)

    @property
    def backbone(self) -> Params | None:
        """Return the trained global model, if the method needs it."""
        return self.inputs.backbone

    @property
    def embeddings(self) -> Mapping[str, Embedded] | None:
        """Return the representations of all samples by split, if the method needs them."""
        return self.inputs.embeddings

    @property
    def stores(self) -> Stores | None:
        """Return each client's store of representations, if the method needs them."""
        return self.inputs.stores

    @property
    def arrived(self) -> Embedded | None:
        """Return the validation samples that have arrived, if stores follow a stream; None if all have."""
        return self.inputs.arrived

    @property
    def attendance(self) -> Attendance:
        """Return the clients selected in this round, and those that do not complete it."""
        return self.notes.attendance

    @property
    def task(self) -> Task:
        """Return what models learn to predict: the size of their output, losses, and predictions."""
        return self.federation.task

    @property
    def label_task(self) -> Task:
        """Return the task of labels in their own unit, which differs from ``task`` if clients standardize theirs."""
        return self.task if self.federation.label_scales is None else self.federation.label_scales.task

    def restore(self, values: NDArray[Any], clients: NDArray[np.int64], split: str) -> NDArray[Any]:
        """Return labels or predictions (n, ...) of the clients' samples of a split in the unit of labels."""
        if self.federation.label_scales is None:
            return values
        return self.federation.label_scales.restore(values, np.repeat(clients, self.federation.sizes(split)[clients]))

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
        return self.inputs.choices[name][clients] if name in self.inputs.choices else None

    @property
    def predicted_splits(self) -> tuple[str, ...]:
        """Return the splits to predict."""
        return (*(("train",) if self.settings.answer_train else ()), "validation", "test")

    def rng(self, *key: str | int) -> np.random.Generator:
        """Return the random generator for ``key``, which does not depend on earlier draws.

        Anyone who knows the seed can repeat its numbers. Noise that protects a client is drawn from ``private_rng``.
        """
        return rng.generator(self.seed, *key)

    def cohort(self, t: int) -> NDArray[np.int64]:
        """Return the sorted clients that complete round ``t`` and are at the place of the run: all, in a simulation."""
        return self.inputs.place.cohort(self, t)

    def draw_cohort(self, t: int, absent: Collection[int] = ()) -> NDArray[np.int64]:
        """Return the sorted clients that complete round ``t``, wherever they are.

        Clients are drawn uniformly from the participants, the clients with training samples that are not new, and drop
        out independently; those that are ``absent`` drop out too. If no client completes the round, all selected
        clients are returned, and ``local_sgd`` ends the round. With differential privacy each participant is selected
        independently, and the round takes place even if no client is selected.
        """
        participants = self.federation.participants
        if self.privacy is not None:
            selected = self.privacy.sample(participants, t)
        else:
            count = max(1, round(self.settings.participation * len(participants)))
            selected = np.sort(self.rng("cohort", t).choice(participants, size=count, replace=False))
        self.attendance.selected, rate = selected, self.settings.dropout
        if rate or absent:
            drops = [client in absent or self.rng("dropout", t, client).random() < rate for client in selected.tolist()]
            self.attendance.dropped = selected[drops]
        present = self.attendance.present
        return present if len(present) or self.privacy is not None else selected

    def share_of_samples(self, cohort: NDArray[np.int64]) -> float:
        """Return the cohort's share of the participants' training samples; only the server may use it.

        With differential privacy this is the sampling rate, which reveals nothing about the cohort.
        """
        if self.privacy is not None:
            return self.settings.participation
        sizes = self.federation.sizes("train")
        return float(sizes[self.everyone(cohort)].sum() / sizes[self.federation.participants].sum())

    def send(self, link: str, params: Mapping[str, Tensor], copies: int = 1) -> None:
        """Count ``copies`` transmissions of ``params`` over ``up``, ``down`` or ``peer``.

        In a round, bytes sent down include those to selected clients that do not complete it. Raises ComputationError
        if the method's KIND has no such link, or if clients are personalizing; UnsuitedError if there are upload steps,
        another aggregator than the mean, differential privacy, or an attack: they apply only to ``upload``.
        """
        if link != "down" and link in LINKS[self.kind]:
            self._require_mean()
            if self.privacy is not None:
                raise UnsuitedError(
                    "differential privacy does not cover this method: its clients send more than updates that are "
                    "averaged",
                    "leave out --dp-epsilon and --dp-noise",
                )
        if link == "up" and self.uploads:
            steps = " ".join(f"--upload {step}" for step in self.uploads)
            raise UnsuitedError(
                f"{steps} does not apply to this method: its server does more with uploads than average them",
                "leave out --upload",
            )
        self._count(link, parameters.size(params) * copies)

    def _require_mean(self) -> None:
        """Raise UnsuitedError if there is an attack, or another aggregator than the mean."""
        if not self.aggregator.separable:
            raise UnsuitedError(
                f"--aggregator {self.aggregator} does not apply to this method: it does more with uploads than average "
                "them",
                "leave out --aggregator",
            )
        if self.inputs.attack is not None:
            raise UnsuitedError(
                "attacks on updates do not apply to this method: it does more with uploads than average them",
                "pfl partition ... --poison 0.2:flip poisons samples, for any method",
            )

    def _count(self, link: str, size: int) -> None:
        if self.sealed or link not in LINKS[self.kind]:
            when = "while personalizing" if self.sealed else f"as a method of kind {self.kind}"
            raise ComputationError(f"the method sent over link '{link}' {when}")
        self.traffic[link] += self.attendance.bytes_to_selected(size) if link == "down" else size

    def count_upload(self, size: int) -> None:
        """Count the bytes of an upload that a site has sent."""
        self._count("up", size)

    def participants(self) -> NDArray[np.int64]:
        """Return the participants (n,) at the place of the run, who may exchange something before the first round."""
        return self.inputs.place.participants(self)

    def everyone(self, here: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return all clients that take part and that the place of the run knows of, of which ``here`` (n,) are here.

        A server knows all of them, a site only its own.
        """
        return self.inputs.place.everyone(here)

    @property
    def declared(self) -> NDArray[np.int64]:
        """Return the numbers of training samples (m,) that clients have declared, which every place knows."""
        return self.inputs.place.declared(self)

    def serve(self, make: Callable[[], T], otherwise: T = None) -> T:  # type: ignore[assignment]
        """Return what the server computes by ``make``; at a site, where there is none, ``otherwise``.

        What only the server reads needs no ``otherwise``.
        """
        return self.inputs.place.serve(make, otherwise)

    def deliver(
        self, make: Callable[[], Packages], clients: NDArray[np.int64], like: Params, **options: Any
    ) -> Iterator[Package]:
        """Send packages from the server; yields those of ``clients`` (n,) here that receive one, with the package.

        ``make``, which only a server calls, yields clients with what each of them receives. ``like`` and the
        ``options`` rows, most and counted are those of ``Delivery``.
        """
        return self.inputs.place.deliver(self, clients, Delivery(make, like, **options))

    def collect(
        self,
        parts: Iterable[TrainedClients],
        like: Params,
        senders: NDArray[np.int64] | None = None,
        **options: Any,
    ) -> Iterator[TrainedClients]:
        """Send parts from clients to the server; yields them there, as they are received, in the order of ``senders``.

        A site yields those of its own clients. ``senders``, by default the clients that take part, are read once parts
        are sent. ``like`` and the ``options`` start, is_averaged, also, counted and is_record are those of ``Channel``.
        """
        return self.inputs.place.collect(self, parts, Channel(like, senders, **options))

    def relay(self, table: ModelTable, wanted: Mapping[int, NDArray[np.int64]]) -> None:
        """Let each client ask others for their rows of ``table``, which the server passes on, and count their bytes.

        ``wanted`` has the ids of the others by client, for each client of the round that is here.
        """
        self.inputs.place.relay(self, table, wanted)

    def download(
        self, params: Params, clients: NDArray[np.int64], like: Params | None = None, **options: Any
    ) -> Params:
        """Send ``params`` to each of the clients (n,), and return what they receive; for options see ``deliver``."""
        sent = Delivery(lambda: [(None, params)], like or params, **options)
        for _, received in self.inputs.place.deliver(self, clients, sent):
            return received
        return params

    def upload(
        self,
        params: Stacked,
        downloaded: Params | Stacked,
        clients: NDArray[np.int64],
        *,
        is_averaged: bool = True,
    ) -> Stacked:
        """Send the models that ``clients`` (m,) trained to the server, and return those (m, ...) that it receives.

        ``downloaded`` is the model that the clients received, or one per client (m, ...). Only the tensors of
        ``params`` (m, ...) with names in ``downloaded`` are uploaded. Poisoned clients manipulate their updates; then
        the upload steps are applied. Methods that do more with uploads than average them set ``is_averaged`` to False;
        options that cover only a mean then raise UnsuitedError.
        """
        if not is_averaged:
            self._require_mean()
        if self.privacy is not None and self.privacy.release is None:
            raise UnsuitedError(
                "differential privacy does not cover this method: its server computes a mean per cluster",
                "leave out --dp-epsilon and --dp-noise",
            )
        encode = Encoding(downloaded, self.uploads)
        received = encode.uploaded_tensors(params)
        if self.inputs.attack is not None:
            received = self.inputs.attack.apply(received, encode.start(received), clients, self.attendance.t)
        count, size = len(next(iter(received.values()))), encode.size(parameters.pick(received, 0))
        self._count("up", size * count)
        received = encode(received, lambda place: self._draws(clients, place))
        if self.uploads:
            self.attendance.uploads.update(clients.tolist())
        return received

    def _draws(self, clients: NDArray[np.int64], place: int) -> Draw:
        """Return the random numbers of the ``place``-th upload step for each of the clients (m,)."""
        t, counts = self.attendance.t, self.attendance.uploads
        draw = self.private_rng if self.uploads[place].is_private else self.rng
        return lambda i: draw("upload", place, t, int(clients[i]), counts[int(clients[i])])

    def averaging(self, downloaded: Params) -> Average:
        """Return an empty mean for the uploads of clients that received ``downloaded``."""
        return self.inputs.place.mean(self, downloaded)

    def average(self, parts: Iterable[TrainedClients], downloaded: Params) -> Params:
        """Upload the models trained from ``downloaded``, and return their mean, weighted by samples.

        If possible, the workers of an executor add the models up, and only the sum is sent to this process.
        """
        mean, encode, before = self.averaging(downloaded), Encoding(downloaded, self.uploads), len(self.notes.losses)
        # Other aggregators, attacks, differential privacy and random steps need each upload.
        can_sum = mean.is_plain and self.inputs.attack is None and not encode.is_random
        total = parts.sum_uploads(encode) if can_sum and isinstance(parts, LocalTraining) else None
        if total is not None:
            self._count("up", encode.size(downloaded) * (len(self.notes.losses) - before))
            return total.mean()
        for part in parts:
            mean.add(part.params, part.weights, part.clients)
        return mean.value()

    def aggregate_uploads(self, uploads: Uploads, clients: NDArray[np.int64]) -> Params:
        """Return the aggregate of the ``uploads`` of ``clients`` (n,), and record the shares that were left out."""
        model = uploads.value()
        for client, share in zip(clients.tolist(), getattr(uploads, "left_out", ()), strict=False):
            self.notes.left_out.setdefault(client, []).append(float(share))
        return model

    def initial_model(self) -> Params:
        """Return a copy of the initial model that all clients share."""
        return {name: value.clone() for name, value in self.init.items()}

    def initial_models(self, count: int) -> Stacked:
        """Return ``count`` independently drawn initial models, stacked; the first has the common parameters.

        Raises UsageError for more models than the larger of ``_MAX_INITIAL_MODELS`` and the number of clients.
        """
        if count > (most := max(len(self.clients), _MAX_INITIAL_MODELS)):
            raise UsageError(f"{count} models are too many; the maximum is {most}")
        if count > 1 and self.draw_model is None:
            raise ComputationError("this run has only one initial model")
        drawn = [self.draw_model(number) for number in range(1, count)] if self.draw_model else []
        return parameters.stack([self.init, *drawn])

    @property
    def representation_size(self) -> int:
        """Return the number of values in the representation of a sample."""
        rows = np.arange(min(1, len(self.federation.y)))  # none at the server of a deployment
        return self.engine.infer(self.init, rows, features=True)[1].shape[1]

    def table(self, default: Params) -> ModelTable:
        """Return a table with a model per client, each a copy of ``default`` until it is written."""
        self.tables += 1
        copied = {name: value.clone() for name, value in default.items()}
        return ModelTable(copied, len(self.clients), self.inputs.storage(self.tables - 1))

    def client_chunks(self, clients: NDArray[np.int64], size: int | None = None) -> Iterator[NDArray[np.int64]]:
        """Split clients into chunks that fit into memory, at ``size`` bytes per client, by default a few models."""
        count = self.engine.clients_that_fit(size or _MODELS_PER_CLIENT * parameters.size(self.init))
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
        yielded with them. For what is not a model, or not trained as one, see ``descend``.

        In a round, raises Diverged with all clients whose uploads become non-finite, unless ``may_diverge``, and
        AllAbsent if no client completes the round. During personalization, clients that diverge get their initial
        model back.
        """
        plan = self._training(t, epochs, lr, {**self._model_training, **training})
        return self._train(clients, start, plan, (name, t), also_upload)

    def descend(
        self,
        clients: Sequence[int] | NDArray[np.int64],
        start: Params | Stacked | ModelTable,
        *,
        t: int | str,
        lr: float,
        name: str = "sgd",
        epochs: int | None = None,
        optimizer: Literal["sgd", "adam"] = "sgd",
        **training: Any,
    ) -> LocalTraining:
        """Train what a method learns by a rule of its own, such as mixing weights, as ``local_sgd`` trains models.

        ``--optimizer``, ``--momentum``, ``--weight-decay`` and ``--clip-gradients`` apply to the training of models, so
        they do not apply here: steps are those of gradient descent, or of Adam, with the method's own ``lr``.
        """
        plan = self._training(t, epochs, lr, {"optimizer": optimizer, **training})
        return self._train(clients, start, plan, (name, t))

    def _train(
        self,
        clients: Sequence[int] | NDArray[np.int64],
        start: Params | Stacked | ModelTable,
        plan: LocalSGD,
        key: tuple[str, int | str],
        also_upload: Callable[[TrainedClients], Stacked] | None = None,
    ) -> LocalTraining:
        if plan.has_rule and not isinstance(start, ModelTable):  # which take a stack of models
            is_one = any(n in start and start[n].shape == value.shape for n, value in self.init.items())
            start = parameters.repeat(start, len(clients)) if is_one else start
        return LocalTraining(self, np.asarray(clients), start, plan, key, also_upload)

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
        plan = self._training(t, epochs, lr, {**self._model_training, **training})
        return self.engine.train_at_server(rows, start, plan, (name, t))

    @property
    def _model_training(self) -> dict[str, Any]:
        """Return the options of LocalSGD by which the settings change the steps of a model."""
        settings = self.settings
        return {
            "optimizer": settings.optimizer,
            "momentum": settings.momentum,
            "weight_decay": settings.weight_decay,
            "clip": settings.clip_gradients,
        }

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
        plan = LocalSGD(epochs, settings.batch_size, rates, precision=settings.precision, augment=settings.augment)
        return replace(plan, **training)

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
        own: Mapping[str, Tensor] | None = None,
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
        return table.overlay(clients, entries)

    @contextmanager
    def personalizing(self) -> Iterator[None]:
        """Personalize inside the block: communication is not allowed, and training is not recorded for a round.

        One intra-op thread computes, whatever a method computes outside of the engine.
        """
        self.sealed, before, self.notes = True, self.notes, RoundNotes(self.attendance)
        try:
            with intra_op(1):
                yield
        finally:
            self.sealed, self.notes = False, before

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

            def answer(split: str) -> dict[str, NDArray[np.float32]]:
                return {"p": self.task.predict(self.engine.infer(params, self.federation.rows_of(clients, split))[0])}

            return Predictor(answer, splits, model_of=lambda client: shared)

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

    def loss_per_group(self, params: Params, rows: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:
        """Return the mean loss (s,) of one model on each of s sets of rows, in one pass; nan without rows."""
        sizes = np.asarray([len(part) for part in rows])
        if not sizes.sum():
            return np.full(len(rows), np.nan)
        joined = np.concatenate(rows)
        labels = self.federation.y[torch.from_numpy(joined).to(self.federation.y.device)]
        sample_losses = self.task.losses(self.engine.infer(params, joined)[0].double(), labels)
        sums = np.bincount(
            np.repeat(np.arange(len(rows)), sizes), weights=sample_losses.cpu().numpy(), minlength=len(rows)
        )
        return np.asarray(np.divide(sums, sizes, out=np.full(len(rows), np.nan), where=sizes > 0))

    def accuracy(self, params: Params, split: str) -> float:
        """Return the mean score of one model over all seen clients' samples of a split (nan if there are none)."""
        right = self.is_correct(self.federation.seen_clients, params, split)
        return float(right.mean()) if len(right) else float("nan")

    def client_losses(
        self, clients: NDArray[np.int64], models: Params | Stacked | ModelTable, split: str
    ) -> NDArray[np.float64]:
        """Return the mean loss (m,) of each client's samples of a split; 0 without samples.

        ``models`` is one model, or one per client (m, ...). A sample's loss is at most 16, which bounds outliers.
        """
        p, y = self.answers(clients, models, split)
        sizes = self.federation.sizes(split)[clients]
        owner = np.repeat(np.arange(len(clients)), sizes)
        sums = np.bincount(owner, weights=self.task.bounded_losses(p, y), minlength=len(clients))
        return np.asarray(sums / np.maximum(sizes, 1))

    def is_correct(
        self, clients: NDArray[np.int64], models: Params | Stacked | ModelTable, split: str
    ) -> NDArray[np.bool_]:
        """Return the task's scores (n,) of one model, or one per client (m, ...): whether predictions are right."""
        p, y = (self.restore(each, clients, split) for each in self.answers(clients, models, split))
        return self.label_task.scores(p, y)

    def answers(
        self, clients: NDArray[np.int64], models: Params | Stacked | ModelTable, split: str
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return predictions (n, C) and labels (n,) of the clients' samples of a split."""
        if isinstance(models, dict) and is_stacked(models, self.init) and len(clients):
            outputs = self.engine.outputs_each(clients, models, split)
            p = self.task.predict(torch.cat([logits for logits, _ in outputs]))
        else:
            p = self.predictor(clients, models, (split,)).answer(split)["p"]
        return p, self.federation.labels_of(clients, split)


@dataclass
class LocalTraining(Iterable[TrainedClients]):
    """Trains clients (n,) when it is iterated, once, and yields their models in parts; or trains them for ``total``."""

    run: Run
    clients: NDArray[np.int64]
    start: Params | Stacked | ModelTable
    plan: LocalSGD
    key: tuple[Any, ...]
    also_upload: Callable[[TrainedClients], Stacked] | None = None
    """computes further tensors (m, ...) that each client uploads with its model, such as a mean representation"""

    def sum_uploads(self, encode: Encoding) -> WeightedSum | None:
        """Train the clients and return the sum of their uploads; None if the executor returns only models.

        Raises Diverged with all clients whose parameters became non-finite, AllAbsent if no client completes the round.
        """
        self._require_clients()
        if self.run.sealed or self.plan.may_diverge or self.also_upload is not None:
            return None
        engine = self.run.engine
        summed = engine.summed(self.clients, self.start, self.plan, self.key, encode)
        if summed is None:
            return None
        if not summed.finite.all():
            raise Diverged(self.clients[~summed.finite].tolist(), self.key)
        sizes = engine.federation.sizes(*self.plan.splits)[self.clients].astype(np.float64)
        self.run.notes.trained.update(self.clients.tolist())
        self.run.notes.losses += zip(summed.loss.tolist(), sizes.tolist(), strict=True)
        return summed.total

    def __iter__(self) -> Iterator[TrainedClients]:
        """Train the clients, and yield their models in parts, with the tensors of ``also_upload``.

        Raises Diverged at the end with all clients whose uploads became non-finite, AllAbsent if no client completes
        the round.
        """
        if self.run.privacy is not None and not len(self.clients):
            return  # the round releases only noise
        self._require_clients()
        run, diverged, first = self.run, list[int](), 0
        for trained in run.engine.local_sgd(self.clients, self.start, self.plan, self.key, restore=run.sealed):
            part = trained if self.also_upload is None else self._extend(trained, self.also_upload(trained))
            if run.sealed:
                run.notes.unfit.update(part.clients[~part.finite].tolist())
            elif not self.plan.may_diverge:
                diverged += part.clients[~part.finite].tolist()
            run.notes.trained.update(part.clients.tolist())
            run.notes.losses += self.plan.losses(part, first)
            first += len(part.clients)
            if not diverged:  # otherwise continue only to find all clients that the next attempt must leave out
                yield part
        if diverged:
            raise Diverged(diverged, self.key)

    @staticmethod
    def _extend(part: TrainedClients, more: Stacked) -> TrainedClients:
        return replace(part, params={**part.params, **more}, finite=part.finite & parameters.finite(more))

    def _require_clients(self) -> None:
        if self.run.attendance.all_absent and not self.run.sealed:
            raise AllAbsent
