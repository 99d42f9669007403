"""The kinds of tasks by name: where the class of each is, and by which metrics methods are ranked for it.

Another kind of task is a file with its class and the entries ``METRICS`` of its metrics, and an entry here.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pflcli.core.errors import UsageError, closest

CLASSES = "classes"
"""The kind of labels that are numbers of classes."""


@dataclass(frozen=True)
class Kind:
    """Where a task is: the ``module`` and its class ``name``; and its ``metrics``, the first of which is the default.

    The fields of the class must be values of JSON: artifacts have them.
    """

    module: str
    name: str
    metrics: tuple[str, ...]


KINDS = {
    CLASSES: Kind(
        "pflcli.core.engine.task",
        "Classification",
        (
            "accuracy", "auroc", "average_precision", "f1", "balanced_accuracy", "sensitivity", "specificity",
            "brier_score", "log_loss",
        ),
    ),
}  # fmt: skip
"""What labels can be. Metrics are defined for one kind, and methods say which kinds they learn."""
RANKING = tuple(name for kind in KINDS.values() for name in kind.metrics)
"""The metrics that ``--metric`` accepts: methods are then ranked by them, and gains are in them."""


def find(kind: str) -> Kind:
    """Return where a kind of task is; raises UsageError if there is none of this name."""
    if kind not in KINDS:
        raise UsageError(f"unknown kind of task '{kind}'", closest(kind, KINDS))
    return KINDS[kind]


@dataclass(frozen=True)
class Labels:
    """What labels are, without PyTorch: of which ``kind``, and for models with so many ``outputs``.

    ``fields`` are those of the task of another kind than classes, as the summary of an artifact has them.
    """

    outputs: int
    kind: str = CLASSES
    fields: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, task: Any) -> Labels:
        """Return the labels of a task; raises UsageError if its kind is not among ``KINDS``."""
        return cls(task.outputs) if find(task.kind) is KINDS[CLASSES] else cls(task.outputs, task.kind, asdict(task))

    def task(self) -> Any:
        """Return the task, which has the members of ``engine.task.Task``."""
        place = find(self.kind)
        return getattr(importlib.import_module(place.module), place.name)(**(self.fields or {"outputs": self.outputs}))

    def facts(self) -> dict[str, Any]:
        """Return what the summary of an artifact has of them: nothing of classes."""
        return {} if self.fields is None else {"task": {"kind": self.kind, "fields": dict(self.fields)}}
