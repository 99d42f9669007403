"""Options that several commands have, so that they mean the same everywhere."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from pflcli import config
from pflcli.cli import completion, console
from pflcli.cli.hardware_options import Device, Engine, Executor, GpusPerWorker, Jobs, RayAddress, Threads
from pflcli.errors import UsageError, closest

if TYPE_CHECKING:
    from pflcli.artifacts.make import Outcome
    from pflcli.execution import Execution


EXAMPLES = "\nExamples:\n"
"""What stands in a docstring above the examples of a command, one in a line."""


class Command(TyperCommand):
    """A command whose help ends with the examples of its docstring, and shows a default as ``[default: 60]``.

    Typer joins all lines into one paragraph, and writes a default in words as ``[default: (60)]``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        text, heading, lines = (self.help or "").partition(EXAMPLES)
        self.examples = [line.strip() for line in lines.splitlines() if line.strip()]
        if heading:
            self.help, self.epilog = text.strip(), "\n".join([heading.strip(), *self.examples])
        opening, closing = ("[dim]\\[", "][/]") if self.rich_markup_mode == "rich" else ("[", "]")
        for option in self.params:
            if isinstance(option, TyperOption) and isinstance(option.show_default, str):
                option.help = f"{option.help} {opening}default: {option.show_default}{closing}"
                option.show_default = False


def _configured(ctx: typer.Context, path: Path | None) -> Path | None:
    """Take the defaults of this command's options from its table in a TOML file; typed options override them."""
    if path is None:
        return None
    tables = config.read_toml(path)
    commands = _commands(ctx)
    for name in tables:
        if name not in commands:
            raise UsageError(f"{path}: unknown table [{name}]", closest(name, commands))
    table = tables.get(str(ctx.info_name), {})
    if not isinstance(table, Mapping):
        raise UsageError(f"{path}: '{ctx.info_name}' is not a table", f"[{ctx.info_name}]")
    known = {
        opt.removeprefix("--"): str(param.name)
        for param in ctx.command.params
        for opt in param.opts
        if not re.fullmatch("-.|--config", opt)
    }
    defaults: dict[str, Any] = {}
    for key, value in table.items():
        option = key.replace("_", "-")
        if option not in known:
            raise UsageError(f"{path}: unknown key '{key}' in [{ctx.info_name}]", closest(key, known))
        defaults[known[option]] = _pairs(value) if isinstance(value, Mapping) else _typed(value)
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    return path


def _commands(ctx: typer.Context) -> list[str]:
    """Return the names of all commands of ``pfl``, to which the command of ``ctx`` belongs."""
    pfl = ctx.find_root().command
    return [*getattr(pfl, "commands", {})]


def beside_file(ctx: typer.Context, param: typer.CallbackParam, value: list[str] | None) -> list[str] | None:
    """Add the ``key=value`` pairs of the configuration file to the typed ones, which override them."""
    from_file = (ctx.default_map or {}).get(str(param.name))
    if not value or not from_file or value == from_file:
        return value
    typed = {pair.split("=", maxsplit=1)[0] for pair in value}
    return [*(pair for pair in from_file if pair.split("=", maxsplit=1)[0] not in typed), *value]


def _pairs(values: Mapping[str, Any], owner: str = "") -> list[str]:
    """Return a table as ``key=value`` pairs, and a nested one (``ditto.lam = 0.5``) as ``owner.key=value``."""
    pairs = []
    for key, value in values.items():
        inner = isinstance(value, Mapping)
        pairs += _pairs(value, f"{owner}{key}.") if inner else [f"{owner}{key}={_typed(value)}"]
    return pairs


def _typed(value: Any) -> Any:
    """Return a TOML value as one would type it."""
    if isinstance(value, list):
        return ",".join(str(_typed(item)) for item in value)
    return str(value).lower() if isinstance(value, bool) else value


Out = Annotated[Path, typer.Option("--out", "-o", help="Write the artifact to this folder.", metavar="DIR")]
Force = Annotated[
    bool, typer.Option("--force", "-f", help="Replace an artifact at --out that was made with other options or inputs.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Print what would be done and why, but do not do it.")]
Seed = Annotated[
    int | None,
    typer.Option(help="Draw all random numbers from this seed.", show_default="that of the source", min=0, metavar="N"),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="Read defaults of options from this TOML file, from the table named like this command.",
        callback=_configured,
        is_eager=True,
        metavar="FILE",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Set an option of the method, scheme or dataset; repeat it for more. `pfl list` shows them.",
        metavar="KEY=VALUE",
        callback=beside_file,
        autocompletion=completion.assignments,
    ),
]
ChosenMethod = Annotated[
    str | None,
    typer.Option(
        help="Take the predictions of this method from a folder of `pfl compare`.",
        metavar="NAME",
        show_default="all",
        autocompletion=completion.names("methods"),
    ),
]
ChosenSeed = Annotated[
    int | None,
    typer.Option(
        help="Take the predictions of this seed from a folder of `pfl compare`.", metavar="N", show_default="all"
    ),
]
Baseline = Annotated[
    str, typer.Option(help="Measure gains against this method.", autocompletion=completion.names("methods"))
]
Weights = Annotated[
    Path | None,
    typer.Option(
        help="Start from this state dict (.safetensors or .pt).", metavar="FILE", show_default="random weights"
    ),
]
Target = Annotated[
    float | None,
    typer.Option(
        help="Also report the rounds, seconds and MB until validation accuracy first reaches this value (0 to 1). It is"
        " that of the clients' own models if the method has them, otherwise of the global model, measured every"
        " --eval-every rounds.",
        metavar="F",
        show_default=False,
    ),
]
Link = Annotated[
    str | None,
    typer.Option(
        help="Also report the seconds that all rounds would take if clients worked at the same time, behind links of"
        " this speed in Mbit/s, such as 10:50. Each round counts the mean client's time to compute (on one core of this"
        " machine), receive and send.",
        metavar="UP:DOWN",
        show_default=False,
    ),
]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metric",
        help="Rank methods by this metric, and compute gains, conclusion and picture from it: accuracy, auroc,"
        " average_precision, f1, balanced_accuracy, sensitivity, specificity, brier_score or log_loss. Further names"
        " add columns.",
        metavar="NAME,NAME",
        show_default="accuracy",
        autocompletion=completion.listed(completion.words(*completion.METRICS)),
    ),
]
Positive = Annotated[
    str | None,
    typer.Option(
        help="Take this one of two classes as the positive class of sensitivity, specificity and average_precision.",
        metavar="CLASS",
        show_default="the last",
    ),
]
Metric = Annotated[
    str,
    typer.Option(
        help="Choose by this metric on validation samples, such as auroc or log_loss.",
        metavar="NAME",
        autocompletion=completion.words(*completion.METRICS),
    ),
]
Tune = Annotated[
    int | None,
    typer.Option(
        help="First choose options and training settings of every method, fedavg's first, by --metric on validation"
        " samples: with at most this many trials per method, as `pfl tune` makes them.",
        metavar="N",
        show_default="no tuning",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result and errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print more details, and tracebacks of bugs.")]


def words(text: str) -> list[str]:
    """Return the words of a text, which commas separate."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(text: str, option: str) -> list[int]:
    """Return the integers in ``0,1,2``, the value of ``option``; raises UsageError for anything else."""
    try:
        return [int(word) for word in text.split(",") if word.strip()]
    except ValueError:
        raise UsageError(f"{option} {text} are not whole numbers", f"{option} 0,1,2") from None


def without_none(**values: Any) -> dict[str, Any]:
    """Return the options that a user set, without those that are None."""
    return {name: value for name, value in values.items() if value is not None}


_RUNNING: dict[str, tuple[Any, Any]] = {
    "device": (Device, "auto"),
    "threads": (Threads, 0),
    "engine": (Engine, "auto"),
    "jobs": (Jobs, 0),
    "executor": (Executor, "local"),
    "ray_address": (RayAddress, ""),
    "gpus_per_worker": (GpusPerWorker, 0.0),
    "config_file": (Config, None),
    "force": (Force, False),
    "dry_run": (DryRun, False),
    "as_json": (Json, False),
    "quiet": (Quiet, False),
    "verbose": (Verbose, False),
}
"""Options that say how an artifact is made, none of which changes it, with their defaults."""
RAY = ("executor", "ray_address", "gpus_per_worker")
"""Options of Ray."""
_HARDWARE = ("device", "threads", "engine", "jobs", *RAY)


def makes_artifact(*hardware: str) -> Callable[[Callable[..., Outcome]], Callable[..., None]]:
    """Give a command the options of all commands that make an artifact, and print the artifact that it returns.

    The command receives what was typed as its parameter ``execution``. Of the options in
    ``_HARDWARE`` it has those named in ``hardware``. A command that declares one of the options itself
    receives its value, too.
    """
    names = [name for name in _RUNNING if name in hardware or name not in _HARDWARE]

    def decorate(command: Callable[..., Outcome]) -> Callable[..., None]:
        # `Execution` is not imported to parse a command line, since NumPy would come with it.
        signature = inspect.signature(command, eval_str=True, locals={"Execution": object, "Outcome": object})

        @functools.wraps(command)
        def run(**values: Any) -> None:
            typed = {name: values[name] if name in signature.parameters else values.pop(name) for name in names}
            as_json = typed.pop("as_json")
            outcome = command(**values, execution=_execution(**typed))
            console.result(outcome, as_json=as_json)

        own = [value for name, value in signature.parameters.items() if name not in ("execution", *names)]
        show_parameters(run, [*own, *(signature.parameters.get(name) or _parameter(name) for name in names)])
        return run

    return decorate


def _parameter(name: str) -> inspect.Parameter:
    option, default = _RUNNING[name]
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=option)


def show_parameters(command: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> None:
    """Let Typer see these parameters of a command in place of those it was written with."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def _execution(*, config_file: Path | None, quiet: bool, verbose: bool, **choices: Any) -> Execution:
    """Return how to make an artifact, with the console as reporter."""
    from pflcli.execution import Execution

    return Execution(**choices, reporter=console.Console(quiet=quiet, verbose=verbose)).reading(config_file)
