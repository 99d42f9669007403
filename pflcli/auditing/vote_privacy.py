"""What noisy votes of stores guarantee: the epsilon of a query, and of all queries of an audit to one client."""

from __future__ import annotations

from typing import Any

from pflcli.federation.privacy.composition import epsilon_of
from pflcli.prediction.answerer import Answerer

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
