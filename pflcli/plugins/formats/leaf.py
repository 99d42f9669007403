"""JSON in LEAF's layout, dealt to users and split: FEMNIST, synthetic data, MNIST of pFedMe and FedProx, and others.

Caldas et al. (2018), https://arxiv.org/abs/1812.01097. See ``pflcli.data.datasets._leaf`` for the layout of a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.errors import InputError
from pflcli.core.foreign import require_file, require_room
from pflcli.core.wording import counted
from pflcli.data.datasets._leaf import iterate_users
from pflcli.data.formats import ABSENT, RawSamples, arrays, hash_files, require_utf8_name, to_text
from pflcli.data.preparation.user_data import UserData

_SPLITS = ("train", "test")
_IMAGE_NAMES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp")


@dataclass(frozen=True)
class Folder:
    """The files of each split; the only split is empty if the folder has none."""

    root: Path
    files: dict[str, list[Path]]

    @property
    def count(self) -> int:
        """The number of files."""
        return sum(map(len, self.files.values()))

    def sha256(self) -> str:
        """Return a hash of all files and their paths."""
        return hash_files(self.root, [path for paths in self.files.values() for path in paths])


def find(path: Path) -> Folder:
    """Find the files of a folder: those of train and test, else those of all_data or of the folder itself.

    They may lie in ``data``, as in LEAF. Raises InputError if there are none, or if only one of the splits is there.
    """
    if path.is_file():
        require_file(path)
        return Folder(path.parent, {"": [path]})
    if not path.is_dir():
        raise InputError(f"{path} does not exist")
    if path.name in _SPLITS and all(_list_files(path.parent / split) for split in _SPLITS):
        raise InputError(f"{path} has the samples of one split", f"leaf:{path.parent} reads training and test samples")
    for folder in (path, path / "data"):
        files = {split: _list_files(folder / split) for split in _SPLITS}
        if any(files.values()):
            lacking = [split for split in _SPLITS if not files[split]]
            if lacking:
                known = next(path for paths in files.values() for path in paths)
                raise InputError(
                    f"{folder} has no {lacking[0]}/*.json, but {known}",
                    "copy the whole folder",
                )
            return Folder(path, files)
        for inside in (folder / "all_data", folder):
            if _list_files(inside):
                return Folder(path, {"": _list_files(inside)})
    raise InputError(
        f"{path} has no JSON file", "leaf:FOLDER, the folder that contains train and test, or all_data*.json"
    )


def _list_files(folder: Path) -> list[Path]:
    paths = sorted(folder.glob("*.json")) if folder.is_dir() else []
    for path in paths:
        require_utf8_name(path)
        require_file(path)
    return paths


def recognize(path: Path) -> tuple[Path, list[str]] | None:
    """Return the file that has LEAF's layout, and what to type: ``path`` itself, or the first one below it."""
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    file = next((file for file in files if _is_in_layout(file)), None)
    if file is None:
        return None
    if file == path:
        datasets = f"if it is FEMNIST or Shakespeare: pfl partition femnist --root {path.parent} -o DIR, or shakespeare"
        return file, [f"pfl import leaf:{path} -o DIR", datasets]
    depth = int(file.parent.name in (*_SPLITS, "all_data"))
    return file, [f"pfl import leaf:{file.parents[depth]} -o DIR"]


def _is_in_layout(path: Path) -> bool:
    """Return whether a file seems to be in LEAF's layout: its first characters name ``users`` and so on."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(200).lstrip()
    return start.startswith(b"{") and any(word in start for word in (b'"users"', b'"user_data"', b'"num_samples"'))


def read(found: Folder, asked: UserData, advance: Callable[[int, str], None]) -> RawSamples:
    """Read all users with their splits, which ``--split-column none`` joins.

    Vectors become square images with ``--samples images``. Raises InputError for text and names of files, for samples
    of different lengths, and for damaged files.
    """
    x: list[NDArray[np.float32]] = []
    labels: list[NDArray[np.str_]] = []
    owners: list[str] = []
    splits: list[str] = []
    places: list[str] = []
    for split, paths in found.files.items():
        for path in paths:
            for user, values, y, where in iterate_users([path]):
                if not y:
                    continue
                x.append(_to_numbers(values, where))
                labels.append(to_text(_to_array(y, where), f"{where}: y"))
                owners.append(user)
                splits.append(split)
                places.append(where)
                if x[-1].shape[1:] != x[0].shape[1:]:
                    raise InputError(
                        f"{where}: samples have shape {x[-1].shape[1:]}, but those of {places[0]} {x[0].shape[1:]}"
                    )
            advance(1, "")
    if not x:
        raise InputError(f"{found.root}: no user has a sample")
    sizes = [len(part) for part in x]
    first = np.cumsum([0, *sizes])
    require_room(f"{found.root}", sum(part.nbytes for part in x))
    joined, remark = _shape(found.root.name, np.concatenate(x), asked.samples)
    by_split = {split: [n for n, name in zip(sizes, splits, strict=True) if name == split] for split in found.files}
    remarks = [
        f"{split}: {sum(counts)} samples of {counted(len(counts), 'user')}"
        for split, counts in by_split.items()
        if split
    ]

    def place(row: int, role: str, at: Any) -> str:
        number = int(np.searchsorted(first, row, side="right")) - 1
        key = {"features": "x", "label": "y"}.get(role)
        index = ", ".join(map(str, (row - first[number], *at)))
        return f"{places[number]}: {key}[{index}]" if key else places[number]

    has_splits = "train" in found.files and asked.roles.split != ABSENT
    return RawSamples(
        x=joined,
        label=np.concatenate(labels),
        owner=np.repeat(owners, sizes),
        place=place,
        remarks=(*remarks, *([remark] if remark else [])),
        declares_classes=True,
        metadata={"split": np.repeat(splits, sizes)} if has_splits else {},
    )


def _to_numbers(values: list[Any], where: str) -> NDArray[np.float32]:
    """Return the samples (n, ...) of one user; raises InputError unless they are numbers of one shape."""
    word = values[0]
    while isinstance(word, list) and word:
        word = word[-1]
    if isinstance(word, str) and word.lower().endswith(_IMAGE_NAMES):
        raise InputError(
            f"{where}: x contains names of images, such as {word[:40]!r}, and no pixels",
            "arrange the images as CLIENT/LABEL/IMAGE, and import that folder",
        )
    if isinstance(word, str):
        raise InputError(
            f"{where}: x contains text, such as {word[:40]!r}, and pfl imports numbers",
            "compute embeddings of the text, and import them by pfl import --embeddings",
            "Shakespeare: pfl partition shakespeare --root FOLDER",
        )
    array = _to_array(values, where)
    if array.dtype.kind not in "biuf" or 0 in array.shape:
        raise InputError(f"{where}: x is not a list of samples of equal length that consist of numbers")
    return (array[:, None] if array.ndim == 1 else array).astype(np.float32)


def _to_array(values: list[Any], where: str) -> NDArray[Any]:
    """Return a list as an array; lists of different lengths raise InputError."""
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):
        raise InputError(f"{where}: lists have different lengths", "store samples of equal shape") from None
    if array.dtype == object:
        array = np.asarray([math.nan if value is None else value for value in values], dtype=object)
    return array


def _shape(name: str, x: NDArray[np.float32], samples: str | None) -> tuple[NDArray[Any], str]:
    """Return vectors as they are, or as square images if ``samples`` is "images", and a remark."""
    side = math.isqrt(x.shape[1])
    is_square = x.ndim == 2 and side >= 8 and side * side == x.shape[1]
    if samples == "images" and x.ndim == 2:
        if not is_square:
            raise InputError(f"{name}: {x.shape[1]} numbers are no square image", "leave out --samples images")
        x = x.reshape(-1, side, side)
    joined, remark = arrays.check_samples(f"{name}: x", x, None, samples)
    if is_square and samples is None:
        remark = f"vectors of {x.shape[1]} numbers; --samples images if they are images of {side}x{side} pixels"
    return joined, remark
