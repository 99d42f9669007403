"""Output of ``pfl federation`` and ``pfl site``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pflcli.cli import console, results
from pflcli.cli.from_options import Terminal
from pflcli.core.wording import as_typed, counted, listed

if TYPE_CHECKING:
    from pflcli.core.execution import Execution


def show_facts(
    facts: Mapping[str, Any], asked: Mapping[str, Any], execution: Execution, *, as_json: bool, quiet: bool
) -> None:
    """Print facts, one per line."""
    (console.data if as_json else console.facts)(facts)


show_path = results.show_path(dict)


def show_check(
    facts: Mapping[str, Any], asked: Mapping[str, Any], execution: Execution, *, as_json: bool, quiet: bool
) -> None:
    """Print what a site is asked to do and will send, and the path of its folder."""
    for line in () if as_json else _describe(facts):
        execution.reporter.say(line)
    show_path(facts, asked, execution, as_json=as_json, quiet=quiet)


def _describe(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a site is asked to do and will send, from the facts of ``check``."""
    settings = facts["settings"]
    options = "".join(f", {name} {as_typed(value)}" for name, value in facts["options"].items())
    then = f"the model for {facts['then']}, by {facts['method']}" if "then" in facts else facts["method"]
    length = counted(settings["steps"], "step") if settings["steps"] else counted(settings["epochs"], "epoch")
    yield f"the federation runs {then}{options}: {settings['model']}, {counted(settings['rounds'], 'round')}"
    yield f"  of {length} in minibatches of {settings['batch_size']} at learning rate {settings['lr']:g}"
    steps = listed(settings["upload"]) or "none, the update itself is sent"
    yield f"  upload steps: {steps}; the server combines updates by {settings['aggregator']}"
    if settings["dp_epsilon"] is not None or settings["dp_noise"] is not None:
        yield "  differential privacy: the server adds the noise, and sees each update without it"
    yield f"in a round, '{facts['client']}' sends {facts['bytes_up']:,} bytes, and receives {facts['bytes_down']:,}:"
    for each in facts["uploads"]:
        yield f"  {each['tensor']}  {each['type']}  {'x'.join(map(str, each['shape'])) or 'number'}"
    for when, count in (
        ("before the first round", "bytes_before_rounds"),
        ("after the last round", "bytes_after_rounds"),
    ):
        if facts[count]:
            yield f"  {when}, it sends {facts[count]:,} bytes of these"
    yield "  with weights, training losses, whether training diverged, and versions; no sample"
    attempts = counted(facts["most_attempts"], "attempt")
    yield f"  the server may repeat a round without sites that drop out, {attempts} at most"
    if facts["uploads"]:
        yield "  updates can reveal samples: docs/deployment.md says what the server learns from one"
    if facts["train"] != facts["declared_train"]:
        at_most = " and counts no more" if facts["train"] > facts["declared_train"] else ""
        yield f"WARNING: {facts['train']} training samples, the federation knows {facts['declared_train']}{at_most}"
    if facts["other_packages"]:
        yield f"WARNING: {facts['other_packages']}: last bits may differ from the simulation"
    yield f"this command sends nothing; to take part: pfl site serve {facts['path']} --at DIR"


FACTS, PATH, CHECK, ANSWER = (
    Terminal(show_facts),
    Terminal(show_path),
    Terminal(show_check),
    Terminal(results.show_path(lambda path: {"path": str(path)})),
)
