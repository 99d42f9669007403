"""The table of updates for the operator of a server: how large that of each site is, and how far from the others.

A row is an outlier if its norm, or its distance to the mean of the others, differs from the median of the round by a
factor of more than two, and by more than ``_MOST_DEVIATIONS`` median absolute deviations, both taken of logarithms; a
small distance is none. Fewer than ``_LEAST_SITES`` sites have no outlier.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pflcli.artifacts import csv_file, disk
from pflcli.core import foreign, parameters
from pflcli.core.federation.uploads import Step
from pflcli.core.parameters import Params
from pflcli.plugins.sites.places import AtServer, Reply, unpack

FILE = "updates.csv"
_LEAST_SITES = 4
_MOST_DEVIATIONS = 5.0
_LEAST_FACTOR = 2.0


@dataclass(frozen=True)
class Update:
    """What a site sent in a round; nan where there is no number."""

    round: int
    site: str
    what: str
    """``update``, the difference to what the site received, or ``sent``, if it received nothing of this form"""
    norm: float
    """its L2 norm"""
    distance: float
    """the L2 distance to the mean of the other sites, each of which counts the same"""
    weight: float
    """the weight with which the server counts it"""
    loss: float
    """the mean training loss of the site"""


def measure_updates(
    place: AtServer,
    steps: Sequence[Step],
    number: int,
    sites: Mapping[str, Sequence[int]],
    losses: Mapping[str, Sequence[tuple[float, float]]],
) -> list[Update]:
    """Return the row of each of the ``sites``, with its clients, in round ``number``, whose replies a place has.

    ``losses`` are those of each site, with their weights. Each reply is read twice, as no two are in memory at a time.
    """
    found = {}
    for site, clients in sites.items():
        replies = {client: place.replies[client] for client in clients if client in place.replies}
        if any(reply.sent for reply in replies.values()):
            found[site] = partial(_read_update, place, steps, replies)
    totals, counts = dict[str, Params](), dict[str, int]()
    for read in found.values():
        vector = read()[0]
        key = str(parameters.outline(vector))  # only sites that send the same tensors are compared
        if key in totals:
            for name, value in vector.items():
                totals[key][name].add_(value)
        else:
            totals[key] = vector
        counts[key] = counts.get(key, 0) + 1
    rows = []
    for site, read in found.items():
        vector, what, weight = read()
        key = str(parameters.outline(vector))
        others, total = counts[key] - 1, totals[key]
        norm = _compute_norm(vector)
        # The distance of u to the mean (total - u) / others of the others.
        gaps = {n: v.mul_((others + 1) / others).sub_(total[n], alpha=1 / others) for n, v in vector.items() if others}
        pairs = [(loss, share) for loss, share in losses.get(site, ()) if share > 0 and not math.isnan(loss)]
        loss = sum(loss * share for loss, share in pairs) / sum(share for _, share in pairs) if pairs else math.nan
        rows.append(Update(number, site, what, norm, _compute_norm(gaps), weight, loss))
    return rows


def _read_update(place: AtServer, steps: Sequence[Step], replies: Mapping[int, Reply]) -> tuple[Params, str, float]:
    """Return the mean of what clients of a site sent, by their weights, what it is, and the sum of the weights.

    It is an update if there are tensors that clients received as well: then it is the difference of these.
    """
    sent, updates, weights, shares = Params(), Params(), 0.0, 0.0
    for client, reply in replies.items():
        weight = max((each.weight for each in reply.sent.values()), default=0.0)
        share = weight or 1.0  # what is not averaged may have no weight
        weights, shares = weights + weight, shares + share
        for number, each in sorted(reply.sent.items()):
            start, read = place.starts.get(number), each.read()
            if start is not None and place.unpacks:
                read = unpack(steps, read, start)
            for name, value in read.items():
                if value.is_floating_point():
                    received = _find_received(place, client, name, value) if start is None else start[name]
                    _add(sent if received is None else updates, f"{number}/{name}", share, value, received)
    total = updates or sent
    return {name: value.div_(shares) for name, value in total.items()}, "update" if updates else "sent", weights


def _add(total: Params, name: str, share: float, value: Tensor, received: Tensor | None) -> None:
    gap = value.float() if received is None else value.float().sub_(received)
    if name in total:
        total[name].add_(gap, alpha=share)
    else:
        total[name] = gap.mul_(share)


def _find_received(place: AtServer, client: int, name: str, like: Tensor) -> Tensor | None:
    """Return what a client last received under a name, in the form of a tensor; None if it received nothing."""
    for _, packages in reversed(place.deliveries):
        received = packages.get(client, {}).get(name)
        if received is not None and (received.shape, received.dtype) == (like.shape, like.dtype):
            return received
    return None


def _compute_norm(vector: Params) -> float:
    """Return the L2 norm of all tensors together; nan without any."""
    return math.hypot(*(float(torch.linalg.vector_norm(value)) for value in vector.values())) if vector else math.nan


def find_outliers(rows: Sequence[Update]) -> list[str]:
    """Return a line for each outlier among the rows of a round."""
    lines = []
    for name, title, is_two_sided in (
        ("norm", "its norm", True),
        ("distance", "its distance to the mean of the others", False),
    ):
        values = np.asarray([getattr(row, name) for row in rows])
        median = float(np.median(values)) if len(values) >= _LEAST_SITES else math.nan
        if not 0 < median < math.inf:
            continue
        with np.errstate(divide="ignore"):
            deviations = np.log(values / median)
        most = max(_MOST_DEVIATIONS * float(np.median(np.abs(deviations))), math.log(_LEAST_FACTOR))
        lines += [
            f"round {row.round}: '{row.site}' is an outlier: {title} is {getattr(row, name):.4g}, the median of"
            f" {len(rows)} sites {median:.4g}"
            for row, deviation in zip(rows, deviations.tolist(), strict=True)
            if deviation > most or (is_two_sided and -deviation > most)
        ]
    return lines


def write_updates(folder: Path, number: int, rows: Sequence[Update]) -> None:
    """Write the rows of a round to the table in a folder, in place of those of this round and later ones.

    Raises InputError if the table cannot be read or written.
    """
    path, columns = folder / FILE, [each.name for each in fields(Update)]
    kept = list[list[str]]()
    if path.exists():
        fix = f"move {path.name} elsewhere: the rounds that follow begin another one"
        with foreign.reading(path, "a table of updates", fix), path.open(encoding="utf-8", newline="") as file:
            kept = [row for row in [*csv.reader(file)][1:] if int(row[0]) < number]
    added = csv_file.escape_formulas(csv_file.encode_rounded(columns, map(astuple, rows)))  # names of sites
    content = csv_file.encode(columns, kept) + added.partition(b"\n")[2]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"{FILE}.tmp"
        disk.write(temporary, [content])
        temporary.replace(path)
    except OSError as error:
        raise disk.write_error(f"cannot write {path}", folder, error) from None
