"""What a user should know before a run: costs, too few samples to choose on, and the seed of private noise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import Artifact
from pflcli.core import parameters, registry
from pflcli.core.datasets import SPLITS
from pflcli.core.federation import uploads
from pflcli.core.federation.privacy import guarantee
from pflcli.core.federation.run import LINKS
from pflcli.core.methods import Method
from pflcli.core.settings import Settings
from pflcli.core.wording import counted
from pflcli.workflow.training.run_settings import outline


def describe_seed(name: str, method: Method, cfg: Any, settings: Settings) -> Iterator[str]:
    """Yield a message on ``dp_seed`` in a run without differential privacy: a warning, or that it has no effect."""
    if settings.dp_seed is None or settings.dp:  # the guarantee of differential privacy has its own warning
        return
    uploads_noise = bool(LINKS[method.KIND]) and any(uploads.load(step).is_private for step in settings.upload)
    if uploads_noise or getattr(cfg, "vote", None) == "noisy" or registry.is_foreign("methods", name):
        yield guarantee.WARNING_OF_SEED
    else:
        yield f"--dp-seed {settings.dp_seed} has no effect: {name} draws no noise that protects clients"


def describe_lone_samples(
    name: str, method: Method, cfg: Any, settings: Settings, partition: Artifact
) -> Iterator[str]:
    """Yield how many clients that choose by validation samples have a single one."""
    if settings.refit or not method.choices(cfg) or method.CHOOSES_IN_ROUNDS:
        return
    if single := int((partitions.read_sizes(partition)[:, SPLITS.index("validation")] == 1).sum()):
        chosen = "for which they choose as clients without validation samples do"
        yield f"{name}: {counted(single, 'client')} with a single validation sample, {chosen}"


MIN_CLIENTS_FOR_PAIR_COSTS = 1000
"""Costs that grow with the number of pairs of clients are reported from this number of clients."""


def describe_pair_costs(name: str, method: Method, cfg: Any, settings: Settings, partition: Artifact) -> list[str]:
    """Return one line per cost of a method that grows with the square of the number of clients; none for few clients.

    A method's file declares these costs. ``PAIRS_SENT`` is "models" if each participant of a round may download the
    models of all clients, or "public samples" if each client downloads the public samples of all clients once.
    ``PAIRS_KEPT`` is the number of bytes per pair in its largest table.
    """
    clients = int(partition.manifest.summary["clients"])
    if clients < MIN_CLIENTS_FOR_PAIR_COSTS or not (method.PAIRS_SENT or method.PAIRS_KEPT):
        return []
    lines, pair_content, participants = [], method.PAIRS_SENT, len(partitions.read_able_clients(partition))
    if pair_content == "models":
        cohort = max(1, round(settings.participation * participants))
        model = parameters.size(parameters.state(outline(settings, partitions.read_form(partition))))
        gigabytes = cohort * participants * model / 1e9
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
