"""Extremely large values of options are refused with a message, or mean all clients."""

from __future__ import annotations

import dataclasses
import typing

import pytest

import worlds
from pflcli.core import config, methods, registry
from pflcli.core.errors import ComputationError, UsageError
from pflcli.core.settings import Settings

METHODS = registry.names("methods")
COUNTS = {
    **dict.fromkeys(
        (
            ("gossip", "k"),
            ("pens", "n"),
            ("pens", "partners"),
            ("knn-per", "k"),
            ("fedattn", "k"),
            ("fedattn-extended", "k"),
        ),
        True,
    ),
    **dict.fromkeys((("panm", "k"), ("panm", "l")), True),
    **dict.fromkeys((("ifca", "k"), ("fedem", "components")), False),
}
"""Numbers of clients, neighbours and models, and whether more than there are mean all."""


def list_options_of_type(kind, *owners):
    """Names and options of this type, or of this type or none."""
    return [
        (owner, field.name)
        for owner, cls in owners
        for field in dataclasses.fields(cls)
        if typing.get_type_hints(cls)[field.name] in (kind, kind | None)
    ]


OWNERS = [(name, methods.load(name).Config) for name in METHODS if methods.load(name).Config]


def play_rounds(method, **kwargs):
    run = worlds.run(method, **kwargs)
    return worlds.answers(method, run, worlds.play(method, run))


@pytest.mark.parametrize(("owner", "option"), list_options_of_type(int, *OWNERS, ("training", Settings)))
def test_integer_option_of_one_billion_is_refused_with_a_message(owner, option):
    cls = Settings if owner == "training" else methods.load(owner).Config
    with pytest.raises(UsageError, match=rf"{option}.*1000000000.* (the most|are asked for|not fit)"):
        config.build(cls, {option: "1000000000"}, owner)


@pytest.mark.parametrize(("method", "option"), COUNTS)
def test_count_option_above_the_number_of_clients_uses_all_clients_or_is_refused(method, option):
    if COUNTS[method, option]:
        assert "test" in play_rounds(method, options={option: 10**6}, rounds=2)
    else:
        with pytest.raises(UsageError, match="1000000 models are too many; the maximum is 1000"):
            play_rounds(method, options={option: 10**6})


@pytest.mark.parametrize("method", ["gossip", "fedattn"])
def test_k_above_the_number_of_clients_gives_the_same_predictions_as_all_clients(method):
    answers = [play_rounds(method, options={"k": k}, rounds=2)["test"] for k in (len(worlds.SIZES), 10**6)]
    assert answers[0].tobytes() == answers[1].tobytes()


def test_learning_rate_diverges_near_and_is_refused_above_the_float32_limit(small, tmp_path, pfl):
    ran = pfl("personalize", "pfedme", small.p, "-o", tmp_path / "x", "--model", "mlp", "--rounds", "1", "--lr", "1e38")
    assert ran.code == ComputationError.exit_code, ran.err
    assert "a smaller --lr may help" in ran.err
    ran = pfl("personalize", "pfedme", small.p, "-o", tmp_path / "x", "--model", "mlp", "--lr", "1e39")
    assert ran.code == UsageError.exit_code
    assert "the largest number is 1e+38" in ran.err
