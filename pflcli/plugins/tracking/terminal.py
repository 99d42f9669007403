"""Output of ``pfl track``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pflcli.cli import results
from pflcli.cli.from_options import Terminal

if TYPE_CHECKING:
    from pflcli.plugins.tracking.track import Tracked


def list_facts(tracked: Tracked) -> Mapping[str, Any]:
    """Return the folder with the runs for a tracker, their numbers, and the command that shows them."""
    facts = {"written": tracked.written, "unchanged": tracked.unchanged, "command": tracked.command}
    return {"path": str(tracked.path), **facts}


TRACK = Terminal(results.show_path(list_facts))
