"""``table`` of results in memory: the conclusion and the notes of ``pfl compare``, and what it refuses."""

from __future__ import annotations

import json
import pickle
import traceback
import warnings

import numpy as np
import pytest

import pflcli
from pflcli import Federation, simulate, table
from pflcli.core.errors import PflError, UsageError
from pflcli.core.wording import in_python

SETTINGS = {"model": "logistic", "rounds": 6, "lr": 0.01, "participation": 1.0, "eval_every": 1}
NAMES = ("amber", "birch", "cedar", "delta")


def draw_arrays(seed=0, samples=600):
    """Return samples with three classes, their labels and their clients."""
    draw = np.random.default_rng(seed)
    y = draw.integers(0, 3, samples)
    x = (draw.normal(size=(samples, 5)) + 2 * np.eye(5)[y]).astype(np.float32)
    return x, y.astype(str), np.asarray(NAMES)[draw.integers(0, len(NAMES), samples)]


@pytest.fixture(scope="module")
def federation():
    return Federation.from_arrays(*draw_arrays())


@pytest.fixture(scope="module")
def results(federation):
    names = ("fedavg", "local", "ditto", "constant")
    return {name: [simulate(name, federation, seed=seed, **SETTINGS) for seed in (0, 1)] for name in names}


@pytest.fixture(scope="module")
def shown(results):
    """The table of the results, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return table(results), [str(warning.message) for warning in caught]


def test_table_has_the_conclusion_and_the_notes_of_compare(shown, small, tmp_path):
    names = ["fedavg", "local", "ditto"]
    options = {"seeds": [0, 1], "references": False, "threads": 1}
    compared = pflcli.compare(small.p, tmp_path / "c", methods=names, settings=SETTINGS, **options)
    stored = json.loads((compared.path / "metrics.json").read_text())
    runs = {name: [next((tmp_path / "c").glob(f"seed-{seed}/{name}")) for seed in (0, 1)] for name in names}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        frame = table(runs)
    decision, scope, clients, *_ = frame.attrs["conclusion"]
    assert decision.partition(" (Training")[0] == stored["conclusion"]["sentence"].partition(" (Training")[0]
    assert [scope, clients] == [stored["conclusion"]["scope"], stored["conclusion"]["clients"]]
    assert {str(warning.message) for warning in caught} == {in_python(line) for line in stored["warnings"]}
    said = (compared.path / "table.md").read_text().splitlines()
    assert {*frame.attrs["notes"]} <= {in_python(line) for line in said}
    assert any(line.startswith("methods learned from training samples") for line in frame.attrs["notes"])


def test_table_warns_of_unfinished_training_and_says_what_to_type_in_python(shown):
    frame, warned = shown
    assert any("still rose" in line and "rounds=24" in line for line in warned)
    sentences = [*warned, *frame.attrs["notes"], *frame.attrs["conclusion"]]
    assert "--" not in " ".join(sentences)
    assert {*warned} <= {*frame.attrs["notes"]}
    assert "(Training is not finished: type rounds=24)" in frame.attrs["conclusion"][0]
    assert "reference, not ranked and not counted among the methods: constant" in frame.attrs["notes"]
    assert any("worst served: " in line and any(name in line for name in NAMES) for line in frame.attrs["conclusion"])


def test_run_that_patience_ended_while_accuracy_rose_is_advised_to_be_flat_which_goes_on(federation):
    settings = {**SETTINGS, "rounds": 60}
    ended = simulate("fedavg", federation, patience=2, **settings)
    with pytest.warns(UserWarning, match='type patience="flat"$'):
        frame = table({"fedavg": ended})
    assert '(Training is not finished: type patience="flat")' in frame.attrs["conclusion"][0]
    assert len(simulate("fedavg", federation, patience="flat", **settings).rounds) > len(ended.rounds)


def test_table_always_has_the_same_columns(results, shown):
    columns = [*shown[0].columns]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [*table({"local": results["local"][0]}).columns] == columns  # no baseline
        alone = table({"fedavg": results["fedavg"][0]})
        two = table({"a": results["fedavg"], "b": results["local"]}, baseline="b")
    assert [*alone.columns] == [*two.columns] == columns
    assert {"gain", "gain_low", "gain_high", "gain_p", "gain_p_corrected", "better_off"} <= {*columns}
    assert np.isnan(alone.loc["fedavg", "gain_low"])


def test_results_of_other_clients_splits_or_seeds_are_refused(results, federation):
    x, y, client = draw_arrays()
    renamed = Federation.from_arrays(x, y, np.char.add(client, "!"))
    split = Federation.from_arrays(x, y, client, seed=1)
    fewer = Federation.from_arrays(x[client != "amber"], y[client != "amber"], client[client != "amber"])
    for other, words in ((renamed, "different clients"), (fewer, "different clients"), (split, "different splits")):
        mine = simulate("local", other, **SETTINGS)
        with pytest.raises(UsageError, match=words) as raised:
            table({"fedavg": results["fedavg"][0], "local": mine})
        assert "same federation" in raised.value.fix[0]
    with pytest.raises(UsageError, match="fedavg has results of seed 0, 1, and local of seed 0\n"):
        table({"fedavg": results["fedavg"], "local": results["local"][0]})
    with pytest.raises(UsageError, match="two results with seed 0"):
        table({"fedavg": [results["fedavg"][0]] * 2})


def test_other_types_are_refused_with_what_to_type(results):
    one = results["fedavg"][0]
    for given in ([one, one], one, "runs/c", None):
        with pytest.raises(UsageError, match="not a mapping") as raised:
            table(given)
        assert "table({'fedavg': " in raised.value.fix[0]
    cases = [({0: one}, {}), ({"a": []}, {}), ({"a": 3}, {}), ({"a": {"b": one}}, {})]
    cases += [({"fedavg": one}, {name: 3}) for name in ("baseline", "split", "metric")]
    cases += [
        ({"fedavg": one}, {"baseline": None}),
        ({"fedavg": one}, {"metric": [3]}),
        ({"fedavg": one}, {"split": "x"}),
    ]
    for given, options in cases:
        with pytest.raises(PflError) as raised:
            table(given, **options)
        assert raised.value.fix, (given, options)


# Errors in Python


def errors():
    """Return all classes of errors of pfl."""
    found, unread = {PflError}, [PflError]
    while unread:
        classes = unread.pop().__subclasses__()
        unread += classes
        found.update(classes)
    return sorted((item for item in found if item.__module__.startswith("pflcli")), key=lambda item: item.__name__)


def test_a_traceback_has_the_remedy_that_the_command_line_prints(pfl):
    with pytest.raises(UsageError) as raised:
        simulate("fedavgg", Federation.from_arrays(*draw_arrays()))
    text = "".join(traceback.format_exception(raised.value))
    assert "unknown method 'fedavgg'" in text
    assert "did you mean 'fedavg'?" in text
    ran = pfl("personalize", "fedavgg", "p", "-o", "x")
    assert ran.err.count("did you mean 'fedavg'?") == 1


@pytest.mark.parametrize("kind", errors(), ids=lambda kind: kind.__name__)
def test_every_error_shows_its_message_and_remedy_also_from_another_process(kind):
    assert kind.__str__ is PflError.__str__
    if kind.__init__ is not PflError.__init__:  # it words its own message
        return
    error = kind("wrong", "type this", "", "or that")
    for same in (error, pickle.loads(pickle.dumps(error))):
        assert str(same) == "wrong\ntype this\nor that"
        assert (same.message, same.fix) == ("wrong", ("type this", "or that"))
    error.fix = (*error.fix, "added later")
    assert str(error).endswith("\nadded later")
    assert str(kind("wrong")) == "wrong"
