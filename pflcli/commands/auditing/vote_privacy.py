"""What noisy votes of stores guarantee: the epsilon of a query, and of all queries of an audit to one client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pflcli.commands.prediction.answerer import Answerer
from pflcli.privacy.composition import epsilon_of

DELTA = 1e-5
"""The probability with which the smaller bound for all queries may fail."""


def facts(answerer: Answerer, queries: int) -> dict[str, Any]:
    """Return for ``audit.json`` what so many queries to one client spend; nothing if its votes have no noise."""
    cfg = None if answerer.run is None else answerer.run.cfg
    if cfg is None or getattr(cfg, "vote", None) != "noisy":
        return {}
    each = float(cfg.vote_epsilon)
    spent = {"epsilon": each * queries, "delta": DELTA, "epsilon_at_delta": epsilon_of(each, queries, DELTA)}
    return {"noisy_votes": {"epsilon_per_query": each, "queries": queries, **spent}}


def sentence(votes: Mapping[str, Any]) -> str:
    """Return the ``noisy_votes`` of ``facts`` in one sentence."""
    return (
        f"votes with noise spend epsilon {votes['epsilon_per_query']:g} per query: {votes['queries']} queries to one "
        f"client spend {votes['epsilon']:g} together, or {votes['epsilon_at_delta']:.3g} at delta {votes['delta']:g}"
    )
