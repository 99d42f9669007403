"""Every method trains networks of any size by the compiled loops of large ones as it does without them."""

from __future__ import annotations

import numpy as np
import pytest

import worlds
from helpers import CLASSIFYING, set_own_products
from pflcli.core.engine import linear_chain

OPTIONS = {"apfl": {"adaptive": True, "alpha_lr": 5.0}, "fedham": {"warmup": 1, "sketch": 16}}
"""Options by which a method computes gradients of other parameters too."""

CASES = [*((name, {}) for name in CLASSIFYING), *OPTIONS.items()]


@pytest.mark.parametrize(
    ("method", "options"), CASES, ids=lambda value: value if isinstance(value, str) else str(len(value))
)
def test_compiled_loops_train_to_the_same_predictions_as_pytorch_operators(method, options, monkeypatch):
    """After three rounds: in the first, personal models do not differ from the global one yet."""
    answers = []
    for compiles in (False, True):
        set_own_products(monkeypatch, compiles)
        monkeypatch.setattr(linear_chain, "LARGE", 0)
        run = worlds.run(method, options=options, rounds=3, participation=1.0)
        answers.append(worlds.answers(method, run, worlds.play(method, run))["test"])
    np.testing.assert_allclose(answers[1], answers[0], atol=1e-4)
