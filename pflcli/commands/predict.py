"""``pfl predict``: predict for new samples with a client's personal model."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds import read_labels
from pflcli.artifacts.open_by_path import Chosen, open_one
from pflcli.artifacts.reader import Artifact
from pflcli.core.errors import InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.wording import counted
from pflcli.data.formats import ABSENT, missing_name_error
from pflcli.data.preparation.preprocessing import Preprocessing
from pflcli.data.preparation.samples_to_predict import CLIENT_COLUMN, SampleFile, SamplesToPredict
from pflcli.data.preparation.user_data import choose_dialect
from pflcli.evaluation import coverage
from pflcli.evaluation.coverage import PredictionSets
from pflcli.options.function import command
from pflcli.options.predict import Predict
from pflcli.workflow.prediction import disclosure, prediction_file, reopened_run, stored_predictor
from pflcli.workflow.prediction.disclosure import Disclosure
from pflcli.workflow.prediction.prediction_file import PredictedSamples
from pflcli.workflow.prediction.stored_predictor import ClientPrediction, StoredPredictor

_Answer = tuple[NDArray[np.int64], ClientPrediction, PredictionSets | None]
"""The samples of one client by their places in the file, its predictions, and their sets."""


@command(Predict)
def predict(asked: Predict) -> PredictedSamples:
    """Predict for the samples in ``data`` with the model of one client of the predictions ``source``.

    Samples are read and preprocessed like those of the partition (columns by name, words as features, medians for
    missing values, the client's scale), unless an option such as ``decimal`` says that a table is written differently.
    For stored test samples the predictions equal the stored ones, bit for bit with the same device and engine. A model
    of features from ``embed`` also takes images. With ``client`` "none", the global model is used; the predictions of a
    real site are those of one client, and need no ``client``. With ``client_column``, each sample of a table is
    predicted with its client's model. Without ``answers``, the components of the probabilities
    are included. With ``coverage``, each prediction has a set of classes. If labels are numbers, predictions are in
    their unit, and sets are intervals.

    Raises UsageError for invalid options; InputError for samples that the model cannot take, an incomplete lineage,
    another client than that of a site, or ``client`` "none" without a global model; ConflictError if ``out`` exists and
    may not be replaced.

    >>> import numpy as np
    >>> from pflcli import partition, personalize, predict
    >>> np.savez("digits.npz", x=np.zeros((2, 28, 28), "uint8"))
    >>> trained = personalize("ditto", partition("writers", "runs/p", clients=6), "runs/ditto", model="mlp", rounds=2)
    >>> predict(trained, "digits.npz", client="w0012").p.shape
    (2, 10)
    """
    execution = asked.execution
    disclosure.parse(asked.answers)
    coverage.check_options(asked.coverage)
    if asked.threshold is not None and asked.coverage is None:
        raise UsageError("--threshold needs --coverage", f"--coverage 0.9 --threshold {asked.threshold}")
    path = None if asked.out is None else Path(asked.out)
    form = prediction_file.choose_form(path, asked.form)
    if path is not None:
        prediction_file.require_writable(path, inputs=[asked.data, *([] if asked.weights is None else [asked.weights])])
    artifact = open_one(asked.source, "predictions", chosen=Chosen(asked.method, asked.seed))
    if asked.coverage is not None:
        coverage.read_calibration(artifact)
    predictor = stored_predictor.open_predictor(artifact, asked.weights)
    if asked.client is not None and asked.client_column is not None:
        raise UsageError("--client and --client-column contradict each other", "leave out --client")
    partition, book = predictor.partition, codebook.read(artifact)
    # The file is read alike for all clients, which differ at most in their scales.
    common = reopened_run.read_preprocessing(
        artifact, partition, replace(book, scales=()), None, execution, asked.encoder_weights
    )
    client = None if asked.client_column is not None else _choose_client(artifact, partition, asked.client)
    task = read_labels(artifact.manifest, common.form.labels.outputs).task()
    disclosed = disclosure.parse(asked.answers, task.kind)
    queries = _read_samples(asked, book, common)
    owner = np.full(len(queries.names), client) if queries.owner is None else queries.owner
    if client is None:
        _require_known_clients(queries, artifact, partition)
    clients = list(dict.fromkeys(owner.tolist())) or ([] if client is None else [client])
    answers, remarks = _predict_each(asked, predictor, book, queries, owner, clients)
    answer, sets = _join(answers)
    parts, tuned = _disclose(answer, disclosed)
    numbers = task.tabulate(parts.get("p", answer.parts["p"]))
    if numbers and sets is not None:
        numbers |= dict(zip(("low", "high"), sets.members.T.astype(np.float32), strict=True))
    predicted = PredictedSamples(
        predictor.method,
        client or "",
        client is None or client in reopened_run.client_names(artifact),
        queries.names,
        () if numbers else tuple(book.class_names(common.form.labels.outputs)),
        np.asarray([] if numbers else answer.parts["p"].argmax(axis=1), dtype=np.int64),
        parts,
        tuned,
        sets,
        () if client is not None else tuple(owner.tolist()),
        numbers,
        task.unit,
    )
    _report(predictor, predicted, replace(answer, remarks=(*answer.remarks, *remarks)), execution)
    if path is not None and not prediction_file.write(
        path, prediction_file.FORMS[form](predicted), force=execution.force
    ):
        execution.reporter.say(f"{path} is up to date")
    return predicted


def _read_samples(asked: Predict, book: codebook.Codebook, common: Preprocessing) -> SamplesToPredict:
    """Read the samples to predict, as those of the partition were read unless options say otherwise."""
    typed, dialect = choose_dialect(asked, book.dialect)
    file = SampleFile(
        Path(asked.data),
        asked.features,
        asked.layout,
        dialect,
        typed,
        asked.unknown_words == "missing",
        asked.client_column,
        asked.id_column,
        asked.missing == "drop",
    )
    return file.read(common, asked.execution.reporter)


def _predict_each(
    asked: Predict,
    predictor: StoredPredictor,
    book: codebook.Codebook,
    queries: SamplesToPredict,
    owner: NDArray[np.str_],
    clients: Iterable[str],
) -> tuple[list[_Answer], list[str]]:
    """Predict the samples of each client with its model, and calibrate their sets.

    Also return remarks on samples that are unlike those for training. ``owner`` (n,) are the clients of the samples.
    """
    artifact, partition, answers, remarks = predictor.artifact, predictor.partition, list[_Answer](), list[str]()
    names, stored = reopened_run.client_names(artifact), partitions.read(partition)
    disclosed = disclosure.parse(asked.answers)
    known = stored.x[
        np.concatenate([np.arange(*stored.offsets[at : at + 2]) for at in range(0, 3 * len(stored.names), 3)])
    ]
    for name in clients:
        rows, number = np.flatnonzero(owner == name), names.index(name) if name in names else None
        own = reopened_run.read_preprocessing(artifact, partition, book, name, asked.execution, asked.encoder_weights)
        x = queries.prepare(own, rows)
        remarks += own.describe_outside(x, known, [queries.names[row] for row in rows])
        answer, sets = predictor.predict(number, x, asked.execution), None
        if asked.coverage is not None:
            disclose = disclosed.apply if disclosed is not None else np.asarray
            rule, p = "own" if asked.threshold is None else asked.threshold, answer.parts["p"]
            sets = coverage.calibrate_client_sets(artifact, number, p, asked.coverage, rule, disclose)
        answers.append((rows, answer, sets))
    return answers, remarks


def _choose_client(artifact: Artifact, partition: Artifact, asked: str | None) -> str:
    """Return the name of the client whose model is used; raises an error for one that is unknown or must be named."""
    if asked == ABSENT:
        return ABSENT
    client = reopened_run.choose_client(artifact, partition, asked)
    names = reopened_run.client_names(artifact)
    if client not in names:
        error = missing_name_error(str(artifact.path), "client", client, names)
        error.fix = (*error.fix, f"--client {ABSENT} predicts with the global model")
        raise error
    return client


def _require_known_clients(queries: SamplesToPredict, artifact: Artifact, partition: Artifact) -> None:
    """Raise InputError, with the place, at the first sample of a client without a model."""
    assert queries.owner is not None
    names = reopened_run.client_names(artifact)
    for row, name in enumerate(queries.owner.tolist()):
        if name in names:
            reopened_run.choose_client(artifact, partition, name)
            continue
        place = queries.raw.place(row, CLIENT_COLUMN, ())
        if not name:
            raise InputError(f"{place}: no value", "each sample needs a client")
        error = missing_name_error(f"{place}: {artifact.path}", "client", name, names)
        error.fix = (*error.fix, f"pfl new-client {artifact.path} DATA --client {shlex.quote(name)} -o DIR adds it")
        raise error


def _join(answers: Sequence[_Answer]) -> tuple[ClientPrediction, PredictionSets | None]:
    """Return the predictions and sets of several clients in the order of the file; ``rows`` are those of each."""
    order = np.argsort(np.concatenate([rows for rows, *_ in answers]), kind="stable")
    _, first, sets = answers[0]
    if len(answers) == 1:
        return first, sets
    shared = [part for part in first.parts if all(part in answer.parts for _, answer, _ in answers)]
    parts = {part: np.concatenate([answer.parts[part] for _, answer, _ in answers])[order] for part in shared}
    remarks = [
        remark for _, answer, each in answers for remark in (*answer.remarks, "" if each is None else each.remark)
    ]
    if sets is not None:
        members = np.concatenate([each.members for _, _, each in answers if each is not None])[order]
        sets = replace(sets, members=members, threshold=0.0)
    return ClientPrediction(parts, {}, tuple(dict.fromkeys(filter(None, remarks)))), sets


def _disclose(
    answer: ClientPrediction, disclosed: Disclosure | None
) -> tuple[Mapping[str, NDArray[np.float32]], Mapping[str, float]]:
    """Return the parts of a prediction and the choices of the client that are disclosed."""
    if disclosed is None:
        return answer.parts, answer.tuned
    return ({} if disclosed.is_label else {"p": disclosed.apply(answer.parts["p"])}), {}


def _report(
    predictor: StoredPredictor, predicted: PredictedSamples, answer: ClientPrediction, execution: Execution
) -> None:
    """Report which model predicted, and warnings about the predictions."""
    say, path = execution.reporter.say, predictor.artifact.path
    if predicted.clients:
        clients = counted(len(set(predicted.clients)), "client")
        say(f"{counted(len(predicted.samples), 'sample')}, predicted by {predicted.method} for {clients}")
    elif predicted.is_known:
        say(
            f"{counted(len(predicted.samples), 'sample')}, predicted by {predicted.method} for client "
            f"{predicted.client}"
        )
    else:
        say(f"{counted(len(predicted.samples), 'sample')}, predicted by the global model of {path}")
    for name in predictor.find_changed_code():
        say(f"WARNING: {name} has changed since {path} was made: predictions may differ from it")
    remarks = answer.remarks if predicted.sets is None else (*answer.remarks, predicted.sets.remark)
    for remark in filter(None, remarks):
        say(f"WARNING: {remark}")
