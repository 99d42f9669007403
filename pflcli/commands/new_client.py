"""``pfl new-client``: personalize for a client that joins after the rounds, from its own samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import codebook
from pflcli.artifacts.codebook import Codebook, Dialect
from pflcli.artifacts.kinds import backbone, predictions, read_labels
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds.predictions import LaterClients, SplitPredictions
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.open_by_path import Chosen, open_one
from pflcli.artifacts.reader import Artifact, ancestor
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import sources
from pflcli.core.datasets import SPLITS
from pflcli.core.errors import GoneError, InputError, UnsuitedError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.foreign import require_short
from pflcli.core.splits import check_fractions
from pflcli.core.wording import counted
from pflcli.data.formats import ABSENT, Roles
from pflcli.data.preparation import new_client_samples
from pflcli.data.preparation.new_client_samples import NewClientSamples
from pflcli.data.preparation.preprocessing import Preprocessing
from pflcli.data.preparation.user_data import TABLES, UserData, choose_dialect, identify_form
from pflcli.methods.parts.logarithmic_pool import STACK
from pflcli.options.function import command
from pflcli.options.new_client import NewClient
from pflcli.workflow.prediction import reopened_run, stored_predictor
from pflcli.workflow.prediction.reopened_run import ReopenedRun
from pflcli.workflow.prediction.stored_predictor import ClientPrediction, PreparedClient
from pflcli.workflow.training import dp_secret, state_files

FRACTIONS = (0.6, 0.2, 0.2)
"""Fractions for training, validation and test if the partition was not split by fractions."""


@command(NewClient)
def new_client(asked: NewClient) -> Outcome:
    """Personalize for a new client from its samples ``data``, without a training round, and add it to ``source``.

    The client is treated like the unseen clients of a partition: kNN-Per builds a store, other methods fine-tune or
    train a head. ``data`` is a table, an array file or a folder LABEL/IMAGE; its samples are preprocessed like those of
    the partition, or embedded if they are images and the partition has features from ``embed`` (``encoder_weights`` is
    the file with the weights of the encoder, by default the one that ``embed`` read), and split by ``split_column`` or
    ``fractions`` (by default those of the partition). The new predictions contain all clients of ``source`` and, as the
    last one, this client.

    Raises UsageError for a name that ``source`` already has; InputError for samples that the model cannot take, and for
    methods and runs that cannot add a client.

    >>> import numpy as np
    >>> from pflcli import new_client, partition, personalize, train_global
    >>> x, y = np.zeros((40, 28, 28), "uint8"), np.arange(40) % 10
    >>> np.savez("me.npz", x=x, y=y, use=np.resize(["train", "train", "val", "test"], 40))
    >>> trained = train_global(partition("writers", "runs/p", clients=6), "runs/g", model="mlp", rounds=2)
    >>> tuned = personalize("fedavg-plus", trained, "runs/plus")
    >>> new_client(tuned, "me.npz", "runs/me", client="me", split_column="use").kind
    'predictions'
    """
    execution = asked.execution.reading(asked.data, asked.weights, asked.encoder_weights)
    artifact = open_one(asked.source, "predictions", chosen=Chosen(asked.method, asked.seed))
    _check(artifact, asked.client)
    if asked.fractions is not None:
        check_fractions(asked.fractions)
    model = reopened_run.reopen(artifact, asked.weights)
    if model.earlier_run is not None:
        raise InputError(
            f"{artifact.path} was run with --refit and --choices: a new client has no choices in the earlier run",
            f"pfl new-client {model.earlier_run.path} DATA --client {asked.client} -o DIR",
        )
    partition, book = model.partition, codebook.read(artifact)
    # If each client has its own scale, that of the new client is computed from its training samples.
    preparation = reopened_run.read_preprocessing(
        artifact, partition, replace(book, scales=()), None, execution, asked.encoder_weights
    )
    typed, dialect = choose_dialect(asked, book.dialect)
    read = _locate(asked, partition, dialect, preparation)
    read.check(typed)
    shares = asked.fractions or _fractions(partition)
    chosen = {"client": asked.client, "form": read.form, "sha256": read.sha256(), "fractions": list(shares)}
    options = {
        "label": read.roles.label,
        "features": asked.features,
        "split_column": asked.split_column,
        "layout": asked.layout,
    }
    chosen |= {name: value for name, value in options.items() if value is not None} | typed.given()
    request = dict(artifact.manifest.request)
    request["later_clients"] = [*request.get("later_clients", []), chosen]
    code = {
        name: sources.code_hash(*name.split("/", 1)) if "/" in name else digest
        for name, digest in artifact.manifest.code.items()
    }
    spec = ArtifactSpec("predictions", request, (artifact.as_input("source", Path(asked.out)),), code=code)
    job = _Job(model, book, asked.client, read, preparation, shares)
    return make(asked.out, spec, execution, lambda writer: _build(job, writer, execution))


def _locate(asked: NewClient, partition: Artifact, dialect: Dialect, preparation: Preprocessing) -> UserData:
    """Return the client's data, whose form and label are found if they are not given."""
    path = Path(asked.data)
    form = identify_form(path)
    return UserData(
        path,
        form,
        Roles(
            ABSENT,
            asked.label or _find_label(partition, form),
            asked.split_column,
            keep=None if form == "images" else tuple(partition.manifest.summary.get("kept", ())),
            may_lack=True,
        ),
        asked.features,
        preparation.decoding,
        dialect,
        layout=asked.layout,
        samples=preparation.array_kind if form in ("npz", "hdf5") else None,
        like=preparation.like,
    )


def _find_label(partition: Artifact, form: str) -> str | None:
    """Return the label that the partition's samples were imported with, if they were in a file of the same kind."""
    try:
        dataset = ancestor(partition, "dataset")
    except GoneError:
        return None
    request = {} if dataset is None else dataset.manifest.request
    kinds = [
        next((group for group in (TABLES, ("npz", "hdf5")) if each in group), ())
        for each in (form, request.get("form"))
    ]
    return request.get("label") if kinds[0] and kinds[0] == kinds[1] else None


def _check(artifact: Artifact, client: str) -> None:
    """Raise UsageError for an invalid name of a client, InputError for predictions of a stack."""
    if artifact.manifest.request["method"] == STACK:
        raise InputError(
            f"{artifact.path} is a stack: add the client to the stacked predictions instead",
            "pfl new-client for each of the stacked predictions, then pfl stack",
        )
    if not client.strip() or not client.isprintable():
        raise UsageError(f"{client!r} is not a valid name of a client", "--client NAME")
    require_short("--client", client)
    if client in reopened_run.client_names(artifact):
        raise UsageError(f"{artifact.path} already has a client '{client}'", "--client with another name")


def _fractions(partition: Artifact) -> tuple[float, float, float]:
    """Return the fractions by which a partition's clients were split; ``FRACTIONS`` if test samples were given."""
    train, validation, test = partition.manifest.request.get("fractions", FRACTIONS)
    return (train, validation, test) if test else FRACTIONS


@dataclass(frozen=True)
class _Job:
    """The arguments of ``new_client``, opened and checked."""

    model: ReopenedRun
    book: Codebook
    client: str
    source: UserData
    preprocessing: Preprocessing
    fractions: tuple[float, float, float]


def _build(job: _Job, writer: ArtifactWriter, execution: Execution) -> Built:
    """Personalize for the client, and write the predictions of all clients."""
    model, artifact, say = job.model, job.model.artifact, execution.reporter.say
    number = len(reopened_run.client_names(artifact))
    seed = int(model.partition.manifest.request.get("seed", 0))
    labels = read_labels(artifact.manifest, job.preprocessing.form.labels.outputs)
    samples = new_client_samples.read(
        job.source, job.preprocessing, job.book, labels, job.client, number, job.fractions, seed, execution.reporter
    )
    stored = {split: predictions.read(artifact, split) for split in SPLITS if predictions.has_split(artifact, split)}
    later = reopened_run.join_later_clients(model.later, _number_samples(samples, model))
    model = replace(model, later=later)
    try:
        at = stored_predictor.prepare_client(model, number, None, execution)
    except UnsuitedError as error:
        raise InputError(f"{model.name} cannot add a client after the rounds: {error.message}") from None
    answers, _ = stored_predictor.predict_client(model, at, None)
    at.run.engine.close()
    if dp_secret.FILE in artifact.manifest.files and at.run.privacy is None:  # that of rounds is not needed any more
        writer.write(dp_secret.FILE, artifact.read(dp_secret.FILE))
    others = len(at.run.federation.y) - len(later.y)
    rows = {split: at.run.federation.rows(number, split) - others for split in stored}
    splits = {split: _append_client(part, answers[split], later, rows[split]) for split, part in stored.items()}
    tuned = {
        name: np.append(values, answers["test"].tuned[name])
        for name, values in predictions.read_tuned(artifact).items()
    }
    unseen = predictions.read_new_clients(artifact)
    unseen = np.append(np.zeros(number, np.bool_) if unseen is None else unseen, True)
    predictions.write(writer, predictions.Predictions(splits, tuned, unseen, labels))
    predictions.write_later_clients(writer, later)
    state_files.write_state(at.state, writer)
    codebook.write(writer, _add_client_name(job.book, artifact, job.client, samples))
    if backbone.ROUNDS in artifact.manifest.files:
        writer.write(backbone.ROUNDS, artifact.read(backbone.ROUNDS))
    counts = " / ".join(map(str, np.diff(samples.offsets)))
    say(f"{counted(len(samples.y), 'sample')} of client {job.client}: {counts} (train / validation / test)")
    for remark in answers["test"].remarks:
        say(f"WARNING: {remark}")
    return _summarize(artifact, tuned, at)


def _number_samples(samples: NewClientSamples, model: ReopenedRun) -> LaterClients:
    """Return the client's samples, numbered after those of all other clients."""
    known = partitions.read(model.partition).sample
    known = known if model.later is None else np.concatenate([known, model.later.sample])
    first = int(known.max(initial=-1)) + 1
    return LaterClients(samples.x, samples.y, first + samples.rows, samples.offsets, samples.kept)


def _append_client(
    split: SplitPredictions, answer: ClientPrediction, later: LaterClients, rows: NDArray[np.int64]
) -> SplitPredictions:
    """Return stored predictions of a split, followed by those of the client for ``rows`` of the ``later`` samples."""
    return SplitPredictions(
        {part: np.concatenate([values, answer.parts[part]]) for part, values in split.parts.items()},
        np.concatenate([split.y, later.y[rows]]),
        np.concatenate([split.sample, later.sample[rows]]),
        np.append(split.offsets, split.offsets[-1] + len(rows)),
    )


def _add_client_name(book: Codebook, artifact: Artifact, client: str, samples: NewClientSamples) -> Codebook:
    scales = book.scales if samples.scale is None else (*book.scales, samples.scale)
    return replace(book, clients=(*reopened_run.client_names(artifact), client), scales=scales)


def _summarize(artifact: Artifact, tuned: Mapping[str, Any], at: PreparedClient) -> Built:
    """Return the summary of the predictions, and the circumstances in which the client was added."""
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
