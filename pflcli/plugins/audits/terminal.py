"""Output of ``pfl audit``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pflcli.cli import console, results
from pflcli.cli.from_options import Terminal

if TYPE_CHECKING:
    from pflcli.artifacts.reader import Artifact


def print_attacks(artifact: Artifact, *, to_stderr: bool) -> None:
    """Print the attacks of an audit as a table, and what they mean; to stdout also what only the artifact says."""
    from pflcli.plugins.audits import presentation
    from pflcli.plugins.audits.kind import TABLE, read

    attacks = read(artifact)
    console.table(*presentation.build_table(attacks), where=str(artifact.path / TABLE), to_stderr=to_stderr)
    warnings = [f"WARNING: {line}" for line in attacks["warnings"]]
    others = [] if to_stderr else [*presentation.list_facts(attacks), *warnings]
    for line in (*presentation.describe_access(attacks), *others):
        console.sentence(line)


def print_leakage(artifact: Artifact, *, to_stderr: bool) -> None:
    """Print what updates reveal as a table, and in sentences."""
    from pflcli.plugins.audits import leakage_presentation
    from pflcli.plugins.audits.leakage_kind import TABLE, read

    results = read(artifact)
    console.table(*leakage_presentation.build_table(results), where=str(artifact.path / TABLE), to_stderr=to_stderr)
    for line in (*leakage_presentation.describe(results), *(f"WARNING: {line}" for line in results["warnings"])):
        console.sentence(line)


AUDIT = Terminal(results.show_table)
