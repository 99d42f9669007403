"""A training setting has an effect on every method, or the run says that it has none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pflcli.core import methods, registry
from pflcli.core.errors import UsageError
from pflcli.core.settings import Settings
from pflcli.core.simulation import requirements
from pflcli.workflow.admission import small_federation as small

CHANGES = {
    "rounds": 1,
    "participation": 1.0,
    "dropout": 0.3,
    "epochs": 3,
    "steps": 2,
    "batch_size": 2,
    "lr": 0.02,
    "optimizer": "adam",
    "momentum": 0.9,
    "weight_decay": 0.3,
    "clip_gradients": 0.05,
    "lr_schedule": "cosine",
    "lr_warmup": 2,
}
"""Settings of local training with other values than those of the small federation."""

UNUSED_BY_DEFAULT = {"fedsgd": ("batch_size",)}
"""By method, settings that only one of its options uses, as its docstring says."""


def run_and_predict(method, **settings):
    """The predictions of all clients after two rounds, and the bytes that were sent."""
    run = small.make_run(method, **{"rounds": 2, **settings})
    return small.predict(method, run, small.play_rounds(method, run)), dict(run.traffic)


@pytest.mark.parametrize("method", [name for name in registry.names("methods") if methods.load(name).has_rounds])
def test_setting_changes_the_result_or_is_reported_to_have_no_effect(method):
    """Without rounds of its own, a method takes its settings from the backbone, which a setting changes."""
    predicted, traffic = run_and_predict(method)
    code = methods.load(method)
    for name, value in CHANGES.items():
        try:
            changed, sent = run_and_predict(method, **{name: value})
        except UsageError:  # which says why it does not apply
            continue
        is_same = traffic == sent and all(np.array_equal(changed[split], p) for split, p in predicted.items())
        says_so = bool([*requirements.describe_ignored(method, code, replace(Settings(), **{name: value}))])
        is_expected = says_so or name in UNUSED_BY_DEFAULT.get(method, ())
        assert is_same == is_expected, f"--{name} has {'no' if is_same else 'an'} effect on {method}"
