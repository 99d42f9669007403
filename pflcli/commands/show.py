"""``pfl show``: describe an artifact, trace its lineage, and draw it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pflcli.artifacts import codebook, kinds, machine, verification
from pflcli.artifacts.kinds import dataset as datasets
from pflcli.artifacts.kinds import evaluation, predictions, read_labels
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.open_by_path import open_one
from pflcli.artifacts.reader import Artifact, follow
from pflcli.core import plugins, tasks
from pflcli.core.errors import InputError, UsageError
from pflcli.core.metrics import catalogue
from pflcli.core.wording import counted
from pflcli.data.preparation.profile import format_lines
from pflcli.evaluation import figures
from pflcli.evaluation.charts import vega
from pflcli.evaluation.presentation import tables

_MAX_LISTED = 12
"""Longer lists are counted in an outline."""
MAX_COLUMNS = 200
"""Columns of a profile that are printed; ``profile.csv`` has all."""


@dataclass(frozen=True)
class Lineage:
    """An artifact and the lineages of its inputs, in the manifest's order; a shared input is the same object."""

    artifact: Artifact
    inputs: tuple[Lineage, ...]


def show(path: Path | str, *, lineage: bool = False, verify: bool = False) -> dict[str, Any]:
    """Return the facts about an artifact; with ``lineage`` also those about its inputs, nested.

    With ``verify``, every file is read and checked. Raises InputError if a file was changed or cannot be read, or if an
    input no longer exists.
    """
    if lineage:
        return _nest(trace(path, verify=verify), verify=verify)
    artifact = open_one(path)
    if verify:
        verification.verify(artifact)
    facts = _facts(artifact, verify=verify)
    if artifact.kind in ("evaluation", "comparison"):
        facts["metrics"] = evaluation.read(artifact)
    if artifact.kind == "dataset":
        facts["profile"] = [asdict(row) for row in datasets.read_profile(artifact)]
    if (more := plugins.load("KINDS", artifact.kind, "facts")) is not None:
        facts |= more(artifact)
    return facts


def outline(path: Path | str, *, verify: bool = False) -> dict[str, Any]:
    """Return the facts about an artifact that a user asks for first: what it is, its size, and the worst-off client.

    Hashes and long lists are left out; ``show`` has them. Raises InputError as ``show`` does.
    """
    artifact = open_one(path)
    if verify:
        verification.verify(artifact)
    manifest = artifact.manifest
    files = manifest.files.values()
    facts = {
        "path": str(artifact.path),
        manifest.kind: ", ".join(filter(None, kinds.load(manifest.kind).describe(manifest))),
        **_shorten(manifest.summary),
        **_name_worst_client(artifact),
        "command": manifest.made.get("command"),
        "seconds": manifest.made.get("seconds"),
        "made from": ", ".join(reference.path for reference in manifest.inputs),
        "files": f"{counted(len(files), 'file')}, {sum(file['bytes'] for file in files) / 1e6:.1f} MB",
        "verified": len(files) if verify else None,
        "this machine": compare_machines([artifact]) if verify else None,
    }
    return {key: value for key, value in facts.items() if value not in (None, "")}


def compare_machines(artifacts: Iterable[Artifact]) -> str:
    """Return in a line how this machine differs from those that made artifacts."""
    found = machine.list_differences(artifact.manifest.made for artifact in artifacts)
    return f"differs: {'; '.join(found)}" if found else "has the recorded versions and processor"


def list_columns(path: Path | str) -> list[str]:
    """Return the profile of an imported dataset as lines of text; empty for other artifacts."""
    artifact = open_one(path)
    rows = datasets.read_profile(artifact) if artifact.kind == "dataset" else []
    return format_lines(rows, MAX_COLUMNS) if rows else []


def _shorten(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return a summary without empty values, in which long lists are counted and bytes are megabytes."""
    short: dict[str, Any] = {}
    for key, value in summary.items():
        if key == "privacy":
            short[key] = {name: value[name] for name in ("epsilon", "delta") if name in value}
        elif key.startswith("bytes_") and isinstance(value, int):
            short[f"MB{key.removeprefix('bytes')}"] = round(value / 1e6, 2) or None
        elif isinstance(value, Mapping | list) and len(value) > _MAX_LISTED:
            short[key] = f"{len(value)} (--verbose lists them)"
        elif isinstance(value, Mapping):
            short[key] = _shorten(value)
        elif isinstance(value, list) and all(isinstance(item, str) for item in value):
            short[key] = ", ".join(value)
        else:
            short[key] = float(f"{value:.4g}") if isinstance(value, float) else value
    return {key.replace("_", " "): value for key, value in short.items() if value not in (None, "", [], {})}


def _name_worst_client(artifact: Artifact) -> dict[str, str]:
    """Return the client with the fewest samples of a partition, or with the lowest test accuracy of predictions."""
    if artifact.kind == "partition":
        sizes = partitions.read_sizes(artifact).sum(axis=1)
        client = int(sizes.argmin())
        words = f"{_name_client(artifact, client, len(sizes))}, {counted(int(sizes[client]), 'sample')}"
        return {"smallest client": words}
    if artifact.kind != "predictions" or not predictions.has_split(artifact, "test"):
        return {}
    answers = predictions.read(artifact, "test")
    n = np.diff(answers.offsets)
    if not n.any():
        return {}
    labels = read_labels(artifact.manifest, 0)
    metric = catalogue.METRICS[tasks.find(labels.kind).metrics[0]]
    scores = metric.score_clients(answers.parts["p"], answers.y, answers.offsets, labels)
    worst = int(np.nanargmin(np.where(n > 0, metric.sign * scores, np.nan)))
    mean = float(np.average(scores[n > 0], weights=n[n > 0]))
    metric = metric.in_unit(labels.unit, mean)
    overall, lowest = (tables.format_score(float(value), metric) for value in (mean, scores[worst]))
    name = _name_client(artifact, worst, len(n))
    return {
        f"test {metric.heading}": overall,
        "worst client": f"{name}, {lowest} of {counted(int(n[worst]), 'test sample')}",
    }


def _name_client(artifact: Artifact, client: int, count: int) -> str:
    return codebook.read(artifact).client_names(count)[client]


def trace(path: Path | str, *, verify: bool = False) -> Lineage:
    """Return an artifact and everything that it was made from, back to the first.

    With ``verify``, every file is read and checked once. Raises InputError as ``show`` does.
    """
    known: dict[Path, Lineage] = {}

    def walk(artifact: Artifact) -> Lineage:
        place = artifact.path.resolve()
        if place not in known:
            if verify:
                verification.verify(artifact)
            inputs = (follow(artifact, reference) for reference in artifact.manifest.inputs)
            known[place] = Lineage(artifact, tuple(walk(item) for item in inputs))
        return known[place]

    return walk(open_one(path))


def plot(path: Path | str | Artifact, out: Path | str, rounds: Sequence[int] = ()) -> None:
    """Draw the artifact at ``path`` into the file ``out``, which is replaced if it exists; its suffix is the format.

    A partition is drawn as the samples of each client by class; predictions as the attention (of the given ``rounds``),
    the neighbours or the history that the method stored; an evaluation, a comparison, a sweep or an audit as the figure
    that it contains. Raises UsageError if the suffix of ``out`` is not .png, .svg or .pdf or if there is nothing to
    draw; InputError if ``path`` is another kind of artifact or ``out`` is not writable.
    """
    out = Path(out)
    form = out.suffix.lower().removeprefix(".")
    if form not in vega.FORMATS:
        name = out.with_suffix(".png") if out.name else "FILE.png"
        raise UsageError(f"{out} is not the name of a PNG, SVG or PDF file", f"--plot {name}")
    artifact = open_one(path)
    if rounds and artifact.kind != "predictions":
        raise UsageError(f"--plot-rounds needs predictions; {artifact.path} is a {artifact.kind} without rounds")
    _write(out, figures.render(artifact, form, rounds))


def attention(path: Path | str, out: Path | str, rounds: Sequence[int] = ()) -> None:
    """Write the attention stored in predictions, of all or the given ``rounds``, to the CSV file ``out``.

    Raises UsageError if there is none, InputError if ``path`` is another kind of artifact or ``out`` is not writable.
    """
    _write(Path(out), figures.list_attention(open_one(path, "predictions"), rounds))


def _write(out: Path, content: bytes) -> None:
    try:
        out.write_bytes(content)
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}") from None


def _nest(lineage: Lineage, *, verify: bool) -> dict[str, Any]:
    inputs = [_nest(item, verify=verify) for item in lineage.inputs]
    return {**_facts(lineage.artifact, verify=verify), "inputs": inputs}


def _facts(artifact: Artifact, *, verify: bool) -> dict[str, Any]:
    manifest = artifact.manifest
    facts: dict[str, Any] = {
        "path": str(artifact.path),
        "kind": manifest.kind,
        "schema": manifest.schema,
        "fingerprint": manifest.fingerprint,
        "request": manifest.request,
        "summary": manifest.summary,
        "made": manifest.made,
        "files": manifest.files,
        "inputs": [asdict(reference) for reference in manifest.inputs],
    }
    if verify:
        facts["verified"] = len(manifest.files)
        facts["machine_differs"] = machine.list_differences([manifest.made])
    return facts
