"""Upload steps, one file each, and the interface of such a file: ``Upload``.

A step changes uploads before the server receives them, for every method whose server averages uploads: it clips
updates, adds noise, or sends them in fewer bits. ``--upload clip:1.0 --upload int8`` applies the steps in this order.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from pflcli.core import config, parameters, registry
from pflcli.core.engine.local_sgd import is_stacked
from pflcli.core.errors import InputError, UsageError
from pflcli.core.parameters import Params, Stacked

registry.search_used_folders("uploads", __path__)

Draw = Callable[[int], np.random.Generator]
"""Returns the generator of the i-th upload."""


class Upload(Protocol):
    """A file of this folder. ``Config`` and ``apply`` are required; it has at most one option."""

    Config: type[Any]
    """its options: a frozen dataclass with a default for each, and a line of explanation under each"""

    RANDOM: bool | Literal["seed"] = False
    """whether ``apply`` draws random numbers; they come from a secret of the run, so that nobody can compute the noise
    and subtract it, or from ``--seed`` if this is "seed": for numbers that protect nobody, such as those of rounding"""
    BIASED: bool = False
    """whether updates arrive changed on average, as those that are clipped"""

    @abstractmethod
    def apply(self, params: Stacked, downloaded: Stacked, cfg: Any, draw: Draw) -> Stacked:
        """Return the uploads (m, ...) that the server receives of models ``params`` trained from ``downloaded`` ones.

        ``draw(i)`` is the generator of the i-th upload, for a file with ``RANDOM``.
        """

    def size(self, params: Params, size: int, cfg: Any) -> int:
        """Return the bytes of one upload shaped like ``params``, which took ``size`` bytes before this step."""
        return size

    def pack(self, params: Stacked, downloaded: Stacked, cfg: Any) -> Stacked:
        """Return the tensors (m, ...) that travel from a real site; ``unpack`` makes of them what ``apply`` returns.

        A file whose uploads have fewer bytes than ``params`` has both functions. By default, what ``apply`` returns
        travels.
        """
        return params

    def unpack(self, sent: Stacked, downloaded: Stacked, cfg: Any) -> Stacked:
        """Return the uploads (m, ...) of the tensors that ``pack`` returned."""
        return sent


@dataclass(frozen=True)
class Step:
    """An upload step with its option, as ``Run.upload`` applies it."""

    name: str
    file: Upload
    cfg: Any

    @property
    def is_random(self) -> bool:
        """Whether the step draws random numbers."""
        return bool(self.file.RANDOM)

    @property
    def is_biased(self) -> bool:
        """Whether updates arrive changed on average, as the file declares."""
        return bool(self.file.BIASED)

    @property
    def is_private(self) -> bool:
        """Whether the random numbers of the step are to be secret."""
        return self.is_random and self.file.RANDOM != "seed"

    @property
    def packs(self) -> bool:
        """Whether an upload travels in another form than ``apply`` returns."""
        return type(self.file).pack is not Upload.pack

    def apply(self, params: Stacked, downloaded: Stacked, draw: Draw | None = None) -> Stacked:
        """Return what the server receives (m, ...); ``draw(i)`` is the generator of the i-th upload.

        Raises InputError if the step draws a random number, but its file has no ``RANDOM``.
        """
        return self.file.apply(params, downloaded, self.cfg, draw if draw and self.is_random else self._refuse_draw)

    def _refuse_draw(self, position: int) -> np.random.Generator:
        raise InputError(
            f"the upload step {self.name} calls draw(i), and its file does not declare it",
            'RANDOM = True in the file, or RANDOM = "seed" if the numbers protect nobody',
        )

    def size(self, params: Params, size: int) -> int:
        """Return the bytes of one upload after this step."""
        return self.file.size(params, size, self.cfg)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to pickle a step for a worker: by its text."""
        return load, (str(self),)

    def __str__(self) -> str:
        """Return the value of ``--upload``, with the option."""
        return ":".join([self.name, *(str(value) for value in config.plain(self.cfg).values())])


@dataclass(frozen=True)
class Encoding:
    """Turns trained models into uploads: selects the tensors that clients received, and applies upload ``steps``."""

    downloaded: Params | Stacked
    """the model that all clients received, or one per client (m, ...)"""
    steps: Sequence[Step]

    def __call__(self, params: Stacked, draws: Callable[[int], Draw] | None = None) -> Stacked:
        """Return the uploads (m, ...) of trained models (m, ...).

        ``draws(i)`` returns the random numbers of the i-th step; it is required if a step is random.
        """
        received = self.uploaded_tensors(params)
        if self.steps:
            start = self.start(received)
            for place, step in enumerate(self.steps):
                received = step.apply(received, start, *([] if draws is None else [draws(place)]))
        return received

    @property
    def is_random(self) -> bool:
        """Whether a step draws random numbers."""
        return any(step.is_random for step in self.steps)

    def uploaded_tensors(self, params: Stacked | Params) -> Stacked:
        """Return the tensors that are uploaded."""
        return {name: value for name, value in params.items() if name in self.downloaded}

    def start(self, received: Stacked) -> Stacked:
        """Return the models (m, ...) that ``received`` was trained from, on its device."""
        like = parameters.pick(received, 0)
        start = {name: value.to(received[name].device) for name, value in self.downloaded.items() if name in received}
        return start if is_stacked(start, like) else parameters.repeat(start, len(next(iter(received.values()))))

    def size(self, params: Params) -> int:
        """Return the bytes of one upload of a model with these tensors."""
        one = self.uploaded_tensors(params)
        size = parameters.size(one)
        for step in self.steps:
            size = step.size(one, size)
        return size


def load(text: str) -> Step:
    """Return the step for a ``text`` such as ``clip:1.0`` or ``int8``; raises UsageError if it is not valid."""
    name, colon, value = text.partition(":")
    file: Upload = registry.load("uploads", name, Upload)
    if file.RANDOM not in (False, True, "seed"):
        raise InputError(f"{registry.path('uploads', name)}: RANDOM is {file.RANDOM!r}", 'RANDOM = True, or "seed"')
    options = [field.name for field in dataclasses.fields(file.Config)]
    if colon and not options:
        raise UsageError(f"--upload {text}: {name} has no option", f"--upload {name}")
    return Step(name, file, config.build(file.Config, {options[0]: value} if colon else {}, f"--upload {name}"))
