"""Write the predictions of ``pfl predict`` as CSV, JSON lines or NPZ."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import csv_file, disk, plain_output
from pflcli.artifacts import manifest as manifests
from pflcli.core.errors import ConflictError, InputError, UsageError
from pflcli.evaluation.coverage import PredictionSets


@dataclass(frozen=True)
class PredictedSamples:
    """The result of ``predict`` for n samples.

    ``samples`` (n,) are numbers from 0, paths of images, or the words of a column; ``classes`` (C,) the names of the
    classes; ``labels`` (n,) the predicted class of each sample, 0..C-1; ``parts`` (n, C) the probabilities ``p`` and
    the parts they are computed from, empty if only the class is disclosed; ``tuned`` the options that the client tuned
    on validation samples; ``sets`` the classes that contain the true one with a given probability, None if they were
    not requested.
    If labels are no classes, ``numbers`` are the columns (n,) of the predictions and of the ends of their intervals, in
    the ``unit`` of labels, and there are no ``classes`` and ``labels``.
    ``is_known`` is false if the predictions have no such client, and the global model predicted. If the file said whose
    model predicts each sample, ``clients`` (n,) are their names, and ``client`` is empty.
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
    clients: tuple[str, ...] = ()
    numbers: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    unit: str = ""

    @property
    def p(self) -> NDArray[np.float32]:
        """The class probabilities, or the predictions of another task, (n, C)."""
        return self.parts["p"]

    def rows(self) -> list[dict[str, Any]]:
        """Return a dictionary per sample; numbers have as many digits as identify a float32, and None is infinite."""
        rows: list[dict[str, Any]] = []
        for place, sample in enumerate(self.samples):
            row: dict[str, Any] = {"sample": sample}
            row |= {"client": self.clients[place]} if self.clients else {}
            rows.append(row)
            if self.numbers:
                shown = {name: values[place] for name, values in self.numbers.items()}
                row |= {name: float(str(value)) if np.isfinite(value) else None for name, value in shown.items()}
                continue
            label = int(self.labels[place])
            row["class"] = self.classes[label]
            if self.sets is not None:
                inside = np.flatnonzero(self.sets.members[place])
                row |= {"set": [self.classes[number] for number in inside], "set_size": len(inside)}
            if self.parts:
                numbers = [float(str(value)) for value in self.p[place]]
                row |= {"probability": numbers[label], "p": dict(zip(self.classes, numbers, strict=True))}
        return rows


def encode_csv(predicted: PredictedSamples) -> bytes:
    """Return a row per sample: ``sample``, ``client`` if the file has it, ``class``, and with probabilities
    ``probability`` and each ``p(NAME)``.

    With sets, ``set`` and ``set_size`` follow the class. A set is its classes with ``|`` between them; a ``|`` or a
    backslash in a name has a backslash before it. Of numbers, the columns are ``numbers``; an infinite one is empty.
    """
    heading = ["sample", *["client"] * bool(predicted.clients), *(predicted.numbers or ["class"])]
    heading += [] if predicted.sets is None or predicted.numbers else ["set", "set_size"]
    has_p = bool(predicted.classes and predicted.parts)
    heading += ["probability", *(f"p({name})" for name in predicted.classes)] if has_p else []
    rows = []
    for row in predicted.rows():
        if "set" in row:
            row["set"] = "|".join(name.replace("\\", "\\\\").replace("|", "\\|") for name in row["set"])
        probabilities = row.pop("p", {})
        rows.append([*row.values(), *probabilities.values()])
    return csv_file.encode(heading, rows)


def encode_json_lines(predicted: PredictedSamples) -> bytes:
    """Return a JSON object per sample, a line each: ``sample``, ``class``, ``probability`` and ``p`` by class.

    With sets, ``set`` is an array of classes and ``set_size`` their number. Of numbers, the keys are ``numbers``.
    """
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in predicted.rows()).encode()


def encode_npz(predicted: PredictedSamples) -> bytes:
    """Return arrays: ``sample``, ``class`` (n,), ``classes`` (C,), ``p`` and further parts (n, C).

    With sets, ``set`` (n, C) says which classes are in each, and ``set_size`` (n,) how many. Of numbers, the arrays
    beside ``p`` are ``numbers``.
    """
    memory, classes = io.BytesIO(), np.asarray(predicted.classes)
    arrays: dict[str, Any] = {"sample": np.asarray(predicted.samples)}
    arrays |= {"class": classes[predicted.labels], "classes": classes} if predicted.classes else {}
    arrays |= {**predicted.parts, **predicted.numbers}
    if predicted.clients:
        arrays["client"] = np.asarray(predicted.clients)
    if predicted.sets is not None and predicted.classes:
        arrays |= {"set": predicted.sets.members, "set_size": predicted.sets.members.sum(axis=1)}
    np.savez(memory, **arrays)
    return memory.getvalue()


FORMS: dict[str, Callable[[PredictedSamples], bytes]] = {
    "csv": encode_csv,
    "jsonl": encode_json_lines,
    "npz": encode_npz,
}
"""Writers by suffix of the file."""


def choose_form(out: Path | None, form: str | None) -> str:
    """Return the entry of ``FORMS`` for the file ``out``, or for printing if that is None.

    Raises UsageError for an unknown suffix, or a ``form`` that contradicts it.
    """
    if out is None:
        return form or "csv"
    suffix = out.suffix.lower().removeprefix(".")
    if suffix not in FORMS:
        raise UsageError(f"{out} has an unknown suffix for predictions", "-o FILE.csv, FILE.jsonl or FILE.npz")
    if form not in (None, suffix):
        raise UsageError(f"--format {form} contradicts --out {out}", "leave out --format")
    return suffix


def require_writable(out: Path, *, inputs: Sequence[Path | str] = ()) -> None:
    """Raise ConflictError if no predictions can be written to ``out``, InputError if its folder does not exist.

    ``inputs`` are files that are read; ``out`` must not be one of them.
    """
    if any(out.exists() and Path(item).exists() and out.samefile(item) for item in inputs):
        raise ConflictError(f"{out} is an input file and would be overwritten", "choose another --out")
    if out.is_dir():
        raise ConflictError(f"{out} is a folder", f"-o {out / 'answers.csv'}")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent} does not exist", f"mkdir -p {out.parent}")
    if manifests.is_artifact(out.parent):
        raise ConflictError(f"{out.parent} is an artifact, and its files must not change", "choose another --out")


def write(out: Path, content: bytes, *, force: bool) -> bool:
    """Write a file atomically; return False, and leave it, if it has this content already.

    Raises whatever ``require_writable`` raises, ConflictError for a file with other content unless ``force`` is set,
    and InputError if writing fails.
    """
    require_writable(out)
    if out.exists() and not force:
        if out.stat().st_size == len(content) and out.read_bytes() == content:
            return False
        raise ConflictError(f"{out} exists, with other content", "--force replaces it")
    try:
        plain_output.replace_file(out, content)
    except OSError as error:
        raise disk.write_error(f"cannot write {out}", out.parent, error, len(content)) from None
    return True
