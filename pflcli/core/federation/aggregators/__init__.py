"""Aggregators, one file each, and the interface of such a file: ``Aggregation``.

An aggregator is the server's rule that combines the uploads of a round into one model, for every method whose server
averages uploads. It is applied after the upload steps.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pflcli.core import config, registry
from pflcli.core.errors import UsageError
from pflcli.core.parameters import Params, Stacked

registry.search_used_folders("aggregators", __path__)


class Uploads(Protocol):
    """The uploads of one round, which an aggregator combines into one model."""

    def add(self, stacked: Stacked, weights: NDArray[np.float64]) -> None:
        """Add the uploads (m, ...) of clients with weights (m,), after the upload steps."""

    def value(self) -> Params:
        """Return the model; raises ValueError if nothing with a positive weight was added."""


class Aggregation(Protocol):
    """A file of this folder. ``Config`` and ``begin`` are required; options are typed in their order."""

    Config: type[Any]
    """its options: a frozen dataclass with a default for each, and a line of explanation under each"""
    SEPARABLE: bool = False
    """whether the result follows from sums over parts of the uploads, so that they are not needed all at once"""

    @abstractmethod
    def begin(self, downloaded: Params, cfg: Any) -> Uploads:
        """Return an empty collection that combines the uploads of clients that received ``downloaded``."""


@dataclass(frozen=True)
class Aggregator:
    """An aggregator with its options, as ``Run.average`` uses it."""

    name: str
    file: Aggregation
    cfg: Any

    @property
    def separable(self) -> bool:
        """Whether the result follows from sums over parts of the uploads."""
        return self.file.SEPARABLE

    def begin(self, downloaded: Params) -> Uploads:
        """Return an empty collection for the uploads of one round."""
        return self.file.begin(downloaded, self.cfg)

    def __str__(self) -> str:
        """Return the value of ``--aggregator``, with the options."""
        return ":".join([self.name, *(str(value) for value in config.plain(self.cfg).values())])


def load(text: str) -> Aggregator:
    """Return the aggregator for a ``text`` such as ``mean``; raises UsageError if it is not valid."""
    name, colon, value = text.partition(":")
    file: Aggregation = registry.load("aggregators", name, Aggregation)
    options = [field.name for field in dataclasses.fields(file.Config)]
    values = value.split(":") if colon else []
    if len(values) > len(options):
        most = f"{name} has {len(options) or 'no'} option{'s' * (len(options) > 1)}"
        raise UsageError(f"--aggregator {text}: {most}", f"--aggregator {':'.join([name, *options])}")
    chosen = dict(zip(options, values, strict=False))
    return Aggregator(name, file, config.build(file.Config, chosen, f"--aggregator {name}"))
