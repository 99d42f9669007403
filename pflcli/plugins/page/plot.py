"""``plot``: the figure of results in memory, or of an artifact, for a notebook or a file."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pflcli.artifacts.make import Outcome
from pflcli.artifacts.open_by_path import open_one
from pflcli.artifacts.reader import Artifact
from pflcli.commands import show
from pflcli.core.errors import NotDrawnError, UsageError
from pflcli.evaluation import figures
from pflcli.evaluation.in_memory import compare_results
from pflcli.plugins.page import in_memory

if TYPE_CHECKING:
    from pflcli.evaluation.in_memory import Source


class Picture:
    """A figure: a notebook shows it, ``save`` writes it, and ``png`` returns it."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact

    def __repr__(self) -> str:
        """Return a line, which a console shows."""
        return f"Picture of {self._artifact.path}: save('picture.png') writes it"

    def save(self, out: Path | str) -> Path:
        """Write the figure to a file, which is replaced if it exists; its suffix is the format: .png, .svg or .pdf.

        Raises UsageError for another suffix and without vl-convert, InputError if the file cannot be written.
        """
        show.plot(self._artifact, out)
        return Path(out)

    def png(self) -> bytes:
        """Return the figure as a PNG; raises UsageError without vl-convert."""
        return figures.render(self._artifact, "png")

    def _repr_png_(self) -> bytes | None:
        """Return what a notebook shows; warns and returns None if it cannot be drawn."""
        try:
            return self.png()
        except (NotDrawnError, UsageError) as error:
            warnings.warn(error.describe(), stacklevel=2)
            return None


def plot(
    results: Mapping[str, Source | Sequence[Source]] | Outcome | Artifact | Path | str,
    out: Path | str | None = None,
    *,
    baseline: str = "fedavg",
    split: str = "test",
    metric: str | Sequence[str] | None = None,
) -> Picture:
    """Return the figure of a comparison: the score of each client under each method. With ``out``, write it too.

    ``results`` has, for each label, the result of ``simulate`` or several, one per seed, as ``table`` takes them, with
    the same keywords ``baseline``, ``split`` and ``metric``. It may also be what ``compare`` returned, or the path of
    an artifact, of which ``pfl show --plot`` draws the same figure. The suffix of ``out`` is the format: .png, .svg or
    .pdf.

    Raises UsageError as ``table`` does, for another suffix, and for an artifact without a figure.

    >>> from pflcli import Federation, plot, simulate
    >>> writers = Federation.from_dataset("writers", clients=6)
    >>> names = ("fedavg", "local")
    >>> results = {name: simulate(name, writers, model="logistic", rounds=2, quiet=True) for name in names}
    >>> plot(results, "clients.svg")
    Picture of results: save('picture.png') writes it
    """
    if isinstance(results, Outcome | Artifact | Path | str):
        if (baseline, split, metric) != ("fedavg", "test", None):
            raise UsageError("the figure of an artifact has its own baseline, split and metric", "pfl evaluate RUNS...")
        picture = Picture(open_one(results.path if isinstance(results, Outcome) else results))
    else:
        picture = Picture(in_memory.evaluate(compare_results(results, baseline, split, metric), "results"))
    if out is not None:
        picture.save(out)
    return picture
