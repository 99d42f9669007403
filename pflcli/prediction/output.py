"""Answers as a file: CSV, JSON lines or NPZ, written in one step."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import csv_file, disk, plain_output
from pflcli.artifacts import manifest as manifests
from pflcli.errors import ConflictError, InputError, UsageError
from pflcli.evaluation.coverage import PredictionSets


@dataclass(frozen=True)
class Predicted:
    """What ``predict`` answers for n samples.

    ``samples`` (n,) are their numbers from 0, or the paths of images; ``classes`` (C,) the names of the classes;
    ``labels`` (n,) the class of each sample, 0..C-1; ``parts`` (n, C) the probabilities ``p`` and those that explain
    them, nothing where the class alone leaves; ``tuned`` what the client chose by its validation samples; ``sets`` the
    classes that contain the true one with a given probability, None if they were not asked for. ``is_known`` is false
    for a client that the predictions do not have.
    """

    method: str
    client: str
    is_known: bool
    samples: tuple[int | str, ...]
    classes: tuple[str, ...]
    labels: NDArray[np.int64]
    parts: Mapping[str, NDArray[np.float32]]
    tuned: Mapping[str, float]
    sets: PredictionSets | None = None

    @property
    def p(self) -> NDArray[np.float32]:
        """The probabilities of classes (n, C)."""
        return self.parts["p"]

    def rows(self) -> list[dict[str, Any]]:
        """Return each sample's answer by name; probabilities have the digits that tell a float32 from others."""
        rows: list[dict[str, Any]] = []
        for place, (sample, label) in enumerate(zip(self.samples, self.labels.tolist(), strict=True)):
            row: dict[str, Any] = {"sample": sample, "class": self.classes[label]}
            if self.sets is not None:
                inside = np.flatnonzero(self.sets.members[place])
                row |= {"set": [self.classes[number] for number in inside], "set_size": len(inside)}
            if self.parts:
                numbers = [float(str(value)) for value in self.p[place]]
                row |= {"probability": numbers[label], "p": dict(zip(self.classes, numbers, strict=True))}
            rows.append(row)
        return rows


def as_csv(predicted: Predicted) -> bytes:
    """Return a row per sample: ``sample``, ``class``, and with probabilities ``probability`` and each ``p(NAME)``.

    With sets, ``set`` and ``set_size`` follow the class. A set is its classes with ``|`` between them; a ``|`` or a
    backslash in a name has a backslash before it.
    """
    heading = ["sample", "class"]
    heading += [] if predicted.sets is None else ["set", "set_size"]
    heading += ["probability", *(f"p({name})" for name in predicted.classes)] if predicted.parts else []
    rows = []
    for row in predicted.rows():
        if "set" in row:
            row["set"] = "|".join(name.replace("\\", "\\\\").replace("|", "\\|") for name in row["set"])
        probabilities = row.pop("p", {})
        rows.append([*row.values(), *probabilities.values()])
    return csv_file.content(heading, rows)


def as_json_lines(predicted: Predicted) -> bytes:
    """Return a JSON object per sample, a line each: ``sample``, ``class``, ``probability`` and ``p`` by class.

    With sets, ``set`` is an array of classes and ``set_size`` their number.
    """
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in predicted.rows()).encode()


def as_npz(predicted: Predicted) -> bytes:
    """Return arrays: ``sample``, ``class`` (n,), ``classes`` (C,), ``p`` and further parts (n, C).

    With sets, ``set`` (n, C) says which classes are in each, and ``set_size`` (n,) how many.
    """
    memory = io.BytesIO()
    labels = np.asarray(predicted.classes)[predicted.labels]
    arrays: dict[str, Any] = {
        "sample": np.asarray(predicted.samples),
        "class": labels,
        "classes": np.asarray(predicted.classes),
        **predicted.parts,
    }
    if predicted.sets is not None:
        arrays |= {"set": predicted.sets.members, "set_size": predicted.sets.members.sum(axis=1)}
    np.savez(memory, **arrays)
    return memory.getvalue()


FORMS: dict[str, Callable[[Predicted], bytes]] = {"csv": as_csv, "jsonl": as_json_lines, "npz": as_npz}
"""How answers are written, by the suffix of the file."""
TEXTS = ("csv", "jsonl")
"""Those of ``FORMS`` that can be printed."""


def form_of(out: Path | None, form: str | None) -> str:
    """Return the form of ``FORMS`` of the file ``out``, or of what is printed where that is None.

    Raises UsageError for another suffix, or a ``form`` that is not known or contradicts it.
    """
    if form is not None and form not in TEXTS:
        raise UsageError(f"unknown --format '{form}'", f"choose from: {', '.join(TEXTS)}")
    if out is None:
        return form or "csv"
    suffix = out.suffix.lower().removeprefix(".")
    if suffix not in FORMS:
        raise UsageError(f"{out} is of no form that answers are written in", "-o FILE.csv, FILE.jsonl or FILE.npz")
    if form not in (None, suffix):
        raise UsageError(f"--format {form} contradicts --out {out}", "leave out --format")
    return suffix


def require_writable(out: Path, *, force: bool, inputs: Sequence[Path | str] = ()) -> None:
    """Raise ConflictError if a file may not be written to ``out``, InputError if there is no folder for it.

    ``out`` may be none of the ``inputs``: files that are read.
    """
    if any(out.exists() and Path(item).exists() and out.samefile(item) for item in inputs):
        raise ConflictError(f"{out} is an input, which the answers would replace", "choose another --out")
    if out.is_dir():
        raise ConflictError(f"{out} is a folder", f"-o {out / 'answers.csv'}")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent} does not exist", f"mkdir -p {out.parent}")
    if manifests.is_artifact(out.parent):
        raise ConflictError(f"{out.parent} is an artifact, whose files nothing else may change", "choose another --out")
    if out.exists() and not force:
        raise ConflictError(f"{out} exists", "--force replaces it")


def write(out: Path, content: bytes, *, force: bool) -> None:
    """Write a file in one step, so that nobody reads a part of it; raises as ``require_writable`` and if that fails."""
    require_writable(out, force=force)
    try:
        plain_output.replace(out, content)
    except OSError as error:
        raise disk.write_error(f"cannot write {out}", out.parent, error, len(content)) from None
