"""LEAF's JSON files (Caldas et al., 2018), https://arxiv.org/abs/1812.01097.

``{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}``; a dataset may consist of many
such files, of which one at a time is in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pflcli.core.errors import InputError
from pflcli.core.foreign import read_json_text, reading, require_short


def iterate_users(paths: list[Path]) -> Iterator[tuple[str, list[Any], list[Any], str]]:
    """Yield each user with its lists ``x`` and ``y``, and the place for error messages.

    Raises InputError if a file has another layout, or numbers of samples disagree.
    """
    for path in paths:
        with reading(path, "JSON"):
            content = json.loads(read_json_text(path))
        for user, declared in _declared_sizes(path, content):
            require_short(str(path), user)
            data = content["user_data"].get(user)
            if not isinstance(data, dict) or not all(isinstance(data.get(key), list) for key in "xy"):
                raise InputError(f"{path}: user_data of {user} has no lists x and y")
            if not len(data["x"]) == len(data["y"]) == declared:
                raise InputError(
                    f"{path}: {user} has {len(data['x'])} x and {len(data['y'])} y, but num_samples {declared}"
                )
            yield user, data["x"], data["y"], f"{path}: {user}"


def require_all_splits(paths: list[Path]) -> None:
    """Raise InputError if the files are those of LEAF's training or test samples alone."""
    folder = paths[0].parent.absolute()  # "." has no name
    other = folder.with_name({"train": "test", "test": "train"}.get(folder.name, folder.name))
    if other != folder and any(other.glob("*.json")):
        raise InputError(
            f"{folder} has only a part of the samples: {other} has others",
            f"import {folder.parent} in the format of LEAF, which reads both and keeps these splits",
            "--root with the folder of all_data*.json",
        )


def _declared_sizes(path: Path, content: Any) -> list[tuple[str, int]]:
    kinds = {"users": list, "num_samples": list, "user_data": dict}
    for key, kind in kinds.items():
        if not isinstance(content, dict) or not isinstance(content.get(key), kind):
            raise InputError(f"{path} is not in LEAF's layout: it has no {kind.__name__} '{key}'")
    if len(content["users"]) != len(content["num_samples"]):
        raise InputError(f"{path}: {len(content['users'])} users, but {len(content['num_samples'])} num_samples")
    unlisted = sorted(content["user_data"].keys() - {*map(str, content["users"])})
    if unlisted:
        raise InputError(
            f"{path}: user_data has {len(unlisted)} users that 'users' lacks, such as {unlisted[0]}",
            "add them to users and num_samples, or remove their data",
        )
    return list(zip(map(str, content["users"]), content["num_samples"], strict=True))
