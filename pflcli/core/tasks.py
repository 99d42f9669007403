"""The tasks by name, and by which metrics methods are ranked for each: what the files of ``engine/tasks`` say."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pflcli.core.errors import UsageError, closest

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


KINDS = {
    file.stem: Kind(
        f"pflcli.core.engine.tasks.{file.stem}",
        next(
            ast.literal_eval(node.value)
            for node in ast.parse(file.read_text(encoding="utf-8")).body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "METRICS"
        ),
    )
    for file in sorted((Path(__file__).parent / "engine" / "tasks").glob("[!_]*.py"))
}
"""What labels can be, read without PyTorch. Methods say which they learn."""
RANKING = tuple(dict.fromkeys(name for kind in KINDS.values() for name in kind.metrics))
"""The metrics that ``--metric`` accepts: methods are then ranked by them, and gains are in them."""


def find(kind: str) -> Kind:
    """Return where a task is; raises UsageError if there is none of this name."""
    if kind not in KINDS:
        raise UsageError(f"unknown task '{kind}'", closest(kind, KINDS))
    return KINDS[kind]


def parse(word: str, unit: str) -> Any:
    """Return the task of ``--task word --unit unit``, None for classes; raises UsageError for an unknown one."""
    if not unit.isprintable() or "|" in unit or len(unit) > _MAX_UNIT:
        raise UsageError(f"--unit {unit!r} is no short word without '|', which separates columns", "--unit EUR")
    kind, _, option = word.partition(":")
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
        return cls(task.outputs) if find(task.kind) is KINDS[CLASSES] else cls(task.outputs, task.kind, asdict(task))

    @property
    def unit(self) -> str:
        """The unit of labels; empty if they have none."""
        return str((self.fields or {}).get("unit", ""))

    @property
    def is_series(self) -> bool:
        """Whether samples have the past of their labels."""
        return bool((self.fields or {}).get("past"))

    def task(self) -> Any:
        """Return the task, an object of ``engine.tasks.Task``."""
        return find(self.kind).task(**(self.fields or {"outputs": self.outputs}))

    def facts(self) -> dict[str, Any]:
        """Return what the summary of an artifact has of them: nothing of classes."""
        return {} if self.fields is None else {"task": {"kind": self.kind, "fields": dict(self.fields)}}
