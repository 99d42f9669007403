"""The options of ``pfl demo``."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from pflcli.options.declaration import Options, Out


@dataclass(frozen=True)
class Demo(Options):
    """Compare four methods on the handwriting of 60 people included in pfl, in under a minute.

    DIR/comparison has the table and the picture, DIR/report.html the page of `pfl report`.

    Examples:
        pfl demo -o runs/demo
        pfl demo -o runs/demo --dry-run
    """

    NAME: ClassVar[str] = "demo"
    HARDWARE: ClassVar[tuple[str, ...]] = ("device", "threads", "engine", "jobs")

    out: Out
    _: KW_ONLY
