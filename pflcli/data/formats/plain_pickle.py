"""Reads pickles that contain only plain Python values and NumPy arrays, and calls nothing that they name.

Unpickling calls whatever a file names, so that a file can run any program. Here, the few names that NumPy writes stand
for objects of this module, which are converted to arrays after their shape, type and size are checked. Any other name
is an error.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pflcli.errors import InputError

_MAX_DEPTH = 16
"""Maximum depth of nested containers."""

_NUMPY_CORE = r"numpy\.(core|_core)\."
_TYPE_CODE = re.compile(r"[biuf][1-8]|[SU]\d{1,6}")
"""The types of arrays: numbers and text, without the byte order."""


def load(content: bytes, name: str) -> Any:
    """Return the value in a pickle: None, numbers, text, bytes, lists, tuples, dicts with such keys, and arrays.

    An array of objects is returned as a list, and one without dimensions as its only element. Raises InputError, which
    begins with ``name``, if the pickle names anything else; other errors if it is damaged.
    """
    value = _Unpickler(io.BytesIO(content), name).load()
    return _resolve(value, name, {}, 0)


class _Type:
    """A NumPy type in a pickle: its ``code``, such as f4, and its byte order."""

    def __init__(self, code: Any) -> None:
        self.code = code
        self.order = "="

    def __setstate__(self, state: Any) -> None:
        self.order = state[1]

    def resolve(self, name: str) -> np.dtype[Any] | None:
        """Return the type, None for objects; raises InputError for any other."""
        if self.code in ("O", "O8", "|O"):
            return None
        code = {"?": "b1", "|b1": "b1"}.get(self.code, self.code)
        if not (isinstance(code, str) and _TYPE_CODE.fullmatch(code) and self.order in ("<", ">", "|", "=")):
            raise InputError(f"{name} contains an array of type {str(self.code)[:20]!r}, not numbers or text")
        return np.dtype(f"{self.order}{code}")


@dataclass
class _Array:
    """An array in a pickle: its shape, type, memory order, and its bytes or list of objects."""

    shape: Any = ()
    type: Any = None
    is_fortran: Any = False
    data: Any = b""

    def __setstate__(self, state: Any) -> None:
        _, self.shape, self.type, self.is_fortran, self.data = state


class _Unpickler(pickle._Unpickler):
    """Python's own implementation, since the one in C reserves memory for as many objects as a file declares."""

    read: Callable[[int], bytes]
    append: Callable[[Any], None]

    def __init__(self, file: io.BytesIO, name: str) -> None:
        super().__init__(file)
        self._name = name

    def load_bytearray8(self) -> None:
        """Read bytes; Python's own method reserves memory for as many as the file declares."""
        (size,) = struct.unpack("<Q", self.read(8))
        self.append(self.read(size))

    dispatch: ClassVar[dict[int, Any]] = {**pickle._Unpickler.dispatch, pickle.BYTEARRAY8[0]: load_bytearray8}

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        """Return a function that stands for what NumPy names; raises InputError for any other name."""
        if re.fullmatch(_NUMPY_CORE + "multiarray", module) and name == "_reconstruct":
            return lambda subtype, shape, code: _Array()
        if re.fullmatch(_NUMPY_CORE + "multiarray", module) and name == "scalar":
            return lambda kind, data: _Array((), kind, False, data)
        if re.fullmatch(_NUMPY_CORE + "numeric", module) and name == "_frombuffer":
            return lambda data, kind, shape, order: _Array(shape, kind, order == "F", data)
        if module == "numpy" and name == "ndarray":
            return lambda: None  # only an argument of _reconstruct
        if module == "numpy" and name == "dtype":
            return lambda code, *flags: _Type(code)
        if module == "_codecs" and name == "encode":  # bytes, before protocol 3
            return lambda text, encoding: text.encode("latin1")
        if module == "__builtin__" and name == "bytes":
            return lambda: b""
        raise InputError(
            f"{self._name} contains an object of {module}.{name}; pfl loads only numbers, text and NumPy arrays",
            "loading other objects can run any program: save the arrays with np.savez(FILE, x=x, y=y, owner=owner)",
        )

    def get_extension(self, code: int) -> None:
        """Raise InputError: an extension is another name."""
        raise InputError(f"{self._name} contains an object with the extension code {code}, which pfl does not load")


def _resolve(value: Any, name: str, done: dict[int, Any], depth: int) -> Any:
    """Return a value in which arrays stand where the pickle described them; ``done`` has the results by identity."""
    if id(value) in done:
        return done[id(value)]
    if depth > _MAX_DEPTH:
        raise InputError(f"{name} is nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, _Array):
        result: Any = _to_array(value, name, done, depth)
    elif isinstance(value, list | tuple):
        plain = all(type(item) in (int, float, str, bool) for item in value)
        result = list(value) if plain else [_resolve(item, name, done, depth + 1) for item in value]
    elif isinstance(value, dict):
        result = {
            _resolve(key, name, done, depth + 1): _resolve(each, name, done, depth + 1) for key, each in value.items()
        }
    elif value is None or isinstance(value, bool | int | float | str | bytes | bytearray):
        result = value
    else:
        raise InputError(f"{name} contains an object that is neither a number, text nor an array")
    done[id(value)] = result
    return result


def _to_array(array: _Array, name: str, done: dict[int, Any], depth: int) -> Any:
    shape = array.shape
    if not (isinstance(shape, tuple) and all(type(side) is int and side >= 0 for side in shape)):
        raise InputError(f"{name} contains an array of an unknown shape")
    if not isinstance(array.type, _Type):
        raise InputError(f"{name} contains an array of an unknown type")
    kind, count = array.type.resolve(name), math.prod(shape)
    if kind is None:
        if not isinstance(array.data, list) or len(array.data) != count:
            raise InputError(f"{name} contains an array of shape {shape} without its {count} objects")
        items = [_resolve(item, name, done, depth + 1) for item in array.data]
        return items if shape else items[0]
    if not isinstance(array.data, bytes | bytearray) or len(array.data) != count * kind.itemsize:
        raise InputError(f"{name} contains an array of shape {shape} without its {count * kind.itemsize} bytes")
    values: NDArray[Any] = np.frombuffer(array.data, kind).reshape(shape, order="F" if array.is_fortran else "C")
    return values if shape else values.item()
