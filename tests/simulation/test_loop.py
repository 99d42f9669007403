"""What is recorded of rounds, and which clients and predictions count."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from pflcli.core import methods
from pflcli.core.engine import backend
from pflcli.core.simulation import absences, loop, personal_accuracy
from pflcli.plugins.checks.laws import federations
from pflcli.workflow.admission import small_federation as small


def test_the_loss_of_a_round_is_weighted_by_training_samples():
    run = small.make_run("fedavg", participation=1.0, batch_size=64, lr=1e-12, epochs=1, rounds=1)
    code = methods.load("fedavg")
    _, row = loop.play_round(run, "fedavg", code, code.setup(run), 0)
    everything = np.concatenate([run.federation.rows(client, "train") for client in small.PARTICIPANTS])
    assert row["loss"] == pytest.approx(run.loss_per_group(run.init, [everything])[0], rel=1e-5)
    each = run.loss_per_group(run.init, [run.federation.rows(client, "train") for client in small.PARTICIPANTS])
    assert row["loss"] != pytest.approx(each.mean(), rel=1e-3)


def test_rows_have_the_learning_rate_of_their_round():
    run = small.make_run("fedavg", rounds=3, lr_schedule="cosine", lr=0.2)
    code, rates = methods.load("fedavg"), []
    state = code.setup(run)
    for t in range(3):
        state, row = loop.play_round(run, "fedavg", code, state, t)
        rates.append(row["lr"])
    least = run.settings.gamma  # a cosine falls from 1 to this share
    assert rates == pytest.approx([0.2, 0.2 * (1 + least) / 2, 0.2 * least])


@pytest.mark.parametrize(
    ("read", "noted"),
    [
        (lambda run: run.settings.lr, False),
        (lambda run: run.settings.lr_at(1), False),
        (lambda run: run.settings.rounds, True),
        (lambda run: run.settings.is_due(0, 2), True),
        (lambda run: replace(run.settings, lr=0.5).lr, True),  # a copy has the number too
    ],
)
def test_a_round_notes_whether_the_method_reads_the_number_of_rounds(read, noted):
    run, seen = small.make_run("fedavg", rounds=3), []
    code = methods.load("fedavg")
    settings = run.settings

    class Method(type(code)):
        def train_round(self, run, state, t):
            seen.append(read(run))
            return code.train_round(run, state, t)

    loop.play_round(run, "fedavg", Method(), code.setup(run), 0)
    assert seen == [read(run)]
    assert run.notes.reads_rounds == noted
    assert run.settings is settings


def test_a_prediction_that_is_finite_in_part_is_replaced_as_a_whole():
    run = small.make_run("fedavg")
    p = np.full((int(run.federation.sizes("test").sum()), small.CLASSES), 1 / 3, np.float32)
    p[1] = [0.5, math.nan, 0.5]
    finite, flags = absences.replace_nonfinite(run, run.clients, {"test": {"p": p}})
    np.testing.assert_array_equal(finite["test"]["p"][1], np.full(3, np.float32(1 / 3)))
    assert flags["overflowed"].tolist() == [True] + [False] * 6


@pytest.mark.parametrize("method", ["fedavg-plus", "ditto", "ifca"])
def test_clients_that_join_later_do_not_count_in_personal_accuracy(method):
    data = federations.add_new_clients(small.make_federation(), ((5, 3, 3), (4, 2, 2)))
    run = small.make_run(method, data=data)
    state = small.play_rounds(method, run)
    code = methods.load(method)
    for key in filter(None, [code.PERSONAL_MODELS]):
        if isinstance(state[key], torch.Tensor):
            state[key] = torch.zeros_like(state[key])
        else:
            state[key][run.clients] = state[key][run.clients]
    assert not set(personal_accuracy.find_owners(run, code, state)) & {7, 8}
    wrong = replace(data, y=small.replace_samples(data, "validation", clients=np.asarray([7, 8]), inputs=False).y)
    other = small.make_run(method, data=wrong)
    measured = [personal_accuracy.measure_accuracy(each, code, state) for each in (run, other)]
    assert measured[0] == measured[1]


def test_seconds_of_a_round_leave_out_the_time_of_compiling(monkeypatch):
    compiler = pytest.importorskip("pflcli.plugins.accelerated.compiler")
    run = small.make_run("fedavg", rounds=1)
    code = methods.load("fedavg")
    train_round = code.train_round

    def compile_first(run, state, t):
        with compiler.spent.measured(), compiler.spent.measured():  # a function, and one that it calls
            time.sleep(0.5)
        time.sleep(0.1)
        return train_round(run, state, t)

    monkeypatch.setattr(code, "train_round", compile_first)
    before, _ = backend.compile_seconds()
    began = time.monotonic()
    _, row = loop.play_round(run, "fedavg", code, code.setup(run), 0)
    everything, compiling = time.monotonic() - began, backend.compile_seconds()[0] - before
    assert 0.5 <= compiling <= everything - 0.1
    assert 0.1 <= row["seconds"] <= everything - 0.5 + 1e-3
