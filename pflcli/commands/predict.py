"""``pfl predict``: what a client of stored predictions answers for further samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import codebook
from pflcli.artifacts.chosen import open_one
from pflcli.data.formats import arrays
from pflcli.data.preparation.queries import Source
from pflcli.errors import UsageError, closest
from pflcli.execution import Execution
from pflcli.options.declaration import command
from pflcli.options.predict import Predict
from pflcli.prediction import answer_file, disclosure, reopened_run, stored_predictor
from pflcli.prediction.answer_file import PredictedSamples
from pflcli.prediction.disclosure import Disclosure
from pflcli.prediction.stored_predictor import ClientPrediction, StoredPredictor
from pflcli.wording import counted


@command(Predict)
def predict(asked: Predict) -> PredictedSamples:
    """Answer the samples of ``data`` as a client of the predictions ``source`` answers its own.

    ``data`` is a table (CSV, TSV, Parquet), an array file (NPY, NPZ, HDF5), a folder of images, or ``-`` for CSV from
    stdin; ``features``, ``layout`` and ``delimiter`` say how it is read. Samples are preprocessed as those of the
    partition were: columns by name, words as features, medians for missing values, the client's scale. Stored test
    samples get the stored answers, to the bit where device and engine are those of ``source``. A client that is not
    known is answered by the global model. With ``out`` (.csv, .jsonl or .npz) the answers are written to that file;
    ``form`` is that of what is printed. ``weights`` is the file with which a run began that has no backbone.
    ``method`` and ``seed`` choose among the predictions in a folder of ``compare``.
    ``answers`` says how much of an answer leaves: ``full`` probabilities, ``rounded:1`` or the ``label``; without it
    the parts that explain the answer are with it.

    Raises UsageError for an option that does not fit, InputError for samples that the model cannot take, a lineage that
    is not complete or a client that nothing can answer for, ConflictError if ``out`` exists and may not be replaced.
    """
    execution = asked.execution or Execution()
    disclosed = disclosure.parse(asked.answers)
    path = None if asked.out is None else Path(asked.out)
    form = answer_file.choose_form(path, asked.form)
    if asked.layout is not None and asked.layout not in arrays.LAYOUTS:
        raise UsageError(f"unknown --layout '{asked.layout}'", closest(asked.layout, arrays.LAYOUTS))
    if path is not None:
        answer_file.require_writable(
            path, force=execution.force, inputs=[asked.data, *([] if asked.weights is None else [asked.weights])]
        )
    artifact = open_one(asked.source, "predictions", method=asked.method, seed=asked.seed)
    answerer = stored_predictor.open_predictor(artifact, asked.weights)
    number = reopened_run.find_client(asked.client, reopened_run.client_names(artifact))
    partition, book = answerer.partition, codebook.read(artifact)
    preprocessing = reopened_run.read_preprocessing(artifact, partition, book, asked.client)
    queries = Source(Path(asked.data), asked.features, asked.layout, asked.delimiter).read(
        preprocessing, execution.reporter
    )
    answer = answerer.predict(number, queries.x, execution)
    predicted = PredictedSamples(
        answerer.method,
        asked.client,
        number is not None,
        queries.names,
        tuple(book.class_names(preprocessing.form.classes)),
        np.asarray(answer.parts["p"].argmax(axis=1), dtype=np.int64),
        *_leaving(answer, disclosed),
    )
    _report(answerer, predicted, answer, execution)
    if path is not None:
        answer_file.write(path, answer_file.FORMS[form](predicted), force=execution.force)
    return predicted


def _leaving(
    answer: ClientPrediction, disclosed: Disclosure | None
) -> tuple[Mapping[str, NDArray[np.float32]], Mapping[str, float]]:
    """Return the parts of an answer that leave, and the client's choices."""
    if disclosed is None:
        return answer.parts, answer.tuned
    return ({} if disclosed.is_label else {"p": disclosed.apply(answer.parts["p"])}), {}


def _report(
    answerer: StoredPredictor, predicted: PredictedSamples, answer: ClientPrediction, execution: Execution
) -> None:
    """Say who has answered, and what a user should know of the answers."""
    say, path = execution.reporter.say, answerer.artifact.path
    if predicted.is_known:
        say(
            f"{counted(len(predicted.samples), 'sample')}, answered by {predicted.method} for client {predicted.client}"
        )
    else:
        say(
            f"WARNING: {path} has no client '{predicted.client}': "
            f"{counted(len(predicted.samples), 'sample')}, answered by the global model"
        )
    for name in answerer.find_changed_code():
        say(f"WARNING: {name} has changed since {path} was made: answers may differ from those that it holds")
    for remark in answer.remarks:
        say(f"WARNING: {remark}")
