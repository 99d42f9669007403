"""Messages between the server and the sites: safetensors files with a head in JSON.

A ``Question`` has what the clients of a site download in a round, an ``Answer`` their uploads, and a ``Final`` the
server's state after the last round. A message is read like any foreign file: its head, and the names, types and shapes
of its tensors, are compared with what the method exchanges before a tensor is allocated. Nothing is unpickled, and
nothing else can be in a message.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge
from pydantic import Strict
from torch import Tensor

from pflcli.artifacts import disk, safetensors_file
from pflcli.artifacts import manifest as manifests
from pflcli.core import foreign, parameters
from pflcli.core.errors import InputError
from pflcli.core.parameters import Params

VERSION = 1
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
"""The type and shape of each tensor of a message, in their order."""


@dataclass(frozen=True)
class Question:
    """The ``clients`` of a ``site`` that take part in a ``round``, from 1; the tensors are what they download.

    ``last_round`` is the last round in which the server received an answer of the site, 0 if there is none.
    """

    __pydantic_config__ = _CLOSED
    version: _Whole
    federation: str
    site: str
    round: _Whole
    last_round: _Whole
    clients: tuple[_Whole, ...]


@dataclass(frozen=True)
class ClientResult:
    """Whether a client ``trained`` or ``diverged``; the method's ``weight`` of its upload, None if it sent none."""

    __pydantic_config__ = _CLOSED
    client: _Whole
    trained: Annotated[bool, Strict()]
    diverged: Annotated[bool, Strict()]
    weight: Annotated[float, Strict()] | None


@dataclass(frozen=True)
class Answer:
    """What the clients of a site did in a round; the tensors are their uploads, named ``client/tensor``.

    ``question`` is the SHA-256 of the question. ``last_round`` is the round after which the site continued, and
    ``versions`` are those of what it runs. ``losses`` are training losses,
    None for nan, each with its weight.
    """

    __pydantic_config__ = _CLOSED
    version: _Whole
    federation: str
    site: str
    round: _Whole
    last_round: _Whole
    question: str
    versions: dict[str, str]
    clients: tuple[ClientResult, ...]
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
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        disk.write(temporary, pieces(head, tensors))
        temporary.replace(path)
        disk.sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise disk.write_error(f"cannot write {path}", path.parent, error) from None


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
        stacked = {name: value.unsqueeze(0) for name, value in found.items()}
        if stacked and not parameters.finite(stacked).all():
            raise InputError(f"{self.path} has a number that is not finite, or too large")
        return found

    def require_layout(self, expected: Layout) -> None:
        """Raise InputError unless the message has these tensors and no others."""
        for name, form in expected.items():
            if name not in self.layout:
                raise InputError(f"{self.path} lacks the tensor '{name}'")
            if self.layout[name] != form:
                raise InputError(
                    f"{self.path}: tensor '{name}' is {_describe(*self.layout[name])}, not {_describe(*form)}"
                )
        for name in self.layout:
            if name not in expected:
                raise InputError(f"{self.path} has a tensor {name[:80]!r}, which does not belong to this message")


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def size(layout: Layout) -> int:
    """Return the bytes of the tensors of a layout."""
    return sum(math.prod(shape) * dtype.itemsize for dtype, shape in layout.values())


def read_kind(path: Path) -> str:
    """Return which message a file is, without checking it; raises InputError if it is none."""
    with foreign.reading(path, "a message of pfl"), path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(path.stat().st_size - 8, _MAX_HEAD):
            raise InputError(f"{path} is truncated, or not a message of pfl")
        return str(json.loads(json.loads(file.read(length))["__metadata__"][_KEY])["kind"])


def _describe(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {'x'.join(map(str, shape)) or 'number'}"


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
