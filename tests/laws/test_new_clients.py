"""Clients that join late: no method learns from them in its rounds, and every method answers for them."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import worlds
from helpers import CLASSIFYING, ONE_OF_EACH_KIND
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.build_datastore import build_datastore
from pflcli.commands.extract import extract
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global
from pflcli.core import methods
from pflcli.core.datasets import SPLITS
from pflcli.core.errors import UnsuitedError
from pflcli.core.federation.run import Run
from pflcli.core.parameters.model_table import ModelTable
from pflcli.core.simulation.progress import tables
from pflcli.evaluation.metrics import client_relations
from pflcli.plugins.checks.laws.federations import add_new_clients
from pflcli.workflow.training import state_files
from pflcli.workflow.training.state_files import load_state

METHODS = CLASSIFYING
SIZES = ((11, 3, 4), *((3, 1, 2),) * 15)
"""Samples of new clients."""
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


@pytest.mark.parametrize(
    "method", [*ONE_OF_EACH_KIND, "alone", "alone-pooled", "fedhealth", "gaussian-head", "knn-per-plus", "pooled"]
)
def test_new_clients_are_predicted_and_never_trained_in_a_round(method, world, tmp_path, monkeypatch):
    trained: set[int] = set()
    original, at_server = Run.local_sgd, Run.server_sgd

    def watched(self, clients, *args, **kwargs):
        if not self.sealed:
            trained.update(np.asarray(clients).tolist())
        yield from original(self, clients, *args, **kwargs)

    def central(self, rows, *args, **kwargs):
        owner = np.searchsorted(self.federation.offsets, np.asarray(rows), side="right") - 1
        trained.update((owner // len(SPLITS)).tolist())
        return at_server(self, rows, *args, **kwargs)

    monkeypatch.setattr(Run, "local_sgd", watched)
    monkeypatch.setattr(Run, "server_sgd", central)
    source = world / "d" if methods.load(method).NEEDS else world / "p"
    settings = {} if source.name == "d" else FEW
    try:
        personalize(method, source, tmp_path / "m", settings=settings)
    except UnsuitedError:
        pytest.skip("the method does not suit the world")
    new = set(np.flatnonzero(predictions.read_new_clients(open_artifact(tmp_path / "m"))).tolist())
    assert len(new) == 2
    assert not trained & new
    answers = predictions.read(open_artifact(tmp_path / "m"), "test")
    sizes = np.diff(answers.offsets)
    assert all(sizes[client] > 0 for client in new)
    assert np.isfinite(answers.parts["p"]).all()


def restrict_to_first_clients(state: object, like: object, clients: int) -> object:
    """The part of a state that is of the first ``clients``: rows of tables, and the head of every longer axis."""
    if isinstance(like, ModelTable):
        assert state.written.tolist() == like.written.tolist()
        return state[range(clients)]
    if isinstance(like, dict):
        assert state.keys() == like.keys()
        return {key: restrict_to_first_clients(state[key], like[key], clients) for key in like}
    if isinstance(like, torch.Tensor):
        return state[tuple(slice(n) for n in like.shape)]
    return state


@pytest.mark.parametrize("method", METHODS)
def test_state_of_the_other_clients_is_identical_with_and_without_new_clients(method):
    base = worlds.federation()
    without, beside = (
        worlds.run(method, data=base, rounds=4),
        worlds.run(method, data=add_new_clients(base, SIZES), rounds=4),
    )
    expected, actual = worlds.play(method, without), worlds.play(method, beside)
    tables_read = restrict_to_first_clients(expected, expected, len(base.clients))
    assert worlds.same(restrict_to_first_clients(actual, expected, len(base.clients)), tables_read)


class StateFiles:
    """The files that a state is kept in, as the writer and the reader of an artifact take them."""

    path = Path("m")

    def __init__(self, clients):
        self.contents = {}
        self.manifest = SimpleNamespace(files=self.contents, summary={"clients": clients})

    def write(self, name, content):
        self.contents[name] = content

    def stream(self, name, pieces):
        self.contents[name] = b"".join(bytes(piece) for piece in pieces)

    def read(self, name):
        return self.contents[name]

    def parsing(self, name):
        return nullcontext()


@pytest.mark.parametrize("method", METHODS)
def test_client_added_after_training_gets_the_predictions_of_a_held_out_client(method):
    """To the bit: its samples, and a state that was kept before it came, are all that its predictions need."""
    base = worlds.federation()
    data, code, late = add_new_clients(base, ((11, 3, 4),)), methods.load(method), np.asarray([len(base.clients)])
    beside, without, afterwards = (worlds.run(method, data=of, rounds=2) for of in (data, base, data))
    expected = worlds.answers(method, beside, worlds.play(method, beside), late)
    files = StateFiles(len(base.clients))
    state_files.write_state(worlds.play(method, without), files)
    actual = worlds.answers(method, afterwards, load_state(files, afterwards, code), late)
    assert {split: p.tobytes() for split, p in actual.items()} == {split: p.tobytes() for split, p in expected.items()}


@pytest.mark.parametrize("method", METHODS)
def test_stored_model_table_keeps_its_default(method):
    """To the bit, whether ``setup`` or a round made the table."""
    run, files = worlds.run(method, rounds=2), StateFiles(len(worlds.federation().clients))
    state = worlds.play(method, run)
    state_files.write_state(state, files)
    loaded = tables(load_state(files, worlds.run(method, rounds=2), methods.load(method)))
    for name, table in tables(state).items():
        assert worlds.same(loaded[name].default, table.default), name
        assert np.array_equal(loaded[name].written, table.written), name


def test_neighbour_precision_and_recall_ignore_new_clients():
    """Among ten clients of two groups, of which two are new and one has no samples to train on."""
    cluster, able = np.arange(10) % 2, np.asarray([0, 1, 2, 3, 4, 5, 6])
    graph = client_relations.share_cluster(cluster)
    graph[7:], graph[:, 7:] = False, False
    (row,) = client_relations.summarize_neighbours([graph], cluster, able)
    assert row == {"round": 1, "neighbours": (4 * 3 + 3 * 2) / 7, "precision": 1, "recall": 1}


def test_gossip_keeps_the_neighbours_of_a_client_that_sits_out_a_round():
    """As of neighbours that other methods find: a round that it sits out takes none from it."""
    run = worlds.run("gossip", participation=0.34, rounds=6, options={"k": 1})
    graph = client_relations.unpack_graph(worlds.play("gossip", run)["graph"].numpy(), len(run.clients))
    for t in range(1, 6):
        out = np.setdiff1d(run.clients, run.cohort(t))
        np.testing.assert_array_equal(graph[t, out], graph[t - 1, out])
        assert (graph[t, run.cohort(t)].sum(axis=1) == 1).all()
    assert graph[-1].sum() > len(run.cohort(5))
