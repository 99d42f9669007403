"""Present the results of an audit as a table and in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pflcli.core.wording import counted
from pflcli.evaluation.presentation.tables import Table


def build_table(results: Mapping[str, Any]) -> Table:
    """Return a table with a row per attack."""
    heading = ["attack", "AUC [95 %]", "TPR at 1 % FPR", "at 0.1 %", "worst client", "clients above chance", "sees"]
    rows = [
        [
            row["attack"],
            _format_area(row),
            _format_percent(row["tpr_at_1_percent"]),
            _format_percent(row["tpr_at_0_1_percent"]),
            "-" if row["worst_client_auc"] is None else f"{row['worst_client_auc']:.2f}",
            f"{row['above_chance']} of {row['clients']}",
            row["sees"],
        ]
        for row in results["attacks"]
    ]
    return Table(heading, rows, ["sees", "worst client"])


def describe_strongest(results: Mapping[str, Any]) -> str:
    """Return a sentence on the strongest attack."""
    row = max(results["attacks"], key=lambda row: row["auc"])
    above = f"{row['above_chance']} of {counted(row['clients'], 'client')}"
    return (
        f"{results['method']}: an attacker who sees {row['sees']} recognizes training samples with AUC "
        f"{_format_area(row)} (0.5 is chance), and better than chance for {above}."
    )


_INSIDE = {"calibrated": "client's model", "neighbours": "client's store", "distance": "client's store"}
"""What an attacker must have besides predictions, by attack; the other attacks need only predictions."""


def describe_access(results: Mapping[str, Any]) -> list[str]:
    """Return a sentence on the strongest attack for each kind of access: predictions alone, and model or store."""
    lines = []
    for has_more in (False, True):
        rows = [row for row in results["attacks"] if (row["attack"] in _INSIDE) is has_more]
        if rows:
            row = max(rows, key=lambda row: row["auc"])
            who = (
                f"anyone who has the {_INSIDE[row['attack']]}" if has_more else "an attacker who sees only predictions"
            )
            lines.append(f"{who} {_describe_success(row)} ({row['attack']}: AUC {_format_area(row)}, chance is 0.5)")
    return lines


def _describe_success(row: Mapping[str, Any]) -> str:
    """Return how well an attack recognizes training samples, as the end of a sentence."""
    share = row["tpr_at_1_percent"]
    if row["auc_low"] <= 0.5:
        return "recognizes training samples no better than by chance"
    if share == 1:
        return "recognizes every training sample, with at most 1 % false alarms"
    clients = f"for {row['above_chance']} of {counted(row['clients'], 'client')}"
    caught = "" if share is None else f", and {100 * share:.1f} % of them with at most 1 % false alarms"
    return f"recognizes training samples better than by chance {clients}{caught}"


def list_facts(results: Mapping[str, Any]) -> list[str]:
    """Return sentences on canaries and noisy votes; a contradiction by canaries is among the warnings instead."""
    lines = []
    if "canaries" in results and not results["canaries"]["contradicts"]:
        lines.append(describe_canaries(results["canaries"]))
    if "noisy_votes" in results:
        lines.append(describe_noisy_votes(results["noisy_votes"]))
    return lines


def describe_canaries(results: Mapping[str, Any]) -> str:
    """Return a sentence with the lower bound on epsilon and the accounted epsilon."""
    accounted = "infinite" if results["accounted_epsilon"] is None else f"{results['accounted_epsilon']:.2f}"
    verdict = "which contradicts the accounted" if results["contradicts"] else "below the accounted"
    return (
        f"{results['canaries']} canaries show that epsilon is at least {results['epsilon_low']:.2f} at delta "
        f"{results['delta']:g} (confidence {100 * results['confidence']:.0f} %), {verdict} {accounted}"
    )


def describe_noisy_votes(votes: Mapping[str, Any]) -> str:
    """Return a sentence on the epsilon that the queries of an audit spend."""
    origin = str(votes.get("random_numbers", ""))
    warning = f". WARNING: the noise follows from {origin}" if origin.startswith("dp_seed") else ""
    return (
        f"votes with noise spend epsilon {votes['epsilon_per_query']:g} per query: {votes['queries']} queries to one "
        f"client spend {votes['epsilon']:g} together, or {votes['epsilon_at_delta']:.3g} at delta {votes['delta']:g}"
        f"{warning}"
    )


def _format_area(row: Mapping[str, Any]) -> str:
    return f"{row['auc']:.3f} [{row['auc_low']:.3f}, {row['auc_high']:.3f}]"


def _format_percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"
