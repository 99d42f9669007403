"""What is shown of a census."""

from pfl_census.kind import check
from pflcli.cli import console
from pflcli.evaluation.presentation.section import Section


def print_counts(artifact, *, to_stderr):
    """Print a table."""
    console.table(["client", "classes"], [[*map(str, row)] for row in check(artifact).items()], to_stderr=to_stderr)


def facts(artifact):
    """Return what --json adds."""
    return {"counts": check(artifact)}


def section(artifact):
    """Return what a page shows."""
    return Section("census", "Who has which classes", artifact.path.name, "All were counted.", page_title="A census")
