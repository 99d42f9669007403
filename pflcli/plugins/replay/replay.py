"""``pfl replay``: repeat an artifact and its ancestors by the command lines that their manifests record."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pflcli.artifacts import machine
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.open_by_path import open_one
from pflcli.artifacts.reader import Artifact, open_artifact
from pflcli.core import registry
from pflcli.core.errors import ConflictError, InputError, PflError
from pflcli.core.execution import Execution
from pflcli.core.wording import is_relative_path, listed
from pflcli.evaluation import lineage
from pflcli.options.function import command
from pflcli.plugins.replay import agreement
from pflcli.plugins.replay.agreement import Agreement
from pflcli.plugins.replay.options import Replay

if TYPE_CHECKING:
    from typer import TyperException

_UNCOMPARED = ("device", "engine")
"""Circumstances, besides versions and processor, under which last digits differ."""


@dataclass(frozen=True)
class Repeated:
    """An artifact, its repetition, and how far they agree; nothing is known of that in a dry run."""

    original: Path
    path: Path
    kind: str
    command: str
    agreement: Agreement | None = None
    differs: list[str] = field(default_factory=list)
    """how the circumstances differ from the original ones: versions, processor, device, engine, code of pfl"""
    agrees: bool = True

    @property
    def verdict(self) -> str:
        """The agreement in words."""
        if self.agreement is None:
            return ""
        if self.agreement.difference == 0:
            return "same"
        return "within rounding" if self.agrees else "differs"


@dataclass(frozen=True)
class Replayed:
    """The result of ``replay``: the folder with the repetitions, and the artifacts, inputs first."""

    path: Path
    artifacts: list[Repeated]

    @property
    def agrees(self) -> bool:
        """Whether every artifact agrees with the original."""
        return all(item.agrees for item in self.artifacts)

    @property
    def differs(self) -> list[str]:
        """How the circumstances of any artifact differ from the original ones."""
        return [*dict.fromkeys(line for item in self.artifacts for line in item.differs)]


@command(Replay)
def replay(asked: Replay) -> Replayed:
    """Repeat an artifact and its ancestors in the folder ``out``, and return how far each agrees with the original.

    Raises InputError if an input no longer exists or was changed, and the errors of the repeated commands.

    >>> from pflcli import partition, replay
    >>> made = partition("writers", "runs/p", clients=6)
    >>> [each.agrees for each in replay(made, "again").artifacts]
    [True]
    """
    execution, out = asked.execution, Path(asked.out).absolute()
    steps = _list_steps(open_one(asked.artifact), out)
    _require_files(steps)
    done: list[Repeated] = []
    for number, step in enumerate(steps, 1):
        path = Path(asked.out) / step.path.relative_to(out)
        if execution.dry_run:
            done.append(Repeated(step.original.path, path, step.original.kind, shlex.join(step.recorded)))
            continue
        execution.reporter.say(f"{number} of {len(steps)}: {step.original.kind} {path}")
        words = step.words(execution)
        step.require_same_request(_run(step, [*words, "--dry-run"]))
        _run(step, words)
        done.append(_compare(step, path, asked.tolerance))
    return Replayed(Path(asked.out), done)


@dataclass(frozen=True)
class _Step:
    """An artifact, the folder of its repetition, and the places of all artifacts that move."""

    original: Artifact
    path: Path
    places: Mapping[Path, Path]
    """from a folder to that of its repetition; also the folders above artifacts"""

    @property
    def folder(self) -> Path:
        """The folder in which the recorded command line is typed."""
        return self.original.path.resolve().parent

    @property
    def recorded(self) -> list[str]:
        """The words of the recorded command line; raises InputError if there is none."""
        line = self.original.manifest.made.get("command")
        if not isinstance(line, str):
            raise InputError(f"{self.original.path} cannot be repeated: it does not record the command that made it")
        return shlex.split(line)

    def place(self, word: str, before: str) -> Path | None:
        """Return the new folder that a word of the command line stands for, or None if it stays as it is."""
        if not is_relative_path(word, before):
            return None
        # An artifact that was renamed is still written to its old name on the command line.
        return self.places.get(Path(os.path.normpath(self.folder / word)), self.path if before == "-o" else None)

    def words(self, execution: Execution) -> list[str]:
        """Return the command line, without ``pfl``, that makes the repetition; its other paths are of ``folder``."""
        recorded = self.recorded
        placed = [str(self.place(word, before) or word) for before, word in itertools.pairwise(recorded)]
        made, accepted = self.original.manifest.made, _list_flags(placed)
        hardware = {
            "--device": "cpu" if execution.device == "auto" and made.get("device") == "cpu" else execution.device,
            "--engine": str(made.get("engine", "auto")) if execution.engine == "auto" else execution.engine,
            "--threads": str(execution.threads),
            "--jobs": str(execution.jobs),
        }
        chosen = [word for flag, value in hardware.items() if flag in accepted for word in (flag, value)]
        return [*placed, *chosen, *(["--force"] if execution.force else [])]

    def require_same_request(self, facts: Mapping[str, Any]) -> None:
        """Raise InputError if the request is not that of the original: a file or a default has changed."""
        before, after = self.original.manifest.request, facts["request"]
        if after and (changes := manifests.differences(before, after)):  # unknown before a search has ended
            raise InputError(f"{self.original.path} cannot be repeated: its request has changed", *changes)


def _list_steps(artifact: Artifact, out: Path) -> list[_Step]:
    """Return the artifact and its ancestors, inputs first; raises InputError if one is missing."""
    traced = lineage.trace(artifact)
    if traced.missing:
        paths = [f"the {item.kind} {item.path}" for item in traced.missing]
        raise InputError(
            f"{artifact.path} cannot be repeated: {listed(paths, most=3)}, from which it was made, no longer exists"
        )
    base = Path(os.path.commonpath([item.path.resolve().parent for item in traced.artifacts]))
    moved = {item.path.resolve(): out / item.path.resolve().relative_to(base) for item in traced.artifacts}
    if taken := [old for old, new in moved.items() if new.resolve() == old]:
        raise ConflictError(f"{out} contains the originals, such as {taken[0]}", "choose another folder for --out")
    above = {
        folder: out / folder.relative_to(base) for old in moved for folder in old.parents if base in folder.parents
    }
    steps = []
    for item in traced.artifacts:
        # An input that was moved is still named by its old path on the command line.
        recorded = {
            Path(os.path.normpath(item.path.resolve() / reference.path)): moved[source.path.resolve()]
            for reference in item.manifest.inputs
            for source in traced.inputs(item)
            if source.manifest.fingerprint == reference.fingerprint
        }
        own = {item.path.resolve().parent: moved[item.path.resolve()].parent}
        steps.append(_Step(item, moved[item.path.resolve()], {**own, **above, **recorded, **moved}))
    return steps


def _require_files(steps: Sequence[_Step]) -> None:
    """Raise InputError if a file that a command line names is gone, or a user's file has changed; names all."""
    lost: dict[str, None] = {}
    for step in steps:
        recorded, files = step.recorded, step.original.manifest.made.get("files", {})
        copies = {name: step.original.path / name for name in files.values()}
        for before, word in itertools.pairwise(recorded):
            if step.place(word, before) is not None:
                continue
            whole = (
                [word] if (step.folder / word).exists() else [registry.split_file(part)[0] for part in word.split(",")]
            )
            for part in whole:
                path = Path(os.path.normpath(step.folder / part))
                if not part.startswith(("./", "../")):
                    continue
                if not path.exists():
                    lost[f"{path} no longer exists"] = None
                elif (copy := copies.get(path.name)) is not None and copy.read_bytes() != path.read_bytes():
                    lost[f"{path} has changed; {copy} is a copy of what was used"] = None
    if lost:
        raise InputError(f"{steps[-1].original.path} cannot be repeated: {'; '.join(lost)}")


def _list_flags(words: Sequence[str]) -> set[str]:
    """Return the flags of the command that a command line calls."""
    import typer

    from pflcli.cli import app
    from pflcli.cli.from_options import walk_commands

    commands = dict(walk_commands(typer.main.get_command(app)))
    name = next((name for name in (" ".join(words[:2]), words[0]) if name in commands), None)
    if name is None:
        raise InputError(f"this pfl has no command {words[0]}")
    return {flag for param in commands[name].params for flag in param.opts}


def _run(step: _Step, words: Sequence[str]) -> dict[str, Any]:
    """Run a command line in the folder of the original, and return what it prints as JSON."""
    from typer import BadParameter

    from pflcli.cli import app

    typer_error: type[TyperException] = BadParameter.__mro__[-4]  # the base of Typer's errors, as in __main__

    printed = io.StringIO()
    place = f"cannot repeat {step.original.path}"
    try:
        with contextlib.chdir(step.folder), contextlib.redirect_stdout(printed):
            code = app([*words, "--json", "--quiet"], standalone_mode=False)
    except PflError as error:
        raise type(error)(f"{place}: {error.message}", *error.fix) from None
    except typer_error as error:
        raise InputError(
            f"{place}: this pfl does not accept its command line: {error.format_message()}", shlex.join(words)
        ) from None
    if code:
        raise KeyboardInterrupt  # Typer returns a code only then
    facts: dict[str, Any] = json.loads(printed.getvalue())
    return facts


def _compare(step: _Step, path: Path, tolerance: float) -> Repeated:
    old, new = step.original, open_artifact(step.path)
    found = agreement.compare(old, new)
    made, now = old.manifest.made, new.manifest.made
    differs = machine.list_differences([made])
    differs += [
        f"{name} {now.get(name)} here, {made[name]} there" for name in _UNCOMPARED if made.get(name) != now.get(name)
    ]
    codes = old.manifest.code.keys() & new.manifest.code.keys()
    differs += [
        f"the code of {name} has changed" for name in codes if old.manifest.code[name] != new.manifest.code[name]
    ]
    agrees = found.difference <= (tolerance if differs else 0.0)
    return Repeated(old.path, path, old.kind, shlex.join(step.recorded), found, differs, agrees)
