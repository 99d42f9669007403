"""Users' files on their way to workers on other machines."""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pflcli.core.registry.users_files import add_used


@dataclass(frozen=True)
class SentFile:
    """A user's file on its way to a worker on another machine."""

    key: str
    """its key in ``used_files``"""
    root: Path
    """the folder from which Python imports it, on the machine of the user"""
    name: str
    """its path below ``root``"""
    contents: Mapping[str, bytes]
    """the file and the modules of the user that it imports, by their paths below ``root``"""


def use_sent_files(sent: Iterable[SentFile]) -> None:
    """Use files that ``sources.read_used_files`` has read in another process.

    A file that this machine has, with the same contents, is used where it is, since messages name its path. Others are
    written to a temporary folder.
    """
    for each in sent:
        root = each.root
        if not all(
            (root / path).is_file() and (root / path).read_bytes() == each.contents[path] for path in each.contents
        ):
            root = Path(tempfile.mkdtemp(prefix="pfl-files-"))
            atexit.register(shutil.rmtree, root, ignore_errors=True)
            for path, content in each.contents.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(content)
        if str(root) not in sys.path:
            sys.path.append(str(root))
        add_used(each.key, root / each.name)
