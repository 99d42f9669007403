"""The figure of an artifact: a PNG, and the Vega-Lite specification from which other formats are rendered."""

from __future__ import annotations

from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.errors import UsageError
from pflcli.evaluation.charts import vega
from pflcli.evaluation.charts.vega import Spec

_SUFFIX = ".vl.json"
KINDS = ("evaluation", "comparison", "sweep", "audit")
"""The kinds of artifacts that contain a figure."""


def write(work: ArtifactWriter, name: str, spec: Spec) -> None:
    """Write ``NAME.png`` and ``NAME.vl.json``."""
    work.write(f"{name}.png", vega.render(spec))
    work.write(f"{name}{_SUFFIX}", vega.encode(spec))


def render(artifact: Artifact, form: str) -> bytes:
    """Return the figure of an artifact in a format of ``vega.FORMATS``.

    Raises UsageError if the artifact has no specification (earlier versions), InputError if it is damaged.
    """
    name = next((name for name in artifact.manifest.files if name.endswith(_SUFFIX)), None)
    if name is None:
        raise UsageError(
            f"{artifact.path} has no Vega-Lite specification: an earlier version of pfl made it",
            "repeat the command that made it with --force",
        )
    spec = artifact.json(name)
    with artifact.parsing(name):
        return vega.render(spec, form)
