"""``pfl demo``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pflcli.cli import console, shared

if TYPE_CHECKING:
    from pflcli.artifacts.make import Outcome
    from pflcli.execution import Execution


@shared.makes_artifact("device", "threads", "engine", "jobs")
def command(out: shared.Out, execution: Execution, quiet: shared.Quiet = False) -> Outcome:
    """Compare four methods on the handwriting of 60 people that comes with pfl, in about half a minute.

    DIR/comparison has the table and the picture, DIR/report.html the page if the extra for `pfl report` is installed.

    Examples:
        pfl demo -o runs/demo
        pfl demo -o runs/demo --dry-run
    """
    from pflcli.artifacts.reader import open_artifact
    from pflcli.commands.demo import demo

    outcome = demo(out, execution=execution)
    if not (quiet or execution.dry_run):
        console.scores(open_artifact(outcome.path), to_stderr=True)
    return outcome
