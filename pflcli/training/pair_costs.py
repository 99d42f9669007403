"""Warn, before a run with many clients, about costs of a method that grow with the number of pairs of clients.

A method's file declares them. ``PAIRS_SENT`` is "models" if each participant of a round may download the models of all
clients, or "public samples" if each client downloads the public samples of all clients once. ``PAIRS_KEPT`` is the
number of bytes per pair in its largest table. The costs of other methods grow linearly with the number of clients.
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
"""The number of clients from which these costs are reported."""


def remarks(name: str, method: Method, cfg: Any, settings: Settings, partition: Artifact) -> list[str]:
    """Return one line per cost that grows with the square of the number of clients; none for few clients."""
    clients = int(partition.manifest.summary["clients"])
    if clients < MANY or not (method.PAIRS_SENT or method.PAIRS_KEPT):
        return []
    lines, pair_content, participants = [], method.PAIRS_SENT, len(partitions.read_able_clients(partition))
    if pair_content == "models":
        cohort = max(1, round(settings.participation * participants))
        gigabytes = cohort * participants * run_request.model_bytes(settings, partition) / 1e9
        lines.append(
            f"{name}: {cohort:,} of {participants:,} clients a round are sent up to {participants:,} models each, "
            f"{gigabytes:,.1f} GB"
        )
    if pair_content == "public samples":
        form, samples = partitions.read_form(partition), math.ceil(cfg.public * partition.manifest.summary["train"])
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
