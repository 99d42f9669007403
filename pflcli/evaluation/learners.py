"""Which stored answers of several methods a stack pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

STACK = "stack"
"""The name of the method in the request of a stack."""
BASE = "fedavg"
"""The method whose answers are the global model's."""
VOTES, GLOBAL = "knn", "global"
"""Parts of answers: the votes of a client's neighbours, and what the global model answers."""


def pooled_answers(answers: Sequence[Mapping[str, NDArray[Any]]], methods: Sequence[str]) -> list[NDArray[Any]]:
    """Return what is pooled of each method's parts (n, C): votes or answers; behind them the global model, if known."""
    known = [] if BASE in methods else [parts[GLOBAL] for parts in answers if GLOBAL in parts]
    return [*(parts.get(VOTES, parts["p"]) for parts in answers), *known[:1]]
