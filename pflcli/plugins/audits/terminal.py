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


AUDIT = Terminal(results.show_table)
