"""Next characters in Shakespeare's plays: each client is a speaking role.

LEAF (Caldas et al., 2018), https://arxiv.org/abs/1812.01097: predict the next character from 80 characters.
``--root``: a folder with LEAF's ``all_data*.json``, directly or in ``shakespeare``, or LEAF's own ``data`` folder; or
with ``shakespeare_roles.jsonl.gz``, one JSON object per line with ``user`` and its speeches ``lines``, which are joined
by line breaks. Windows overlap (``stride``), so each role is split by time: first training, then validation, then test.
Windows that share characters with two splits are left out. (kNN-Per splits windows that move by one character at
random, so that nearly every test text is in the training text.)
"""

from __future__ import annotations

import gzip
import json
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from pflcli.core.datasets import Samples, find_files, missing_root_error
from pflcli.core.errors import InputError
from pflcli.core.foreign import reading, require_short
from pflcli.data.datasets._leaf import iterate_users, require_all_splits

VOCABULARY = "\n !\"&'(),-." + string.digits + ":;>?" + string.ascii_uppercase + "[]" + string.ascii_lowercase + "}"
"""LEAF's 80 characters; a token is an index into them."""
NAMES = tuple({"\n": "line break", " ": "space"}.get(character, character) for character in VOCABULARY)
UNKNOWN = 79
"""The token of any other character: that of "}", which is in no play. LEAF's own -1 has the same effect."""
LENGTH = 80
CLASSES = 80
SHAPE = "80 tokens"
LICENCE = "public domain"
FILES = (
    "shakespeare/data/all_data/*.json",
    "shakespeare/all_data*.json",
    "all_data*.json",
    "shakespeare_roles.jsonl.gz",
)


@dataclass(frozen=True)
class Config:
    """Options of the dataset."""

    stride: Annotated[int, Ge(1)] = 20
    """begin a window every this many characters; 1 gives every window, as LEAF does"""
    min_characters: Annotated[int, Ge(LENGTH + 1)] = 1000
    """leave out roles that speak fewer characters than this"""


def load(root: Path | None, *, download: bool = False, cfg: Config | None = None) -> Samples:
    """Return windows (n, 80) int16 in order of time within a role; raises InputError if no role is long enough."""
    cfg = cfg or Config()
    paths = find_files(root, FILES)
    if download or not paths:
        raise missing_root_error(
            "shakespeare", *FILES, source="LEAF's preprocess.sh -s niid --sf 1.0 -k 0 -t sample makes them"
        )
    require_all_splits(paths)
    x, y, owner = [], [], []
    for role, windows, following in _read_roles(paths) if paths[0].suffix == ".gz" else _read_leaf_roles(paths):
        if len(following) + LENGTH >= cfg.min_characters:
            x.append(windows[:: cfg.stride])
            y.append(following[:: cfg.stride].astype(np.int64))
            owner += [role] * len(y[-1])
    if not x:
        raise InputError(f"{paths[0]} has no role with {cfg.min_characters} characters", "--set min_characters=81")
    # Two windows share characters if they start less than LENGTH + 1 apart.
    gap = -(-(LENGTH + 1) // cfg.stride) - 1
    return Samples(np.concatenate(x), np.concatenate(y), CLASSES, np.asarray(owner), ordered=True, gap=gap, names=NAMES)


_MAX_COMPRESSION_RATIO = 100
"""Text has about 3, and never 100."""

_Windows = Iterator[tuple[str, NDArray[np.int16], NDArray[np.int16]]]


def _read_roles(paths: list[Path]) -> _Windows:
    """Yield each role with all windows (n, 80) of its text and the token (n,) that follows each."""
    for path in paths:
        with reading(path, "gzipped JSON lines with user and lines"), gzip.open(path) as file:
            most = _MAX_COMPRESSION_RATIO * path.stat().st_size
            content = file.read(most + 1)
            if len(content) > most:
                raise InputError(f"{path} unpacks to more than {_MAX_COMPRESSION_RATIO} times its size: is it damaged?")
            lines = content.decode("utf-8").splitlines()
            roles = [(str(role["user"]), "\n".join(role["lines"])) for role in map(json.loads, lines)]
        for role, text in roles:
            require_short(str(path), role)
            if len(text) > LENGTH:
                code = encode(text)
                yield role, np.lib.stride_tricks.sliding_window_view(code[:-1], LENGTH), code[LENGTH:]


def _read_leaf_roles(paths: list[Path]) -> _Windows:
    for role, texts, following, where in iterate_users(paths):
        if texts:
            if not (_are_strings(texts, LENGTH) and _are_strings(following, 1)):
                raise InputError(
                    f"{where}: x is not a list of texts of {LENGTH} characters, or y not the next character of each"
                )
            yield role, encode("".join(texts)).reshape(-1, LENGTH), encode("".join(following))


def _are_strings(items: list[Any], length: int) -> bool:
    return all(isinstance(item, str) and len(item) == length for item in items)


def encode(text: str) -> NDArray[np.int16]:
    """Return each character's token, (len(text),) int16."""
    table = np.full(128, UNKNOWN, dtype=np.int16)
    table[[ord(character) for character in VOCABULARY]] = np.arange(len(VOCABULARY))
    code = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    return np.where(code < len(table), table[np.minimum(code, len(table) - 1)], np.int16(UNKNOWN))
