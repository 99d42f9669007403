"""Present the leakage of updates as a table and in sentences, in a terminal and on a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pflcli.core.wording import counted
from pflcli.evaluation.presentation.section import Section
from pflcli.evaluation.presentation.tables import Table
from pflcli.plugins.audits.leakage_kind import CLIENTS, COLUMNS, TABLE, read

if TYPE_CHECKING:
    from pflcli.artifacts.reader import Artifact


def build_table(results: Mapping[str, Any]) -> Table:
    """Return a table with a row per attacker; what a guess reaches is in parentheses."""
    heading = ["attacker", "samples", "exact counts", "in a wrong class", "recovered samples", "singled out", "sees"]
    rows = [
        [
            row["attacker"],
            str(row["samples"]),
            _beside_guess(row, "exact_clients"),
            _beside_guess(row, "wrong_counts"),
            f"{row['records']} ({row['guessed_records']:.1f})",
            f"{row['singled_out_right']} of {row['singled_out']}",
            row["sees"],
        ]
        for row in results["attackers"]
    ]
    return Table(heading, rows, ["sees", "singled out"])


def describe(results: Mapping[str, Any]) -> list[str]:
    """Return a sentence on each attacker."""
    lines = []
    for row in results["attackers"]:
        who = "the server" if row["attacker"] == "server" else "everybody"
        lines.append(
            f"From {row['sees']}, {who} {_describe_counts(row)}recovers {row['records']} of "
            f"{counted(row['samples'], 'training sample')} to {results['tolerance']:g} deviations in each column (a "
            f"guess: {row['guessed_records']:.1f})."
        )
    return lines


def _describe_counts(row: Mapping[str, Any]) -> str:
    if row["wrong_counts"] is None:
        return ""
    whose = "class counts"
    if row["attacker"] == "server":
        whose = f"the class counts of {row['exact_clients']} of {counted(row['clients'], 'client')} exactly"
    wrong, guessed = (100 * row[name] / row["samples"] for name in ("wrong_counts", "guessed_wrong_counts"))
    return f"learns {whose} ({wrong:.1f} % of samples are in a wrong class; a guess: {guessed:.1f} %), and "


def _beside_guess(row: Mapping[str, Any], name: str) -> str:
    return "-" if row[name] is None else f"{row[name]} ({row[f'guessed_{name}']})"


def facts(artifact: Artifact) -> dict[str, Any]:
    """Return the attackers with their results."""
    return {"leakage": read(artifact)}


def section(artifact: Artifact) -> Section:
    """Return a sentence on what the server learns, and a table of both attackers."""
    results, title = read(artifact), artifact.path.resolve().name
    answer, *notes = describe(results)
    return Section(
        key="leakage",
        heading="What updates reveal",
        title=title,
        answer=answer,
        tables=((f"Attackers, beside a guess in parentheses: {title}", build_table(results)),),
        notes=(*notes, *results["warnings"]),
        files={name: artifact.read(name) for name in (TABLE, CLIENTS, COLUMNS)},
        entry={"title": title, "answer": answer, **results},
    )
