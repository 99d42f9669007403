"""Simulate a personalized federated learning method on a federation in memory: ``simulate`` and its ``Result``."""

from __future__ import annotations

import hashlib
import json
import reprlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pflcli.core import config, methods, models, registry, rng
from pflcli.core.datasets import SPLITS
from pflcli.core.engine.engine import MODES
from pflcli.core.engine.tasks import Task
from pflcli.core.errors import InputError, UnsuitedError, UsageError, closest
from pflcli.core.federation.predictor import ClientModel
from pflcli.core.federation.run import Run, RunInputs
from pflcli.core.methods import Method, State
from pflcli.core.models import Net
from pflcli.core.parameters import Params
from pflcli.core.reporter import SILENT, StderrReporter, report_within
from pflcli.core.settings import AUTO, Settings
from pflcli.core.simulation import absences, loop, requirements
from pflcli.core.simulation.callbacks import Callback, ProgressBar
from pflcli.core.simulation.create_run import create_run
from pflcli.core.simulation.federation import Federation
from pflcli.core.simulation.predict import client_batches
from pflcli.core.simulation.progress import Progress
from pflcli.core.wording import WordedInPython, in_python

if TYPE_CHECKING:
    import pandas as pd

    from pflcli.core.knn.embedded import Embedded
    from pflcli.core.knn.stores import Stores


@dataclass(frozen=True)
class Predictions:
    """The predictions of all clients on one split: probabilities ``p`` (n, C), labels ``y`` (n,), and owners (n,).

    Samples are sorted by client. ``parts`` are all components of the predictions by name, such as ``global``.
    """

    p: NDArray[np.float32]
    y: NDArray[np.int64]
    client: NDArray[np.int64]
    parts: Mapping[str, NDArray[np.float32]]
    task: Task

    def __repr__(self) -> str:
        """Return a line without the arrays, which would fill a notebook."""
        return f"Predictions(samples={len(self.y)}, {self.task.kind}={self.p.shape[1]}, parts={list(self.parts)})"

    @property
    def scores(self) -> NDArray[Any]:
        """The task's score of each sample (n,): of classes, whether they are predicted correctly."""
        return self.task.scores(self.p, self.y)

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Whether each sample (n,) is predicted correctly. Raises UnsuitedError if labels are not classes."""
        if self.task.score != "accuracy":
            raise UnsuitedError(f"predictions of a {self.task.kind} are not right or wrong", "use scores")
        return self.scores


@dataclass(frozen=True)
class Result:
    """A finished simulation of ``method`` with its final ``state``.

    ``rounds`` is a frame with a row per round and the columns of ``rounds.csv``, the same for all methods: nan where
    something was not measured. ``predictions`` are by split. ``tuned`` has what each client chose by validation samples
    (m,), by name. ``run`` is what the method saw, with the engine and the initial model.
    """

    method: str
    federation: Federation
    settings: Settings
    seed: int
    run: Run
    state: State
    rounds: pd.DataFrame
    predictions: Mapping[str, Predictions]
    tuned: Mapping[str, NDArray[np.float64]]
    backbone: Result | None
    """the training of the global model, if the method needs one"""
    _method: Method

    def __repr__(self) -> str:
        """Return a line without models and samples, which would fill a notebook."""
        done = f"clients={len(self.federation.clients)}, rounds={len(self.rounds)}, seed={self.seed}"
        name = self.federation.task.score.replace(" ", "_")
        return f"Result(method={self.method!r}, {done}, {name}={self.score():.4f})"

    @property
    def bytes(self) -> dict[str, int]:
        """The bytes that were sent over each link, up, down and peer, with those of the backbone."""
        before = {} if self.backbone is None else self.backbone.bytes
        return {link: count + before.get(link, 0) for link, count in self.run.traffic.items()}

    def score(self, split: str = "test") -> float:
        """Return the mean score of the task on all clients' samples of a split; nan without samples."""
        scores = self.predictions[split].scores
        return float(scores.mean()) if len(scores) else float("nan")

    def accuracy(self, split: str = "test") -> float:
        """Return the accuracy on all clients' samples of a split; nan without samples.

        Raises UnsuitedError if labels are not classes.
        """
        correct = self.predictions[split].correct
        return float(correct.mean()) if len(correct) else float("nan")

    def accuracies(self, split: str = "test") -> pd.Series:
        """Return each client's accuracy on its samples of a split, by name; nan without samples.

        Raises UnsuitedError if labels are not classes.
        """
        import pandas as pd

        found, count = self.predictions[split], len(self.federation.clients)
        sizes = np.bincount(found.client, minlength=count)
        right = np.bincount(found.client, weights=found.correct, minlength=count)
        values = np.divide(right, sizes, out=np.full(count, np.nan), where=sizes > 0)
        return pd.Series(values, pd.Index(self.federation.client_names, name="client"), name="accuracy")

    @cached_property
    def models(self) -> Mapping[str, ClientModel | None]:
        """The model of each client by name: networks and shares, or None if its predictions are not those of networks.

        Methods whose clients adapt after the rounds adapt them again here.
        """
        run, found = replace(self.run, keeps_models=True), dict[str, ClientModel | None]()
        names = self.federation.client_names
        with run.personalizing():
            for clients in client_batches(run):
                predictor = self._method.personalize(run, self.state, clients)
                found |= {names[client]: predictor.model_of(int(client)) for client in clients.tolist()}
        return found


@WordedInPython()
def simulate(
    method: str | ModuleType | Any,
    federation: Federation,
    *,
    model: str | Path | type[nn.Module] | Callable[..., nn.Module] | None = None,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    callbacks: Callback | Sequence[Callback] = (),
    threads: int = 1,
    engine: str = "auto",
    quiet: bool = False,
    **settings: Any,
) -> Result:
    """Run ``method`` on ``federation`` in memory, and return its predictions, rounds and personal models.

    ``method`` is a name (``pfl list methods``), a file (``"./mine.py"``), a module, or a class or an object with the
    members of ``pflcli.core.methods.Method``; ``options`` are its options. ``model`` is a name (``pfl list models``), a
    file (``"./net.py:Net"``), a class of ``torch.nn.Module``, or a function that makes one; it gets the arguments of
    these names that it takes: ``classes``, ``in_shape``, ``channels``, ``length``. ``settings`` are training settings,
    such as ``rounds=20`` and ``lr=0.1``, as in ``pfl personalize``, which gives the same predictions. ``callbacks``
    see each round, and may end the rounds. Neither ``threads`` nor ``engine``, the mode of the engine, changes more
    than the last bits of a result. Progress is shown on stderr; ``quiet`` shows none.

    A method that needs a backbone trains it by FedAvg with the same settings, and embeds samples and builds exact
    stores if it needs them. Raises UsageError for unknown names and wrong values, InputError for a method or network
    that breaks its interface or changes samples in place, ComputationError if training fails. Warns of clients that
    diverge or drop out, and of settings without effect on the method.

    >>> from pflcli import Federation, simulate
    >>> writers = Federation.from_dataset("writers", clients=6)
    >>> result = simulate("ditto", writers, model="logistic", rounds=2, options={"lam": 0.5}, quiet=True)
    >>> 0 < result.accuracy() < 1, len(result.rounds)
    (True, 2)
    """
    callbacks = _list_callbacks(callbacks)
    config.require_whole("seed", seed)
    config.require_whole("threads", threads, 1)
    name, definition = _load_method(method)
    cfg = config.build(definition.Config, options or {}, name)
    training, draw = _settings(federation, model, settings)
    _require_suited(name, definition, cfg, training, federation, draw, engine)
    samples = federation.digest()
    noise = None if training.dp_seed is None else _private_rng(name, cfg, training, seed, samples)
    inputs = RunInputs(draw_network=draw, private_rng=noise)
    backbone = None
    if definition.NEEDS:
        how: dict[str, Any] = {"threads": threads, "engine": engine, "quiet": quiet}
        backbone = simulate("fedavg", federation, model=model, seed=seed, **how, **settings)
        inputs = replace(inputs, backbone=backbone.state["global"])
        if {*definition.NEEDS} & {"embeddings", "datastore"}:
            embedded = embed(backbone.run, backbone.state["global"])
            inputs = replace(inputs, embeddings=embedded, stores=build_stores(embedded["train"], threads))
    run = create_run(definition, cfg, federation, training, seed, inputs, threads=threads, mode=engine)
    progress, reporter = loop.set_up(run, name, definition), SILENT if quiet else StderrReporter()
    with report_within(reporter, run.engine, name, training.rounds if definition.has_rounds else 0) as advance:
        loop.run_rounds(run, name, definition, progress, [*callbacks, ProgressBar(advance)])
    with report_within(reporter, run.engine, f"{name}, clients", len(run.clients)) as advance:
        loop.predict_all(run, name, definition, progress, [*callbacks, ProgressBar(advance)])
    if federation.digest() != samples:
        raise InputError(
            f"{name} changed samples of the federation in place, which later runs would use",
            "let it change copies, such as run.federation.x.clone()",
            "make the federation again before the next run",
        )
    predictions, tuned = _collect(run, name, progress, federation)
    final, rounds = progress.reported, _list_rounds(progress)
    return Result(name, federation, training, seed, run, final, rounds, predictions, tuned, backbone, definition)


def _list_rounds(progress: Progress) -> pd.DataFrame:
    """Return a row for each round."""
    import pandas as pd

    rows = absences.count_clients([*progress.before, *progress.rows])
    return pd.DataFrame(rows, columns=None if rows else loop.ROUND_COLUMNS).set_index("round")


def _list_callbacks(callbacks: Any) -> list[Callback]:
    """Return callbacks as a list, also a single one; raises UsageError for what is none."""
    given = [callbacks] if isinstance(callbacks, Callback | type) or not isinstance(callbacks, Iterable) else callbacks
    listed = [*given]
    for each in listed:
        if isinstance(each, type) or not hasattr(each, "after_round"):
            raise UsageError(
                f"callbacks has {reprlib.repr(each)}, not a Callback object", "callbacks=[EarlyStopping(patience=5)]"
            )
    return listed


def _private_rng(
    name: str, cfg: Any, settings: Settings, seed: int, samples: str
) -> Callable[..., np.random.Generator]:
    """Return the generators of noise that protects clients by ``dp_seed``.

    Their seed also depends on what is run and on the ``samples``, so that no two runs have the same noise.
    """
    asked = [settings.dp_seed, name, config.plain(cfg), config.plain(settings), seed, samples]
    return partial(rng.generator, int.from_bytes(hashlib.sha256(json.dumps(asked).encode()).digest()))


def _collect(
    run: Run, name: str, progress: Progress, federation: Federation
) -> tuple[dict[str, Predictions], dict[str, NDArray[np.float64]]]:
    """Return the predictions of all clients by split, and what they chose; warn of clients that failed."""
    joined = {
        key: {part: values.numpy() for part, values in parts.items()}
        for key, parts in progress.join_predictions().items()
    }
    tuned, flags = joined.pop("tuned", {}), joined.pop("flags", {})
    absences.require_finite(run, name, flags)
    missing = absences.summarize([*progress.before, *progress.rows], federation.client_names)
    for line in absences.describe(missing | absences.name_flagged(flags, federation.client_names)):
        warnings.warn(in_python(f"{name}: {line}"), stacklevel=4)
    predictions = {
        split: Predictions(
            parts["p"],
            federation.y[run.federation.rows_of(run.clients, split)].cpu().numpy(),
            np.repeat(run.clients, run.federation.sizes(split)),
            parts,
            federation.task,
        )
        for split, parts in joined.items()
    }
    return predictions, tuned


def _load_method(method: str | ModuleType | Any) -> tuple[str, Method]:
    """Return the name and the definition of a method that is given by its name, as a file or as an object."""
    if isinstance(method, str | Path):
        name = registry.use("methods", str(method))
        return name, methods.load(name)
    return registry.complete_object("methods", method, Method)


def _settings(
    federation: Federation, model: str | Path | Callable[..., nn.Module] | None, settings: Mapping[str, Any]
) -> tuple[Settings, Callable[[int], Net] | None]:
    """Return the training settings, and a function that draws the network unless the settings name it."""
    if not isinstance(federation, Federation):
        made = (
            f"Federation.from_dataset({federation!r})" if isinstance(federation, str) else "Federation.from_arrays(...)"
        )
        raise UsageError(f"federation is {reprlib.repr(federation)}, not a Federation", made)
    shape, tokens, outputs = federation.in_shape, federation.has_tokens, federation.task.outputs
    model = registry.use("models", str(model)) if isinstance(model, str | Path) else model
    if isinstance(model, nn.Module) or not (model is None or isinstance(model, str) or callable(model)):
        raise UsageError(
            f"model is {reprlib.repr(model)}, not a name, a file, a class or a function", 'model="mlp", or model=Net'
        )
    steps = settings.get("upload", ())
    used = {
        **settings,
        "upload": [registry.use("uploads", step) for step in ([steps] if isinstance(steps, str) else steps)],
        "aggregator": registry.use("aggregators", settings.get("aggregator", "mean")),
    }
    if model is not None and not isinstance(model, str):
        make, label = model, getattr(model, "__name__", "network")

        def draw(seed: int) -> Net:
            from pflcli.core.models import own_network

            with torch.random.fork_rng(devices=[]):
                torch.random.manual_seed(rng.integer(seed, "init", label))
                return own_network.build_from(make, {}, label, shape, outputs, tokens=tokens)

        built = config.build(Settings, {**used, "model": AUTO}, "the training settings")
        return replace(requirements.resolve_names(built), model=label), draw
    chosen = {} if model is None else {"model": model}
    training: Settings = config.build(Settings, {**used, **chosen}, "the training settings")
    training = requirements.resolve_names(training)
    if training.model == AUTO:
        training = replace(training, model=models.default(shape, tokens=tokens))
    return training, None


def _require_suited(
    name: str,
    method: Method,
    cfg: Any,
    settings: Settings,
    federation: Federation,
    draw: Callable[[int], Net] | None,
    engine: str,
) -> None:
    """Raise UsageError for settings that need a file, and for what does not fit; UnsuitedError for an unfit method.

    Warn of settings without effect on the method.
    """
    if settings.refit and method.choices(cfg):
        raise UsageError("refit takes the choices of an earlier run, which simulate does not have", "pfl personalize")
    if settings.adapter is not None:
        raise UsageError("adapter freezes a trained network, which simulate does not read", "pfl personalize --weights")
    if not isinstance(engine, str) or engine not in MODES:
        raise UsageError(f"unknown engine '{engine}'", closest(str(engine), MODES))
    tokens = federation.has_tokens
    net = (
        draw(0) if draw else models.outline(settings.model, federation.in_shape, federation.task.outputs, tokens=tokens)
    )
    requirements.require_fit(settings, net, federation.in_shape[0] if federation.has_images else None)
    requirements.require_suited(name, method, settings, federation.task)
    requirements.require_body(name, method, settings, net)
    for line in requirements.describe_ignored(name, method, settings):
        warnings.warn(in_python(line), stacklevel=4)


def embed(run: Run, backbone: Params) -> dict[str, Embedded]:
    """Return the embeddings of every split of a run's samples by a backbone."""
    from pflcli.core.knn.embedded import Embedded

    embedded = {}
    for split in SPLITS:
        rows = run.federation.rows_of(run.clients, split)
        logits, z = (values.cpu().numpy() for values in run.engine.infer(backbone, rows, features=True))
        bounds = np.concatenate([[0], np.cumsum(run.federation.sizes(split))])
        embedded[split] = Embedded(z, logits, run.federation.labels_of(run.clients, split), bounds)
    return embedded


def build_stores(train: Embedded, threads: int) -> Stores:
    """Return every client's exact store of its training samples, which ``threads`` threads search."""
    from pflcli.core.knn.indexes import flat_indexes
    from pflcli.core.knn.stores import Stores

    indexes = flat_indexes([train.z[first:last] for first, last in zip(train.offsets, train.offsets[1:], strict=False)])
    return Stores(*indexes, train.y, train.offsets, threads)
