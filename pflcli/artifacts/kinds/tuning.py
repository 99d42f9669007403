"""A tuning: the trials of one method, their scores on validation samples, and the best trial.

``trials.json``: a row per trial. ``table.csv`` and ``table.md``: the same as tables. ``best.toml``: the best trial as a
file for ``--config``. The trials are predictions in the folder ``trials/`` next to it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NotRequired

from pflcli.artifacts.kinds._wording import count, percent, word
from pflcli.artifacts.manifest import Manifest
from pflcli.artifacts.reader import Artifact

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SCHEMA = 1
MADE_BY = "pfl tune METHOD SOURCE -o DIR"

TRIALS = "trials.json"


def read(artifact: Artifact) -> dict[str, Any]:
    """Return the ``trials`` of a tuning in order and the number of the ``best``; raises InputError if damaged."""
    content = artifact.json(TRIALS)
    with artifact.parsing(TRIALS):
        _schema().validate_python(content, strict=True)
    trials: dict[str, Any] = content
    return trials


@cache
def _schema() -> TypeAdapter[Any]:
    from annotated_types import Len
    from pydantic import TypeAdapter
    from typing_extensions import TypedDict

    class Trial(TypedDict):
        trial: int
        path: str
        fingerprint: str | None
        values: dict[str, Any]
        validation_accuracy: float | None
        bottom_decile: float | None
        seconds: float | None
        problem: str

    class Tuning(TypedDict):
        method: str
        metric: NotRequired[str]
        samples: int
        clients: int
        best: int
        trials: Annotated[list[Trial], Len(1)]

    return TypeAdapter(Tuning)


def check(artifact: Artifact) -> None:
    """Read every file; raises InputError if one is damaged or has an invalid value."""
    read(artifact)
    for row in artifact.table("table.csv"):
        with artifact.parsing("table.csv"):
            int(row["trial"])


def describe(manifest: Manifest) -> list[str]:
    """Return a few facts that distinguish artifacts of this kind, as text."""
    summary = manifest.summary
    return [
        word(manifest.request.get("method")),
        count(summary.get("trials"), "trial"),
        word(manifest.request.get("metric"), "by"),
        percent("validation accuracy", summary.get("validation_accuracy")),
    ]
