"""Output of ``pfl report``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pflcli.cli import console
from pflcli.cli.from_options import Terminal

if TYPE_CHECKING:
    from pflcli.core.execution import Execution
    from pflcli.plugins.page.report import Page


def show_page(page: Page, asked: Mapping[str, Any], execution: Execution, *, as_json: bool, quiet: bool) -> None:
    """Print the answers of a page, and its path."""
    for answer in page.answers:
        execution.reporter.say(answer)
    if as_json:
        console.data({"path": str(page.path), "data": str(page.data), "answers": page.answers})
    else:
        console.lines([str(page.path)])


REPORT = Terminal(show_page)
