"""A rehearsal: three rounds of a method and the answers of a few clients, on an executor that computes a few steps.

It measures what a method does beside training and prediction, counts what it trains and predicts, and looks at the
state that its rounds leave. Clients, rounds and samples that are left out are scaled up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli import models, parameters
from pflcli.engine.engine import Engine
from pflcli.engine.executors.threads import Threads
from pflcli.estimates import state_size
from pflcli.estimates.excerpt import Excerpt
from pflcli.estimates.sampled_executor import Rates, SampledExecutor, clock
from pflcli.federation import aggregators, uploads
from pflcli.federation.channel import LINKS
from pflcli.federation.private_mean import FIRST_CLIP, PrivateMean
from pflcli.federation.run import Run
from pflcli.knn.embedded import Embedded
from pflcli.knn.flat_format import flat_indexes
from pflcli.knn.stores import Stores
from pflcli.methods import Method
from pflcli.parameters.row_storage import InMemoryRows
from pflcli.settings import Settings
from pflcli.training import loop, personal_accuracy
from pflcli.training.predict import MIN_BATCH, predicted_splits, with_global

NUMBER = 8
"""Bytes of a number; a method that keeps one per pair compares all clients' models."""
_COHORT, _ANSWERING = 12, 64
"""Most clients of a round of a rehearsal, unless more train in one stack, and most that answer."""


@dataclass(frozen=True)
class Phases:
    """Processor seconds of one thread: ``parallel`` ones, which threads share, and ``serial`` ones."""

    parallel: float = 0.0
    serial: float = 0.0

    def __add__(self, other: Phases) -> Phases:
        return Phases(self.parallel + other.parallel, self.serial + other.serial)

    @property
    def total(self) -> float:
        """Seconds of all cores."""
        return self.parallel + self.serial

    def times(self, parallel: float, serial: float | None = None) -> Phases:
        """Return both parts multiplied, the serial one by ``serial`` if that is given."""
        return Phases(self.parallel * parallel, self.serial * (parallel if serial is None else serial))


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal says of a whole run."""

    rounds: Phases
    """of all rounds, with ``setup`` and measurements of accuracy"""
    answers: Phases
    """of all clients' answers"""
    state_bytes: float
    """of the state after the last round, without tables"""
    table_bytes: float
    """of the tables of clients' models"""
    written_bytes: float
    """of models that all rounds write into tables"""
    parts: int
    """kinds of probabilities that answers consist of"""
    splits: tuple[str, ...]
    """splits that are answered"""
    model_bytes: int
    cohort: int
    """clients of a round"""
    rehearsed_cohort: int
    """clients of a round of the rehearsal"""
    clients_that_fit: int
    """clients whose models the engine has in memory at a time"""


class _CountingRows(InMemoryRows):
    """Rows in memory that count the bytes written to all of them into ``total``."""

    def __init__(self, number: int, total: list[float]) -> None:
        super().__init__(number)
        self._total = total

    def write(self, row: int, content: NDArray[np.uint8]) -> None:
        """Replace or append a row."""
        self._total[0] += len(content)
        super().write(row, content)


class _Timer:
    """Divides processor seconds between an executor's tasks and the rest."""

    def __init__(self, executor: SampledExecutor) -> None:
        self._executor = executor
        self.lap()

    def lap(self) -> Phases:
        """Return the seconds since the last lap."""
        now, executor = clock(), self._executor
        before = getattr(self, "_last", (now, executor.seconds, executor.spent))
        self._last = (now, executor.seconds, executor.spent)
        serial = max(now - before[0] - (executor.spent - before[2]), 0.0)
        return Phases(executor.seconds - before[1], serial)


def rehearse(
    method: Method,
    cfg: Any,
    settings: Settings,
    part: Excerpt,
    seed: int,
    mode: str,
    rates: Rates,
    *,
    shared: bool = False,
    on_backbone: bool = False,
) -> Rehearsal:
    """Rehearse a method on an excerpt of a partition; with ``shared``, as ``train-global`` does: nobody answers.

    Answers ``on_backbone`` have those of the backbone beside them, as have those of a method that needs one.
    Raises what the method does, such as UnsuitedError.
    """
    run, executor, scale = _run(method, cfg, settings, part, seed, mode, rates)
    if on_backbone or method.NEEDS:
        run.backbone = run.initial_model()
    timer, total_written, written = _Timer(executor), 0.0, [0.0]
    run.storage = lambda number: _CountingRows(number, written)
    state, _ = loop.set_up(run, method)
    setup = timer.lap().times(part.scale)
    total, history = setup, [state_size.tensor_bytes(state)]
    rounds = settings.rounds if method.has_rounds else 0
    # Round 0 stands for itself; one of a quarter and one of three quarters of the way each for the half that it is in.
    halves = {0: 1, rounds // 4: max(rounds // 2, 1), 3 * rounds // 4: rounds}
    ends = {t: end for t, end in halves.items() if t < rounds}
    cohort = max(1, round(settings.participation * part.participants))
    evaluation = Phases()
    for t, first in zip(ends, [0, *ends.values()], strict=False):
        repeats = ends[t] - first
        state_size.fill(state, run, t, cohort / max(part.participants, 1))
        timer.lap()
        written[0] = 0.0
        state, _ = loop.play_round(run, "", method, state, t)
        history.append(state_size.tensor_bytes(state))
        selected = run.federation.sizes("train")[run.attendance.selected]
        by_samples = cohort * part.train_samples / selected.sum() if selected.sum() else scale
        by_clients = cohort / len(selected) if len(selected) else scale
        # Who compares all that take part with each other does more for each of them, the more there are.
        by_pairs = by_clients if method.PAIRS_SENT == "models" or method.PAIRS_KEPT >= NUMBER else 1.0
        total += timer.lap().times(repeats * by_samples, repeats * by_clients * by_pairs)
        total_written += written[0] * repeats * by_clients
    if ends:
        evaluation = _evaluation(run, method, state, shared, timer).times(part.scale)
        due = sum(settings.is_due(t, settings.eval_every) for t in range(rounds))
        total += evaluation.times(due)
    answering, parts, splits = (Phases(), 0, ()) if shared else _answering(run, method, state, timer, part)
    state_bytes, table_bytes = state_size.final_bytes(state, history, len(ends), rounds, run, part, cohort)
    model_bytes = parameters.size(run.init)
    rehearsed = max(1, round(run.settings.participation * len(run.federation.participants)))
    fit = run.engine.clients_that_fit(model_bytes)
    return Rehearsal(
        total, answering, state_bytes, table_bytes, total_written, parts, splits, model_bytes, cohort, rehearsed, fit
    )


def _run(
    method: Method, cfg: Any, settings: Settings, part: Excerpt, seed: int, mode: str, rates: Rates
) -> tuple[Run, SampledExecutor, float]:
    """Return a run on an excerpt, its executor, and how many clients of a round one of it stands for."""
    federation = part.federation.refitted() if settings.refit else part.federation
    tokens = federation.x.dtype not in (torch.uint8, torch.float32)
    net = models.create(settings.model, federation.in_shape, federation.classes, seed, tokens=tokens)
    engine = Engine(net, federation, seed=seed, threads=1, mode=mode)
    assert isinstance(engine.executor, Threads)
    engine.executor = executor = SampledExecutor(engine.executor, rates)
    cohort, few = max(1, round(settings.participation * part.participants)), len(federation.participants)
    # A large stack takes less time per client than a small one, so that a rehearsal has stacks of the real size.
    fill_stacks = 4 * engine.stack_size(parameters.size(parameters.of(net)), cohort) if engine.mode == "stacked" else 0
    rehearsed = max(1, min(cohort, max(_COHORT, fill_stacks), few))
    settings = replace(settings, participation=rehearsed / max(few, 1) or 1e-9)
    device = federation.y.device
    init = {name: value.to(device) for name, value in parameters.of(net).items()}
    # Measurements are rehearsed on their own, and so that no round is the last one, it is said to be one of many more.
    apart = replace(settings, eval_every=10**9, personal_every=0, test_last=0, report="last", rounds=settings.rounds)
    steps = tuple(uploads.load(step) for step in settings.upload)
    run = Run(method.KIND, cfg, apart, seed, engine.federation, engine, init, uploads=steps)
    run.aggregator = aggregators.load(settings.aggregator)
    if settings.dp and LINKS[method.KIND]:  # how much noise there is does not change what it costs
        clip = settings.first_clip or FIRST_CLIP
        run.privacy = PrivateMean(1.0, clip, settings.first_clip is None, settings.participation, few, run.rng)
    run.draw_model = lambda number: {name: value.clone() * (1 + 1e-3 * number) for name, value in init.items()}
    if {"embeddings", "datastore"} & {*method.NEEDS}:
        run.embeddings = _embedded(run)
        run.stores = _stores(run)
    return run, executor, cohort / rehearsed


def _embedded(run: Run) -> dict[str, Embedded]:
    """Return embeddings of all splits, at random, of the dimension that the model has."""
    embedded, data = {}, run.federation
    for split in ("train", "validation", "test"):
        rows = np.concatenate([data.rows(int(client), split) for client in run.clients])
        logits, z = run.engine.infer(run.init, rows, features=True)
        bounds = np.concatenate([[0], np.cumsum(data.sizes(split))])
        embedded[split] = Embedded(z.cpu().numpy(), logits.cpu().numpy(), data.y[rows].cpu().numpy(), bounds)
    return embedded


def _stores(run: Run) -> Stores:
    """Return a store of each client's training samples."""
    assert run.embeddings is not None
    train = run.embeddings["train"]
    z = [train.take(np.asarray([client])).z for client in run.clients]
    return Stores(*flat_indexes(z), train.y, train.offsets, np.diff(train.offsets))


def _evaluation(run: Run, method: Method, state: Mapping[str, Any], shared: bool, timer: _Timer) -> Phases:
    """Return the seconds of measuring accuracies once, of the excerpt's clients."""
    settings, run.settings = run.settings, replace(run.settings, eval_every=1)
    timer.lap()
    if "global" in state:
        run.accuracy(state["global"], "validation")
    personal_accuracy.column(run, method, dict(state), 0)
    run.settings = settings
    return timer.lap()


def _answering(
    run: Run, method: Method, state: Mapping[str, Any], timer: _Timer, part: Excerpt
) -> tuple[Phases, int, tuple[str, ...]]:
    """Return the seconds of all clients' answers, of how many kinds of probabilities they consist, and their splits."""
    count = min(len(run.clients), max(MIN_BATCH, min(len(part.sizes) // 100, _ANSWERING)))
    few = run.clients[np.linspace(0, len(run.clients) - 1, count).round().astype(int)]
    parts = 0
    with run.personalizing():
        timer.lap()
        predictor = method.personalize(run, dict(state), few)
        splits = tuple(predicted_splits(run, predictor))
        for split in splits:
            parts = len(with_global(run, predictor.answer(split), few, split))
    spent = timer.lap()
    own, every = part.federation.sizes("train", "validation", "test")[few].sum(), part.sizes.sum()
    return spent.times(every / max(own, 1), len(part.sizes) / len(few)), parts, splits
