"""Shell completion, without importing torch or NumPy.

A completer takes the incomplete word and, if it needs them, Typer's context with the words before it. It returns words,
or pairs of a word and its description; Typer drops those that do not start with the incomplete word.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import typer

from pflcli import registry
from pflcli.registry import Option

Offers = list[tuple[str, str]]
VARIABLE = "_PFL_COMPLETE"
"""Set by a shell that wants completions, by Typer's convention, to the name of the shell."""
METRICS = (
    "accuracy", "auroc", "average_precision", "f1", "balanced_accuracy", "sensitivity", "specificity", "brier_score",
    "log_loss",
)  # fmt: skip
"""The metrics by which methods can be ranked; a test compares them with the catalogue."""
SOURCES = ("partition", "backbone", "embeddings", "datastore")
"""Kinds of artifacts on which methods run."""


def words(*choices: str) -> Callable[[str], list[str]]:
    """Return a completer that offers these words."""
    return lambda incomplete: [*choices]


def names(group: str, *more: str) -> Callable[[str], list[str]]:
    """Return a completer that offers the names in a group of the registry, ``more``, and users' files by their path."""

    def complete(incomplete: str) -> list[str]:
        return [*more, *registry.names(group), *_python_files(incomplete)]

    return complete


def _python_files(incomplete: str) -> list[str]:
    """Return Python files and folders that continue a path; none for a word that is not a path."""
    parent, slash, start = incomplete.rpartition("/")
    if not slash:
        return []
    entries = sorted(os.scandir(Path(parent + slash).expanduser()), key=lambda entry: entry.name)
    matching = [entry for entry in entries if entry.name.startswith(start) and not entry.name.startswith(("_", "."))]
    files = [f"{parent}/{entry.name}" for entry in matching if entry.name.endswith(".py")]
    return files + [f"{parent}/{entry.name}/" for entry in matching if entry.is_dir()]


def comma_separated(choices: Callable[[str], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a completer for the last of several words separated by commas; it offers no word twice."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [before + comma + choice for choice in choices(last) if choice not in before.split(",")]

    return complete


def names_in_group(ctx: typer.Context) -> list[str]:
    """Complete the second argument of ``pfl list``: a name in the group of the first argument."""
    return registry.names(str(_typed(ctx)["kind"]))


def names_in_any_group() -> list[str]:
    """Complete a name in any group of the registry."""
    return [name for group in registry.GROUPS for name in registry.names(group)]


def artifacts(*kinds: str) -> Callable[[str], Offers]:
    """Return a completer for paths of artifacts of these kinds (of any kind if none is given) and their folders."""
    return lambda incomplete: _paths(incomplete, kinds)


def datasets(incomplete: str) -> Offers:
    """Complete a dataset: a name, or the path of an imported one."""
    return [(name, "") for name in registry.names("datasets")] + _paths(incomplete, ("dataset",))


def clients(ctx: typer.Context) -> list[str]:
    """Complete the name of a client of the artifact on the command line."""
    book = json.loads(Path(_typed(ctx)["source"], "codebook.json").read_text(encoding="utf-8"))
    return [str(name) for name in book["clients"]]


def _paths(incomplete: str, kinds: Sequence[str]) -> Offers:
    """Return artifacts and other folders that continue a path; a single ordinary folder is replaced by its contents."""
    parent, slash, start = incomplete.rpartition("/")
    offers: Offers = []
    folders: list[str] = []
    for entry in sorted(os.scandir(Path(parent + slash).expanduser()), key=lambda entry: entry.name):
        is_hidden = entry.name.startswith(".") and not start.startswith(".")
        is_unfinished = entry.name.endswith((".partial", ".partial.lock"))
        if is_hidden or is_unfinished or not entry.name.startswith(start) or not entry.is_dir():
            continue
        kind = _kind(Path(entry.path))
        if kind is None:
            folders.append(f"{parent}{slash}{entry.name}/")
        elif not kinds or kind in kinds:
            offers.append((f"{parent}{slash}{entry.name}", kind))
    if len(folders) == 1 and not offers:
        return _paths(folders[0], kinds)
    return offers + [(folder, "folder") for folder in folders]


def _kind(folder: Path) -> str | None:
    """Return the kind of the artifact in a folder; None if there is none."""
    with suppress(OSError, ValueError):
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        return str(manifest["kind"]) if isinstance(manifest, dict) and "kind" in manifest else None
    return None


def assignments(ctx: typer.Context, incomplete: str) -> Offers:
    """Complete ``--set KEY=VALUE`` for the method, scheme and dataset on the command line."""
    groups, typed = {"method": "methods", "scheme": "schemes", "dataset": "datasets"}, _typed(ctx)
    return _pairs(incomplete, [option for key in groups for option in _options(groups[key], typed.get(key))])


def searches(ctx: typer.Context, incomplete: str) -> Offers:
    """Complete ``--search KEY=VALUES`` of ``tune`` with options of the method and training settings."""
    return _pairs(incomplete, _options_and_settings(_typed(ctx).get("method")))


def assignments_by_method(ctx: typer.Context, incomplete: str) -> Offers:
    """Complete ``--set METHOD.KEY=VALUE`` for the methods on the command line."""
    listing = str(_typed(ctx).get("methods") or "all").split(",")
    methods = registry.names("methods") if "all" in listing else listing
    owner, dot, _ = incomplete.partition(".")
    if not dot:
        owners = [method for method in methods if method.startswith(incomplete)]
        if len(owners) != 1:
            return [(f"{method}.", "") for method in owners]
        owner = owners[0]
    return _pairs(incomplete, _options_and_settings(owner.partition("@")[0]), f"{owner}.")


def _typed(ctx: typer.Context) -> dict[str, Any]:
    """Return the parameters of the command, parsed from the words before the incomplete one.

    Typer's own ``params`` lack the arguments if the incomplete word is the value of an option, because Typer cannot
    parse that option.
    """
    words = _line()[2:]
    if words and words[-1].startswith("-"):
        words.pop()
    with ctx.command.make_context(ctx.info_name, words, resilient_parsing=True) as parsed:
        return dict(parsed.params)


def _line() -> list[str]:
    """Return the words before the incomplete one, as Typer's completion scripts pass them."""
    if os.environ[VARIABLE].endswith("bash"):
        words = os.environ["COMP_WORDS"].split("\n")[: int(os.environ["COMP_CWORD"])]
        return shlex.split(" ".join(words))
    line = os.environ["_TYPER_COMPLETE_ARGS"]
    return shlex.split(line if line.endswith(" ") else line.rpartition(" ")[0])


def _options(group: str, name: object) -> tuple[Option, ...]:
    """Return the options of a file of the registry; none for an unknown name."""
    return registry.card(group, str(name)).options if name in registry.names(group) else ()


def _options_and_settings(method: object) -> list[Option]:
    """Return the options of a method, and the training settings whose names they do not use."""
    from pflcli.settings import Settings

    own = _options("methods", method)
    names = [option.name for option in own]
    return [*own, *(setting for setting in registry.options(Settings) if setting.name not in names)]


def _pairs(incomplete: str, options: Sequence[Option], owner: str = "") -> Offers:
    """Return ``KEY=VALUE`` for each possible value of an option, or ``KEY=`` with and without its default.

    Two offers keep the shell from adding a space after their common prefix.
    """
    offers: Offers = []
    for option in options:
        key = f"{owner}{option.name}="
        if not (key.startswith(incomplete) or incomplete.startswith(key)):
            continue
        values = choices(option)
        offers += [] if values else [(key, option.doc)]
        offers += [(key + value, option.doc) for value in values or [_default(option)] if value]
    return offers


def choices(option: Option) -> list[str]:
    """Return the allowed words of an option; none if it accepts other values too."""
    if option.type == "bool":
        return ["true", "false"]
    kinds = option.type.split(" | ")
    return kinds if len(kinds) > 1 and not {"int", "float", "str"} & {kind.split(" ")[0] for kind in kinds} else []


def _default(option: Option) -> str:
    """Return the default of an option as it would be typed; empty if it has none."""
    with suppress(ValueError, SyntaxError):
        value = ast.literal_eval(option.default)
        return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).replace("None", "none")
    return ""


def steps(group: str) -> Callable[[], list[str]]:
    """Return a completer for upload steps or aggregators, also with the default of their first option."""

    def complete() -> list[str]:
        offers = []
        for card in registry.cards(group):
            offers += [card.name, *(f"{card.name}:{_default(option)}" for option in card.options[:1])]
        return offers

    return complete


def print_completions(app: Callable[..., Any]) -> int:
    """Print the completions of ``app`` for the shell, and return the exit code; errors are never printed."""
    shell = os.environ[VARIABLE].partition("_")[2]
    typed = _join_split_words(os.environ) if shell == "bash" else ""
    code, offers = 0, io.StringIO()
    try:
        with redirect_stdout(offers), redirect_stderr(io.StringIO()):
            app([], prog_name="pfl", standalone_mode=False)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except Exception:
        return 1
    lines = offers.getvalue()
    if shell == "bash" and os.environ[VARIABLE].startswith("complete"):
        lines = "".join(f"{_quote(line.removeprefix(typed))}\n" for line in lines.splitlines() if line)
    sys.stdout.write(lines)
    return code


_BREAKS = "=:@"
"""Characters at which bash splits words of pfl."""


def _join_split_words(environ: MutableMapping[str, str]) -> str:
    """Join the words that bash split; return the start of the last one, which bash does not want to be repeated.

    ``--set lam=1`` arrives as four words, ``--set=lam`` as three, of which Typer does not expect the second.
    """
    words = environ.get("COMP_WORDS", "").split("\n")[: int(environ.get("COMP_CWORD", "0")) + 1]
    joined: list[str] = []
    typed, is_open = "", False
    for word in words:
        is_break = bool(word) and not word.strip(_BREAKS)
        is_option = bool(joined) and joined[-1].startswith("--")
        if joined and not is_option and (is_break or (is_open and word)):
            typed = joined[-1] + word if is_break else joined[-1]
            joined[-1] += word
        elif not (is_break and is_option):
            joined.append(word)
            typed = ""
        is_open = is_break and not is_option
    if words and words[-1] == "=" and joined[-1].startswith("--"):
        joined.append("")
    environ["COMP_WORDS"] = "\n".join(joined)
    environ["COMP_CWORD"] = str(len(joined) - 1)
    return typed


def _quote(word: str) -> str:
    """Return a word quoted for bash."""
    return re.sub(r"([^\w@%+=:,./~-])", r"\\\1", word)
