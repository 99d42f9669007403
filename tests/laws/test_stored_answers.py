"""Predictions for samples sent as a file equal the stored ones bit for bit, and those of an exported model to 1e-5.

The queries of ``pfl audit``, which are sent all at once, give the same predictions up to rounding.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers import CLASSIFYING
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.build_datastore import build_datastore
from pflcli.commands.extract import extract
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global
from pflcli.core import methods
from pflcli.core.errors import InputError
from pflcli.core.execution import Execution
from pflcli.plugins.audits import queries
from pflcli.plugins.export import reader
from pflcli.plugins.export.export import export
from pflcli.workflow.prediction import reopened_run, stored_predictor
from pflcli.workflow.prediction.stored_predictor import StoredPredictor

METHODS = CLASSIFYING
BRIEF = {"model": "mlp", "rounds": 1, "participation": 0.5}
ENGINES = {method: ("loop", "stacked")[number % 2] for number, method in enumerate(METHODS)}
"""One engine for each method, in turn: both are tried by many methods, and the law takes half the time."""


NOT_EXPORTED = {"alone", "alone-pooled", "constant", "fedproto", "gaussian-head", "knn-peers", "pfedfda", "pfedgp"}
"""Methods that answer by more than networks and a store."""
PAIR = {16, 17}
"""The clients that answer after the first sixteen: one of them is unseen."""


@pytest.fixture(scope="module")
def datastore_chain(tmp_path_factory):
    """Eighteen clients, more than answer at a time, four of them unseen, with all that a method may need."""
    at = tmp_path_factory.mktemp("chain")
    writers = {"scheme": "clusters", "options": {"groups": "2"}, "part": (1, 30)}
    partition("writers", at / "p", clients=18, new_clients=0.2, seed=1, **writers)
    train_global(at / "p", at / "b", settings=BRIEF)
    extract(at / "b", at / "e")
    build_datastore(at / "e", at / "d")
    return at


@pytest.mark.parametrize("method", METHODS)
def test_predictions_for_test_samples_sent_as_a_file_equal_the_stored_ones(method, datastore_chain, tmp_path):
    source = datastore_chain / "d" if methods.load(method).NEEDS else datastore_chain / "p"
    execution = Execution(engine=ENGINES[method], threads=1)
    personalize(method, source, tmp_path / "m", settings={} if source.name == "d" else BRIEF, execution=execution)
    artifact = open_artifact(tmp_path / "m")
    assert predictions.read_new_clients(artifact)[[*PAIR]].sum() == 1
    model, data = reopened_run.reopen(artifact, None), partitions.read(open_artifact(datastore_chain / "p"))
    expected, tuned = predictions.read(artifact, "test"), predictions.read_tuned(artifact)
    own = data.x[slice(*data.offsets[3 * 17 + 2 : 3 * 17 + 4])]
    at = stored_predictor.prepare_client(model, 17, own, Execution(threads=1))
    assert set(at.clients) == PAIR
    for client in PAIR:  # the other one answers for its own stored samples
        answers, _ = stored_predictor.predict_client(model, replace(at, client=client))
        answer = answers["test"]
        assert answer.parts.keys() == expected.parts.keys()
        for part, values in expected.parts.items():
            rows = values[slice(*expected.offsets[client : client + 2])]
            assert len(rows)
            assert rows.tobytes() == answer.parts[part].tobytes(), part
        assert answer.tuned == {name: values[client] for name, values in tuned.items()}
    sent_queries = queries.select_queries(data, queries.split_numbers(data) == 2)
    parts, _ = queries.predict_queries(StoredPredictor(artifact, model), sent_queries, Execution(threads=1))
    np.testing.assert_allclose(parts["p"], expected.parts["p"], rtol=0, atol=1e-5)
    if method in NOT_EXPORTED:
        with pytest.raises(InputError, match="cannot be exported"):
            export(artifact, tmp_path / "x", client=data.names[17], execution=Execution(threads=1))
        return
    exported = export(artifact, tmp_path / "x", client=data.names[17], execution=Execution(threads=1))
    p = reader.predict(exported.path, exported.model, own)
    np.testing.assert_allclose(p, expected.parts["p"][slice(*expected.offsets[17:19])], rtol=0, atol=1e-5)
