"""Methods that divide a model into body and head refuse a model that is all head, before anything is trained."""

from __future__ import annotations

import pytest

import worlds
from helpers import CLASSIFYING
from pflcli.commands.compare import compare
from pflcli.core import methods
from pflcli.core.errors import UsageError
from pflcli.core.execution import Execution

METHODS = CLASSIFYING
QUICK = ("--model", "logistic", "--rounds", 1, "--threads", 1)


@pytest.mark.parametrize("method", METHODS)
def test_method_declares_that_it_divides_models_exactly_when_a_logistic_model_fails(method):
    run, failure = worlds.run(method, model="logistic", rounds=1), None
    try:
        worlds.answers(method, run, worlds.play(method, run))
    except UsageError as error:
        failure = (error.message, error.fix[-1])
    expected = (
        "the model has no parameters under 'body.'",
        "a model that is all head cannot be divided: use --model mlp",
    )
    assert failure == (expected if methods.load(method).DIVIDES else None)


@pytest.mark.parametrize("line", [("personalize", "fedper"), ("compare", "--methods", "local,fedper")])
def test_command_refuses_a_model_without_a_body_before_training(pfl, small, tmp_path, monkeypatch, line):
    monkeypatch.setattr("pflcli.core.simulation.create_run.Engine", None)
    ran = pfl(*line, small.p, "-o", tmp_path / "out", *QUICK)
    assert ran.code == 3
    assert "fedper divides a model into its body and its head, but logistic is all head" in ran.err
    assert "use --model mlp, or leave out fedper" in ran.err
    assert not [*tmp_path.iterdir()]


PRIVATE = {"dp_noise": 1.0, "dp_delta": 0.1}


@pytest.mark.parametrize(
    ("settings", "is_refused"),
    [({"model": "logistic"}, lambda method: method.DIVIDES), (PRIVATE, lambda method: method.SENDS_MORE)],
    ids=["model", "privacy"],
)
def test_compare_leaves_out_methods_that_do_not_suit_the_settings_when_all_are_requested(
    small, tmp_path, settings, is_refused
):
    asked = {name for name in METHODS if not methods.load(name).EXTENDS}
    refused = {name for name in asked if is_refused(methods.load(name))}
    options = {name: {"lr": 0.01} for name in asked}
    outcome = compare(
        small.p,
        tmp_path / "c",
        methods="all",
        options=options,
        settings=settings,
        execution=Execution(dry_run=True),
        references=False,
    )
    planned = {step["step"] for step in outcome.summary["plan"]}
    assert refused
    assert planned & {*METHODS} == asked - refused
