"""``pfl new-client``: serve a client that comes after the rounds, from its own samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli import sources
from pflcli.artifacts import codebook
from pflcli.artifacts.blocks import SPLITS
from pflcli.artifacts.chosen import open_one
from pflcli.artifacts.codebook import Codebook
from pflcli.artifacts.kinds import backbone, predictions
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds.predictions import LaterClients, SplitPredictions
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.data.formats import ABSENT, Roles
from pflcli.data.preparation import arrivals, deal
from pflcli.data.preparation.arrivals import Arrival
from pflcli.data.preparation.detect import form
from pflcli.data.preparation.preprocessing import Preprocessing
from pflcli.data.preparation.source import Source
from pflcli.errors import InputError, UnsuitedError, UsageError
from pflcli.evaluation.pool import STACK
from pflcli.execution import Execution
from pflcli.foreign import require_short
from pflcli.options.declaration import command
from pflcli.options.new_client import NewClient
from pflcli.prediction import reopened_run, stored_predictor
from pflcli.prediction.reopened_run import ReopenedRun
from pflcli.prediction.stored_predictor import ClientPrediction, PreparedClient
from pflcli.training import state_files
from pflcli.wording import counted

FRACTIONS = (0.6, 0.2, 0.2)
"""Train, validation and test, where the partition was split in another way than by fractions."""


@command(NewClient)
def new_client(asked: NewClient) -> Outcome:
    """Add a client to the predictions ``source``, served from its own samples ``data`` without a round.

    It is an unseen client: its method does for it what it does for those of a partition (a store for kNN-Per,
    fine-tuning, a head of its own). ``data`` is a table, an array file or a folder LABEL/IMAGE; its samples are
    preprocessed as those of the partition were. They are split by ``split_column`` or by ``fractions``, those of the
    partition by default. The new predictions have all clients of ``source`` and this one behind them.

    Raises UsageError for a name that ``source`` has, InputError for samples that the model cannot take, and where
    neither the method nor its run can serve a client that was not there.
    """
    execution = (asked.execution or Execution()).reading(asked.data, asked.weights)
    artifact = open_one(asked.source, "predictions")
    _check(artifact, asked.client)
    if asked.fractions is not None:
        deal.check_fractions(asked.fractions)
    model = reopened_run.reopen(artifact, asked.weights)
    if model.earlier_run is not None:
        raise InputError(
            f"{artifact.path} was run with --refit: a client that comes later has no choices to begin from",
            f"pfl new-client {model.earlier_run.path} DATA --client {asked.client} -o DIR",
        )
    path, partition, book = Path(asked.data), model.partition, codebook.read(artifact)
    # The scale of a client is its own, and is measured on its training samples.
    preparation = reopened_run.read_preprocessing(artifact, partition, replace(book, scales=()), None)
    read = Source(
        path,
        form(path),
        Roles(ABSENT, asked.label, asked.split_column),
        asked.features,
        preparation.resize,
        asked.delimiter,
        layout=asked.layout,
        like=preparation.like,
    )
    read.check()
    shares = asked.fractions or _fractions(partition)
    chosen = {"client": asked.client, "form": read.form, "sha256": read.sha256(), "fractions": list(shares)}
    options = {
        "label": asked.label,
        "features": asked.features,
        "split_column": asked.split_column,
        "layout": asked.layout,
    }
    chosen |= {name: value for name, value in {**options, "delimiter": asked.delimiter}.items() if value is not None}
    request = dict(artifact.manifest.request)
    request["later_clients"] = [*request.get("later_clients", []), chosen]
    code = {
        name: sources.code_hash(*name.split("/", 1)) if "/" in name else digest
        for name, digest in artifact.manifest.code.items()
    }
    spec = ArtifactSpec("predictions", request, (artifact.as_input("source", Path(asked.out)),), code=code)
    job = _Job(model, book, asked.client, read, preparation, shares)
    return make(asked.out, spec, execution, lambda writer: _build(job, writer, execution))


def _check(artifact: Artifact, client: str) -> None:
    """Raise UsageError for a name that a client cannot have, InputError for predictions of a stack."""
    if artifact.manifest.request["method"] == STACK:
        raise InputError(
            f"{artifact.path} is a stack, whose sources serve its clients",
            "pfl new-client for each of the stacked predictions, and pfl stack for what that makes",
        )
    if not client.strip() or not client.isprintable():
        raise UsageError(f"{client!r} is no name of a client", "--client NAME")
    require_short("--client", client)
    if client in reopened_run.client_names(artifact):
        raise UsageError(f"{artifact.path} has a client '{client}'", "--client with another name")


def _fractions(partition: Artifact) -> tuple[float, float, float]:
    """Return the fractions by which a partition's clients were split; ``FRACTIONS`` where test samples were given."""
    train, validation, test = partition.manifest.request.get("fractions", FRACTIONS)
    return (train, validation, test) if test else FRACTIONS


@dataclass(frozen=True)
class _Job:
    """What ``new_client`` was asked for, opened and checked."""

    model: ReopenedRun
    book: Codebook
    client: str
    source: Source
    preprocessing: Preprocessing
    fractions: tuple[float, float, float]


def _build(job: _Job, writer: ArtifactWriter, execution: Execution) -> Built:
    """Serve the client and write the predictions of all."""
    model, artifact, say = job.model, job.model.artifact, execution.reporter.say
    number = len(reopened_run.client_names(artifact))
    seed = int(model.partition.manifest.request.get("seed", 0))
    arrival = arrivals.read(
        job.source, job.preprocessing, job.book, job.client, number, job.fractions, seed, execution.reporter
    )
    stored = {split: predictions.read(artifact, split) for split in SPLITS if predictions.has(artifact, split)}
    later = reopened_run.join_later_clients(model.later, _later(arrival, model))
    model = replace(model, later=later)
    try:
        at = stored_predictor.prepare_client(model, number, None, execution)
    except UnsuitedError as error:
        raise InputError(f"{model.name} cannot serve a client that comes later: {error.message}") from None
    answers, _ = stored_predictor.predict_client(model, at, None)
    at.run.engine.close()
    others = len(at.run.federation.y) - len(later.y)
    rows = {split: at.run.federation.rows(number, split) - others for split in stored}
    splits = {split: _appended(part, answers[split], later, rows[split]) for split, part in stored.items()}
    tuned = {
        name: np.append(values, answers["test"].tuned[name]) for name, values in predictions.tuned(artifact).items()
    }
    unseen = predictions.new(artifact)
    unseen = np.append(np.zeros(number, np.bool_) if unseen is None else unseen, True)
    predictions.write(writer, predictions.Predictions(splits, tuned, unseen))
    predictions.write_later_clients(writer, later)
    state_files.keep(at.state, writer)
    codebook.write(writer, _with_client(job.book, artifact, job.client, arrival))
    if backbone.ROUNDS in artifact.manifest.files:
        writer.write(backbone.ROUNDS, artifact.read(backbone.ROUNDS))
    counts = " / ".join(map(str, np.diff(arrival.offsets)))
    say(f"{counted(len(arrival.y), 'sample')} of client {job.client}: {counts} (train / validation / test)")
    for remark in answers["test"].remarks:
        say(f"WARNING: {remark}")
    return _built(artifact, tuned, at)


def _later(arrival: Arrival, model: ReopenedRun) -> LaterClients:
    """Return the client's samples, with numbers behind those of all others."""
    known = partitions.read(model.partition).sample
    known = known if model.later is None else np.concatenate([known, model.later.sample])
    first = int(known.max(initial=-1)) + 1
    return LaterClients(arrival.x, arrival.y, first + arrival.rows, arrival.offsets)


def _appended(
    split: SplitPredictions, answer: ClientPrediction, later: LaterClients, rows: NDArray[np.int64]
) -> SplitPredictions:
    """Return stored predictions of a split with those of the client, of ``rows`` among later samples, behind them."""
    return SplitPredictions(
        {part: np.concatenate([values, answer.parts[part]]) for part, values in split.parts.items()},
        np.concatenate([split.y, later.y[rows]]),
        np.concatenate([split.sample, later.sample[rows]]),
        np.append(split.offsets, split.offsets[-1] + len(rows)),
    )


def _with_client(book: Codebook, artifact: Artifact, client: str, arrival: Arrival) -> Codebook:
    scales = book.scales if arrival.scale is None else (*book.scales, arrival.scale)
    return replace(book, clients=(*reopened_run.client_names(artifact), client), scales=scales)


def _built(artifact: Artifact, tuned: Mapping[str, Any], at: PreparedClient) -> Built:
    """Return the summary of the predictions, and how the client was served."""
    summary, circumstances = dict(artifact.manifest.summary), artifact.manifest.made
    summary["clients"] += 1
    summary["tuned"] = {
        name: {"mean": float(values.mean()), "min": float(values.min()), "max": float(values.max())}
        for name, values in tuned.items()
    }
    costs = {
        f"{name}_inputs": round(circumstances[name] + circumstances.get(f"{name}_inputs", 0), 3)
        for name in ("seconds", "processor_seconds")
        if name in circumstances
    }
    engine = at.run.engine
    device = at.run.federation.y.device.type
    return Built(summary, {"device": device, "engine": engine.mode, "threads": engine.threads, "jobs": 0, **costs})
