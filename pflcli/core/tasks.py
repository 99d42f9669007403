"""The tasks by name, and by which metrics methods are ranked for each: what the files of ``engine/tasks`` say."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pflcli.core import registry
from pflcli.core.errors import InputError, UsageError, closest

CLASSES = "classes"
"""The task whose labels are numbers of classes."""
_MAX_UNIT = 20


@dataclass(frozen=True)
class Kind:
    """The ``module`` of a task, and its ``metrics``, the first of which is the default."""

    module: str
    metrics: tuple[str, ...]

    @property
    def task(self) -> Any:
        """The class, a subclass of ``engine.tasks.Task``."""
        return importlib.import_module(self.module).TASK


KINDS: dict[str, Kind] = {}
"""What labels can be, read without PyTorch. Methods say which they learn."""
RANKING: list[str] = []
"""The metrics that ``--metric`` accepts: methods are then ranked by them, and gains are in them."""


def _add(file: Path) -> None:
    body = ast.parse(file.read_text(encoding="utf-8")).body
    named = {ast.unparse(node.targets[0]): node.value for node in body if isinstance(node, ast.Assign)}
    if "METRICS" not in named:
        raise InputError(f"{file} has no METRICS, the names of metrics, the first of which ranks methods")
    metrics = ast.literal_eval(named["METRICS"])
    KINDS[file.stem] = Kind(f"pflcli.core.engine.tasks.{file.stem}", metrics)
    RANKING.extend(name for name in metrics if name not in RANKING)
    if (catalogue := sys.modules.get("pflcli.core.metrics.catalogue")) is not None:
        catalogue.add_entries(file.stem)


def add_used() -> None:
    """Add the tasks in users' files; raises InputError if one names no metrics."""
    for key, file in registry.used_files().items():
        if key.startswith("tasks/") and file.stem not in KINDS:
            _add(file)


for _file in sorted((Path(__file__).parent / "engine" / "tasks").glob("[!_]*.py")):
    _add(_file)
if registry.used_files():
    add_used()


def find(kind: str) -> Kind:
    """Return where a task is; raises UsageError if there is none of this name."""
    if kind not in KINDS:
        raise UsageError(
            f"unknown task '{kind}'",
            closest(kind, KINDS),
            f"a file of your own: pfl --use ./{kind}.py ..., or task='./{kind}.py' in Python",
        )
    return KINDS[kind]


def parse(word: str, unit: str) -> Any:
    """Return the task of ``--task word --unit unit``, None for classes; raises UsageError for an unknown one.

    A word such as ``./grades.py:4`` stands for the task in a user's file.
    """
    if not unit.isprintable() or "|" in unit or len(unit) > _MAX_UNIT:
        raise UsageError(f"--unit {unit!r} is no short word without '|', which separates columns", "--unit EUR")
    kind, _, option = registry.use("tasks", word).partition(":")
    add_used()
    return find(kind).task.from_word(option, unit) if kind != CLASSES or option else None


@dataclass(frozen=True)
class Labels:
    """What labels are, without PyTorch: of which ``kind``, and for models with so many ``outputs``.

    ``fields`` are those of another task than classes, as the summary of an artifact has them. ``positive`` is the index
    of the positive one of two classes.
    """

    outputs: int
    kind: str = CLASSES
    fields: Mapping[str, Any] | None = None
    positive: int = 1

    @classmethod
    def of(cls, task: Any) -> Labels:
        """Return the labels of a task; raises UsageError if it is not among ``KINDS``."""
        if task.kind == CLASSES:
            return cls(task.outputs)
        find(task.kind)
        return cls(task.outputs, task.kind, asdict(task))

    @property
    def unit(self) -> str:
        """The unit of labels; empty if they have none."""
        return str((self.fields or {}).get("unit", ""))

    @property
    def past(self) -> Sequence[float]:
        """Where samples have the past of their labels, as ``engine.tasks.Task`` says; empty if they do not."""
        return tuple((self.fields or {}).get("past", ()))

    def task(self) -> Any:
        """Return the task, an object of ``engine.tasks.Task``."""
        return find(self.kind).task(**(self.fields or {"outputs": self.outputs}))

    def facts(self) -> dict[str, Any]:
        """Return what the summary of an artifact has of them: nothing of classes."""
        return {} if self.fields is None else {"task": {"kind": self.kind, "fields": dict(self.fields)}}
