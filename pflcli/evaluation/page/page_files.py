"""Write a page: first the files in its data folder, then the page, each atomically; other files stay."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from pflcli.artifacts import disk, plain_output
from pflcli.errors import ConflictError, InputError, UsageError
from pflcli.evaluation.page import data, html

_MARK_BYTES = 400
"""Number of leading bytes that contain the mark of a page."""


def data_folder(out: Path) -> Path:
    """Return the data folder beside a page, such as ``report_data`` beside ``report.html``."""
    return out.with_name(f"{out.stem}_data")


def require_writable(out: Path, *, force: bool) -> None:
    """Raise UsageError if ``out`` is not an HTML file name, ConflictError if it would replace a foreign file.

    A page that ``pfl report`` wrote may be replaced, other files only with ``force``.
    """
    if out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{out} does not end in .html", f"--out {shlex.quote(str(out))}.html")
    folder = data_folder(out)
    if out.is_dir() or (os.path.lexists(out) and not out.is_file()):
        raise ConflictError(f"{out} is not a file", "choose another name for --out")
    if os.path.lexists(folder) and not folder.is_dir():
        raise ConflictError(
            f"{folder} is not a folder, but the page's data must go there", "choose another name for --out"
        )
    if force:
        return
    if out.exists() and html.GENERATOR not in _read_beginning(out):
        raise ConflictError(
            f"{out} exists, and pfl report did not write it", "--force replaces it, or choose another name for --out"
        )
    if folder.is_dir() and any(folder.iterdir()) and not _read_beginning(folder / data.INDEX).startswith(data.MARK):
        raise ConflictError(
            f"{folder} exists, and pfl report did not write it",
            "--force writes the page's data into it, or choose another name for --out",
        )


def write(out: Path, page: str, files: Mapping[str, bytes]) -> None:
    """Write the page and its data, and remove leftover data of an earlier page; raises InputError on failure."""
    folder = data_folder(out)
    earlier = _list_earlier(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in sorted(
            files, key=lambda name: name != data.INDEX
        ):  # first the index, which marks the folder as pfl's
            plain_output.replace_file(folder / name, files[name])
        for name in earlier - {*files}:
            (folder / name).unlink(missing_ok=True)
        plain_output.replace_file(out, page.encode(errors="replace"))  # names of folders may be invalid UTF-8
    except OSError as error:
        raise disk.write_error(f"cannot write {out}", out.parent, error, len(page)) from None


def _list_earlier(folder: Path) -> set[str]:
    """Return the names of the data files of the earlier page."""
    if not _read_beginning(folder / data.INDEX).startswith(data.MARK):
        return set()
    try:
        names = json.loads((folder / data.INDEX).read_text(encoding="utf-8"))["files"]
        return {name for name in names if isinstance(name, str) and Path(name).name == name}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _read_beginning(path: Path) -> str:
    if not path.is_file():  # opening a pipe would block
        return ""
    try:
        with path.open("rb") as file:
            return file.read(_MARK_BYTES).decode(errors="replace")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
