"""A rehearsal: its state has the size of a real run's, few clients stand for many, and tasks are only sampled."""

from __future__ import annotations

import numpy as np
import pytest

import worlds
from pflcli import config, methods, parameters, registry
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.import_data import import_data
from pflcli.commands.partition import partition
from pflcli.engine.federation import SPLITS
from pflcli.engine.strategy import MODES
from pflcli.estimates.excerpt import Excerpt, excerpt
from pflcli.estimates.rehearsal import rehearse
from pflcli.estimates.sampled_executor import Rates, SampledExecutor
from pflcli.parameters.model_table import ModelTable
from pflcli.settings import Settings

ROUNDS = 4


def as_excerpt(data=None):
    """All of a federation as an excerpt of itself."""
    data = worlds.federation() if data is None else data
    sizes = np.stack([data.sizes(split) for split in SPLITS], axis=1)
    able = data.participants
    return Excerpt(data, sizes, len(able), float(sizes[able, 0].mean()))


def settings(**changes):
    values = {"model": "mlp", "rounds": ROUNDS, "participation": 0.5, "batch_size": 4, **changes}
    return config.build(Settings, values, "")


def rehearsed(name, part, rates=None, mode="auto", **changes):
    method = methods.load(name)
    cfg = config.build(method.Config, {}, name)
    return rehearse(method, cfg, settings(**changes), part, 0, mode, rates or Rates(), shared=False)


def real_bytes(state):
    """Bytes of the tensors in a state."""
    return sum(
        real_bytes(value) if isinstance(value, dict) else value.numel() * value.element_size()
        for value in state.values()
        if not isinstance(value, ModelTable)
    )


def tables(state):
    """All tables in a state."""
    return [
        table
        for value in state.values()
        for table in (tables(value) if isinstance(value, dict) else [value] if isinstance(value, ModelTable) else [])
    ]


@pytest.fixture(scope="module")
def rates():
    """Rates that all methods share, of few tasks: how exact they are does not matter here."""
    return Rates(budget=0.2)


@pytest.mark.parametrize("name", registry.names("methods"))
def test_every_method_can_be_rehearsed_and_leaves_the_state_of_a_real_run(name, rates):
    data = worlds.clustered()
    result = rehearsed(name, as_excerpt(data), rates, "loop")
    run = worlds.run(name, rounds=ROUNDS, data=data, mode="loop")
    state = worlds.play(name, run)
    assert result.state_bytes == pytest.approx(real_bytes(state), rel=0.25, abs=64), name
    assert result.rounds.total + result.answers.total > 0
    for table in tables(state):
        # Which clients were ever selected is a draw; that none has more than one model is not.
        assert len(table.written) <= len(table)
    most = sum(len(table) * (parameters.size(table.default) + 8) for table in tables(state))
    assert result.table_bytes <= most
    assert (result.table_bytes > 0) == any(len(table.written) for table in tables(state)), name
    predictor_parts = {"p"}
    with run.personalizing():
        predictor = methods.load(name).personalize(run, state, run.clients)
        predictor_parts |= {*predictor.answer("test")}
    assert result.parts - len(predictor_parts) in (0, 1)  # beside them that of the backbone


def test_tables_have_as_many_models_as_clients_will_have_been_selected():
    part = as_excerpt(worlds.clustered(members=8))
    result, clients = rehearsed("ditto", part, rounds=50, participation=0.1), part.participants
    model = parameters.size(worlds.run("ditto", data=part.federation).init)
    ever = clients * (1 - (1 - 2 / clients) ** 50)
    assert result.table_bytes == pytest.approx(ever * model, rel=0.1)


def test_twice_the_rounds_take_about_twice_as_long(monkeypatch):
    monkeypatch.setattr("pflcli.estimates.sampled_executor.Rates.get", lambda self, kind, measure: (0.0, 1.0))
    few, many = (rehearsed("fedavg", as_excerpt(), rounds=rounds, eval_every=100) for rounds in (10, 20))
    assert many.rounds.parallel == pytest.approx(2 * few.rounds.parallel, rel=0.2)


def test_a_step_of_the_estimate_is_a_step_of_training(monkeypatch):
    """With a second per step and nothing else, FedAvg's rounds take as many seconds as its clients take steps."""
    monkeypatch.setattr(
        "pflcli.estimates.sampled_executor.Rates.get",
        lambda self, kind, measure: (0.0, float(kind[0] != "predict")),
    )
    part = as_excerpt(worlds.clustered(samples=32))
    result = rehearsed("fedavg", part, rounds=6, eval_every=100, batch_size=8, participation=1.0)
    stacks, steps = 4, 32 / 8  # 12 clients in four stacks, which take their steps together
    assert result.rounds.parallel == pytest.approx(6 * stacks * steps)


def test_an_executor_that_samples_returns_models_and_logits_of_the_right_shapes():
    run = worlds.run("fedavg")
    run.engine.executor = executor = SampledExecutor(run.engine.executor, Rates())
    (part,) = run.local_sgd(run.clients, run.initial_model(), t=0)
    assert part.finite.all()
    assert {name: value.shape[1:] for name, value in part.params.items()} == {
        name: value.shape for name, value in run.init.items()
    }
    logits, z = run.engine.infer(run.init, np.arange(5), features=True)
    assert (logits.shape, len(z)) == ((5, worlds.CLASSES), 5)
    assert executor.seconds > 0


def test_kinds_of_tasks_that_are_not_measured_any_more_take_the_rate_of_a_like_one():
    rates = Rates(budget=0.0)
    assert rates.get(("stack", 4, 8), lambda: (1.0, 2.0)) == (1.0, 2.0)
    rates.spent = 1.0
    assert rates.get(("stack", 4, 16), lambda: (9.0, 9.0)) == (1.0, 2.0)
    assert rates.get(("loop", 4, 16), lambda: (3.0, 4.0)) == (3.0, 4.0), "nothing like it was measured"


@pytest.mark.parametrize(
    "changes", [{"aggregator": "median"}, {"dp_noise": 1.0, "dp_delta": 1e-5}, {"upload": ("int8",)}]
)
def test_what_becomes_of_uploads_is_rehearsed(changes):
    assert rehearsed("fedavg", as_excerpt(), None, "loop", **changes).rounds.total > 0


def test_a_rehearsal_has_stacks_of_the_real_size():
    part = as_excerpt(worlds.clustered(members=8))
    cohorts = {mode: rehearsed("fedavg", part, None, mode, participation=1.0).rehearsed_cohort for mode in MODES}
    assert cohorts == {"loop": 12, "stacked": 24}


def test_an_excerpt_has_a_few_clients_of_all_sizes(tmp_path, monkeypatch):
    monkeypatch.setattr("pflcli.estimates.excerpt._CLIENTS", 64)
    sizes = np.arange(5, 205)
    owner = np.repeat(np.arange(200), sizes)
    np.savez(tmp_path / "data.npz", x=np.ones((len(owner), 3), np.float32), y=owner % 2, owner=owner)
    import_data(tmp_path / "data.npz", tmp_path / "data")
    partition(tmp_path / "data", tmp_path / "p")
    part = excerpt(open_artifact(tmp_path / "p"), "cpu")
    assert (len(part.sizes), len(part.federation.clients), part.scale) == (200, 64, 200 / 64)
    assert part.samples == len(owner)
    few = part.federation.sizes(*SPLITS)
    assert few.mean() == pytest.approx(sizes.mean(), rel=0.02)
    assert (few.min(), few.max()) == (5, 204)
