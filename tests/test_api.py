"""The Python API: each command is a function of ``pflcli``."""

from __future__ import annotations

import gc
import importlib
import inspect
import pkgutil
import re
from operator import attrgetter

import numpy as np
import pytest

import pflcli
from helpers import ROOT
from pflcli import build_datastore, compare, evaluate, import_data, partition, personalize, sweep
from pflcli.core import plugins, registry
from pflcli.core.errors import PflError, UsageError
from pflcli.core.settings import Settings
from pflcli.core.simulation import simulate as simulation
from pflcli.options.declaration import Options, declared_options

OWN = [path.stem for path in sorted((ROOT / "commands").glob("[!_]*.py")) if path.stem in pflcli.__all__]
ADDED = {
    command.replace(" ", ".") if " " in command else facts["function"].partition(":")[2]: (plug, facts)
    for command, (plug, facts) in plugins.added("COMMANDS").items()
}
"""The functions of commands of plug-ins, such as site.check of pfl site check, with what their ``plugin.py`` says."""
FUNCTIONS = {
    name: cls
    for name in OWN
    for cls in vars(importlib.import_module(f"pflcli.commands.{name}")).values()
    if isinstance(cls, type) and issubclass(cls, Options) and cls.__name__.lower() == name.replace("_", "")
} | {name: plug.load(facts["options"]) for name, (plug, facts) in ADDED.items()}


def test_every_command_that_writes_is_a_function_of_the_package():
    assert {path.stem for path in (ROOT / "commands").glob("[!_]*.py")} - {*OWN} == {"doctor", "listing", "show"}
    assert ADDED
    assert {*FUNCTIONS} == {*OWN, *ADDED}
    assert {name.partition(".")[0] for name in FUNCTIONS} <= {*pflcli.__all__} & {*dir(pflcli)}
    for name in OWN:
        assert getattr(pflcli, name) is getattr(importlib.import_module(f"pflcli.commands.{name}"), name)
    for name, (plug, facts) in ADDED.items():
        assert attrgetter(name)(pflcli) is plug.load(facts["function"])
    groups = ("federation", "site")
    listed = {f"{group}.{name}" for group in groups for name in getattr(pflcli, group).__all__}
    assert listed == {name for name in ADDED if name.startswith(groups)}


def test_no_name_of_the_package_is_listed_twice_or_is_also_a_module():
    for name in pflcli.__all__:
        getattr(pflcli, name)  # once used, it is a variable of the package too
    assert len(dir(pflcli)) == len({*dir(pflcli)})
    modules = {module.name for module in pkgutil.iter_modules(pflcli.__path__)}
    assert not modules & {*pflcli.__all__}


def test_unknown_attribute_of_the_package_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'pflcli' has no attribute 'personalise'"):
        _ = pflcli.personalise


@pytest.mark.parametrize("collects", [True, False])
def test_importing_a_name_leaves_garbage_collection_as_it_was(monkeypatch, collects):
    seen = []
    monkeypatch.delitem(pflcli.__dict__, "simulate", raising=False)
    monkeypatch.setattr(pflcli.importlib, "import_module", lambda name: seen.append(gc.isenabled()) or simulation)
    (gc.enable if collects else gc.disable)()
    try:
        assert pflcli.simulate is simulation.simulate
        assert (seen, gc.isenabled()) == ([False], collects)
    finally:
        gc.enable()


def test_table_is_a_data_frame_with_one_row_per_method(small):
    table = evaluate([small.fedavg, small.knn], small.ev).table()
    assert table.index.name == "method"
    assert {*table.index} == {"fedavg", "knn-per"}
    assert table["accuracy"].between(0, 1).all()
    assert len(sweep(small.e, small.sw).table()) > 1


def test_table_of_a_partition_is_refused(small):
    with pytest.raises(UsageError, match="this partition has no table"):
        partition("writers", small.p, clients=6, seed=0).table()


def test_partition_accepts_its_dataset_as_a_path(tmp_path):
    x = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(20) % 2, owner=np.arange(20) % 4 // 2)
    dataset = import_data(tmp_path / "a.npz", tmp_path / "data", client="owner").path
    assert partition(dataset, tmp_path / "p").summary["clients"] == 2


SMALL = {"model": "logistic", "rounds": 1}
EQUAL_CALLS = {
    "lists": lambda p, out: compare(
        [p.path], out, methods=["fedavg", "local"], seeds=[3], settings=SMALL, references=False
    ),
    "text": lambda p, out: compare(str(p.path), out, methods="fedavg,local", seeds="3", references=False, **SMALL),
    "numbers": lambda p, out: compare(
        p, out, methods=("fedavg", "local"), seeds=3, rounds="1", model="logistic", references=False
    ),
    "both": lambda p, out: compare(
        [p], out, methods="fedavg,local", seeds=3, settings={"rounds": 1}, model="logistic", references=False
    ),
}


@pytest.fixture(scope="module")
def partition_and_comparison(tmp_path_factory):
    """A partition of six clients, and a comparison on it."""
    folder = tmp_path_factory.mktemp("api")
    outcome = partition("writers", folder / "p", clients=6)
    return outcome, compare(outcome, folder / "c", methods="fedavg,local", seeds=3, references=False, **SMALL)


@pytest.mark.parametrize("form", EQUAL_CALLS)
def test_functions_accept_python_objects_and_command_line_strings(partition_and_comparison, form):
    partitioned, comparison = partition_and_comparison
    again = EQUAL_CALLS[form](partitioned, comparison.path.parent)
    assert (again.decision, again.fingerprint) == ("up to date", comparison.fingerprint)


def test_training_setting_none_means_the_default(partition_and_comparison):
    partitioned, comparison = partition_and_comparison
    out = comparison.path.parent.with_name("none")
    requests = [
        personalize("fedavg", partitioned, out, dry_run=True, **SMALL, **given).request
        for given in ({}, {"lr": None, "batch_size": None})
    ]
    assert requests[0] == requests[1]


@pytest.mark.parametrize("options", ["fedavg.lr=0.2", ["fedavg.lr=0.2"], {"fedavg": {"lr": 0.2}}], ids=str)
def test_options_can_be_a_mapping_or_assignments(partition_and_comparison, options):
    partitioned, comparison = partition_and_comparison
    out = comparison.path.parent.with_name("options")
    planned = compare(partitioned, out, methods="fedavg", options=options, dry_run=True, references=False, **SMALL)
    assert planned.request["methods"]["fedavg"]["settings"] == {"lr": 0.2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"round": 3}, "compare() has no argument 'round'"),
        ({"settings": {"rounds": 1}, "rounds": 2}, "compare(): rounds is given twice: 2 and, in settings, 1"),
        ({"options": 3}, "options=3 is not a mapping"),
        ({"coverage": "high"}, "coverage='high' is not a number"),
        ({"seeds": "a"}, "--seeds a is not a list of integers"),
        ({"tune": 0}, "compare(): tune=0 is not at least 1"),
    ],
    ids=str,
)
def test_wrong_argument_is_refused_by_name(partition_and_comparison, arguments, message):
    partitioned, _ = partition_and_comparison
    with pytest.raises(UsageError) as caught:
        compare(partitioned, "c", **arguments)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (partition, {"seed": -1}, "partition(): seed=-1 is not at least 0"),
        (build_datastore, {"capacity": 1.5}, "build_datastore(): capacity=1.5 is not at most 1.0"),
        (build_datastore, {"capacity": float("nan")}, "build_datastore(): capacity=nan is not at least 0.0"),
        (build_datastore, {"capacity": 1.0}, "in does not exist"),
    ],
)
def test_a_function_refuses_a_number_outside_the_bounds_of_its_option(tmp_path, command, arguments, message):
    with pytest.raises(PflError) as caught:
        command(str(tmp_path / "in"), tmp_path / "out", **arguments)
    assert message in caught.value.message


@pytest.mark.parametrize("name", [*FUNCTIONS, "simulate", "table"])
def test_a_function_refuses_values_of_another_type_by_name(name):
    """Each argument in turn is an object that nothing takes; the others need not make sense."""
    function = attrgetter(name)(pflcli)
    parameters = inspect.signature(function).parameters.values()
    needed = {each.name: "x" for each in parameters if each.default is each.empty and each.kind is not each.VAR_KEYWORD}
    for key in needed:
        with pytest.raises(PflError):
            function(**{**needed, key: object()})
    # The training settings are checked with what they are for, when a run begins.
    later = {"reporter", "word", *(setting.name for setting in registry.options(Settings))}
    for key in inspect.signature(function).parameters.keys() - later if name in FUNCTIONS else ():
        with pytest.raises(UsageError, match=rf"\b{key}(=| is )<object obj"):
            function(**{**needed, key: object()})


def test_missing_argument_is_a_type_error_that_names_it():
    with pytest.raises(TypeError, match="missing a required argument: 'out'"):
        compare("p")


def test_misspelt_argument_is_answered_with_the_nearest_one():
    with pytest.raises(UsageError) as caught:
        compare("p", "c", round=3)
    assert caught.value.fix == ("did you mean 'rounds'?",)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_lists_every_keyword_with_a_type_and_a_sentence(name):
    function, cls = attrgetter(name)(pflcli), FUNCTIONS[name]
    documented = dict(re.findall(r"^(\w+) : .+\n    (.+)", inspect.getdoc(function), re.MULTILINE))
    assert {*documented} == {*inspect.signature(function).parameters}
    assert all(len(sentence.split()) > 2 for sentence in documented.values())
    text = f"{inspect.signature(function)} {inspect.getdoc(function)}"
    assert not re.search(r"Annotated|typer|Typed\(|\\\[", text)
    for option in declared_options(cls):
        assert option.name in documented
    if "settings" in documented:
        assert {option.name for option in registry.options(Settings)} <= {*documented}


CLOSED = [(name, option) for name, cls in FUNCTIONS.items() for option in declared_options(cls) if option.choices]


@pytest.mark.parametrize(("name", "option"), CLOSED, ids=[f"{name}-{option.name}" for name, option in CLOSED])
def test_a_function_refuses_a_word_that_is_not_among_the_choices_of_an_option(name, option):
    required = {each.name: "nothing" for each in declared_options(FUNCTIONS[name]) if each.is_required}
    assert option.info.autocompletion("") == [*option.choices]
    with pytest.raises(UsageError, match=f"unknown {option.flag} 'nothing'"):
        attrgetter(name)(pflcli)(**{**required, option.name: "nothing"})
