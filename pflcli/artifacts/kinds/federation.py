"""A federation of real sites: all that the server and the sites must agree on, and no sample.

The request has the ``method`` with its ``options``, the training ``settings`` and the ``seed``; ``form``, the shape and
type of a sample and the number of classes, with the ``task`` of labels that are none; ``train``, the training samples
of each client (m,); ``split``, how clients split their samples; ``import``, the options of the import, if there was
one; ``exchange``, the name, type and shape of each tensor in the deliveries to a client and in the channels from it, by
phase; and a hash of ``codebook.json``, which has the names of clients and classes, the user's columns, and scales. With
``then``, these are the rounds of a backbone, from which clients predict by another method: its ``method``, ``options``,
``settings``, ``seed`` and, if it needs one, the options of its ``datastore`` and the ``layer`` that represents samples
in it. ``agreement`` is the hash of the table of columns that sites agreed on, if there was no run.

Several ``runs`` have theirs by name, ``seed-N/METHOD``; ``scores`` are those of sites: ``metric``, ``baseline``, ...
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import describe_count, describe_name
from pflcli.artifacts.manifest import Manifest, digest
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.safetensors_file import TYPES
from pflcli.core.errors import InputError

SCHEMA = 1
MADE_BY = "pfl federation create PREDICTIONS -o DIR"


def client_names(artifact: Artifact) -> list[str]:
    """Return the names of the clients (m,)."""
    return codebook.read(artifact).client_names(len(artifact.manifest.request["train"]))


def read_exchange(artifact: Artifact) -> dict[str, Any]:
    """Return what sites have agreed on, as a report needs it.

    ``method`` and its ``rounds``; ``clients``, the training samples by name; ``uploads``, the name, type and shape of
    each tensor that leaves a site in a round; and ``bytes_up`` and ``bytes_down`` of a client in a round.
    """
    request = artifact.manifest.request
    channels = [
        each["tensors"] for kinds in request["exchange"].values() for kind in kinds for each in kind["channels"]
    ]
    uploads = [*{json.dumps(tensor): tensor for each in channels for tensor in each}.values()]
    rounds = request["exchange"].get("round", [])
    return {
        "method": request.get("then", request)["method"],
        "rounds": request["settings"]["rounds"] if rounds else 0,
        "clients": dict(zip(client_names(artifact), request["train"], strict=True)),
        "uploads": [{"tensor": name, "type": kind, "shape": shape} for name, kind, shape in uploads],
        "bytes_up": max((_count_bytes(each["tensors"] for each in kind["channels"]) for kind in rounds), default=0),
        "bytes_down": max((_count_bytes(kind["deliveries"]) for kind in rounds), default=0),
    }


def _count_bytes(layouts: Iterable[Sequence[Sequence[Any]]]) -> int:
    """Return the bytes of tensors, at most: a negative first number of a shape is the maximum of its axis."""
    return sum(abs(math.prod(shape)) * TYPES[kind][1] for layout in layouts for _, kind, shape in layout)


def check(artifact: Artifact) -> None:
    """Read its codebook; raises InputError if it is not the one that sites agreed on."""
    if digest(artifact.json(codebook.FILE)) != artifact.manifest.request["codebook"]:
        raise InputError(f"{artifact.path / codebook.FILE} is not the one of this federation", MADE_BY)
    codebook.read(artifact)


def describe(manifest: Manifest) -> list[str]:
    """Return a few facts that distinguish artifacts of this kind, as text."""
    request, summary = manifest.request, manifest.summary
    return [
        describe_name(request.get("then", request).get("method")),
        describe_name(request.get("settings", {}).get("model"), "model"),
        describe_count(len(request["runs"]) if "runs" in request else None, "run"),
        describe_count(summary.get("clients"), "client"),
    ]
