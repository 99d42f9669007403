"""Output of ``pfl track``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pflcli.cli import console
from pflcli.cli.from_options import Terminal

if TYPE_CHECKING:
    from pflcli.core.execution import Execution
    from pflcli.plugins.tracking.track import Tracked


def show_tracked(
    result: Tracked, asked: Mapping[str, Any], execution: Execution, *, as_json: bool, quiet: bool
) -> None:
    """Print the folder with the runs for a tracker."""
    if as_json:
        facts = {"written": result.written, "unchanged": result.unchanged, "command": result.command}
        console.data({"path": str(asked["out"]), **facts})
    else:
        console.lines([str(asked["out"])])


TRACK = Terminal(show_tracked)
