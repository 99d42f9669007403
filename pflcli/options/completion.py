"""Completers of words, names and artifacts, for Typer's shell completion; they import neither torch nor NumPy.

A completer takes the incomplete word, and returns words or pairs of a word and its description. Typer drops those that
do not start with the incomplete word.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from pflcli.core import registry
from pflcli.core.registry import Option

Offers = list[tuple[str, str]]
VARIABLE = "_PFL_COMPLETE"
"""Set by a shell that wants completions, by Typer's convention, to the name of the shell."""
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


def names_in_any_group() -> list[str]:
    """Complete a name in any group of the registry."""
    return [name for group in registry.GROUPS for name in registry.names(group)]


def artifacts(*kinds: str) -> Callable[[str], Offers]:
    """Return a completer for paths of artifacts of these kinds (of any kind if none is given) and their folders."""
    return lambda incomplete: _paths(incomplete, kinds)


def datasets(incomplete: str) -> Offers:
    """Complete a dataset: a name, or the path of an imported one."""
    return [(name, "") for name in registry.names("datasets")] + _paths(incomplete, ("dataset",))


def _paths(incomplete: str, kinds: Sequence[str]) -> Offers:
    """Return artifacts and other folders that continue a path; a single ordinary folder is replaced by its contents."""
    parent, slash, start = incomplete.rpartition("/")
    offers: Offers = []
    folders: list[str] = []
    for entry in sorted(os.scandir(Path(parent + slash).expanduser()), key=lambda entry: entry.name):
        is_hidden = entry.name.startswith(".") and not start.startswith(".")
        is_unfinished = entry.name.endswith((".partial", ".partial.lock", ".partial.old"))
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


def choices(option: Option) -> list[str]:
    """Return the allowed words of an option; none if it accepts other values too."""
    if option.type == "bool":
        return ["true", "false"]
    kinds = option.type.split(" | ")
    return kinds if len(kinds) > 1 and not {"int", "float", "str"} & {kind.split(" ")[0] for kind in kinds} else []
