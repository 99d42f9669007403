"""Output of ``pfl replay``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pflcli.cli import console
from pflcli.cli.from_options import Terminal
from pflcli.core.errors import ComputationError
from pflcli.core.wording import counted, listed

if TYPE_CHECKING:
    from pflcli.core.execution import Execution
    from pflcli.plugins.replay.replay import Repeated, Replayed


def show_agreement(
    result: Replayed, asked: Mapping[str, Any], execution: Execution, *, as_json: bool, quiet: bool
) -> None:
    """Print how far each artifact agrees with the original; raises ComputationError if one differs."""
    if as_json:
        rows = [_facts(item) for item in result.artifacts]
        console.data({"path": str(result.path), "differs": result.differs, "artifacts": rows})
    elif execution.dry_run:
        console.table(["artifact", "command"], [[str(item.path), item.command] for item in result.artifacts])
    elif not quiet:
        console.table(
            ["artifact", "kind", "agreement", "largest difference", "other predictions", "accuracy"],
            [_row(item) for item in result.artifacts],
        )
    if execution.dry_run:
        return
    for line in result.differs:
        execution.reporter.say(f"not as in the original run: {line}")
    apart = [str(item.path) for item in result.artifacts if not item.agrees]
    total = counted(len(result.artifacts), "artifact")
    if apart:
        raise ComputationError(f"{len(apart)} of {total} differ from the original: {listed(apart, most=3)}")
    same = sum(item.verdict == "same" for item in result.artifacts)
    digits = [
        each.agreement.digits for each in result.artifacts if each.agreement and each.agreement.digits is not None
    ]
    rest = f", {len(digits)} agree to {counted(min(digits), 'digit')}" if digits else ""
    execution.reporter.say(f"{total}: {same} the same to the last bit{rest}")


def _row(item: Repeated) -> list[str]:
    found = item.agreement
    if found is None:
        return [str(item.path), item.kind, "", "", "", ""]
    difference = "other content" if math.isinf(found.difference) else f"{found.difference:.1e}"
    before, after = found.accuracy or (0.0, 0.0)
    return [
        str(item.path),
        item.kind,
        item.verdict,
        f"{difference} ({found.where})" if found.difference else "",
        f"{found.changed} of {found.test_samples}" if found.test_samples else "",
        f"{100 * before:.2f} -> {100 * after:.2f} %" if found.accuracy else "",
    ]


def _facts(item: Repeated) -> dict[str, Any]:
    found = item.agreement
    facts: dict[str, Any] = {
        "original": str(item.original),
        "path": str(item.path),
        "kind": item.kind,
        "command": item.command,
    }
    if found is not None:
        facts |= {
            "agreement": item.verdict,
            "difference": found.difference if math.isfinite(found.difference) else None,
            "digits": found.digits if math.isfinite(found.difference) else 0,
            "where": found.where,
            "changed": found.changed,
            "test_samples": found.test_samples,
            "accuracy": list(found.accuracy or ()),
        }
    return facts


REPLAY = Terminal(show_agreement)
