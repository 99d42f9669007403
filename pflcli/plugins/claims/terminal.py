"""Output of ``pfl verify``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pflcli.cli import console, results
from pflcli.cli.from_options import Terminal, show_outcome

if TYPE_CHECKING:
    from pflcli.artifacts.make import Outcome
    from pflcli.artifacts.reader import Artifact
    from pflcli.core.execution import Execution


def print_verdicts(artifact: Artifact, *, to_stderr: bool) -> None:
    """Print the verdicts on claims as a table."""
    from pflcli.plugins.claims import presentation
    from pflcli.plugins.claims.kind import SETTINGS, read

    console.table(*presentation.build_table(read(artifact)), where=str(artifact.path / SETTINGS), to_stderr=to_stderr)


def show_verdicts(
    outcome: Outcome, asked: Mapping[str, Any], execution: Execution, *, as_json: bool, quiet: bool
) -> None:
    """Print the verdicts on claims, or in a dry run what would be made."""
    _show(outcome, dry_run=execution.dry_run, quiet=quiet)
    show_outcome(outcome, asked, execution, as_json=as_json, quiet=quiet)


def _show(outcome: Outcome, *, dry_run: bool, quiet: bool) -> None:
    from pflcli.artifacts.reader import open_artifact

    if quiet:
        return
    if dry_run:
        rows = [[row["path"], row["decision"]] for row in outcome.summary["plan"]]
        console.table(["artifact", "decision"], rows, to_stderr=True)
    elif outcome.kind == "verdicts" and outcome.fingerprint:
        print_verdicts(open_artifact(outcome.path), to_stderr=True)


VERIFY = Terminal(
    show_verdicts,
    partial(results.run_comparison, show_other=_show),
    {"plan": results.PLAN},
    results.CompareCommand,
)
