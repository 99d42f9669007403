"""Output of ``pfl federation`` and ``pfl site``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
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


def show_run(
    facts: Mapping[str, Any], asked: Mapping[str, Any], execution: Execution, *, as_json: bool, quiet: bool
) -> None:
    """Print the table of several runs, and the path of what was written."""
    from pflcli.artifacts.reader import open_artifact

    if "runs" in facts and not quiet:
        console.artifact(open_artifact(Path(facts["path"])), to_stderr=True)
    show_path(facts, asked, execution, as_json=as_json, quiet=quiet)


def _describe(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a site is asked to do and will send, from the facts of ``check``."""
    runs, client = facts.get("runs", {"": facts}), facts["client"]
    seeds: dict[str, list[str]] = {}
    for name in runs:
        seeds.setdefault(name.partition("/")[2], []).append(name.partition("/")[0].removeprefix("seed-"))
    for label, known in seeds.items():
        run = runs[f"seed-{known[0]}/{label}" if label else ""]
        first, *rest = _describe_run(run)
        yield f"{label}, seed {listed(known)}: {first}" if label else f"the federation runs {first}"
        yield from rest
        sends = f"in a round, '{client}' sends {run['bytes_up']:,} bytes, and receives {run['bytes_down']:,}"
        yield f"  {sends}" if label else f"{sends}:"
        for when, count in (
            ("before the first round", "bytes_before_rounds"),
            ("after the last round", "bytes_after_rounds"),
        ):
            if run[count]:
                yield f"  {when}, it sends {run[count]:,} bytes" + ("" if label else " of these")
    if "" not in runs:
        yield f"in the messages of rounds, '{client}' sends:"
    yield from _list_tensors(runs, len(seeds))
    yield "  with weights, training losses, whether training diverged, and versions; no sample"
    if "scores" in facts:
        yield from _describe_scores(facts["scores"])
    attempts = counted(facts["most_attempts"], "attempt")
    yield f"  the server may repeat a round without sites that drop out, {attempts} at most"
    if any(run["uploads"] for run in runs.values()):
        yield "  updates can reveal samples: docs/deployment.md says what the server learns from one"
    if facts["train"] != facts["declared_train"]:
        at_most = " and counts no more" if facts["train"] > facts["declared_train"] else ""
        yield f"WARNING: {facts['train']} training samples, the federation knows {facts['declared_train']}{at_most}"
    if facts["other_packages"]:
        yield f"WARNING: {facts['other_packages']}: last bits may differ from the simulation"


def _list_tensors(runs: Mapping[str, Mapping[str, Any]], methods: int) -> Iterator[str]:
    """Yield the tensors that leave a site, each with the methods that send it, if not all of them do."""
    senders: dict[str, dict[str, None]] = {}
    for name, run in runs.items():
        for each in run["uploads"]:
            text = f"  {each['tensor']}  {each['type']}  {'x'.join(map(str, each['shape'])) or 'number'}"
            senders.setdefault(text, {})[name.partition("/")[2]] = None
    for text, labels in senders.items():
        yield text if len(labels) == methods else f"{text}  ({listed([*labels])})"


def _describe_run(run: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a site is asked to do in a run."""
    settings = run["settings"]
    options = "".join(f", {name} {as_typed(value)}" for name, value in run["options"].items())
    then = f"the model for {run['then']}, by {run['method']}" if "then" in run else run["method"]
    length = counted(settings["steps"], "step") if settings["steps"] else counted(settings["epochs"], "epoch")
    yield f"{then}{options}: {settings['model']}, {counted(settings['rounds'], 'round')}"
    yield f"  of {length} in minibatches of {settings['batch_size']} at learning rate {settings['lr']:g}"
    steps = listed(settings["upload"]) or "none, the update itself is sent"
    yield f"  upload steps: {steps}; the server combines updates by {settings['aggregator']}"
    if settings["dp_epsilon"] is not None or settings["dp_noise"] is not None:
        yield "  differential privacy: the server adds the noise, and sees each update without it"


def _describe_scores(scores: Mapping[str, Any]) -> Iterator[str]:
    """Yield which scores a site sends after the last run."""
    metrics, test = listed(scores["metric"]), counted(scores["test"], "test sample")
    if scores["test"] < scores["fewest"]:
        yield f"after the last run, it sends no scores but that it has {test}, fewer than {scores['fewest']} (--fewest)"
        return
    yield f"after the last run, it sends scores of its {test} by run: {metrics}, and those that every table has;"
    yield "  counts by class of labels, of predictions and of right ones; sums of confidence; on how many samples a run"
    yield f"  differs from {scores['baseline']}; what it tuned; nothing of a single sample"


FACTS, RUN, CHECK, ANSWER = (
    Terminal(show_facts),
    Terminal(show_run),
    Terminal(show_check),
    Terminal(results.show_path(lambda path: {"path": str(path)})),
)
