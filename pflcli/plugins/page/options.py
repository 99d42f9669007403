"""The options of ``pfl report``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pflcli.core import plugins
from pflcli.core.wording import listed
from pflcli.options.declaration import PATHS, FilePath, Options, artifacts_argument, out_option

if TYPE_CHECKING:
    from pflcli.artifacts.reader import Artifact

OTHERS = tuple(name for name, (_, facts) in plugins.added("KINDS").items() if "section" in facts)
"""The kinds of artifacts, beside comparisons and evaluations, of which a page has a section."""


@dataclass(frozen=True)
class Report(Options):
    """Write one page that explains a comparison: the answer, a sortable table, linked charts, and how to repeat it.

    The page is self-contained and can be sent by mail.

    Examples:
        pfl report runs/c/comparison -o report.html
        pfl report runs/evaluation runs/c/comparison -o both.html
    """

    NAME: ClassVar[str] = "report"
    HAS_DRY_RUN: ClassVar[bool] = False
    FORCE_HELP: ClassVar[str] = "Replace a file at --out that pfl report did not write."

    sources: Annotated[
        Sequence[Path | str | Artifact | Mapping[str, Any]],
        PATHS,
        artifacts_argument(
            f"Report these comparisons and evaluations, and artifacts of other kinds: {listed([*OTHERS])}.",
            "comparison",
            "evaluation",
            *OTHERS,
        ),
    ]
    out: Annotated[
        FilePath, out_option("Write the page to this file; its numbers go to NAME_data/ beside it.", "FILE.html")
    ]
