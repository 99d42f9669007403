"""Write the predictions of ``pfl predict`` as CSV, JSON lines or NPZ."""

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

    @property
    def p(self) -> NDArray[np.float32]:
        """The class probabilities (n, C)."""
        return self.parts["p"]

    def rows(self) -> list[dict[str, Any]]:
        """Return a dictionary per sample; probabilities have as many digits as identify a float32."""
        rows: list[dict[str, Any]] = []
        for place, (sample, label) in enumerate(zip(self.samples, self.labels.tolist(), strict=True)):
            row: dict[str, Any] = {"sample": sample}
            row |= {"client": self.clients[place]} if self.clients else {}
            row["class"] = self.classes[label]
            if self.sets is not None:
                inside = np.flatnonzero(self.sets.members[place])
                row |= {"set": [self.classes[number] for number in inside], "set_size": len(inside)}
            if self.parts:
                numbers = [float(str(value)) for value in self.p[place]]
                row |= {"probability": numbers[label], "p": dict(zip(self.classes, numbers, strict=True))}
            rows.append(row)
        return rows


def encode_csv(predicted: PredictedSamples) -> bytes:
    """Return a row per sample: ``sample``, ``client`` if the file has it, ``class``, and with probabilities
    ``probability`` and each ``p(NAME)``.

    With sets, ``set`` and ``set_size`` follow the class. A set is its classes with ``|`` between them; a ``|`` or a
    backslash in a name has a backslash before it.
    """
    heading = ["sample", *["client"] * bool(predicted.clients), "class"]
    heading += [] if predicted.sets is None else ["set", "set_size"]
    heading += ["probability", *(f"p({name})" for name in predicted.classes)] if predicted.parts else []
    rows = []
    for row in predicted.rows():
        if "set" in row:
            row["set"] = "|".join(name.replace("\\", "\\\\").replace("|", "\\|") for name in row["set"])
        probabilities = row.pop("p", {})
        rows.append([*row.values(), *probabilities.values()])
    return csv_file.encode(heading, rows)


def encode_json_lines(predicted: PredictedSamples) -> bytes:
    """Return a JSON object per sample, a line each: ``sample``, ``class``, ``probability`` and ``p`` by class.

    With sets, ``set`` is an array of classes and ``set_size`` their number.
    """
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in predicted.rows()).encode()


def encode_npz(predicted: PredictedSamples) -> bytes:
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
    if predicted.clients:
        arrays["client"] = np.asarray(predicted.clients)
    if predicted.sets is not None:
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
