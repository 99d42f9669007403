"""Arrays from NPZ and HDF5: ``x`` (n, ...), ``y`` (n,), and ``owner`` (n,) or ``client`` where there is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.errors import InputError, PflError
from pflcli.readers import NOBODY, Raw, text, unknown

Arrays = dict[str, NDArray[Any]]


def read_npz(path: Path, client: str | None, label: str | None, features: str | None) -> Raw:
    """Read an NPZ file, without unpickling; raises InputError if it is damaged or does not hold what is asked for."""
    try:
        loaded: Any = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise InputError(f"{path} is one array, not an NPZ file", "np.savez('data.npz', x=x, y=y, owner=owner)")
        with loaded as file:
            return _raw(path.name, list(file.files), lambda name: _unpickled(path, name, file), client, label, features)
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


def read_hdf5(path: Path, client: str | None, label: str | None, features: str | None) -> Raw:
    """Read an HDF5 file; ``features``, ``label`` and ``client`` may be paths within it, such as ``train/x``."""
    import h5py

    try:
        with h5py.File(path, "r", locking=False) as file:
            names: list[str] = []
            file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
            return _raw(path.name, names, lambda name: _numpy(path.name, file[name]), client, label, features)
    except PflError:
        raise
    except Exception as error:  # a damaged file raises OSError, KeyError or RuntimeError
        raise InputError(f"{path} cannot be read as HDF5: {error}", "is it whole?") from None


def _numpy(where: str, found: Any) -> NDArray[Any]:
    import h5py

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
    return Raw(
        x=_samples(f"{where}: array '{roles['features']}'", held["features"]),
        label=held["label"],
        owner=held.get("client"),
        place=lambda row, role, at: f"{where}: {roles[role]}[{', '.join(map(str, (row, *at)))}]",
    )


def _flat(what: str, values: NDArray[Any], role: str) -> NDArray[np.str_]:
    if values.ndim != 1:
        hint = "y.argmax(axis=1) makes classes of one-hot rows" if role == "label" else ""
        hint = "reshape(-1) makes it so" if values.ndim == 2 and values.shape[1] == 1 else hint
        raise InputError(f"{what} has shape {values.shape} where ({role} of each sample,) is meant", hint)
    try:
        return text(values)
    except TypeError as error:
        raise InputError(f"{what}: {error}") from None


def _samples(what: str, x: NDArray[Any]) -> NDArray[Any]:
    """Return images (n, H, W) or (n, H, W, 3) as uint8, anything else as numbers; raises InputError for what is not."""
    if x.dtype.kind not in "biuf":
        raise InputError(f"{what} holds {x.dtype}, not numbers")
    if x.ndim < 2:
        raise InputError(f"{what} has shape {x.shape} where (samples, features) is meant", "x.reshape(-1, 1)")
    if x.ndim == 2 or x.dtype.kind == "f":
        return x
    if x.dtype != np.uint8:
        fits = x.dtype.kind == "b" or (x.size and x.min() >= 0 and x.max() <= 255)
        raise InputError(
            f"{what} has shape {x.shape} and type {x.dtype}: images are uint8, series float32",
            "x.astype(np.uint8) if they are images" if fits else "x.astype(np.float32) if they are series",
        )
    if x.ndim == 4 and x.shape[3] not in (1, 3) and x.shape[1] in (1, 3):
        raise InputError(f"{what} has shape {x.shape}, channels first, where they come last", "x.transpose(0, 2, 3, 1)")
    if x.ndim > 4 or (x.ndim == 4 and x.shape[3] not in (1, 3)):
        raise InputError(f"{what} has shape {x.shape}: images are (n, H, W) or (n, H, W, 3)")
    return x
