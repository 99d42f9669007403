"""The rounds of a method: run, checkpoint, resume. Shared by ``train-global`` and ``personalize``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from pflcli import config, models, parameters, rng
from pflcli.artifacts.kinds.partition import Partition
from pflcli.artifacts.make import Execution
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.engine.engine import Engine
from pflcli.engine.federation import Federation
from pflcli.engine.normalization import normalized
from pflcli.errors import InputError, LostWorkerError, UnsuitedError
from pflcli.federation import aggregators, uploads
from pflcli.federation.attack import Attack
from pflcli.federation.channel import LINKS
from pflcli.federation.privacy import guarantee
from pflcli.federation.private_mean import FIRST_CLIP, PrivateMean
from pflcli.federation.run import Run
from pflcli.methods import Method
from pflcli.reporter import report_within
from pflcli.settings import Settings
from pflcli.training import hardware, round_table, state_files
from pflcli.training.best_round import better
from pflcli.training.checkpoint import Progress, pack, unpack

_LATER = {
    **{"report": "last", "normalize": "none", "personal_every": 0, "dropout": 0.0, "upload": [], "steps": 0},
    **{"aggregator": "mean", **dict.fromkeys(("dp_epsilon", "dp_delta", "dp_noise", "dp_clip"))},
}
"""Settings that came later, with the values that are not recorded, so that old requests hold."""


def requested(settings: Settings) -> dict[str, Any]:
    """Return what a request says of the settings; of later ones only what is not the default."""
    return {key: value for key, value in config.plain(settings).items() if key not in _LATER or value != _LATER[key]}


def sources_of(settings: Settings) -> list[str]:
    """Return the files, by group and name, that decide how models are trained under these settings."""
    steps = [f"uploads/{step.partition(':')[0]}" for step in settings.upload]
    rule = settings.aggregator.partition(":")[0]
    return [f"models/{settings.model}", *steps, *([f"aggregators/{rule}"] if rule != "mean" else [])]


def prepare(
    data: Partition,
    method: Method,
    cfg: Any,
    settings: Settings,
    seed: int,
    execution: Execution,
    trained_on: Partition | None = None,
) -> Run:
    """Take the samples, build the model and return a run, ready for ``rounds`` or ``personalize``.

    ``trained_on`` is what the model was trained on, if that is other data: its images say how all are normalized.
    """
    device = hardware.device(execution.device)
    torch.set_num_threads(workers := hardware.threads(execution.threads))
    federation = _federation(data, device)
    measured_on = _federation(trained_on, device) if trained_on is not None else federation
    federation = normalized(federation, settings.normalize, measured_on)
    federation = federation.refitted() if settings.refit else federation
    shape, tokens = federation.in_shape, federation.x.dtype not in (torch.uint8, torch.float32)
    net = models.create(settings.model, shape, data.classes, seed, tokens=tokens)
    mode, jobs = hardware.engine(execution.engine), hardware.jobs(execution.jobs)
    cluster = hardware.ray_cluster(execution.executor, execution.ray_address, execution.gpus_per_worker)
    engine = Engine(net, federation, seed=seed, threads=workers, mode=mode, jobs=jobs, ray=cluster)
    init = {name: value.to(device) for name, value in parameters.of(net).items()}
    hands = f"{engine.jobs} processes" if jobs else f"{workers} threads"
    hands = f"{engine.jobs} Ray workers" if cluster else hands
    execution.reporter.detail(f"{settings.model} on {device}, engine mode {engine.mode}, {hands}")
    engine.explain = lambda strategy: execution.reporter.detail(f"clients train by {strategy}")
    engine.warn, engine.detail = execution.reporter.say, execution.reporter.detail
    # The engine's federation: with processes the samples lie in shared memory, and only there.

    steps = tuple(uploads.load(step) for step in settings.upload)

    def draw_model(number: int) -> parameters.Params:
        drawn = models.create(settings.model, shape, data.classes, rng.integer(seed, "start", number), tokens=tokens)
        return {name: value.to(device) for name, value in parameters.of(drawn).items()}

    run = Run(method.KIND, cfg, settings, seed, engine.federation, engine, init, draw_model=draw_model, uploads=steps)
    run.aggregator = aggregators.load(settings.aggregator)
    run.privacy = private_mean(run) if settings.dp and LINKS[method.KIND] else None
    if data.update_factor is not None and data.update_noise is not None:
        run.attack = Attack(data.update_factor, data.update_noise, seed)
    return run


def private_mean(run: Run) -> PrivateMean:
    """Return the differentially private mean of a run, as its settings say."""
    noise, _ = guarantee.plan(settings := run.settings)
    clip, clients = settings.first_clip, len(run.federation.participants)
    return PrivateMean(noise, clip or FIRST_CLIP, clip is None, settings.participation, clients, run.rng)


def _federation(data: Partition, device: str) -> Federation:
    return Federation.of(np.asarray(data.x), data.y, data.offsets, data.classes, device, data.new, data.cluster)


def reported(artifact: Artifact) -> dict[str, Any]:
    """Return what the summary of an artifact says of the round that is reported."""
    summary = artifact.manifest.summary
    return {"reported": "last round", **{key: summary[key] for key in ("reported", "reported_round") if key in summary}}


def resumed(run: Run, method: Method, work: ArtifactWriter, execution: Execution) -> Progress:
    """Return where an unfinished run of this request stopped, or the beginning."""
    saved = work.saved()
    run.storage = lambda number: work.rows(number, empty=saved is None)
    if saved is None:
        try:
            return Progress(*round_table.begin(run, method))
        except InputError as error:  # a method opens no files: what it refuses are the data
            raise UnsuitedError(error.message, *error.fix) from None
    progress, run.traffic, mode = unpack(saved, work, run)
    if run.privacy is not None and progress.rows:
        run.privacy.resume(len(progress.rows) - 1, progress.rows[-1])
    if mode != run.engine.mode:
        # Modes of the engine agree to float tolerance only: a resumed run keeps its mode, and gives the same bytes.
        run.engine.mode = mode
        execution.reporter.say(f"the engine stays in mode {mode}, in which this run began")
    if progress.answered_clients:
        execution.reporter.say(f"resuming after {progress.answered_clients} of {len(run.clients)} clients")
    else:
        execution.reporter.say(f"resuming after round {len(progress.rows)} of {run.settings.rounds}")
    return progress


_OFTEN, _SELDOM = 20, 10.0
"""A checkpoint waits for so many times what the last one cost, but no longer than so many seconds."""


class Checkpoints:
    """Keeps a run's progress on disk, as it is between rounds and between clients' answers."""

    def __init__(self, run: Run, progress: Progress, work: ArtifactWriter) -> None:
        self.progress = progress
        self._run, self._work = run, work
        self._cost, self._last, self._kept = 0.0, time.monotonic(), self._mark()
        self._whole = True

    def _mark(self) -> tuple[int, int]:
        return len(self.progress.rows), self.progress.answered_clients

    @contextmanager
    def round(self) -> Iterator[None]:
        """Run a round as a transaction: broken off by whatever, it leaves what the last whole round has left."""
        run, progress, traffic = self._run, self.progress, dict(self._run.traffic)
        state, best, count = progress.state, progress.best, len(progress.rows)
        marks = [(table, table.mark()) for table in state_files.tables(state).values()]
        # Interrupted a second time while a round is undone, a run keeps the checkpoint that it has.
        self._whole = False
        try:
            yield
        except BaseException:
            for table, mark in marks:
                table.undo(mark)
            progress.state, progress.best, run.traffic = state, best, traffic
            del progress.rows[count:]
            self._whole = True
            raise
        self._whole = True
        for _, mark in marks:
            mark.models.release()

    def offer(self) -> None:
        """Write a checkpoint if it is due."""
        if time.monotonic() - self._last >= min(_OFTEN * self._cost, _SELDOM):
            self._write()

    def _write(self) -> None:
        began = time.monotonic()
        tables = state_files.tables(self.progress.state)
        for table in tables.values():
            table.storage.sync()
        self._work.checkpoint(pack(self._run, self.progress))
        for table in tables.values():
            table.keep()
        self._last, self._kept = time.monotonic(), self._mark()
        self._cost = self._last - began

    @contextmanager
    def on_interruption(self) -> Iterator[None]:
        """Write a checkpoint if the block is interrupted, or a worker process is, and there is something new."""
        try:
            yield
        except (KeyboardInterrupt, LostWorkerError):
            if self._whole and self._kept != self._mark():
                self._write()
            raise


def rounds(
    run: Run,
    name: str,
    method: Method,
    checkpoints: Checkpoints,
    execution: Execution,
    *,
    shared: bool = False,
) -> None:
    """Run the rounds that are left of a method, if it has any, from the progress of ``checkpoints`` and into it.

    With ``shared`` only the global model is asked for, and the best round is that of its accuracy.
    """
    if not method.has_rounds:
        return
    progress = checkpoints.progress
    completed = len(progress.rows)
    with (
        report_within(execution.reporter, run.engine, name, run.settings.rounds, completed) as advance,
        checkpoints.on_interruption(),
    ):
        for t in range(completed, run.settings.rounds):
            with checkpoints.round():
                progress.state, row = round_table.play(run, name, method, progress.state, t)
                if run.settings.report == "best":
                    progress.best = better(progress.best, progress.state, row, shared=shared)
                progress.rows.append(row)
            advance(1, round_table.note(progress.rows))
            checkpoints.offer()
    if progress.best is not None:
        execution.reporter.say(
            f"{name}: best round by validation: {progress.best.round} ({progress.best.accuracy:.4f})"
        )
    elif run.settings.report == "best":
        execution.reporter.say(f"{name}: no round has a validation accuracy; the last one is reported")


def draws(seed: int | None, source: Artifact) -> int:
    """Return the seed asked for, or that of the source, so that a chain shares one."""
    return int(source.manifest.request.get("seed", 0)) if seed is None else seed
