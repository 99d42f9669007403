"""Messages between the server and the sites: safetensors files with a head in JSON.

A ``Question`` has what clients of a site receive, an ``Answer`` what they send, and a ``Final`` the server's state
after the last round. A message is read like any foreign file: its head, and the names, types and shapes of its tensors,
are compared with what the method exchanges before a tensor is allocated. Nothing is unpickled, and nothing else can be
in a message.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge
from pydantic import Strict
from torch import Tensor

from pflcli.artifacts import manifest as manifests
from pflcli.artifacts import safetensors_file
from pflcli.core import foreign, parameters
from pflcli.core.errors import InputError
from pflcli.core.parameters import Params
from pflcli.plugins.sites.transport import write_whole

VERSION = 2
"""The version of the format."""

_KEY = "pfl"
"""The key of the head in the metadata of a safetensors file."""
_MAX_HEAD = 1 << 26
"""Maximum bytes of the head and the names of tensors: 100,000 clients with a model of 50 tensors."""
_HEAD_BYTES, _CLIENT_BYTES, _TENSOR_BYTES = 1 << 16, 1 << 12, 1 << 9
"""Maximum bytes of a head without clients, of what it says of a client, and of the name and place of a tensor."""
_CLOSED = {"extra": "forbid"}
_Whole = Annotated[int, Strict(), Ge(0)]

Layout = dict[str, tuple[torch.dtype, tuple[int, ...]]]
"""The type and shape of each tensor of a message, in their order. In what is expected, a negative first number is a
free axis, with at most so many entries."""


@dataclass(frozen=True)
class Form:
    """What a channel carries for a client; an update has a weight, and comes from a client that has trained.

    No model depends on a record, which a site may refuse to send.
    """

    layout: Layout
    is_update: bool = False
    is_record: bool = False


@dataclass(frozen=True)
class Pattern:
    """What a client exchanges in a phase: the layouts of deliveries to it, and the forms of channels from it."""

    deliveries: tuple[Layout, ...] = ()
    channels: tuple[Form, ...] = ()


Patterns = Mapping[str, tuple[Pattern, ...]]
"""What is exchanged in the ``setup``, in a ``round``, of which there may be several kinds, and in ``personalize``."""


def fits(found: tuple[torch.dtype, tuple[int, ...]], expected: tuple[torch.dtype, tuple[int, ...]]) -> bool:
    """Return whether a tensor has the type and shape that is expected of it, or at most so many entries."""
    (dtype, shape), (its_dtype, its_shape) = found, expected
    if its_shape and its_shape[0] < 0 and shape:
        return dtype == its_dtype and shape[0] <= -its_shape[0] and shape[1:] == its_shape[1:]
    return (dtype, shape) == (its_dtype, its_shape)


Holders = tuple[tuple[_Whole, _Whole], ...]
"""Clients, each with the client under whose number its package is in the message."""


@dataclass(frozen=True)
class Question:
    """The ``clients`` of a ``site`` that take part in a phase, and what is delivered to them since the last exchange.

    ``round`` 0 is the setup; the rounds follow from 1, and after them the personalization. A phase begins again with
    another ``attempt``, from 1, if what clients have received in it does not hold any more. ``exchange``, from 0, is
    that of an attempt, ``number`` that of all questions, and ``previous`` the SHA-256 of the question before, or empty.
    ``deliveries``, of which the first has the number ``first``, have tensors named ``delivery/holder/tensor``.
    ``last_round`` is the last round in which the server received an answer of the site, 0 if there is none.
    """

    __pydantic_config__ = _CLOSED
    version: _Whole
    federation: str
    site: str
    number: _Whole
    round: _Whole
    last_round: _Whole
    attempt: _Whole
    exchange: _Whole
    previous: str
    clients: tuple[_Whole, ...]
    first: _Whole
    deliveries: tuple[Holders, ...]


@dataclass(frozen=True)
class ClientResult:
    """Whether a client has ``trained`` or ``diverged`` in this phase."""

    __pydantic_config__ = _CLOSED
    client: _Whole
    trained: Annotated[bool, Strict()]
    diverged: Annotated[bool, Strict()]


@dataclass(frozen=True)
class SentByClient:
    """The method's ``weight`` of what a client sends over a channel, and its training ``loss``, None for nan."""

    __pydantic_config__ = _CLOSED
    client: _Whole
    weight: Annotated[float, Strict()]
    loss: Annotated[float, Strict()] | None


@dataclass(frozen=True)
class Completed:
    """A channel of a phase, by its number, and the clients that have sent something over it."""

    __pydantic_config__ = _CLOSED
    number: _Whole
    sent: tuple[SentByClient, ...]


@dataclass(frozen=True)
class Answer:
    """What the clients of a site did since the last exchange; the tensors are named ``channel/client/tensor``.

    ``question`` is the SHA-256 of the question. ``last_round`` is the round after which the site continued, and
    ``versions`` are those of what it runs, and its processor. ``channels`` are those that became complete. ``losses``
    are all training losses of the phase, None for nan, each with its weight.
    """

    __pydantic_config__ = _CLOSED
    version: _Whole
    federation: str
    site: str
    round: _Whole
    last_round: _Whole
    attempt: _Whole
    exchange: _Whole
    question: str
    versions: dict[str, str]
    clients: tuple[ClientResult, ...]
    channels: tuple[Completed, ...]
    losses: tuple[tuple[Annotated[float, Strict()] | None, Annotated[float, Strict()]], ...]


@dataclass(frozen=True)
class Final:
    """The end of the rounds; the tensors are the server's part of the state, from which clients personalize.

    ``last_round`` is that of a ``Question``.
    """

    __pydantic_config__ = _CLOSED
    version: _Whole
    federation: str
    site: str
    rounds: _Whole
    last_round: _Whole


Head = Question | Answer | Final
_KINDS: dict[str, type[Any]] = {"question": Question, "answer": Answer, "final": Final}


def pieces(head: Head, tensors: Mapping[str, Tensor]) -> Iterator[bytes]:
    """Yield the bytes of a message."""
    kind = next(name for name, cls in _KINDS.items() if isinstance(head, cls))
    text = json.dumps({"kind": kind, **asdict(head)}, allow_nan=False)
    columns = [(name, value.dtype, tuple(value.shape), [_bytes(value)]) for name, value in tensors.items()]
    return safetensors_file.pieces(columns, {_KEY: text})


def write(path: Path, head: Head, tensors: Mapping[str, Tensor]) -> None:
    """Write a message so that ``path`` is never incomplete; raises InputError if that fails."""
    write_whole(path, pieces(head, tensors))


def _bytes(value: Tensor) -> bytes:
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""


@dataclass(frozen=True)
class Message:
    """A message in a file whose ``head`` and ``layout`` were read; its tensors were not."""

    path: Path
    head: Any
    layout: Layout
    _start: int
    """the first byte of the tensors"""

    def tensors(self, prefix: str = "") -> Params:
        """Read the tensors whose names start with ``prefix``, without it; raises InputError if one is not finite."""
        found, place = Params(), self._start
        with foreign.reading(self.path, "a message of pfl"), self.path.open("rb") as file:
            for name, (dtype, shape) in self.layout.items():
                size = math.prod(shape) * dtype.itemsize
                if name.startswith(prefix):
                    # Memory of its own: tensors at odd places of a file give products with other last bits.
                    value = torch.empty(shape, dtype=dtype)
                    file.seek(place)
                    if size and file.readinto(value.reshape(-1).view(torch.uint8).numpy().data) != size:
                        raise InputError(f"{self.path} is truncated")
                    found[name.removeprefix(prefix)] = value
                place += size
        if not are_finite(found):
            raise InputError(f"{self.path} has a number that is not finite, or too large")
        return found

    def require_layout(self, expected: Layout) -> None:
        """Raise InputError unless the message has these tensors and no others."""
        if misfit := compare(expected, self.layout):
            raise InputError(f"{self.path}: {misfit}")

    def require_one_of(self, patterns: Iterable[Pattern], describe: Callable[[Pattern], Layout]) -> None:
        """Raise InputError unless the message has the tensors that ``describe`` returns of one of the patterns."""
        if misfit := find_misfit(patterns, describe, self.layout):
            raise InputError(f"{self.path}: {misfit}")


def find_misfit(patterns: Iterable[Pattern], describe: Callable[[Pattern], Layout], found: Layout) -> str:
    """Return why tensors do not fit what ``describe`` returns of any of the patterns; empty if they fit one."""
    misfits = [compare(describe(pattern), found) for pattern in patterns]
    return "" if "" in misfits else misfits[0] if misfits else "nothing is exchanged in this phase"


def compare(expected: Layout, found: Layout) -> str:
    """Return why tensors do not fit a layout; empty if they do."""
    for name, form in expected.items():
        if name not in found:
            return f"lacks the tensor '{name}'"
        if not fits(found[name], form):
            return f"tensor '{name}' is {describe_form(*found[name])}, not {describe_form(*form)}"
    strange = [name for name in found if name not in expected]
    return f"has a tensor {strange[0][:80]!r}, which does not belong to this message" if strange else ""


def are_finite(params: Params) -> bool:
    """Return whether all numbers of a model are finite, and none is so large that products with it are not."""
    stacked = {name: value.unsqueeze(0) for name, value in params.items() if value.is_floating_point()}
    return not stacked or bool(parameters.finite(stacked).all())


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def size(layout: Layout) -> int:
    """Return the bytes of the tensors of a layout, or their maximum."""
    return sum(abs(math.prod(shape)) * dtype.itemsize for dtype, shape in layout.values())


def read_kind(path: Path) -> tuple[str, str]:
    """Return which message a file is, and of which federation, without checking it; raises InputError if it is none."""
    with foreign.reading(path, "a message of pfl"), path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(path.stat().st_size - 8, _MAX_HEAD):
            raise InputError(f"{path} is truncated, or not a message of pfl")
        head = json.loads(json.loads(file.read(length))["__metadata__"][_KEY])
        return str(head["kind"]), str(head["federation"])


def describe_form(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    """Return the type and the shape of a tensor, or of what is expected, in words."""
    numbers = [f"at most {-count}" if count < 0 else str(count) for count in shape]
    return f"{str(dtype).removeprefix('torch.')} {'x'.join(numbers) or 'number'}"


def max_head(clients: int, tensors: int) -> int:
    """Return the maximum bytes of the head of a message about ``clients``, with ``tensors`` of each."""
    return _HEAD_BYTES + clients * (_CLIENT_BYTES + tensors * _TENSOR_BYTES)


def read(path: Path, kind: type[Head], federation: str, site: str, max_head: int = _MAX_HEAD) -> Message:
    """Read the head of the message in a file, at most ``max_head`` bytes, and the layout of its tensors.

    Raises InputError if it is damaged, of another ``kind``, version, ``federation`` or ``site``.
    """
    (name,) = (name for name, cls in _KINDS.items() if cls is kind)
    with foreign.reading(path, "a message of pfl"), path.open("rb") as file:
        size = path.stat().st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, max_head):
            raise InputError(f"{path} is truncated, or not a message of pfl")
        values = json.loads(file.read(length), object_pairs_hook=_unique)
        head = json.loads(values.pop("__metadata__")[_KEY], object_pairs_hook=_unique)
        if not isinstance(head, dict) or head.pop("kind", None) != name:
            raise InputError(f"{path} is not {'an' if kind is Answer else 'a'} {name} of pfl")
        if head.get("version") != VERSION:
            raise InputError(
                f"{path} was written by another version of pfl (format {str(head.get('version'))[:80]!r}, not"
                f" {VERSION})",
                "use the same version of pfl at all sites",
            )
        checked = manifests.validate(kind, head)
        layout = _read_layout(path, values, size - 8 - length)
    if checked.federation != federation:
        raise InputError(f"{path} belongs to another federation", "give the message of this federation")
    if checked.site != site:
        raise InputError(f"{path} is for the site {checked.site[:80]!r}, not for '{site}'")
    return Message(path, checked, layout, 8 + length)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these pairs; raises ValueError for a key that stands twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice")
    return found


def _read_layout(path: Path, entries: Mapping[str, Any], available: int) -> Layout:
    """Return the layout of tensors that lie one after the other in ``available`` bytes."""
    layout, place = Layout(), 0
    types = {name: dtype for dtype, (name, _) in safetensors_file.TYPES.items()}
    for name, entry in entries.items():
        if entry.keys() != {"dtype", "shape", "data_offsets"} or entry["dtype"] not in types:
            raise InputError(f"{path}: the tensor {name[:80]!r} has an unknown type, or is not described")
        shape = tuple(entry["shape"])
        if not all(type(count) is int and count >= 0 for count in shape):
            raise InputError(f"{path}: the tensor {name[:80]!r} has no valid shape")
        dtype = getattr(torch, types[entry["dtype"]])
        end = place + math.prod(shape) * dtype.itemsize
        if entry["data_offsets"] != [place, end]:
            raise InputError(f"{path}: the tensor {name[:80]!r} does not follow the one before it")
        layout[name], place = (dtype, shape), end
    if place != available:
        raise InputError(f"{path} is truncated or damaged: its tensors have {place} bytes, not {available}")
    return layout
