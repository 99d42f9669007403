"""The epsilon that noisy neighbour votes spend: per query, and over all queries of an audit to one client."""

from __future__ import annotations

from typing import Any

from pflcli.federation.privacy.composition import compose_epsilon
from pflcli.prediction.stored_predictor import StoredPredictor

DELTA = 1e-5
"""Failure probability of the smaller bound over all queries (advanced composition)."""


def account_noisy_votes(predictor: StoredPredictor, queries: int) -> dict[str, Any]:
    """Return the epsilon that ``queries`` to one client spend, for ``audit.json``; empty if votes have no noise."""
    cfg = None if predictor.run is None else predictor.run.cfg
    if cfg is None or getattr(cfg, "vote", None) != "noisy":
        return {}
    each = float(cfg.vote_epsilon)
    spent = {"epsilon": each * queries, "delta": DELTA, "epsilon_at_delta": compose_epsilon(each, queries, DELTA)}
    return {"noisy_votes": {"epsilon_per_query": each, "queries": queries, **spent}}
