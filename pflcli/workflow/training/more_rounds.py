"""Continue a finished run by more rounds: the result has the bytes of a run that was longer from the beginning.

An artifact with rounds has the file ``progress.json``, with what its other files leave out. The state after the last
round is in the artifact itself. A run whose rounds would have been others with more rounds is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from pflcli.artifacts import manifest as manifests
from pflcli.artifacts import placement
from pflcli.artifacts.kinds import backbone
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import registry
from pflcli.core.errors import ConflictError, InputError
from pflcli.core.federation.run import Run
from pflcli.core.methods import Method
from pflcli.core.settings import Settings
from pflcli.core.simulation import personal_accuracy
from pflcli.core.simulation.progress import Progress, Row, find_best, update_best
from pflcli.workflow.training import dp_secret, run_settings, state_files

FILE = "progress.json"

_MEASURED = ("validation_", "personal_", "test_")
"""How the names of columns begin that have scores of models."""


class _Record(TypedDict):
    """The content of ``FILE``: the rows of ``rounds.csv`` with the clients that it counts, null for nan and seconds.

    ``state`` has the names of the state in their order.
    """

    before: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    reads_rounds: bool
    state: dict[str, Any]


def write(progress: Progress, work: ArtifactWriter) -> None:
    """Write what more rounds need and the other files of the artifact do not contain."""
    before, rows = ([_without_nan(row) for row in each] for each in (progress.before, progress.rows))
    names = state_files.outline(progress.reported)
    record = _Record(before=before, rows=rows, reads_rounds=progress.reads_rounds, state=names)
    work.write(FILE, json.dumps(record).encode())


def _without_nan(row: Row) -> Row:
    row = {**row, "seconds": math.nan}  # rounds.csv has them; the bytes of this file follow from the request
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in row.items()}


def find_shorter(out: Path, spec: ArtifactSpec, method: Method, settings: Settings, *, force: bool) -> Artifact | None:
    """Return the artifact at ``out`` if ``spec`` differs from it only in more rounds, which continue it; else None.

    ``force`` starts anew. Raises ConflictError if the artifact cannot be continued, or an unfinished run of another
    request is beside it; InputError if it is damaged.
    """
    if force or not method.has_rounds or not manifests.is_artifact(out):
        return None
    try:
        old = manifests.read(out)
    except InputError:
        return None
    before, after = ([(item.role, item.fingerprint) for item in each.inputs] for each in (old, spec))
    if (
        before != after
        or not manifests.has_fewer_rounds(old, spec)
        or old.request["settings"]["rounds"] == settings.rounds
    ):
        return None
    change = manifests.differences(old.request, spec.request)
    artifact = Artifact(out, old)
    for reason in find_obstacles(artifact, method, settings):
        raise ConflictError(f"{out} cannot be continued: {reason}", *change, "--force runs all rounds from the first")
    partial = placement.partial_folder(out)
    draft = manifests.read_draft(partial)
    if draft and draft["fingerprint"] != spec.fingerprint:
        raise ConflictError(
            f"{partial} contains an unfinished run of another request",
            *manifests.differences(draft.get("request", {}), spec.request),
            f"repeat that request to finish it, or remove it (rm -r {partial})",
        )
    return artifact


def describe(artifact: Artifact | None) -> str:
    """Return what more rounds do to an artifact; empty for None."""
    return "" if artifact is None else f"continues after round {artifact.manifest.summary['rounds']}"


def find_obstacles(artifact: Artifact, method: Method, settings: Settings) -> Iterator[str]:
    """Yield why the rounds would have been others with these ``settings``, which differ only in their number."""
    request, files = artifact.manifest.request, artifact.manifest.files
    name, old = request["method"], run_settings.read_settings(artifact)
    if FILE not in files:
        yield "its rounds are those of its backbone"
        return
    record: _Record = artifact.json(FILE, _Record)
    rows = _forget(_rows(record["rows"], []), method, settings)
    if artifact.kind == "backbone" and [*record["state"]] != ["global"]:
        yield f"it contains only the global model, and the rounds of {name} need more"
    if any(old.lr_at(t) != settings.lr_at(t) for t in range(len(rows))):
        yield f"with --lr-schedule {settings.lr_schedule} the learning rate depends on the number of rounds"
    if record["reads_rounds"]:
        yield f"the rounds of {name} depend on how many there are"
    if settings.dp_epsilon is not None:
        yield "the noise of --dp-epsilon depends on the number of rounds"
    if settings.dp_seed is not None:
        yield "noise that is drawn from --dp-seed depends on the whole request"
    if dp_secret.FILE in files and registry.is_foreign("methods", name):
        yield f"{name} would draw the same noise for other predictions"
    personal = [row for row in rows for key in row if key.startswith(_MEASURED[1:]) and not math.isnan(row[key])]
    if personal and old.lr_at(old.rounds - 1) != settings.lr_at(settings.rounds - 1):
        yield "its personal accuracy was measured at the learning rate of its last round"
    best = find_best(rows, settings.compares_rounds_by, shared=artifact.kind == "backbone")
    if settings.report == "best" and best is not None and best.best < len(rows) - 1:
        yield f"it contains the models of its best round ({rows[best.best]['round']}), not of its last one"


def restore(artifact: Artifact, run: Run, method: Method) -> Progress:
    """Return the progress of the finished run ``artifact`` for ``run``, which has more rounds; sets its traffic."""
    record: _Record = artifact.json(FILE, _Record)
    with artifact.parsing(FILE):
        seconds = (
            [float(row["seconds"]) for row in backbone.read_rounds(artifact)]
            if backbone.ROUNDS in artifact.manifest.files
            else []
        )
        count = len(record["before"])
        before = _rows(record["before"], seconds[:count])
        rows = _forget(_rows(record["rows"], seconds[count:]), method, run.settings)
        if artifact.kind == "backbone":
            weights = backbone.read_tensors(artifact)
            device, names = run.federation.y.device, record["state"]["global"]
            # A copy, because tensors in the bytes of a file are unaligned and give products with other last bits.
            state: dict[str, Any] = {"global": {name: weights[name].to(device, copy=True) for name in names}}
        else:
            state = state_files.read_state(artifact, record["state"], run)
    progress = Progress(state, before, rows, reads_rounds=record["reads_rounds"])
    if run.settings.report == "best":
        by = run.settings.compares_rounds_by
        progress.best = update_best(None, state, rows, by, shared=artifact.kind == "backbone")
    run.traffic = {link: sum(row[f"bytes_{link}"] for row in [*before, *rows]) for link in run.traffic}
    return progress


def _rows(record: list[dict[str, Any]], seconds: list[float]) -> list[Row]:
    """Return the rows of a record, with nan for null, and with their ``seconds`` if any are given."""
    rows = [{key: math.nan if value is None else value for key, value in row.items()} for row in record]
    return [{**row, "seconds": spent} for row, spent in zip(rows, seconds, strict=True)] if seconds else rows


def _forget(rows: list[Row], method: Method, settings: Settings) -> list[Row]:
    """Return the rows without the scores that a run with these settings does not measure."""
    return [
        {
            key: math.nan
            if key.startswith(_MEASURED) and not personal_accuracy.is_due(settings, method, key, row["round"] - 1)
            else value
            for key, value in row.items()
        }
        for row in rows
    ]
