"""What ``pfl show`` and a page say about verdicts."""

from __future__ import annotations

from typing import Any

from pflcli.artifacts.reader import Artifact
from pflcli.evaluation.presentation.section import Section
from pflcli.plugins.claims import presentation
from pflcli.plugins.claims.kind import SETTINGS, TABLE, read


def facts(artifact: Artifact) -> dict[str, Any]:
    """Return the claims with their verdicts."""
    return {"claims": read(artifact)}


def section(artifact: Artifact) -> Section:
    """Return a table of the claims."""
    claims, title = read(artifact), artifact.path.resolve().parent.name
    return Section(
        key="claims",
        heading="Which claims are confirmed",
        title=title,
        tables=((title, presentation.build_table(claims)),),
        files={name: artifact.read(name) for name in (TABLE, SETTINGS)},
        entry=dict(claims),
    )
