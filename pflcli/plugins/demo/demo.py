"""``pfl demo``: the quickstart, on the data that are included in the package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pflcli.artifacts.make import Outcome
from pflcli.commands.compare import compare
from pflcli.commands.partition import partition
from pflcli.core import plugins
from pflcli.options.function import command
from pflcli.plugins.demo.options import Demo

METHODS = ("fedavg", "local", "fedavg-plus", "knn-per")
SETTINGS: Mapping[str, Any] = {"model": "mlp", "rounds": 100, "participation": 0.2, "batch_size": 10, "lr": 0.1}
"""The settings of ``examples/quickstart.sh``, with a small network so that it finishes in under a minute."""


@command(Demo)
def demo(asked: Demo) -> Outcome:
    """Compare four methods on the handwriting of 60 people, in the folder ``out``; return the comparison.

    ``out/partition`` contains the samples, ``out/seed-0`` one run per method, ``out/comparison`` the table and the
    picture; ``out/report.html`` is the page of ``report``. A dry run returns only the partition if it does not exist.
    Raises ConflictError if ``out`` contains artifacts of another request.

    >>> from pflcli import demo
    >>> demo("runs/demo", dry_run=True).decision
    'dry run: new'
    """
    out, execution = Path(asked.out), asked.execution
    partitioned = partition("writers", out / "partition", execution=execution)
    if execution.dry_run and not partitioned.path.exists():
        return partitioned
    outcome = compare([partitioned.path], out, methods=METHODS, settings=SETTINGS, execution=execution)
    if execution.dry_run:
        return outcome
    say = execution.reporter.say
    say(f"table:   {outcome.path / 'table.md'}")
    if (picture := outcome.path / "accuracy.png").is_file():
        say(f"picture: {picture}")
    if (report := plugins.load("COMMANDS", "report", "function")) is not None:
        say(f"page:    {report([outcome.path], out / 'report.html', force=execution.force).path}")
    return outcome
