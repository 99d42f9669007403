"""Messages in the words of Python: arguments instead of options of the command line."""

from __future__ import annotations

import pytest

from pflcli.core.wording import in_python


@pytest.mark.parametrize(
    ("shell", "python"),
    [
        ("type --rounds 240)", "type rounds=240)"),
        ("type --patience flat", 'type patience="flat"'),
        ("a smaller --lr or more --rounds may help", "a smaller lr or more rounds may help"),
        ("leave out --dp-epsilon and --dp-noise, or", "leave out dp_epsilon and dp_noise, or"),
        ("--normalize imagenet is for images", 'normalize="imagenet" is for images'),
        ("--augment is for images", "augment is for images"),
        ("without --report best or --patience N", 'without report="best" or patience=N'),
        ("--round-metric log_loss has no effect", 'round_metric="log_loss" has no effect'),
        ("--upload clip:1.0: no", 'upload="clip:1.0": no'),
        ("learned from both (--refit)", "learned from both (refit)"),
        ("`--test-last N` measures", "`test_last=N` measures"),
        ("--dp-delta 1e-05.", "dp_delta=1e-05."),
        ("--set k=10", 'options={"k": 10}'),
        ("--set representation=features", 'options={"representation": "features"}'),
        ("--seeds 0,1,2)", "simulate(..., seed=seed) for seed in (0,1,2))"),
        ("another --lr by pfl tune, may", "another lr by pfl tune, may"),
        ("pfl partition DATA --clients 9, or --model mlp", 'pfl partition DATA --clients 9, or model="mlp"'),
    ],
)
def test_options_become_arguments_and_commands_stay(shell, python):
    assert in_python(shell) == python
