"""Keyed random draws, typed options, and the registry of files in folders."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated, Literal

import numpy as np
import pytest
from annotated_types import Ge

from pflcli.core import config, methods, models, registry, rng, schemes
from pflcli.core import datasets as data
from pflcli.core.errors import InputError, UsageError
from pflcli.core.registry import files
from pflcli.workflow.comparison import variants


def test_generator_depends_only_on_seed_and_key():
    first = rng.generator(0, "sgd", 3, 7).random(4)
    rng.generator(1, "other").random(100)
    np.testing.assert_array_equal(first, rng.generator(0, "sgd", np.int64(3), 7).random(4))
    others = [rng.generator(*key).random(4) for key in ((1, "sgd", 3, 7), (0, "sgd", 7, 3), (0, "sgd", "3", 7))]
    assert not any(np.array_equal(first, other) for other in others)
    assert 0 <= rng.integer(0, "init") < 2**63


def test_random_streams_equal_pinned_values():
    """Results on disk rest on these; a change needs a heading under Numbers."""
    assert rng.generator(0, "sgd", 1).integers(0, 10**6, 3).tolist() == PINNED
    assert rng.integer(0, "init") == PINNED_INTEGER


PINNED = [63203, 818675, 753611]
PINNED_INTEGER = 8_015_858_837_490_982_454


@dataclass(frozen=True)
class Config:
    count: Annotated[int, Ge(1)] = 3
    share: float | None = None
    grid: tuple[float, ...] = (0.0, 1.0)
    kind: Literal["a", "b"] = "a"
    flag: bool = True
    name: str = ""

    def __post_init__(self):
        if self.name == "bad":
            raise ValueError("name is bad")


def test_build_converts_strings_to_the_type_of_the_field():
    values = {"count": "7", "share": "0.5", "grid": "0, .5,1", "kind": "b", "flag": "false", "name": "0"}
    assert config.build(Config, values, "x") == Config(7, 0.5, (0.0, 0.5, 1.0), "b", False, "0")
    assert config.build(Config, {"share": "none", "grid": [1, 2]}, "x").grid == (1.0, 2.0)
    assert config.build(Config, {}, "x") == Config()
    assert config.plain(Config())["grid"] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"cuont": "1"}, "unknown option 'cuont' for knn-per"),
        ({"count": "0"}, "count=0 does not fit knn-per: Input should be greater than or equal to 1"),
        ({"count": "1.5"}, "count=1.5 does not fit"),
        ({"share": "nan"}, "share=nan does not fit"),
        ({"kind": "c"}, "should be 'a' or 'b'"),
        ({"grid": "0,x"}, "grid=0,x does not fit"),
        ({"name": "bad"}, "knn-per: name is bad"),
    ],
)
def test_build_refuses_and_names_wrong_options(values, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        config.build(Config, values, "knn-per")


@dataclass(frozen=True)
class Other:
    stride: int = 1


def test_build_each_assigns_options_to_their_owners():
    owners = {"scheme a": Config, "dataset b": Other, "dataset c": None}
    assert config.build_each(owners, {"stride": "3", "count": "7"}) == [Config(count=7), Other(3), None]
    assert config.build_each({"dataset c": None}, {}) == [None]
    with pytest.raises(UsageError, match="unknown option 'strid' for scheme a and dataset b") as error:
        config.build_each(owners, {"strid": "3"})
    assert error.value.fix == ("did you mean 'stride'?",)
    with pytest.raises(UsageError, match="stride=x does not fit dataset b"):
        config.build_each(owners, {"stride": "x"})


def test_datasets_and_schemes_share_no_option_names():
    """``pfl partition --set`` takes the options of both."""
    schemes, datasets = (
        {option.name for card in registry.cards(group) for option in card.options} for group in ("schemes", "datasets")
    )
    assert schemes
    assert datasets
    assert not schemes & datasets


def test_parse_assignments_reads_key_value_pairs():
    assert config.parse_assignments(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    with pytest.raises(UsageError, match="key=value"):
        config.parse_assignments(["a"])
    with pytest.raises(UsageError, match="set twice"):
        config.parse_assignments(["a=1", "a=2"])


@pytest.mark.parametrize(("group", "name"), [(g, n) for g in registry.GROUPS for n in registry.names(g)])
def test_card_documents_the_entry_and_its_options(group, name):
    card = registry.card(group, name)
    assert card.summary
    for option in card.options:
        assert option.doc, f"{option.name} has no docstring"
        assert option.default, f"{option.name} has no default"
    if group == "methods":
        assert re.search(r"\d{4}\)", card.doc), "the docstring cites its source"
        assert {"KIND", "NEEDS", "PAPER", "YEAR"} <= set(card.facts)


def test_file_in_the_folder_is_registered(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "folder", lambda group: tmp_path)
    (tmp_path / "foo_bar.py").write_text('"""Foo."""\nKIND = "local"\nimport torch\n')
    (tmp_path / "_hidden.py").write_text("")
    assert registry.names("methods") == ["foo-bar"]
    assert registry.card("methods", "foo-bar").facts == {"KIND": "local"}
    with pytest.raises(UsageError, match="unknown method 'foo-baz'") as error:
        methods.load("foo-baz")
    assert error.value.fix[0] == "did you mean 'foo-bar'?"


FULL = """
from dataclasses import dataclass

KIND = "server"
NEEDS = ()
PAPER = "Example"
YEAR = 2017

@dataclass(frozen=True)
class Config:
    pass

def train_round(run, state, t):
    return state

def personalize(run, state, clients):
    return None
"""


def load_method_from_source(source):
    """A file of methods, with this text, as it is loaded."""
    module = ModuleType("example")
    exec(source, module.__dict__)
    return registry.complete(module, "example.py: method example", methods.Method)


def test_loaded_method_has_defaults_for_omitted_members():
    full = load_method_from_source(FULL)
    assert (full.KIND, full.PERSONAL_MODELS, full.ADAPTS, full.has_rounds) == ("server", "", False, True)
    assert full.setup(None) == {}
    assert full.choices(full.Config()) == ()
    assert full.train_round(None, {"a": 1}, 0) == {"a": 1}
    assert not load_method_from_source(FULL.replace("def train_round", "def _hidden")).has_rounds


@pytest.mark.parametrize(
    ("old", "new", "words", "fix"),
    [
        ("YEAR = 2017", "", "has no YEAR", "Method in pflcli.core.methods"),
        ("def personalize", "def answer", "has no personalize", "Method in pflcli.core.methods"),
        (
            "def personalize",
            "def personalise",
            "has 'personalise', which is not used",
            "did you mean 'personalize'",
        ),
        ("YEAR = 2017", "YEAR = 2017\nPERSONALS = 'own'", "has 'PERSONALS'", "did you mean 'PERSONAL_MODELS'"),
        ("def train_round", "def train_rounds", "has 'train_rounds'", "did you mean 'train_round'"),
        ("run, state, t)", "run, state)", "train_round has no parameter 't'", "its parameters: run, state, t"),
        ("state, clients)", "state, clients, k)", "has the unknown parameter 'k'", "run, state, clients"),
    ],
)
def test_incomplete_method_is_refused_when_it_is_loaded(old, new, words, fix):
    with pytest.raises(InputError, match=f"example.py: method example.*{words}") as error:
        load_method_from_source(FULL.replace(old, new))
    assert fix in error.value.fix[0]


@pytest.mark.parametrize(
    ("group", "contract"),
    [("methods", methods.Method), ("schemes", schemes.Scheme), ("datasets", data.Dataset), ("models", models.Model)],
)
def test_registered_files_satisfy_their_contract(group, contract):
    for name in registry.names(group):
        assert contract in type(registry.load(group, name, contract)).__mro__


def test_cards_do_not_import_torch():
    code = "import sys; from pflcli.core import registry; registry.cards('methods'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "words"),
    [("k", "int >= 1"), ("weight", "float >= 0 and <= 1 | none"), ("kernel", "euclidean | scaled-squared")],
)
def test_option_types_are_described_in_words(name, words):
    options = {option.name: option for option in registry.card("methods", "knn-per-extended").options}
    assert options[name].type == words


@pytest.mark.parametrize(
    ("method", "options", "label"),
    [
        ("knn-per", {"decay": "auto"}, "knn-per"),
        ("knn-per", {"vote": "count"}, "knn-per@votes"),
        ("fedattn", {"neighbours": "random"}, "fedattn@random"),
    ],
)
def test_an_option_of_an_extension_is_answered_with_its_name(method, options, label):
    with pytest.raises(UsageError, match=f"for {label}") as error:
        config.build(methods.load(method).Config, options, label)
    assert error.value.fix[0].endswith(f"is an option of {method}-extended")


def test_all_methods_are_those_that_extend_none():
    names = variants._expand(["all", "knn-per-extended"])
    assert {"knn-per", "knn-per-plus"} <= {*names}
    assert names.count("knn-per-extended") == 1
    assert methods.load("knn-per-extended").EXTENDS in names
