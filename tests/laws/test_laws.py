"""Every built-in file satisfies the laws of its group, and the channel enforces those on communication."""

from __future__ import annotations

from contextlib import ExitStack, suppress

import numpy as np
import pytest
import torch

import worlds
from helpers import ONE_OF_EACH_KIND, set_own_products
from pflcli.core import methods, registry
from pflcli.core.engine import linear_chain
from pflcli.core.errors import ComputationError
from pflcli.core.federation.run import LINKS
from pflcli.plugins.checks.laws import DoubtfulError, Subject, list_laws
from pflcli.plugins.checks.laws import methods as laws_of_methods
from pflcli.plugins.sites import admission
from pflcli.workflow.admission import NotApplicable

METHODS = registry.names("methods")


@pytest.mark.parametrize("law", list_laws("methods"), ids=lambda law: law.name)
@pytest.mark.parametrize("method", METHODS)  # one after the other, as the laws of a method share a run
def test_built_in_method_obeys_the_law(method, law):
    with suppress(NotApplicable):
        law.test(Subject("methods", method))


COMPILED_LAWS = (
    "a-client-predicts-the-same-alone",
    "a-resumed-run-gives-the-same-bytes",
    "clients-use-only-their-own-samples",
    "steps-of-an-epoch-are-an-epoch",
    "the-same-seed-gives-the-same-bytes",
)
"""Laws that compiled loops could break; elsewhere they only train networks with 100,000 weights or more."""


@pytest.mark.compiled
@pytest.mark.parametrize("name", COMPILED_LAWS)
@pytest.mark.parametrize("method", [*ONE_OF_EACH_KIND, "feddbe", "fedproto", "fedrod", "pfedgp"])
def test_methods_obey_laws_when_loops_are_compiled(method, name, monkeypatch):
    """Test_compiled holds the compiled loops of every method to its operators."""
    set_own_products(monkeypatch, True)
    monkeypatch.setattr(linear_chain, "LARGE", 0)
    monkeypatch.setattr(laws_of_methods, "_unchanged", {})
    (law,) = (law for law in list_laws("methods") if law.name == name)
    with suppress(NotApplicable):
        law.test(Subject("methods", method))


OTHERS = [
    (law, name)
    for group in ("models", "schemes", "uploads", "aggregators", "datasets")
    for law in list_laws(group)
    for name in registry.names(group)
    if name not in ("torchvision", "timm")  # families; tests/models compares their members with the originals
]


LOOP_ONLY = {"lstm"}
"""Networks that clients train one after the other, because PyTorch has no batching rule for their layers."""


@pytest.mark.parametrize(("law", "name"), OTHERS, ids=lambda value: getattr(value, "name", value))
def test_built_in_file_of_another_group_obeys_the_law(law, name):
    with ExitStack() as stack:
        stack.enter_context(suppress(NotApplicable))
        if law.name == "a-stack-of-clients-trains-as-a-loop" and name in LOOP_ONLY:
            stack.enter_context(pytest.raises(DoubtfulError, match="it is trained with --engine loop only"))
        law.test(Subject(law.group, name))


@pytest.mark.parametrize("kind", LINKS)
def test_run_refuses_a_link_that_the_kind_of_the_method_does_not_allow(kind):
    run = worlds.run()
    run.kind = kind
    for link in ("up", "down", "peer"):
        if link in LINKS[kind]:
            run.send(link, run.init, copies=2)
            assert run.traffic[link] == 2 * sum(v.numel() * 4 for v in run.init.values())
        else:
            with pytest.raises(ComputationError, match=link):
                run.send(link, run.init)


def test_run_refuses_to_send_while_clients_personalize():
    run = worlds.run("fedavg")
    with pytest.raises(ComputationError, match="personalizing"), run.personalizing():
        run.send("up", run.init)
    assert not run.sealed  # nor does a failure leave it so
    run.send("up", run.init)


def test_poisoned_numbers_of_the_server_cannot_be_used_as_sizes():
    """The largest integer would make np.bincount allocate memory until the interpreter aborts."""
    server = {"counts": torch.tensor([3, 1]), "flag": torch.tensor(False), "byte": torch.tensor(7, dtype=torch.uint8)}
    poisoned = admission.poison(methods.load("fedavg"), {**server, "model": {"w": torch.zeros(2)}})
    assert poisoned["counts"].tolist() == [-1, -1]
    assert (bool(poisoned["flag"]), int(poisoned["byte"])) == (True, 255)
    assert poisoned["model"]["w"].isnan().all()
    with pytest.raises(ValueError, match="negative"):
        np.bincount(poisoned["counts"].numpy())
