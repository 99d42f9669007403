"""Output of ``pfl report``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pflcli.cli import results
from pflcli.cli.from_options import Terminal

if TYPE_CHECKING:
    from pflcli.core.execution import Execution
    from pflcli.plugins.page.report import Page


def show_page(page: Page, asked: Mapping[str, Any], execution: Execution, *, as_json: bool, quiet: bool) -> None:
    """Print the answers of a page, and its path."""
    for answer in page.answers:
        execution.reporter.say(answer)
    _show_path(page, asked, execution, as_json=as_json, quiet=quiet)


_show_path = results.show_path(lambda page: {"path": str(page.path), "data": str(page.data), "answers": page.answers})


REPORT = Terminal(show_page)
