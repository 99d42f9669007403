"""Modes in which a method is tested."""

from __future__ import annotations

import pytest

from helpers import set_own_products
from pflcli.core.engine import linear_chain


@pytest.fixture(params=["loop", "stacked", "compiled"])
def mode(request, monkeypatch):
    """A mode of the engine, or the compiled loops, which otherwise only networks of 100,000 weights use."""
    set_own_products(monkeypatch, request.param == "compiled")
    monkeypatch.setattr(linear_chain, "LARGE", 0)
    return "auto" if request.param == "compiled" else request.param
