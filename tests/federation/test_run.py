"""What a run offers to methods: initial models, and the training of clients."""

from __future__ import annotations

import ast
import dataclasses

import numpy as np
import pytest
import torch

import worlds
from helpers import cross_entropy_rule, files_of
from pflcli.core import parameters
from pflcli.core.errors import ComputationError
from pflcli.core.federation.attendance import AllAbsent, Attendance, RoundNotes
from pflcli.core.federation.run import Run


def test_a_run_is_complete_when_it_is_created():
    """Only what changes during a run is set later; all else is in its inputs."""
    nodes = [node for file in files_of("") for node in ast.walk(ast.parse(file.read_text()))]
    targets = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    of_runs = {
        each.attr for each in targets if "run" in (getattr(each.value, "id", ""), getattr(each.value, "attr", ""))
    }
    fields = {field.name for field in dataclasses.fields(Run)}
    assert of_runs & fields == {"traffic", "notes", "settings", "tables"}


def test_initial_models_without_further_draws_gives_only_the_common_model():
    run = worlds.run()
    run.draw_model = None
    assert worlds.same(run.initial_models(1), parameters.stack([run.init]))
    with pytest.raises(ComputationError, match="only one initial model"):
        run.initial_models(2)


@pytest.mark.parametrize("clients", [[0, 2], [4]])
def test_sum_uploads_raises_all_absent_when_no_client_completes_the_round(clients):
    run = worlds.run()
    run.notes = RoundNotes(Attendance(selected=np.asarray(clients), dropped=np.asarray(clients)))
    with pytest.raises(AllAbsent):
        run.local_sgd([], run.init, t=0).sum_uploads(lambda models: models)


@pytest.mark.parametrize(("participation", "count"), [(0.01, 1), (0.4, 2), (0.6, 4), (1.0, 6)])
def test_cohort_has_the_rounded_share_of_participants_without_repetition(participation, count):
    run = worlds.run(participation=participation)
    cohorts = [run.cohort(t) for t in range(20)]
    assert {len(np.intersect1d(cohort, run.federation.participants)) for cohort in cohorts} == {count}
    assert len({tuple(cohort) for cohort in cohorts}) > 1 or count == len(run.federation.participants)


def test_each_selected_client_drops_out_independently_in_each_round():
    run, rounds = worlds.run(participation=1.0, dropout=0.5), 100
    present = np.asarray([np.isin(run.federation.participants, run.cohort(t)) for t in range(rounds)])
    present = present[present.any(axis=1) & ~present.all(axis=1)]  # all are returned if none completes the round
    assert ((present.mean(axis=0) > 0.3) & (present.mean(axis=0) < 0.7)).all()
    correlations = np.corrcoef(present.T)[np.triu_indices(present.shape[1], 1)]
    assert np.abs(correlations).max() < 0.5
    assert (present[1:] != present[:-1]).any(axis=1).mean() > 0.5


def test_local_sgd_records_the_clients_that_trained():
    run = worlds.run()
    for part in run.local_sgd([6, 0, 3], run.init, t=0):
        assert run.notes.trained.issuperset(part.clients.tolist())
    assert run.notes.trained == {0, 3, 6}


def test_adapt_trains_only_clients_without_a_table_entry():
    run = worlds.run()
    clients, start = np.asarray([6, 0, 3]), run.initial_model()
    table = run.table(start)
    trained = {name: value + 1 for name, value in start.items()}
    table[[0]] = parameters.stack([trained])
    with run.personalizing():
        models = run.adapt(table, clients, start, epochs=2)
        rate = run.settings.lr_at(run.settings.rounds - 1)
        alone = run.local_sgd(np.asarray([6, 3]), start, t="newcomer", epochs=2, lr=rate)
        expected = table.overlay(clients, alone)
    assert worlds.same(models, expected)
    assert worlds.same(parameters.pick(models, 1), trained)
    assert not worlds.same(parameters.pick(models, 0), start)
    assert table.written.tolist() == [0], "the table itself must not change"


def test_adapt_keeps_only_table_entries_and_reads_per_client_values_of_newcomers():
    run, seen = worlds.run(), []
    clients, start = np.asarray([6, 0, 3]), run.initial_model()
    head = parameters.part(start, "head.")
    table = run.table(head)
    table[[0]] = parameters.stack([head])

    def rule(network, params, batch):
        seen.extend(batch.own["client"].flatten().tolist())
        return cross_entropy_of(network, params, batch)

    def cross_entropy_of(network, params, batch):
        inner = {name: params[name] for name in start}
        losses, grads = network.gradient(inner, batch)
        return losses, {**grads, **{f"own:{name}": torch.ones_like(params[f"own:{name}"]) for name in head}}

    both = {**start, **{f"own:{name}": value for name, value in head.items()}}
    own = {"client": torch.from_numpy(clients).float()[:, None]}
    with run.personalizing():
        heads = run.adapt(table, clients, both, epochs=1, prefix="own:", gradient=rule, own=own)
    assert set(seen) == {6.0, 3.0}
    assert set(heads) == set(head)
    assert worlds.same(parameters.pick(heads, 1), head)
    assert (parameters.pick(heads, 0)["head.bias"] < head["head.bias"]).all()


@pytest.mark.parametrize("kind", ["plain", "gradient", "objective"])
def test_local_sgd_from_one_model_equals_training_from_a_stack_of_it(kind):
    def objective(model, params, batch):
        return batch.loss(model(params, batch.x))

    rule = {"plain": {}, "gradient": {"gradient": cross_entropy_rule}, "objective": {"objective": objective}}[kind]
    run = worlds.run("fedavg")
    clients, start = np.arange(3), run.initial_model()
    results = [
        [part.params for part in run.local_sgd(clients, model, t=0, **rule)]
        for model in (start, parameters.repeat(start, 3))
    ]
    for one, stacked in zip(*results, strict=True):
        assert worlds.same(one, stacked)
