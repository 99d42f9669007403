"""What ``pfl show`` and a page say about an audit."""

from __future__ import annotations

from typing import Any

from pflcli.artifacts.reader import Artifact
from pflcli.evaluation.presentation.section import Picture, Section
from pflcli.plugins.audits import presentation
from pflcli.plugins.audits.kind import CLIENTS, PICTURE, TABLE, read

_CAPTION = (
    "Left, over all clients: the share of training samples that an attack recognizes (true positives) against the "
    "share of other samples that it mistakes for training samples (false positives); the dashed line is a guess. "
    "Right: the AUC of each client under the strongest attack, the most exposed first; 0.5 is a guess."
)


def facts(artifact: Artifact) -> dict[str, Any]:
    """Return the attacks with their results."""
    return {"audit": read(artifact)}


def section(artifact: Artifact) -> Section:
    """Return the strongest attack in a sentence, a table of all attacks, and their picture."""
    results, title = read(artifact), artifact.path.resolve().name
    answer, drawn = presentation.describe_strongest(results), PICTURE in artifact.manifest.files
    words = f"Attacks on {results['method']}. {_CAPTION}"
    return Section(
        key="audits",
        heading="What an attacker learns",
        title=title,
        answer=answer,
        tables=((f"Attacks: {title}", presentation.build_table(results)),),
        notes=(*presentation.list_facts(results), *results["warnings"]),
        picture=Picture(artifact.read(PICTURE), words, _CAPTION) if drawn else None,
        files={name: artifact.read(name) for name in (TABLE, CLIENTS)},
        entry={"title": title, "answer": answer, **results},
    )
