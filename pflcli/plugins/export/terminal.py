"""Output of ``pfl export``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pflcli.cli import results
from pflcli.cli.from_options import Terminal

if TYPE_CHECKING:
    from pflcli.plugins.export.export import Exported


def list_facts(exported: Exported) -> Mapping[str, Any]:
    """Return the folder of an exported model, its files, and what it says of itself."""
    return {"path": str(exported.path), "files": dict(exported.files), **exported.model}


EXPORT = Terminal(results.show_path(list_facts))
