"""The rounds of a method: run, checkpoint, resume. Shared by ``train-global`` and ``personalize``."""

from __future__ import annotations

import csv
import io
import json
import math
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save

from pflcli import config, models, registry
from pflcli.artifacts.artifact import Artifact
from pflcli.artifacts.partition import Partition
from pflcli.artifacts.store import Work
from pflcli.errors import ComputationError, InputError
from pflcli.fl import params as P
from pflcli.fl.engine import Engine
from pflcli.fl.federation import Federation
from pflcli.fl.run import Run, Settings
from pflcli.steps import machine
from pflcli.steps.making import Manner

Row = dict[str, Any]


def settings(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    """Return the training settings ``base`` with ``changes``; raises UsageError for one that does not fit."""
    built: Settings = config.build(Settings, {**base, **changes}, "the training settings")
    registry.card("models", built.model)
    return built


def prepare(data: Partition, method: ModuleType, cfg: Any, plan: Settings, seed: int, manner: Manner) -> Run:
    """Take the samples, build the model and return a run, ready for ``rounds`` or ``personalize``."""
    device = machine.device(manner.device)
    workers = machine.threads(manner.threads)
    torch.set_num_threads(workers)
    federation = Federation.of(data.x, data.y, data.offsets, data.classes, device)
    net = models.create(plan.model, federation.in_shape, data.classes, seed)
    engine = Engine(net, federation, seed=seed, threads=workers, way=machine.engine(manner.engine))
    init = {name: value.to(device) for name, value in P.of(net).items()}
    manner.watch.detail(f"{plan.model} on {device}, {engine.way} engine, {workers} threads")
    return Run(method.KIND, cfg, plan, seed, federation, engine, init)


def rounds(run: Run, name: str, method: ModuleType, work: Work, manner: Manner) -> tuple[dict[str, Any], list[Row]]:
    """Run all rounds of a method, from its checkpoint if there is one; returns its last state and a row a round.

    A checkpoint is written whenever the last one cost less than a twentieth of the time since, and on interruption.
    """
    state = method.setup(run) if hasattr(method, "setup") else {}
    if not hasattr(method, "train_round"):
        return state, []
    rows: list[Row] = []
    saved = work.saved()
    if saved is not None:
        state, rows, run.traffic, way = _unpack(saved, work)
        if way != run.engine.way:
            # Ways agree to float tolerance only: a resumed run keeps the one it began with, so that its bytes do too.
            run.engine.way = way
            manner.watch.say(f"going on with the {way} engine, with which this run began")
        manner.watch.say(f"resuming after round {len(rows)} of {run.settings.rounds}")
    device = run.federation.x.device
    state = _moved(state, device)
    cost, last, kept = 0.0, time.monotonic(), len(rows)
    with manner.watch.progress(name, run.settings.rounds, len(rows)) as advance:
        try:
            for t in range(len(rows), run.settings.rounds):
                state, row = _round(run, name, method, state, t)
                rows.append(row)
                advance(1, _note(rows))
                if time.monotonic() - last >= 20 * cost:
                    began = time.monotonic()
                    work.checkpoint(_pack(run, state, rows))
                    last, kept = time.monotonic(), len(rows)
                    cost = last - began
        except KeyboardInterrupt:
            if kept < len(rows):
                work.checkpoint(_pack(run, state, rows))
            raise
    return state, rows


def _note(rows: list[Row]) -> str:
    known = [row["validation_accuracy"] for row in rows if not math.isnan(row["validation_accuracy"])]
    return f"loss {rows[-1]['loss']:.3f}" + (f", validation accuracy {known[-1]:.3f}" if known else "")


def _round(run: Run, name: str, method: ModuleType, state: Any, t: int) -> tuple[Any, Row]:
    before, began = dict(run.traffic), time.monotonic()
    run.losses.clear()
    try:
        state = method.train_round(run, state, t)
    except ComputationError as error:
        raise ComputationError(f"{name}, round {t + 1}: {error.message}", *error.fix) from None
    weight = sum(weight for _, weight in run.losses)
    loss = sum(loss * weight for loss, weight in run.losses) / weight if weight else math.nan
    due = (t + 1) % run.settings.eval_every == 0 or t + 1 == run.settings.rounds
    shared = state.get("global") if due else None
    row = {
        "round": t + 1,
        "clients": len(run.losses),
        "lr": run.settings.lr_at(t),
        "loss": loss,
        "validation_accuracy": run.accuracy(shared, "validation") if shared else math.nan,
        **{f"bytes_{link}": run.traffic[link] - before[link] for link in run.traffic},
        "seconds": round(time.monotonic() - began, 4),
    }
    return state, row


def flatten(state: Mapping[str, Any], prefix: str = "") -> dict[str, torch.Tensor]:
    """Return a method's state, a nested dict of tensors, as one level with keys ``outer/inner``."""
    flat: dict[str, torch.Tensor] = {}
    for key, value in state.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}/")
        else:
            flat[prefix + key] = value.detach().cpu().contiguous()
    return flat


def nest(flat: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Undo ``flatten``."""
    state: dict[str, Any] = {}
    for key, value in flat.items():
        *outer, last = key.split("/")
        place = state
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = value
    return state


def _moved(state: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    return {k: _moved(v, device) if isinstance(v, Mapping) else v.to(device) for k, v in state.items()}


def _pack(run: Run, state: Mapping[str, Any], rows: list[Row]) -> bytes:
    facts = {"rows": json.dumps(rows), "traffic": json.dumps(run.traffic), "engine": run.engine.way}
    return bytes(save(flatten(state), facts))


def _unpack(content: bytes, work: Work) -> tuple[dict[str, Any], list[Row], dict[str, int], str]:
    try:
        with safe_open(work.folder / "checkpoint" / "state.safetensors", "pt") as file:
            facts = file.metadata()
        return nest(load(content)), json.loads(facts["rows"]), json.loads(facts["traffic"]), facts["engine"]
    except (SafetensorError, TypeError, KeyError, ValueError):
        raise InputError(f"the checkpoint in {work.folder} is damaged", "--force begins anew") from None


def table(rows: list[Row]) -> bytes:
    """Return ``rounds.csv``."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else ["round"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: "" if isinstance(value, float) and math.isnan(value) else value for key, value in row.items()}
        for row in rows
    )
    return text.getvalue().encode()


def draws(seed: int | None, source: Artifact) -> int:
    """Return the seed asked for, or that of the source, so that a chain shares one."""
    return int(source.manifest.request.get("seed", 0)) if seed is None else seed
