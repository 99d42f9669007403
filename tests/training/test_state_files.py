"""The state of a method survives a file."""

from __future__ import annotations

import torch
from safetensors.torch import load, save

import worlds
from pflcli.workflow.training import state_files


def test_shared_tensors_and_empty_dicts_survive_a_checkpoint():
    run = worlds.run("fedavg")
    model = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}
    table = run.table({"w": torch.ones(3)})
    state = {"global": model, "previous": model, "row": model["w"][1], "buffers": {}, "inner": {"none": {}}, "t": table}
    stored = state_files.nest(load(save(state_files.flatten(state))), run)
    assert {key: sorted(value) for key, value in stored.items() if isinstance(value, dict)} == {
        "buffers": [],
        "global": ["b", "w"],
        "inner": ["none"],
        "previous": ["b", "w"],
    }
    for key in ("global", "previous"):
        assert all(torch.equal(stored[key][name], model[name]) for name in model)
    assert torch.equal(stored["row"], model["w"][1])
    assert torch.equal(stored["t"].default["w"], torch.ones(3))


def test_only_tensors_that_share_memory_are_copied():
    kept, shared = torch.ones(3), torch.ones(4)
    flat = state_files.flatten({"a": kept, "b": shared, "c": shared})
    assert flat["a"].data_ptr() == kept.data_ptr()
    assert flat["b"].data_ptr() == shared.data_ptr()
    assert flat["c"].data_ptr() != shared.data_ptr()
