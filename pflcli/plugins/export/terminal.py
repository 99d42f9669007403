"""Output of ``pfl export``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pflcli.cli import console
from pflcli.cli.from_options import Terminal

if TYPE_CHECKING:
    from pflcli.core.execution import Execution
    from pflcli.plugins.export.export import Exported


def show_export(
    result: Exported, asked: Mapping[str, Any], execution: Execution, *, as_json: bool, quiet: bool
) -> None:
    """Print the folder of an exported model."""
    if as_json:
        console.data({"path": str(asked["out"]), "files": dict(result.files), **result.model})
    else:
        console.lines([str(asked["out"])])


EXPORT = Terminal(show_export)
