"""``pfl site``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pflcli.cli import console
from pflcli.cli.from_options import Json, Quiet, Verbose
from pflcli.core.errors import UsageError, closest
from pflcli.core.execution import Execution
from pflcli.core.wording import as_typed, counted, listed
from pflcli.options import completion

_ACTIONS = ("check", "serve", "answer")
_USES = {
    "check": "pfl site check PARTITION FEDERATION -o DIR",
    "serve": "pfl site serve DIR --at EXCHANGE",
    "answer": "pfl site answer DIR MESSAGE -o FILE",
}


def command(
    action: Annotated[
        str,
        typer.Argument(
            help="check shows what will leave the site, and makes its folder; serve answers all messages in a folder;"
            " answer answers one.",
            metavar="check|serve|answer",
            autocompletion=completion.words(*_ACTIONS),
        ),
    ],
    source: Annotated[
        Path,
        typer.Argument(
            help="For check, the partition of the site; otherwise the folder that check made.",
            metavar="PARTITION|DIR",
            autocompletion=completion.artifacts("partition"),
        ),
    ],
    other: Annotated[
        Path | None,
        typer.Argument(
            help="For check, the federation; for answer, the message.",
            metavar="FEDERATION|MESSAGE",
            autocompletion=completion.artifacts("federation"),
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Make the folder of the site here, or write the answer to this file.",
            metavar="DIR|FILE",
            show_default=False,
        ),
    ] = None,
    exchange: Annotated[
        Path | None,
        typer.Option(
            "--at", help="Exchange messages with the server in this folder.", metavar="DIR", show_default=False
        ),
    ] = None,
    threads: Annotated[int, typer.Option(help="Use this many threads; 0 uses one per core.", metavar="N")] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Take part in a federation with the samples of one site, which never leave it.

    Only model updates leave, with their weights and training losses. After the last round, DIR has the predictions of
    the site, for `pfl predict`, `pfl evaluate` and `pfl export`.

    Examples:
        pfl site check p fed -o site
        pfl site serve site --at exchange
    """
    from pflcli.commands import site

    reporter = console.Console(quiet=quiet, verbose=verbose)
    execution = Execution(threads=threads, reporter=reporter)
    if action not in _ACTIONS:
        raise UsageError(f"unknown action '{action}'", closest(action, _ACTIONS))
    given = {"other": other is not None, "exchange": exchange is not None, "out": out is not None}
    fits = {
        "check": given == {"other": True, "exchange": False, "out": True},
        "serve": given == {"other": False, "exchange": True, "out": False},
        "answer": given["other"] and not given["exchange"],
    }
    if not fits[action]:
        raise UsageError(f"pfl site {action} has other arguments", _USES[action])
    if action == "serve" and exchange is not None:
        console.result(site.serve(source, exchange, execution), as_json=as_json)
        return
    if action == "answer" and other is not None:
        path = site.answer(source, other, out, execution)
        if as_json:
            console.data({"path": str(path)})
        else:
            console.lines([str(path)])
        return
    assert other is not None
    assert out is not None
    facts = site.check(source, other, out)
    if as_json:
        console.data(facts)
        return
    for line in _describe(facts):
        reporter.say(line)
    console.lines([facts["path"]])


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
    yield "  with the weight of the update, training losses, whether training diverged, and versions; no sample"
    if facts["uploads"]:
        yield "  updates can reveal samples: docs/deployment.md says what the server learns from one"
    if facts["train"] != facts["declared_train"]:
        at_most = " and counts no more" if facts["train"] > facts["declared_train"] else ""
        yield f"WARNING: {facts['train']} training samples, the federation knows {facts['declared_train']}{at_most}"
    if facts["other_packages"]:
        yield f"WARNING: {facts['other_packages']}: last bits may differ from the simulation"
