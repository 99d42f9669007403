"""``pfl audit --updates``: attack what clients upload in the first round of FedSGD or FedAvg on a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import codebook, csv_file
from pflcli.artifacts.codebook import Codebook
from pflcli.artifacts.make import Built
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core.execution import Execution
from pflcli.plugins.audits import leakage_kind, records
from pflcli.plugins.audits.first_round import replay_first_round
from pflcli.plugins.audits.update_attack import Attacker, Found, Scale
from pflcli.workflow.prediction import reopened_run
from pflcli.workflow.prediction.reopened_run import ReopenedRun

STATISTICS = 1
"""The version of the statistics; it changes when the results of the same request may change."""

_NUMBERS = [field.name for field in fields(Found) if field.name != "errors"]


def build_leakage(model: ReopenedRun, seed: int, execution: Execution, work: ArtifactWriter) -> Built:
    """Attack the updates of all clients of round 1, and the change of the global model; write what is found."""
    first = replay_first_round(model, execution)
    book, names = codebook.read(model.artifact), reopened_run.client_names(model.artifact)
    scales = _read_scales(book, {client: names[client] for client in first.updates}, first.features)
    attacker = Attacker(first, seed, scales, centred=bool(book.scales))
    with execution.reporter.progress("attack", len(attacker.clients)) as advance:
        found = []
        for client in attacker.clients:
            found.append(attacker.attack_client(client))
            advance(1, "")
    rows = [
        _row("server", "the update of each client", found, len(found)),
        _row("everybody", "the global model before and after the round", [attacker.attack_change()], len(found)),
    ]
    content = {"method": model.name, "tolerance": records.TOLERANCE, "attackers": rows, "warnings": _warnings(model)}
    work.write(leakage_kind.LEAKAGE, (json.dumps(content, indent=2) + "\n").encode())
    heading = [name for name in rows[0] if name != "sees"]
    work.write(leakage_kind.TABLE, csv_file.encode_rounded(heading, [[row[name] for name in heading] for row in rows]))
    lines = [
        [client, names[client], *(getattr(each, name) for name in _NUMBERS)]
        for client, each in zip(attacker.clients, found, strict=True)
    ]
    work.write(leakage_kind.CLIENTS, csv_file.encode_rounded(["client", "name", *_NUMBERS], lines))
    work.write(leakage_kind.COLUMNS, _describe_columns(book, attacker.deviation, found))
    server = {name: rows[0][name] for name in ("clients", "samples", "exact_clients", "records")}
    return Built({"method": model.name, **server}, {})


def _warnings(model: ReopenedRun) -> list[str]:
    """Return what concerns the interpretation of the results."""
    lines = [f"{name} has changed since the run was made" for name in reopened_run.find_changed_code(model.artifact)]
    if model.settings.dp:
        lines.append("differential privacy adds its noise at the server, which sees the updates without it")
    return lines


def _row(attacker: str, sees: str, found: Sequence[Found], clients: int) -> dict[str, Any]:
    """Return the sums over what an attacker found in the update of each of the ``clients``, or in one of all together.

    Exact clients are those whose estimated class counts have no error.
    """
    wrong, guessed = ([getattr(each, name) for each in found] for name in ("wrong_counts", "guessed_wrong_counts"))
    has_classes, is_server = wrong[0] is not None, attacker == "server"
    sums = {name: sum(getattr(each, name) for each in found) for name in _NUMBERS if not name.endswith("wrong_counts")}
    return {
        "attacker": attacker,
        "sees": sees,
        "clients": clients,
        "samples": sums.pop("samples"),
        "exact_clients": wrong.count(0) if has_classes and is_server else None,
        "guessed_exact_clients": guessed.count(0) if has_classes and is_server else None,
        "wrong_counts": sum(wrong) if has_classes else None,
        "guessed_wrong_counts": sum(guessed) if has_classes else None,
        **sums,
    }


def _read_scales(book: Codebook, clients: Mapping[int, str], width: int) -> dict[int, Scale]:
    """Return the scale by which the ``width`` features of each client were standardized, by its number."""
    shared = Scale(np.zeros(width), np.ones(width))
    if len(book.mean) == width:
        shared = Scale(np.asarray(book.mean), np.asarray(book.sd))
    own = {scale.client: Scale(np.asarray(scale.mean), np.asarray(scale.sd)) for scale in book.scales}
    return {client: own.get(name, shared) for client, name in clients.items()}


def _describe_columns(book: Codebook, deviation: NDArray[np.float64], found: Sequence[Found]) -> bytes:
    """Return ``columns.csv``: errors of the samples that the server recovered, in the unit of each column."""
    errors, width = np.concatenate([each.errors for each in found]), len(deviation)
    titles = book.features if len(book.features) == width else [str(number) for number in range(width)]
    rows = [[title, deviation[place], len(errors), *_summarize(errors[:, place])] for place, title in enumerate(titles)]
    return csv_file.encode_rounded(["column", "deviation", "records", "median_error", "largest_error"], rows)


def _summarize(errors: Any) -> list[float | None]:
    return [float(np.median(errors)), float(errors.max())] if len(errors) else [None, None]
