"""The first round of a run again, with what the server receives: an honest server that remembers what it sees."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pflcli.artifacts.kinds import partition as partitions
from pflcli.core import parameters
from pflcli.core.engine.local_sgd import Model, steps_per_epoch
from pflcli.core.errors import ComputationError, UnsuitedError
from pflcli.core.execution import Execution
from pflcli.core.federation.run import Average, Place, Run
from pflcli.core.parameters import Params, Stacked
from pflcli.core.simulation import loop
from pflcli.workflow.prediction.reopened_run import ReopenedRun

METHODS = ("fedavg", "fedsgd")
"""The methods whose clients upload the downloaded model after plain SGD, and nothing else."""

Update = dict[str, NDArray[np.float64]]
"""A trained model minus the downloaded one, by the names of parameters."""


@dataclass(frozen=True)
class Layers:
    """The names of the weights and biases of the layer that takes the features, and of the one that makes outputs."""

    first: tuple[str, str]
    head: tuple[str, str]

    @property
    def is_single(self) -> bool:
        """Whether one layer does both, as in logistic regression."""
        return self.first == self.head


@dataclass(frozen=True)
class FirstRound:
    """What is known after round 1: the downloaded model, each client's update, and the change of the global model.

    ``updates`` and ``samples``, the numbers of training samples, are by client.
    """

    method: str
    run: Run
    layers: Layers
    downloaded: Params
    updates: dict[int, Update]
    samples: dict[int, int]
    change: Update

    @property
    def features(self) -> int:
        """The number of features of a sample."""
        return int(self.downloaded[self.layers.first[0]].shape[1])

    def sum_rates(self, samples: int) -> float:
        """Return the learning rate times the number of gradients that the update of a client with ``samples`` adds up.

        With momentum m, the gradient of a step that k steps follow counts 1 + m + ... + m^k times.
        """
        settings = self.run.settings
        if self.method == "fedsgd":
            return settings.lr_at(0)
        epoch = int(steps_per_epoch(np.asarray([samples]), settings.batch_size, join_single=False)[0])
        left = np.arange(1, (settings.steps or settings.epochs * epoch) + 1)
        return settings.lr_at(0) * float(((1 - settings.momentum**left) / (1 - settings.momentum)).sum())

    def predict(self, x: NDArray[np.float64], update: Update | None = None) -> NDArray[np.float64]:
        """Return the predictions (n, C) for samples (n, d) of the downloaded model, or of that model plus an update."""
        assert self.run.network is not None
        more = {} if update is None else {name: torch.from_numpy(value) for name, value in update.items()}
        model = {name: (value.double() + more.get(name, 0)).float() for name, value in self.downloaded.items()}
        with torch.no_grad():
            outputs = Model(self.run.network)(model, torch.from_numpy(x.astype(np.float32)))
        return np.asarray(self.run.task.activate(outputs.double()).numpy())


def replay_first_round(model: ReopenedRun, execution: Execution) -> FirstRound:
    """Play round 1 of a run of FedSGD or FedAvg on a table again, and return what the server receives.

    Cohort, minibatches and noise are those of the run, which ``require_covered`` accepts. Raises UnsuitedError for
    another network than ``find_layers`` takes; ComputationError if no client uploads.
    """
    data, execution, place = partitions.read(model.partition), model.execution(execution), _Watched()
    run = model.build(data, execution, replace(model.read_inputs(data, execution), place=place))
    layers = find_layers(run.network)
    state, _ = loop.play_round(run, model.name, model.method, loop.set_up(run, model.name, model.method).state, 0)
    run.engine.close()
    if not place.received:
        raise ComputationError(f"no client of {model.artifact.path} completes the first round: nothing is uploaded")
    downloaded = parameters.move(place.downloads[-1], "cpu")
    return FirstRound(
        model.name,
        run,
        layers,
        downloaded,
        {client: _subtract(upload, downloaded) for client, (upload, _) in sorted(place.received.items())},
        {client: samples for client, (_, samples) in place.received.items()},
        _subtract(parameters.move(state["global"], "cpu"), downloaded),
    )


def find_layers(network: nn.Module | None) -> Layers:
    """Return the first and the last layer of a network of linear layers and ReLUs; raises UnsuitedError for another."""
    parts = (
        [] if network is None else [(name, part) for name, part in network.named_modules() if not [*part.children()]]
    )
    known = (nn.Linear, nn.ReLU, nn.Flatten)
    linear = [name for name, part in parts if isinstance(part, nn.Linear) and part.bias is not None]
    if not linear or not all(isinstance(part, known) for _, part in parts):
        raise UnsuitedError(
            "the attack on updates covers networks of linear layers and ReLUs alone, such as logistic and mlp",
            "pfl personalize fedavg PARTITION -o DIR --model mlp",
        )
    first, head = ((f"{name}.weight", f"{name}.bias") for name in (linear[0], linear[-1]))
    return Layers(first, head)


def require_covered(model: ReopenedRun) -> None:
    """Raise UnsuitedError for another method, samples that are no rows of a table, and steps other than plain SGD."""
    settings, where, form = model.settings, model.artifact.path, partitions.read_form(model.partition)
    problem, fix = "", "pfl personalize fedavg PARTITION -o DIR --model mlp"
    if model.name not in METHODS or model.lineage["backbone"] is not None:
        problem = (
            f"covers {' and '.join(METHODS)}, whose clients upload a trained model and nothing else, not {model.name}"
        )
    elif len(form.shape) != 1 or not form.dtype.startswith("float"):
        problem, fix = "covers rows of a table, not images, text or series", "pfl import TABLE.csv -o DIR"
    elif not settings.rounds:
        problem, fix = "needs a round, and this run has none", "pfl personalize fedavg PARTITION -o DIR --rounds 1"
    elif settings.optimizer != "sgd" or settings.weight_decay or settings.adapter is not None:
        problem = "covers SGD of all parameters without weight decay"
    elif getattr(model.cfg, "server", "sgd") != "sgd" or getattr(model.cfg, "server_lr", None) not in (None, 1):
        problem = "covers a server that takes the mean of updates; with another one, clients upload the same in round 1"
    if problem:
        raise UnsuitedError(f"{where}: the attack on updates {problem}", fix)


@dataclass
class _Watched(Place):
    """A simulation that keeps what the server sent, and what it received of each client with its weight."""

    downloads: list[Params] = field(default_factory=list)
    received: dict[int, tuple[Params, int]] = field(default_factory=dict)

    def mean(self, run: Run, downloaded: Params) -> Average:
        """Return a mean whose uploads are kept; a round that is repeated begins again."""
        self.received.clear()
        self.downloads.append({name: value.clone() for name, value in downloaded.items()})
        return _WatchedMean(run, downloaded, self.received)


class _WatchedMean(Average):
    """A mean that keeps each upload as the server receives it, after the upload steps."""

    is_plain = False

    def __init__(self, run: Run, downloaded: Params, received: dict[int, tuple[Params, int]]) -> None:
        super().__init__(run, downloaded)
        self._received = received

    def add(self, params: Stacked, weights: NDArray[np.float64], clients: NDArray[np.int64]) -> None:
        uploads = self._run.upload(params, self._downloaded, clients)
        for place, (client, weight) in enumerate(zip(clients.tolist(), weights.tolist(), strict=True)):
            upload = {name: value.cpu().clone() for name, value in parameters.pick(uploads, place).items()}
            self._received[client] = upload, round(weight)
        self._uploads.add(uploads, weights)
        self._clients.append(clients)


def _subtract(model: Params, other: Params) -> Update:
    return {name: (value.double() - other[name].double()).numpy() for name, value in model.items()}
