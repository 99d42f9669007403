"""Folders dealt by PFLlib: ``config.json``, ``train/0.npz``, ``test/0.npz`` and so on, one pair of files per client.

https://github.com/TsingZ0/PFLlib. Each file has one array ``data``, the pickle of a dict with ``x`` and ``y``.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from pflcli.data.formats import RawSamples, dealt, hash_files, plain_pickle, read_json_object, require_folder
from pflcli.errors import InputError
from pflcli.foreign import parsing, require_file, require_room
from pflcli.wording import counted

_SPLITS = ("train", "test")
_CONFIG = "config.json"


@dataclass(frozen=True)
class Folder:
    """A dealt folder: the file of each split of each client, and the content of ``config.json``, empty if absent."""

    root: Path
    clients: tuple[dict[str, Path], ...]
    config: dict[str, Any]

    def sha256(self) -> str:
        """Return a hash of all files and their paths."""
        paths = [path for client in self.clients for path in client.values()]
        return hash_files(self.root, [*paths, *([self.root / _CONFIG] if self.config else [])])


def find(root: Path) -> Folder:
    """Find the files of all clients; raises InputError if one is missing."""
    require_folder(root)
    numbers = {
        split: {int(path.stem) for path in (root / split).glob("*.npz") if path.stem.isdecimal()} for split in _SPLITS
    }
    if not numbers["train"]:
        inside = sorted(path.parent.parent for path in root.glob("*/train/0.npz"))
        raise InputError(
            f"{root} has no train/0.npz, so PFLlib did not write it",
            *([f"pfllib:{inside[0]}"] if inside else ["pfllib:FOLDER, the folder that contains train and test"]),
        )
    if "shakespeare" in root.resolve().name.lower():  # PFLlib itself knows texts by the names of their folders
        raise InputError(
            f"{root} contains texts as numbers of characters, which pfl does not take over from PFLlib",
            "pfl partition shakespeare --root FOLDER, with LEAF's files",
        )
    config = _read_config(root / _CONFIG)
    count = config.get("num_clients", max(numbers["train"]) + 1)
    for split in _SPLITS:
        missing = sorted(set(range(count)) - numbers[split])
        if missing:
            more = f", nor those of {counted(len(missing) - 1, 'other client')}" if len(missing) > 1 else ""
            raise InputError(
                f"{root / split / f'{missing[0]}.npz'} does not exist{more}, but there are {counted(count, 'client')}",
                "copy the whole folder, or deal it again",
            )
        beyond = sorted(numbers[split] - set(range(count)))
        if beyond:
            raise InputError(
                f"{root / split / f'{beyond[0]}.npz'} belongs to no client: there are {count}",
                "remove the files that are left from an earlier deal",
            )
    clients = tuple({split: root / split / f"{number}.npz" for split in _SPLITS} for number in range(count))
    for client in clients:
        for path in client.values():
            require_file(path)
    return Folder(root, clients, config)


def _read_config(path: Path) -> dict[str, Any]:
    """Return the content of ``config.json``, empty if there is none; raises InputError for invalid numbers."""
    if not path.exists():
        return {}
    config = read_json_object(path)
    for key in ("num_clients", "num_classes"):
        if key in config and not (type(config[key]) is int and 0 < config[key] <= 10**6):
            raise InputError(f"{path}: {key} is {str(config[key])[:30]}, not a positive number")
    return config


def read(folder: Folder, advance: Callable[[int, str], None]) -> RawSamples:
    """Read all samples with their clients and splits; raises InputError if a file is damaged or contains objects."""
    blocks: list[dealt.Block] = []
    for number, client in enumerate(folder.clients):
        for split, path in client.items():
            with parsing(str(path), "NPZ", "is it complete?"):
                x, y = _read_file(path)
            blocks.append(dealt.Block(number, split, x, y, path.relative_to(folder.root).as_posix()))
        advance(1, "")
    classes = tuple(map(str, range(folder.config.get("num_classes", 0))))
    return dealt.join(blocks, folder.root.name, classes, _remarks(folder.config))


def _read_file(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return ``x`` and ``y`` of one file."""
    name = str(path)
    with zipfile.ZipFile(path) as archive:
        if "data.npy" not in archive.namelist():
            raise InputError(f"{name} has no array 'data', so PFLlib did not write it")
        info = archive.getinfo("data.npy")
        require_room(f"{name}: array 'data'", info.file_size, info.compress_size)
        with archive.open(info) as file:
            version = npy.read_magic(file)
            header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, _, dtype = header(file)
            if shape or not dtype.hasobject:
                raise InputError(f"{name}: array 'data' is not a dict of x and y, so PFLlib did not write it")
            data = plain_pickle.load(file.read(), name)  # at the end, zipfile verifies the checksum
    if not isinstance(data, dict) or not {"x", "y"} <= data.keys():
        raise InputError(f"{name}: array 'data' is not a dict of x and y, so PFLlib did not write it")
    return _numbers(name, "x", data["x"]), _numbers(name, "y", data["y"])


def _numbers(name: str, key: str, value: Any) -> NDArray[Any]:
    """Return an array, or a list of arrays of one shape or of numbers, as an array; raises InputError for any other."""
    if isinstance(value, np.ndarray):
        return value
    are_arrays = isinstance(value, list) and all(isinstance(item, np.ndarray) for item in value)
    are_numbers = isinstance(value, list) and all(isinstance(item, int | float) for item in value)
    if not (are_arrays or are_numbers) or (are_arrays and len({item.shape for item in value}) > 1):
        raise InputError(
            f"{name}: {key} is not an array of numbers, such as the texts with lengths of AGNews",
            "pfl takes over images, series and features from PFLlib",
        )
    if are_arrays:
        require_room(f"{name}: {key}", sum(item.nbytes for item in value))
    return np.asarray(value)


def _remarks(config: dict[str, Any]) -> list[str]:
    """Return remarks on the settings in ``config.json``, and on those that the dataset does not keep."""
    names = ("partition", "non_iid", "balance", "alpha")
    known = [f"{name} {config[name]}" for name in names if isinstance(config.get(name), str | int | float)]
    lines = [f"dealt by PFLlib: {', '.join(known)}"] if known else []
    if type(config.get("batch_size")) is int:
        lines.append(f"not taken over: batch_size {config['batch_size']} (pfl compare --batch-size)")
    return lines
