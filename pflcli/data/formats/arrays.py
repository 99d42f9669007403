"""Arrays from NPZ and HDF5: ``x`` (n, ...), ``y`` (n,), ``owner`` or ``client`` (n,), and names ``classes`` (C,).

Series are (n, steps, channels) and images (n, H, W) or (n, H, W, 3); with ``channels-first``, the channels come first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.codebook import NO_DIALECT, Dialect
from pflcli.data.formats import ABSENT, RawSamples, Roles, missing_name_error, option, to_text
from pflcli.data.formats.labels import parse_condition
from pflcli.errors import InputError, UsageError
from pflcli.foreign import Npz, read_npy, require_room, require_short

CHANNELS_FIRST = "channels-first"
LAYOUTS = (CHANNELS_FIRST, "channels-last")
_CLASSES = "classes"
"""The array with the names of classes."""
_MAX_GROUP_DEPTH = 32
"""Maximum depth of nested groups: HDF5 opens them recursively."""


def read(
    path: Path, roles: Roles, features: str | None, layout: str | None = None, dialect: Dialect | None = None
) -> RawSamples:
    """Read an NPZ or HDF5 file; in HDF5 ``features`` and the names in ``roles`` may be paths, such as ``train/x``.

    The label may be a condition, such as ``y>0``. ``dialect`` says how labels and times are read.
    Links in HDF5 are not followed. Raises InputError if an array is missing or unfit, other errors if the file is
    damaged.
    """
    where = path.name
    with _open_arrays(path) as loads:
        label, condition = parse_condition(roles.label, list(loads))
        array_of = _choose_arrays(where, list(loads), replace(roles, label=label), features)
        loaded = {role: loads[name]() for role, name in array_of.items()}
        for role in loaded.keys() - {"features"}:
            loaded[role] = _to_words(f"{where}: array '{array_of[role]}'", loaded[role], role)
        x, remark = check_samples(f"{where}: array '{array_of['features']}'", loaded["features"], layout)
        if roles.client is None and "client" not in array_of:
            others = sorted(set(loads) - set(array_of.values()) - {_CLASSES})
            raise UsageError(
                "--client is missing: name the array with each sample's client",
                *([f"--client NAME, one of: {', '.join(others[:10])}"] if others else []),
                f"--client {ABSENT} if samples are not assigned to clients yet",
            )
        classes: tuple[str, ...] = ()
        if _CLASSES in loads and array_of["label"] != _CLASSES:
            classes = _read_class_names(where, loads[_CLASSES]())
    raw = RawSamples(
        x=x,
        label=loaded["label"],
        owner=loaded.get("client"),
        place=lambda row, role, at: f"{where}: {array_of[role]}[{', '.join(map(str, (row, *at)))}]",
        classes=classes,
        remarks=(remark,) if remark else (),
        metadata={role: loaded[role] for role in roles.metadata},
        dialect=dialect or NO_DIALECT,
    )
    return raw if condition is None else condition.apply(raw)


def _choose_arrays(where: str, names: Sequence[str], roles: Roles, features: str | None) -> dict[str, str]:
    """Return the name of the array for each role, and for the features; without "client" if samples have none.

    Raises InputError for a missing array, UsageError for one that has two roles.
    """
    array_of = {"features": features or "x", "label": roles.label or "y"}
    client = roles.client or next((name for name in ("owner", "client") if name in names), ABSENT)
    if client != ABSENT:
        array_of["client"] = client
    array_of |= roles.metadata
    for role, name in array_of.items():
        if name not in names:
            error = missing_name_error(where, "array", name, names)
            error.fix = (*error.fix, f"{option(role)} NAME selects the array")
            raise error
        twice = [other for other in array_of if other != role and array_of[other] == name]
        if twice and role in roles.metadata:
            raise UsageError(f"array '{name}' cannot be both {option(twice[0])} and {option(role)}")
    return array_of


def read_features(path: Path, name: str | None = None, layout: str | None = None) -> RawSamples:
    """Read only the samples of an NPY, NPZ or HDF5 file: the array ``name``, by default ``x`` or the only array.

    Raises InputError if the array is missing or unfit, other errors if the file is damaged.
    """
    where = path.name
    with _open_arrays(path) as loads:
        key = name or ("x" if "x" in loads or len(loads) != 1 else next(iter(loads)))
        if key not in loads:
            error = missing_name_error(where, "array", key, list(loads))
            error.fix = (*error.fix, "--features NAME selects the array")
            raise error
        x, remark = check_samples(f"{where}: array '{key}'", loads[key](), layout)
    return RawSamples(
        x=x,
        label=np.full(len(x), "", dtype=np.str_),
        owner=None,
        place=lambda row, role, at: f"{where}: {key}[{', '.join(map(str, (row, *at)))}]",
        remarks=(remark,) if remark else (),
    )


@contextmanager
def _open_arrays(path: Path) -> Iterator[Mapping[str, Callable[[], NDArray[Any]]]]:
    """Open an NPY, NPZ or HDF5 file; yields the functions that load its arrays, by name."""
    suffix = path.suffix.lower()
    if suffix == ".npy":
        yield {path.stem: partial(read_npy, path)}
    elif suffix == ".npz":
        with Npz(path) as npz:
            yield {name: partial(npz.load, name) for name in npz.names}
    else:
        import h5py

        with h5py.File(path, "r", locking=False) as file:
            yield {name: partial(_load_dataset, path, file[name]) for name in _list_datasets(path.name, file)}


def _list_datasets(where: str, file: Any) -> list[str]:
    """Return the names of all datasets; raises InputError for groups that are nested too deeply or in a cycle."""
    import h5py

    names: list[str] = []
    groups: list[tuple[str, Any]] = [("", file)]
    while groups:
        prefix, group = groups.pop()
        if prefix.count("/") >= _MAX_GROUP_DEPTH:
            raise InputError(f"{where} has groups nested deeper than {_MAX_GROUP_DEPTH} levels")
        for name in group:
            if isinstance(group.get(name, getlink=True), h5py.HardLink):
                item = group[name]
                if isinstance(item, h5py.Group):
                    groups.append((f"{prefix}{name}/", item))
                elif isinstance(item, h5py.Dataset):
                    names.append(f"{prefix}{name}")
    return sorted(names)


def _load_dataset(path: Path, dataset: Any) -> NDArray[Any]:
    """Return an array of an HDF5 file; raises InputError if it is stored in other files, ragged, empty or too large."""
    import h5py

    source = f"{path.name}: array '{dataset.name.strip('/')}'"
    if dataset.external or dataset.is_virtual:
        raise InputError(f"{source} is stored in other files", "copy it into this one")
    if dataset.shape is None:
        raise InputError(f"{source} is ragged or empty", "store rows of equal length")
    piece = math.prod(dataset.chunks or ()) * dataset.dtype.itemsize  # HDF5 keeps one chunk in memory
    require_room(source, max(dataset.nbytes, piece), dataset.id.get_storage_size())
    if h5py.check_string_dtype(dataset.dtype) is not None:
        return _load_texts(source, dataset, path.stat().st_size)
    if dataset.dtype.hasobject:
        raise InputError(f"{source} is ragged or empty", "store rows of equal length")
    return np.asarray(dataset[...])


def _load_texts(source: str, dataset: Any, file_size: int) -> NDArray[Any]:
    """Return texts as objects; few are read at a time, because all may share the same bytes of a damaged file."""
    texts = np.empty(dataset.shape, dtype=object)
    if texts.ndim != 1:
        return texts  # the caller refuses this shape
    step = max(8, 2**31 // file_size)
    for first in range(0, len(texts), step):
        texts[first : first + step] = dataset.asstr()[first : first + step]
        for word in texts[first : first + step]:
            require_short(source, word)
    return texts


def _read_class_names(where: str, values: NDArray[Any]) -> tuple[str, ...]:
    """Return the names of classes, empty for an array that is not text. Raises InputError for a duplicate name."""
    if values.ndim != 1 or values.dtype.kind not in "UTSO":
        return ()
    names = tuple(to_text(values, f"{where}: array '{_CLASSES}'").tolist())
    for name, count in Counter(names).items():
        if count > 1 or not name:
            raise InputError(
                f"{where}: array '{_CLASSES}' has the name '{name}' {count} times",
                "use a different name for each class",
            )
    return names


def _to_words(source: str, values: NDArray[Any], role: str) -> NDArray[np.str_]:
    """Return the values (n,) of a role as text; raises InputError for another shape or type."""
    if values.ndim != 1:
        hint = "convert one-hot rows by y.argmax(axis=1)" if role == "label" else ""
        hint = "use reshape(-1)" if values.ndim == 2 and values.shape[1] == 1 else hint
        raise InputError(f"{source} has shape {values.shape} instead of one {role} per sample, (n,)", hint)
    if values.dtype.kind == "M":
        values = np.where(np.isnat(values), "", np.datetime_as_string(values.astype("datetime64[us]")))
    return to_text(values, source)


def check_samples(source: str, x: NDArray[Any], layout: str | None) -> tuple[NDArray[Any], str]:
    """Return images (n, H, W) or (n, H, W, 3) as uint8, other samples as numbers, and a remark on how series were read.

    Raises InputError for an unfit type or shape, UsageError for a ``layout`` of samples without channels.
    """
    if x.dtype.kind not in "biuf":
        raise InputError(f"{source} has type {x.dtype}, not numbers")
    if x.ndim < 2:
        raise InputError(f"{source} has shape {x.shape} instead of (samples, features)", "x.reshape(-1, 1)")
    if 0 in x.shape[1:]:
        raise InputError(f"{source} has shape {x.shape}: its samples have no values")
    if layout is not None and not (x.ndim == 4 if x.dtype == np.uint8 else x.ndim == 3):
        raise UsageError(f"--layout is for series and colour images; {source} has shape {x.shape}", "leave it out")
    if x.ndim == 3 and x.dtype.kind == "f":
        return _orient_series(x, layout)
    if x.ndim == 2 or x.dtype.kind == "f":
        return x, ""
    if x.dtype != np.uint8:
        fits = x.dtype.kind == "b" or (x.size and x.min() >= 0 and x.max() <= 255)
        raise InputError(
            f"{source} has shape {x.shape} and type {x.dtype}: images are uint8, series float32",
            "x.astype(np.uint8) if they are images" if fits else "x.astype(np.float32) if they are series",
        )
    if layout == CHANNELS_FIRST:
        x = x.transpose(0, 2, 3, 1)
    if x.ndim == 4 and x.shape[3] not in (1, 3) and x.shape[1] in (1, 3):
        raise InputError(
            f"{source} has shape {x.shape}, channels first; pfl expects them last", f"--layout {CHANNELS_FIRST}"
        )
    if x.ndim > 4 or (x.ndim == 4 and x.shape[3] not in (1, 3)):
        raise InputError(f"{source} has shape {x.shape}: images are (n, H, W) or (n, H, W, 3)")
    return np.ascontiguousarray(x), ""


def _orient_series(x: NDArray[Any], layout: str | None) -> tuple[NDArray[Any], str]:
    """Return series (n, steps, channels), and a remark on how they were read."""
    if layout == CHANNELS_FIRST:
        x = np.ascontiguousarray(x.transpose(0, 2, 1))
    steps, channels = x.shape[1:]
    doubt = f"; --layout {CHANNELS_FIRST} if not" if layout is None and steps < channels else ""
    return x, f"series of {steps} step{'s' * (steps != 1)}, {channels} channel{'s' * (channels != 1)}{doubt}"
