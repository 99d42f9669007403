"""The folder in which the server and the sites exchange messages: its files, and how they are copied and awaited."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from pflcli.errors import InputError

POLL_SECONDS = 0.05
"""How long the server and a site wait before they look for messages again."""


def folder_of(exchange: Path, names: list[str], site: str) -> Path:
    """Return the folder of a site in the ``exchange`` folder: its number, and its name without unusual characters."""
    return exchange / f"{names.index(site):03d}-{re.sub(r'[^A-Za-z0-9_-]+', '-', site)[:40]}"


def question_file(folder: Path, number: int) -> Path:
    """Return the file of the question of a round, from 1."""
    return folder / f"question-{number:06d}.msg"


def answer_file(folder: Path, number: int) -> Path:
    """Return the file of the answer in a round, from 1."""
    return folder / f"answer-{number:06d}.msg"


def final_file(folder: Path) -> Path:
    """Return the file of the last message to a site."""
    return folder / "final.msg"


def find_last_question(folder: Path) -> int | None:
    """Return the round of the last question to a site, which may not be in every round; None without any."""
    asked = max(folder.glob("question-*.msg"), default=None)
    return None if asked is None else int(asked.stem.removeprefix("question-"))


def copy_message(path: Path, target: Path) -> None:
    """Copy a file so that ``target`` is never incomplete; raises InputError if that fails."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        shutil.copyfile(path, temporary)
        temporary.replace(target)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise InputError(f"cannot write {target}: {error.strerror}") from None
