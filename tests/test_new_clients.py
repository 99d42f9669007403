"""Clients that join late: no method trains them in a round, and every method answers for them."""

from __future__ import annotations

import numpy as np
import pytest

from pflcli import registry
from pflcli.artifacts import predictions
from pflcli.artifacts.artifact import open_artifact
from pflcli.errors import UnsuitedError
from pflcli.fl.run import Run
from pflcli.steps.build_datastore import build_datastore
from pflcli.steps.extract import extract
from pflcli.steps.partition import partition
from pflcli.steps.personalize import personalize
from pflcli.steps.train_global import train_global

FEW = {"model": "mlp", "rounds": 3, "participation": 1.0}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Eight clients in two clusters, two of them new, with all that a method may need."""
    at = tmp_path_factory.mktemp("late")
    partition("writers", at / "p", scheme="clusters", clients=8, options={"groups": "2"}, new_clients=0.25, part=(1, 6))
    train_global(at / "p", at / "b", settings=FEW)
    extract(at / "b", at / "e")
    build_datastore(at / "e", at / "d")
    return at


@pytest.mark.parametrize("method", registry.names("methods"))
def test_new_clients_never_train_in_a_round_and_are_answered(method, world, tmp_path, monkeypatch):
    trained: set[int] = set()
    original = Run.local_sgd

    def watched(self, clients, *args, **kwargs):
        if not self.sealed:
            trained.update(np.asarray(clients).tolist())
        yield from original(self, clients, *args, **kwargs)

    monkeypatch.setattr(Run, "local_sgd", watched)
    source = world / "d" if registry.load("methods", method).NEEDS else world / "p"
    settings = {} if source.name == "d" else FEW
    try:
        personalize(method, source, tmp_path / "m", settings=settings)
    except UnsuitedError:
        pytest.skip("the method does not suit the world")
    new = set(np.flatnonzero(predictions.new(open_artifact(tmp_path / "m"))).tolist())
    assert len(new) == 2
    assert not trained & new
    answers = predictions.read(open_artifact(tmp_path / "m"), "test")
    sizes = np.diff(answers.offsets)
    assert all(sizes[client] > 0 for client in new)
    assert np.isfinite(answers.parts["p"]).all()
