"""``pfl import``: a user's own data, checked, as a dataset that ``pfl partition`` takes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pflcli import registry
from pflcli.artifacts import dataset as datasets
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.artifact import Artifact, open_artifact
from pflcli.artifacts.codebook import Codebook, Column, floats
from pflcli.artifacts.manifest import Draft
from pflcli.artifacts.store import Work
from pflcli.data import Samples
from pflcli.errors import InputError, UsageError, closest
from pflcli.readers import NOBODY, Raw, arrays, cleaning, images, tables
from pflcli.steps.making import Manner, Outcome, make

FORMS = {
    ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".npz": "npz", ".h5": "hdf5", ".hdf5": "hdf5",
}  # fmt: skip
MISSING = ("error", "drop")
_TELL = {
    ".xlsx": "save the sheet as CSV",
    ".xls": "save the sheet as CSV",
    ".gz": "gunzip it first",
    ".zip": "unzip it first",
    ".npy": "np.savez('data.npz', x=x, y=y, owner=owner)",
    ".txt": "name it .csv or .tsv, and say --delimiter if it is neither comma nor tab",
}


@dataclass(frozen=True)
class Source:
    """What to read, and how."""

    path: Path
    form: str
    client: str | None
    label: str | None
    features: str | tuple[str, ...] | None
    resize: int | None
    delimiter: str | None

    def sha256(self) -> str:
        """A hash of the file, or of all images."""
        if self.form == "images":
            return images.find(self.path, self.client).sha256()
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def read(self, manner: Manner) -> Raw:
        """Read the samples as they stand there; raises InputError or UsageError for what cannot be read."""
        if self.form == "images":
            found = images.find(self.path, self.client)
            with manner.watch.progress("read", len(found.paths)) as advance:
                return images.read(found, self.resize, advance)
        if self.form == "csv":
            from pflcli.readers.delimited import Delimited

            return tables.read(Delimited(self.path, self.delimiter), self.client, self.label, self.features)
        if self.form == "parquet":
            from pflcli.readers.parquet import Parquet

            return tables.read(Parquet(self.path), self.client, self.label, self.features)
        if not (self.features is None or isinstance(self.features, str)):
            raise UsageError("--features of an array file is the name of one array", "--features x")
        read = arrays.read_npz if self.form == "npz" else arrays.read_hdf5
        return read(self.path, self.client, self.label, self.features)


def import_data(
    path: Path | str,
    out: Path | str,
    *,
    client: str | None = None,
    label: str | None = None,
    features: str | Sequence[str] | None = None,
    missing: str = "error",
    standardize: bool = False,
    resize: int | None = None,
    delimiter: str | None = None,
    manner: Manner | None = None,
) -> Outcome:
    """Import samples from a table, an array file or a folder of images, as a dataset for ``partition``.

    A table (CSV, TSV, Parquet) needs the names of its ``client`` and ``label`` columns; ``client="none"`` where nobody
    holds the samples yet. ``features`` are columns, as a sequence or parted by commas; without it, all other columns of
    numbers. NPZ and HDF5 hold arrays ``x``, ``y`` and perhaps ``owner``, or those named here. Images lie at
    ``CLIENT/LABEL/``; ``resize`` makes them squares of so many pixels. ``missing`` is "error" or "drop" (leave out
    samples that lack a value). ``standardize`` brings every feature to mean 0 and standard deviation 1 over all
    samples. A dry run reads and checks everything.

    Raises UsageError for what contradicts itself, InputError for what is wrong in the data, and says where.
    """
    manner = manner or Manner()
    if missing not in MISSING:
        raise UsageError(f"unknown --missing '{missing}'", closest(missing, MISSING))
    chosen = features if features is None or isinstance(features, str) else tuple(features)
    path = Path(path)
    source = Source(path, _form(path), client, label, chosen, resize, delimiter)
    _fitting(source)
    draft = Draft(
        "dataset",
        {
            "form": source.form,
            "sha256": source.sha256(),
            "client": client,
            "label": label,
            "features": chosen if isinstance(chosen, str | None) else list(chosen),
            "missing": missing,
            "standardize": standardize,
            "resize": resize,
            "delimiter": delimiter,
        },
    )

    def checked() -> tuple[datasets.Dataset, dict[str, Any]]:
        raw = source.read(manner)
        clean = cleaning.cleaned(raw, path.name, missing=missing, standardize=standardize)
        dataset = datasets.Dataset(clean.x, clean.y, clean.classes, clean.owner, raw.features, clean.mean, clean.sd)
        summary = _summary(dataset, clean.dropped)
        _remark(summary, clean.remarks, manner)
        return dataset, summary

    def build(work: Work) -> tuple[dict[str, Any], dict[str, Any]]:
        dataset, summary = checked()
        datasets.write(work, dataset, _codebook(dataset, path.name))
        return summary, {"source": path.name}

    outcome = make(out, draft, manner, build)
    if outcome.decision.startswith("dry run"):
        return replace(outcome, summary=checked()[1])
    return outcome


def _codebook(dataset: datasets.Dataset, title: str) -> Codebook:
    return Codebook(
        dataset=title,
        classes=tuple(dataset.classes),
        features=dataset.features,
        columns=tuple(Column(name) for name in dataset.features),
        mean=floats(dataset.mean),
        sd=floats(dataset.sd),
    )


def _form(path: Path) -> str:
    """Return a path's form; raises InputError or UsageError for what pfl does not read."""
    if not path.exists():
        raise InputError(f"{path} does not exist")
    if path.is_dir():
        if manifests.ours(path):
            raise InputError(f"{path} is an artifact of pfl ({open_artifact(path).kind}), not data to import")
        return "images"
    suffix = path.suffix.lower()
    if suffix not in FORMS:
        known = f"{', '.join(FORMS)}, or a folder of images"
        raise UsageError(f"{path} is of no form that pfl imports ({known})", _TELL.get(suffix, ""))
    return FORMS[suffix]


def _fitting(source: Source) -> None:
    """Raise UsageError for an option that the form has no use for."""
    if source.resize is not None and source.form != "images":
        raise UsageError(f"--resize is for folders of images; {source.path} is none", "leave it out")
    if source.resize is not None and not 1 <= source.resize <= 4096:
        raise UsageError(f"--resize {source.resize} is not between 1 and 4096 pixels", "--resize 32")
    if source.delimiter is not None and source.form != "csv":
        raise UsageError(f"--delimiter is for CSV and TSV; {source.path} is neither", "leave it out")
    if source.form == "images":
        for option, value in (("client", source.client), ("label", source.label), ("features", source.features)):
            if value is not None and (option, value) != ("client", NOBODY):
                raise UsageError(
                    f"--{option} is for tables and arrays; a folder says it by its layout", "CLIENT/LABEL/IMAGE"
                )


def _summary(dataset: datasets.Dataset, dropped: int) -> dict[str, Any]:
    counts = np.bincount(dataset.y, minlength=len(dataset.classes))
    summary: dict[str, Any] = {
        "samples": len(dataset.y),
        "dropped": dropped,
        "shape": list(dataset.x.shape[1:]),
        "type": str(dataset.x.dtype),
        "classes": {name: int(count) for name, count in zip(dataset.classes, counts, strict=True)},
        "features": list(dataset.features),
        "clients": None,
    }
    if dataset.owner is not None:
        sizes = np.unique(dataset.owner, return_counts=True)[1]
        summary |= {
            "clients": len(sizes),
            "smallest": int(sizes.min()),
            "median": float(np.median(sizes)),
            "largest": int(sizes.max()),
        }
    return summary


_SHOWN = 12


def _remark(summary: dict[str, Any], remarks: Sequence[str], manner: Manner) -> None:
    say = manner.watch.say
    whose = "nobody's yet (pfl partition --scheme dirichlet --clients 100)"
    if summary["clients"] is not None:
        whose = (
            f"{_count(summary['clients'], 'client')} with "
            f"{summary['smallest']} / {summary['median']:g} / {summary['largest']} samples (min / median / max)"
        )
    shape = "x".join(map(str, summary["shape"]))
    kind = "pixels" if summary["type"] == "uint8" else "feature" if shape == "1" else "features"
    say(f"{summary['samples']} samples of {len(summary['classes'])} classes, {shape} {kind}, {whose}")
    say(f"classes: {_few([f'{name} {count}' for name, count in summary['classes'].items()])}")
    if summary["features"]:
        say(f"features: {_few(summary['features'])}")
    for remark in remarks:
        say(remark)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def _few(words: Sequence[str]) -> str:
    return ", ".join(words[:_SHOWN]) + (f", ... ({len(words)} in all)" if len(words) > _SHOWN else "")


def artifact(dataset: str) -> Artifact | None:
    """Open the imported dataset that stands where a dataset's name may; None if it is a name, not a path.

    Raises InputError for a path at which there is none.
    """
    if dataset in registry.names("datasets") or not ("/" in dataset or Path(dataset).exists()):
        return None
    if Path(dataset).is_file() and Path(dataset).name != manifests.NAME:
        raise InputError(
            f"{dataset} is a file, to be imported first",
            f"pfl import {dataset} --client COL --label COL -o DIR && pfl partition DIR -o OTHER",
        )
    return open_artifact(dataset, "dataset")


def load(source: Artifact, root: Path | None, *, download: bool = False) -> Samples:
    """Return the samples of an imported dataset; raises UsageError for ``root`` or ``download``, which it needs not."""
    if root is not None or download:
        raise UsageError(f"{source.path} holds its samples: --root and --download have no use", "leave them out")
    found = datasets.read(source)
    return Samples(found.x, found.y, len(found.classes), found.owner)
