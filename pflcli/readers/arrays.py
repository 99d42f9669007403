"""Arrays from NPZ and HDF5: ``x`` (n, ...), ``y`` (n,), ``owner`` or ``client`` (n,), and names ``classes`` (C,).

Series are (n, steps, channels) and images (n, H, W) or (n, H, W, 3), or with channels first if the user says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.errors import InputError, PflError, UsageError
from pflcli.readers import NOBODY, Raw, text, unknown

Arrays = dict[str, NDArray[Any]]


def read_npz(path: Path, client: str | None, label: str | None, features: str | None, layout: str | None = None) -> Raw:
    """Read an NPZ file, without unpickling; raises InputError if it is damaged or does not hold what is asked for."""
    try:
        loaded: Any = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise InputError(f"{path} is one array, not an NPZ file", "np.savez('data.npz', x=x, y=y, owner=owner)")
        with loaded as file:
            names = list(file.files)
            return _raw(path.name, names, lambda name: _unpickled(path, name, file), client, label, features, layout)
    except PflError:
        raise
    except Exception as error:  # zipfile, zlib and numpy each raise their own kinds on a damaged file
        raise InputError(f"{path} cannot be read as NPZ: {error}", "is it whole?") from None


def _unpickled(path: Path, name: str, file: Any) -> NDArray[Any]:
    try:
        array: NDArray[Any] = file[name]
    except ValueError as error:
        if "pickle" not in str(error):
            raise
        raise InputError(
            f"{path.name}: array '{name}' holds Python objects, which pfl does not unpickle",
            f"save it as numbers or text: {name}=np.asarray({name}.tolist())",
        ) from None
    return array


def read_hdf5(
    path: Path, client: str | None, label: str | None, features: str | None, layout: str | None = None
) -> Raw:
    """Read an HDF5 file; ``features``, ``label`` and ``client`` may be paths within it, such as ``train/x``."""
    import h5py

    try:
        with h5py.File(path, "r", locking=False) as file:
            names: list[str] = []
            file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
            return _raw(path.name, names, lambda name: _numpy(path.name, file[name]), client, label, features, layout)
    except PflError:
        raise
    except Exception as error:  # a damaged file raises OSError, KeyError or RuntimeError
        raise InputError(f"{path} cannot be read as HDF5: {error}", "is it whole?") from None


def _numpy(where: str, found: Any) -> NDArray[Any]:
    import h5py

    if found.external or found.is_virtual:
        raise InputError(f"{where}: array '{found.name.strip('/')}' lies in other files", "copy it into this one")
    if h5py.check_string_dtype(found.dtype) is not None:
        return np.asarray(found.asstr()[...])
    if found.dtype.hasobject or found.shape is None:
        raise InputError(f"{where}: array '{found.name.strip('/')}' is ragged or empty", "store rows of equal length")
    return np.asarray(found[...])


def _raw(
    where: str,
    names: list[str],
    load: Callable[[str], NDArray[Any]],
    client: str | None,
    label: str | None,
    features: str | None,
    layout: str | None,
) -> Raw:
    roles = {"features": features or "x", "label": label or "y"}
    found = [name for name in ("owner", "client") if name in names]
    if client not in (None, NOBODY) or (client is None and found):
        roles["client"] = client or found[0]
    for role, name in roles.items():
        if name not in names:
            error = unknown(where, "array", name, names)
            error.fix = (*error.fix, f"--{role} NAME says which array it is")
            raise error
    held = {role: load(name) for role, name in roles.items()}
    for role in ("label", "client"):
        if role in held:
            held[role] = _flat(f"{where}: array '{roles[role]}'", held[role], role)
    x, remark = _samples(f"{where}: array '{roles['features']}'", held["features"], layout)
    if client is None and not found:
        others = sorted(set(names) - set(roles.values()) - {_CLASSES})
        raise UsageError(
            "--client is missing: which array says whose a sample is?",
            *([f"--client NAME, one of: {', '.join(others[:10])}"] if others else []),
            f"--client {NOBODY} where nobody holds the samples yet",
        )
    return Raw(
        x=x,
        label=held["label"],
        owner=held.get("client"),
        place=lambda row, role, at: f"{where}: {roles[role]}[{', '.join(map(str, (row, *at)))}]",
        classes=_class_names(where, load(_CLASSES)) if _CLASSES in names and roles["label"] != _CLASSES else (),
        remarks=(remark,) if remark else (),
    )


_CLASSES = "classes"
"""The array that names the classes, in a user's file as in a dataset's."""


def _class_names(where: str, values: NDArray[Any]) -> tuple[str, ...]:
    """Return the names of classes; an array of another kind names none. Raises InputError for a name that is twice."""
    if values.ndim != 1 or values.dtype.kind not in "UTSO":
        return ()
    names = tuple(text(values).tolist())
    for name, count in Counter(names).items():
        if count > 1 or not name:
            raise InputError(
                f"{where}: array '{_CLASSES}' has the name '{name}' {count} times", "every class has its own"
            )
    return names


def _flat(what: str, values: NDArray[Any], role: str) -> NDArray[np.str_]:
    if values.ndim != 1:
        hint = "y.argmax(axis=1) makes classes of one-hot rows" if role == "label" else ""
        hint = "reshape(-1) makes it so" if values.ndim == 2 and values.shape[1] == 1 else hint
        raise InputError(f"{what} has shape {values.shape} where ({role} of each sample,) is meant", hint)
    try:
        return text(values)
    except TypeError as error:
        raise InputError(f"{what}: {error}") from None


FIRST, LAST = "channels-first", "channels-last"
LAYOUTS = (FIRST, LAST)


def _samples(what: str, x: NDArray[Any], layout: str | None) -> tuple[NDArray[Any], str]:
    """Return images (n, H, W) or (n, H, W, 3) as uint8, anything else as numbers, and how series were read.

    Raises InputError for what is neither, UsageError for a ``layout`` of what has no channels.
    """
    if x.dtype.kind not in "biuf":
        raise InputError(f"{what} holds {x.dtype}, not numbers")
    if x.ndim < 2:
        raise InputError(f"{what} has shape {x.shape} where (samples, features) is meant", "x.reshape(-1, 1)")
    if 0 in x.shape[1:]:
        raise InputError(f"{what} has shape {x.shape}: its samples hold no values")
    if layout is not None and not (x.ndim == 4 if x.dtype == np.uint8 else x.ndim == 3):
        raise UsageError(f"--layout is for series and colour images; {what} has shape {x.shape}", "leave it out")
    if x.ndim == 3 and x.dtype.kind == "f":
        return _series(x, layout)
    if x.ndim == 2 or x.dtype.kind == "f":
        return x, ""
    if x.dtype != np.uint8:
        fits = x.dtype.kind == "b" or (x.size and x.min() >= 0 and x.max() <= 255)
        raise InputError(
            f"{what} has shape {x.shape} and type {x.dtype}: images are uint8, series float32",
            "x.astype(np.uint8) if they are images" if fits else "x.astype(np.float32) if they are series",
        )
    if layout == FIRST:
        x = x.transpose(0, 2, 3, 1)
    if x.ndim == 4 and x.shape[3] not in (1, 3) and x.shape[1] in (1, 3):
        raise InputError(f"{what} has shape {x.shape}, channels first, where they come last", f"--layout {FIRST}")
    if x.ndim > 4 or (x.ndim == 4 and x.shape[3] not in (1, 3)):
        raise InputError(f"{what} has shape {x.shape}: images are (n, H, W) or (n, H, W, 3)")
    return np.ascontiguousarray(x), ""


def _series(x: NDArray[Any], layout: str | None) -> tuple[NDArray[Any], str]:
    """Return series (n, steps, channels), and how they were read."""
    if layout == FIRST:
        x = np.ascontiguousarray(x.transpose(0, 2, 1))
    steps, channels = x.shape[1:]
    doubt = f"; --layout {FIRST} if not" if layout is None and steps < channels else ""
    return x, f"series of {steps} step{'s' * (steps != 1)}, {channels} channel{'s' * (channels != 1)}{doubt}"
