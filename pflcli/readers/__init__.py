"""Users' own files, one module a form, each giving ``Raw``; ``cleaning`` checks them all alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.errors import InputError, closest

NOBODY = "none"
"""What a user types for the client's column when nobody holds the samples yet."""


@dataclass(frozen=True)
class Raw:
    """Samples as they stand in a file, before anything but their form is checked.

    ``x`` (n, ...) numbers, NaN where missing; ``label`` (n,) and ``owner`` (n,) text, empty where missing. ``place``
    says where a value stands: its sample, "features", "label" or "client", and the index within the sample.
    ``features`` are the names of columns, where there are any. ``remarks`` are for the user.
    """

    x: NDArray[Any]
    label: NDArray[np.str_]
    owner: NDArray[np.str_] | None
    place: Callable[[int, str, Sequence[int]], str]
    features: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def text(values: NDArray[Any]) -> NDArray[np.str_]:
    """Return labels or names (n,) as text: whole floats as integers, NaN and None as nothing.

    Raises TypeError for what is neither text nor a number.
    """
    if values.dtype.kind in "biu":
        return values.astype(np.str_)
    if values.dtype.kind == "S":
        return np.char.strip(np.char.decode(values, "utf-8"))
    if values.dtype.kind in "UTO":
        return np.asarray([_word(value) for value in values.tolist()], dtype=np.str_)
    if values.dtype.kind == "f":
        return np.asarray([_word(value) for value in values.astype(np.float64).tolist()], dtype=np.str_)
    raise TypeError(f"{values.dtype} is neither text nor a number")


def _word(value: Any) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else "" if math.isnan(value) else str(value)
    if isinstance(value, bytes):
        value = value.decode("utf-8")
    word = "" if value is None else str(value).strip()
    return "" if word in ("nan", "NaN") else word


def unknown(where: str, what: str, name: str, known: Sequence[str]) -> InputError:
    """Return the error for a column or array that is not there, with the nearest one or the first few."""
    near = closest(name, known)
    if not near.startswith("did") and len(known) > 10:
        near = f"choose from: {', '.join(known[:10])}, ... ({len(known)} in all)"
    return InputError(f"{where} has no {what} '{name}'", near)
