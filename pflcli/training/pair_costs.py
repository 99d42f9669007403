"""What a method sends or keeps for every pair of clients: reported before it begins, if there are many clients.

A method's file says so by ``PAIRS_SENT``: "models", if in a round whoever takes part may be sent every client's, or
"public samples", if all clients are sent once what all give; and by ``PAIRS_KEPT``, the bytes that its largest table
takes for each pair. What other methods send and keep grows with the clients alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import Artifact
from pflcli.methods import Method
from pflcli.settings import Settings
from pflcli.training import run_request

MANY = 1000
"""The number of clients from which on it is reported."""


def remarks(name: str, method: Method, cfg: Any, settings: Settings, partition: Artifact) -> list[str]:
    """Return what grows with the square of the clients of a ``partition``, in numbers; nothing if they are few."""
    clients = int(partition.manifest.summary["clients"])
    if clients < MANY or not (method.PAIRS_SENT or method.PAIRS_KEPT):
        return []
    lines, pair_content, participants = [], method.PAIRS_SENT, len(partitions.able(partition))
    if pair_content == "models":
        cohort = max(1, round(settings.participation * participants))
        gigabytes = cohort * participants * run_request.model_bytes(settings, partition) / 1e9
        lines.append(
            f"{name}: {cohort:,} of {participants:,} clients a round are sent up to {participants:,} models each, "
            f"{gigabytes:,.1f} GB"
        )
    if pair_content == "public samples":
        form, samples = partitions.form(partition), math.ceil(cfg.public * partition.manifest.summary["train"])
        gigabytes = participants * samples * math.prod(form.shape) * np.dtype(form.dtype).itemsize / 1e9
        lines.append(
            f"{name}: {participants:,} clients are sent {samples:,} or more samples each, {gigabytes:,.1f} GB, once"
        )
    if pair_bytes := method.PAIRS_KEPT:
        gigabytes = clients**2 * pair_bytes / 1e9
        lines.append(
            f"{name}: a table of all {clients**2:,} pairs of clients may be kept in memory, {gigabytes:,.2f} GB"
        )
    return [f"{line}; it grows with the square of the clients" for line in lines]
