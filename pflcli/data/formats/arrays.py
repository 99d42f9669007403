"""Arrays from NPZ and HDF5: ``x`` (n, ...), ``y`` (n,), ``owner`` or ``client`` (n,), and names ``classes`` (C,).

Series are (n, steps, channels) and images (n, H, W) or (n, H, W, 3); with ``channels-first``, the channels come first.
A file may have ``x_train``, ``y_train``, ``x_test`` and ``y_test`` instead, as Keras stores its datasets.
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

from pflcli.core.errors import InputError, UsageError
from pflcli.core.foreign import Npz, read_npy, require_room, require_short
from pflcli.data.formats import ABSENT, RawSamples, Roles, missing_name_error, not_utf8_error, option, to_text
from pflcli.data.formats.labels import parse_condition

CHANNELS_FIRST = "channels-first"
_SPLITS = {"train": "train", "val": "validation", "test": "test"}
"""The ends of the names of arrays, as in ``x_train``, and the splits that they stand for."""
_MAX_PIXEL_ERROR = 0.01
"""Maximum distance of a restored pixel from an integer: float32 rounds."""
_MIN_SIDE = 8
"""Minimum pixels of the sides of samples that may be images."""
_CLASSES = "classes"
"""The array with the names of classes."""
_MAX_GROUP_DEPTH = 32
"""Maximum depth of nested groups: HDF5 opens them recursively."""


def read(
    path: Path,
    roles: Roles,
    features: str | None,
    layout: str | None = None,
    samples: str | None = None,
) -> RawSamples:
    """Read an NPZ or HDF5 file; in HDF5 ``features`` and the names in ``roles`` may be paths, such as ``train/x``.

    The label may be a condition, such as ``y>0``.
    Links in HDF5 are not followed. Raises InputError if an array is missing or unfit, other errors if the file is
    damaged.
    """
    where = path.name
    with _open_arrays(path) as loads:
        is_default = features is None and roles.label is None and not roles.metadata
        if is_default and "x" not in loads and {"x_train", "y_train", "x_test", "y_test"} <= {*map(str.lower, loads)}:
            return _read_parts(where, loads, roles, layout, samples)
        label, condition = parse_condition(roles.label, list(loads))
        array_of = _choose_arrays(where, list(loads), replace(roles, label=label), features)
        loaded = {role: loads[name]() for role, name in array_of.items()}
        for role in loaded.keys() - {"features"}:
            loaded[role] = _to_words(f"{where}: array '{array_of[role]}'", loaded[role], role)
        x, remark = check_samples(f"{where}: array '{array_of['features']}'", loaded["features"], layout, samples)
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
    return RawSamples(
        x=x,
        label=loaded["label"],
        owner=loaded.get("client"),
        place=lambda row, role, at: f"{where}: {array_of[role]}[{', '.join(map(str, (row, *at)))}]",
        classes=classes,
        remarks=(remark,) if remark else (),
        metadata={role: loaded[role] for role in roles.metadata if role in loaded},
        names=array_of,
        condition=condition,
    )


def _read_parts(
    where: str,
    loads: Mapping[str, Callable[[], NDArray[Any]]],
    roles: Roles,
    layout: str | None,
    samples: str | None,
) -> RawSamples:
    """Return the samples of ``x_train``, ``y_train``, ``x_test`` and so on, each in its split; see ``read``.

    ``--split-column none`` joins the splits. Raises UsageError if there is no array of clients for each split.
    """
    names = {name.lower(): name for name in loads}
    splits = [split for split in _SPLITS if {f"x_{split}", f"y_{split}"} <= names.keys()]
    client = roles.client or next((name for name in ("owner", "client") if f"{name}_train" in names), None)
    needed = ["x", "y", *([] if client in (None, ABSENT) else [str(client)])]
    missing = [f"{role}_{split}" for role in needed for split in splits if f"{role}_{split}".lower() not in names]
    if missing:
        raise missing_name_error(where, "array", missing[0], list(loads))
    if client is None:
        raise UsageError(
            f"--client is missing: {where} has samples for training and test, but no array of clients, 'owner_train'",
            f"--client {ABSENT} if samples are not assigned to clients yet",
        )
    arrays = {(role, split): loads[names[f"{role}_{split}".lower()]]() for role in needed for split in splits}
    for split in splits:
        sizes = [len(arrays[role, split]) for role in needed]
        if len(set(sizes)) > 1:
            raise InputError(
                f"{where}: " + ", ".join(f"{n} {role}_{split}" for role, n in zip(needed, sizes, strict=True))
            )
    shapes = {split: arrays["x", split].shape[1:] for split in splits}
    if len(set(shapes.values())) > 1:
        raise InputError(f"{where}: samples of x_train have shape {shapes['train']}, of x_test {shapes['test']}")
    x, remark = check_samples(
        f"{where}: x_train and others", np.concatenate([arrays["x", split] for split in splits]), layout, samples
    )
    counts = [len(arrays["x", split]) for split in splits]
    first = np.cumsum([0, *counts])

    def join(role: str, noun: str) -> NDArray[np.str_]:
        return np.concatenate([_to_words(f"{where}: {role}_{split}", arrays[role, split], noun) for split in splits])

    def place(row: int, role: str, at: Sequence[int]) -> str:
        part = int(np.searchsorted(first, row, side="right")) - 1
        name = {"label": "y", "client": client}.get(role, "x")
        return f"{where}: {name}_{splits[part]}[{', '.join(map(str, (row - first[part], *at)))}]"

    return RawSamples(
        x=x,
        label=join("y", "label"),
        owner=None if client == ABSENT else join(str(client), "client"),
        place=place,
        remarks=(remark,) if remark else (),
        metadata={} if roles.split == ABSENT else {"split": np.repeat([_SPLITS[split] for split in splits], counts)},
    )


def _choose_arrays(where: str, names: Sequence[str], roles: Roles, features: str | None) -> dict[str, str]:
    """Return the name of the array for each role, and for the features; without "client" if samples have none.

    Raises InputError for a missing array, UsageError for one that has two roles.
    """
    array_of = {"features": features or "x", "label": roles.label or "y"}
    client = roles.client or next((name for name in ("owner", "client") if name in names), ABSENT)
    if client != ABSENT:
        array_of["client"] = client
    array_of |= roles.wanted(names)
    for role, name in array_of.items():
        if name not in names:
            error = missing_name_error(where, "array", name, names)
            error.fix = (*error.fix, f"{option(role)} NAME selects the array")
            raise error
        twice = [other for other in array_of if other != role and array_of[other] == name]
        if twice and role in roles.metadata:
            raise UsageError(f"array '{name}' cannot be both {option(twice[0])} and {option(role)}")
    return array_of


def read_features(
    path: Path, name: str | None = None, layout: str | None = None, samples: str | None = None
) -> RawSamples:
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
        x, remark = check_samples(f"{where}: array '{key}'", loads[key](), layout, samples)
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
            yield {name: partial(load_dataset, path, file[name]) for name in _list_datasets(path.name, file)}


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


def load_dataset(path: Path, dataset: Any) -> NDArray[Any]:
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
        try:
            texts[first : first + step] = dataset.asstr()[first : first + step]
        except UnicodeDecodeError as error:
            raise not_utf8_error(source, error.object) from None
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
        hint = "use reshape(-1)" if values.ndim == 2 and 1 in values.shape else hint
        raise InputError(f"{source} has shape {values.shape} instead of one {role} per sample, (n,)", hint)
    if values.dtype.kind == "M":
        values = np.where(np.isnat(values), "", np.datetime_as_string(values.astype("datetime64[us]")))
    return to_text(values, source)


def check_samples(
    source: str, x: NDArray[Any], layout: str | None, samples: str | None = None
) -> tuple[NDArray[Any], str]:
    """Return images (n, H, W) or (n, H, W, 3) as uint8, other samples as numbers, and a remark on how they were read.

    ``samples`` is "images", "series", "numbers" or None, if the type, the shape and the values are to tell. Raises
    InputError for an unfit type or shape, UsageError for samples that could be images or series, and for a ``layout``
    of samples without channels.
    """
    if x.dtype.kind not in "biuf":
        raise InputError(f"{source} has type {x.dtype}, not numbers")
    if x.ndim < 2:
        raise InputError(f"{source} has shape {x.shape} instead of (samples, features)", "x.reshape(-1, 1)")
    if 0 in x.shape[1:]:
        raise InputError(f"{source} has shape {x.shape}: its samples have no values")
    axes = {"images": (3, 4), "series": (3,)}.get(str(samples), (x.ndim,))
    if x.ndim not in axes:
        forms = {"images": "(n, H, W) or (n, H, W, 3)", "series": "(n, steps, channels)"}
        raise InputError(f"{source} has shape {x.shape}: {samples} are {forms[str(samples)]}")
    kind = samples or _find_kind(source, x)
    if layout is not None and not (x.ndim == 4 or (x.ndim == 3 and kind == "series")):
        raise UsageError(f"--layout is for series and colour images; {source} has shape {x.shape}", "leave it out")
    if kind == "series":
        return _orient_series(x, layout)
    if x.ndim == 4:
        x = _orient_images(source, x, layout, kind)
    if kind == "images":
        return _restore_pixels(source, x)
    x = x.astype(np.float32) if x.dtype == np.uint8 and x.ndim > 2 else x  # pixels are not numbers
    low, high = (float(pick(x, initial=0)) for pick in (np.min, np.max))
    return x, f"images of numbers from {low:.3g} to {high:.3g}, not scaled" if x.ndim == 4 else ""


def _find_kind(source: str, x: NDArray[Any]) -> str:
    """Return images, series or numbers for samples; raises UsageError if images and series are both likely."""
    if x.dtype == np.uint8 and x.ndim > 2:
        return "images"
    if x.ndim not in (3, 4):
        return "numbers"
    low, high = (float(pick(x, initial=0)) for pick in (np.min, np.max))  # NaN is in no range
    is_byte, is_unit = low >= 0 and high <= 255, low >= -1 and high <= 1
    are_pixels = is_byte or (is_unit and x.dtype.kind == "f")
    if x.ndim == 4 and (are_pixels or x.dtype.kind == "f"):
        return "images" if are_pixels else "numbers"
    if x.ndim == 4:
        raise UsageError(
            f"{source} has type {x.dtype} and values from {low:g} to {high:g}, which are not those of 8-bit images",
            "scale them to 0 to 255, or to 0 to 1, first",
            "--samples numbers keeps them as they are",
        )
    steps, channels = x.shape[1:]
    # Series of any length may be positive; only images have as many rows as columns, whole pixels, or all from 0 to 1.
    has_form = steps == channels or (low >= 0 and (high <= 1 or bool((np.rint(x) == x).all())))
    if x.dtype.kind == "f" and not (are_pixels and min(steps, channels) >= _MIN_SIDE and has_form):
        return "series"
    raise UsageError(
        f"{source} has shape {x.shape}, type {x.dtype} and values from {low:g} to {high:g}: its samples are images or "
        "series",
        *(["--samples images for images of grey pixels"] if are_pixels else []),
        "--samples series for series (samples, steps, channels)",
    )


def _orient_images(source: str, x: NDArray[Any], layout: str | None, kind: str) -> NDArray[Any]:
    """Return images with channels last, or numbers with channels first, as models take them.

    Raises UsageError if the position of the channels is unknown, InputError for another number of channels.
    """
    can_be = {CHANNELS_FIRST: x.shape[1] in (1, 3), "channels-last": x.shape[3] in (1, 3)}
    known = [name for name, fits in can_be.items() if fits]
    if layout is None and x.dtype != np.uint8:
        if len(known) == 2:
            raise UsageError(
                f"{source} has shape {x.shape}: where are the channels?", *(f"--layout {each}" for each in known)
            )
        layout = known[0] if known else CHANNELS_FIRST
    layout = layout or "channels-last"
    if kind == "numbers":
        return x if layout == CHANNELS_FIRST else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    if layout not in known:
        if known:
            place = "first" if known[0] == CHANNELS_FIRST else "last"
            raise InputError(
                f"{source} has shape {x.shape}, channels {place}; pfl expects them "
                f"{'last' if place == 'first' else 'first'}",
                f"--layout {known[0]}",
            )
        raise InputError(f"{source} has shape {x.shape}: images are (n, H, W) or (n, H, W, 3)")
    return x.transpose(0, 2, 3, 1) if layout == CHANNELS_FIRST else x


def _restore_pixels(source: str, x: NDArray[Any]) -> tuple[NDArray[np.uint8], str]:
    """Return images as uint8, and a remark on how they were scaled; raises InputError for values of another range."""
    if x.ndim > 4:
        raise InputError(f"{source} has shape {x.shape}: images are (n, H, W) or (n, H, W, 3)")
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x), ""
    low, high = (float(pick(x, initial=0)) for pick in (np.min, np.max))
    if not -1 <= low <= high <= (1 if low < 0 else 255):
        raise InputError(
            f"{source} has values from {low:g} to {high:g}, which are no pixels",
            "images are from 0 to 255, from 0 to 1, or from -1 to 1",
            "--samples numbers for images of other numbers, (n, channels, H, W)",
        )
    require_room(f"{source} as images", x.size)
    restore, how = _find_scale(low, high)
    images = np.empty(x.shape, np.uint8)
    is_exact = True
    for row in range(len(x)):  # one at a time: the numbers of all take eight times the memory of the pixels
        values = restore(x[row].astype(np.float32))
        images[row] = np.rint(values)
        is_exact &= bool((np.abs(values - images[row]) <= _MAX_PIXEL_ERROR).all())
    remarks = [f"images {how} were restored to 8 bits; pfl scales pixels to [0, 1]"] if how else []
    remarks += [] if is_exact else ["pixels are rounded to 8 bits; --samples numbers keeps images (n, channels, H, W)"]
    return images, "; ".join(remarks)


def _find_scale(low: float, high: float) -> tuple[Callable[[NDArray[np.float32]], NDArray[np.float32]], str]:
    """Return the function from stored values, from ``low`` to ``high``, to pixels, and how they were scaled."""
    if low < 0:
        return lambda values: values * 127.5 + 127.5, "normalized to [-1, 1]"
    if high <= 1:
        return lambda values: values * 255, "scaled to [0, 1]"
    return lambda values: values, ""


def _orient_series(x: NDArray[Any], layout: str | None) -> tuple[NDArray[Any], str]:
    """Return series (n, steps, channels) as floating-point numbers, and a remark on how they were read."""
    x = x if x.dtype.kind == "f" else x.astype(np.float32)
    if layout == CHANNELS_FIRST:
        x = np.ascontiguousarray(x.transpose(0, 2, 1))
    steps, channels = x.shape[1:]
    doubt = f"; --layout {CHANNELS_FIRST} if not" if layout is None and steps < channels else ""
    return x, f"series of {steps} step{'s' * (steps != 1)}, {channels} channel{'s' * (channels != 1)}{doubt}"
