"""Upload steps, one file each, and the interface of such a file: ``Upload``.

A step changes uploads before the server receives them, for every method whose server averages uploads: it clips
updates, adds noise, or sends them in fewer bits. ``--upload clip:1.0 --upload int8`` applies the steps in this order.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pflcli import config, registry
from pflcli.errors import UsageError
from pflcli.parameters import Params, Stacked

registry.search_used_folders("uploads", __path__)

Draw = Callable[[int], np.random.Generator]


class Upload(Protocol):
    """A file of this folder. ``Config`` and ``apply`` are required; it has at most one option."""

    Config: type[Any]
    """its options: a frozen dataclass with a default for each, and a line of explanation under each"""

    RANDOM: bool = False
    """whether ``apply`` draws random numbers"""

    @abstractmethod
    def apply(self, params: Stacked, downloaded: Stacked, cfg: Any, draw: Draw) -> Stacked:
        """Return the uploads (m, ...) that the server receives of models ``params`` trained from ``downloaded`` ones.

        ``draw(i)`` is the generator of the i-th upload.
        """

    def size(self, params: Params, size: int, cfg: Any) -> int:
        """Return the bytes of one upload shaped like ``params``, which took ``size`` bytes before this step."""
        return size


@dataclass(frozen=True)
class Step:
    """An upload step with its option, as ``federation.channel`` applies it."""

    name: str
    file: Upload
    cfg: Any

    @property
    def is_random(self) -> bool:
        """Whether the step draws random numbers."""
        return getattr(self.file, "RANDOM", False)

    def apply(self, params: Stacked, downloaded: Stacked, draw: Draw = np.random.default_rng) -> Stacked:
        """Return what the server receives (m, ...); ``draw(i)`` is the generator of the i-th upload."""
        return self.file.apply(params, downloaded, self.cfg, draw)

    def size(self, params: Params, size: int) -> int:
        """Return the bytes of one upload after this step."""
        return self.file.size(params, size, self.cfg)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to pickle a step for a worker: by its text."""
        return load, (str(self),)

    def __str__(self) -> str:
        """Return the value of ``--upload``, with the option."""
        return ":".join([self.name, *(str(value) for value in config.plain(self.cfg).values())])


def load(text: str) -> Step:
    """Return the step for a ``text`` such as ``clip:1.0`` or ``int8``; raises UsageError if it is not valid."""
    name, colon, value = text.partition(":")
    file: Upload = registry.load("uploads", name, Upload)
    options = [field.name for field in dataclasses.fields(file.Config)]
    if colon and not options:
        raise UsageError(f"--upload {text}: {name} has no option", f"--upload {name}")
    return Step(name, file, config.build(file.Config, {options[0]: value} if colon else {}, f"--upload {name}"))
