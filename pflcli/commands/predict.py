"""``pfl predict``: predict for new samples with a client's personal model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import codebook
from pflcli.artifacts.open_by_path import Chosen, open_one
from pflcli.data.formats import ABSENT, missing_name_error
from pflcli.data.preparation.samples_to_predict import SampleFile
from pflcli.data.preparation.user_data import choose_dialect
from pflcli.errors import UsageError
from pflcli.evaluation import coverage
from pflcli.execution import Execution
from pflcli.options.function import command
from pflcli.options.predict import Predict
from pflcli.prediction import disclosure, prediction_file, reopened_run, stored_predictor
from pflcli.prediction.disclosure import Disclosure
from pflcli.prediction.prediction_file import PredictedSamples
from pflcli.prediction.stored_predictor import ClientPrediction, StoredPredictor
from pflcli.wording import counted


@command(Predict)
def predict(asked: Predict) -> PredictedSamples:
    """Predict for the samples in ``data`` with the model of one client of the predictions ``source``.

    Samples are read and preprocessed like those of the partition (columns by name, words as features, medians for
    missing values, the client's scale), unless an option such as ``decimal`` says that a table is written differently.
    For stored test samples the predictions equal the stored ones, bit for bit with the same device and engine. A model
    of features from ``embed`` also takes images. With ``client`` "none", the global model is used; the predictions of a
    real site are those of one client, and need no ``client``. Without ``answers``, the components of the probabilities
    are included. With ``coverage``, each prediction has a set of classes.

    Raises UsageError for invalid options; InputError for samples that the model cannot take, an incomplete lineage,
    another client than that of a site, or ``client`` "none" without a global model; ConflictError if ``out`` exists and
    may not be replaced.
    """
    execution = asked.execution
    disclosed = disclosure.parse(asked.answers)
    rule = "own" if asked.threshold is None else asked.threshold
    coverage.check_options(asked.coverage)
    if asked.threshold is not None and asked.coverage is None:
        raise UsageError("--threshold needs --coverage", f"--coverage 0.9 --threshold {rule}")
    path = None if asked.out is None else Path(asked.out)
    form = prediction_file.choose_form(path, asked.form)
    if path is not None:
        prediction_file.require_writable(path, inputs=[asked.data, *([] if asked.weights is None else [asked.weights])])
    artifact = open_one(asked.source, "predictions", chosen=Chosen(asked.method, asked.seed))
    if asked.coverage is not None:
        coverage.read_calibration(artifact)
    predictor = stored_predictor.open_predictor(artifact, asked.weights)
    names = reopened_run.client_names(artifact)
    client = asked.client
    if client != ABSENT:
        client = reopened_run.choose_client(artifact, predictor.partition, client)
    number = names.index(client) if client in names else None
    if number is None and client != ABSENT:
        error = missing_name_error(str(artifact.path), "client", client, names)
        error.fix = (*error.fix, f"--client {ABSENT} predicts with the global model")
        raise error
    partition, book = predictor.partition, codebook.read(artifact)
    preprocessing = reopened_run.read_preprocessing(artifact, partition, book, client, execution, asked.encoder_weights)
    typed, dialect = choose_dialect(asked, book.dialect)
    queries = SampleFile(
        Path(asked.data), asked.features, asked.layout, dialect, typed, asked.unknown_words == "missing"
    ).read(preprocessing, execution.reporter)
    answer = predictor.predict(number, queries.x, execution)
    p, sets = answer.parts["p"], None
    labels = np.asarray(p.argmax(axis=1), dtype=np.int64)
    if asked.coverage is not None:
        disclose = disclosed.apply if disclosed is not None else np.asarray
        sets = coverage.calibrate_client_sets(artifact, number, p, labels, asked.coverage, rule, disclose)
    predicted = PredictedSamples(
        predictor.method,
        client,
        number is not None,
        queries.names,
        tuple(book.class_names(preprocessing.form.classes)),
        labels,
        *_disclose(answer, disclosed),
        sets,
    )
    _report(predictor, predicted, answer, execution)
    if path is not None and not prediction_file.write(
        path, prediction_file.FORMS[form](predicted), force=execution.force
    ):
        execution.reporter.say(f"{path} is up to date")
    return predicted


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
    if predicted.is_known:
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
