"""The output of any layer of a network, to search neighbours in it instead of among the inputs of the head."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pflcli.core.engine.executors.threads import BATCH
from pflcli.core.engine.process_settings import intra_op
from pflcli.core.errors import UsageError
from pflcli.core.federation.run import Run


def list_layers(network: nn.Module) -> list[str]:
    """Return the names of the network's layers: all of its modules that contain no others."""
    return [name for name, module in network.named_modules() if name and not any(module.children())]


@torch.no_grad()
def represent_by_layer(run: Run, rows: NDArray[np.int64], layer: str) -> Tensor:
    """Return the outputs (n, d) of a ``layer`` of the run's backbone for rows of its federation, flattened.

    ``layer`` is the name of a module, such as body.1; of several outputs the first is taken. Raises UsageError if there
    is no such module, or if its output has no row for each sample.
    """
    assert run.network is not None
    assert run.backbone is not None
    network = copy.deepcopy(run.network)
    network.load_state_dict(run.backbone)
    network.eval().to(run.federation.y.device)
    modules = {name: module for name, module in network.named_modules() if name}
    if layer not in modules:
        raise UsageError(f"the network has no layer '{layer}'", f"choose from: {', '.join(list_layers(network))}")
    outputs: list[Tensor] = []

    def record(module: nn.Module, inputs: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        outputs.append(first.flatten(1).clone())  # a later layer may change it in place

    modules[layer].register_forward_hook(record)
    parts = []
    with intra_op(1):
        for batch in run.engine.divide(rows, BATCH[run.federation.y.device.type]):
            outputs.clear()
            network(run.federation.inputs(torch.from_numpy(batch)))
            if len(outputs) != 1 or len(outputs[0]) != len(batch):
                raise UsageError(
                    f"layer '{layer}' does not compute one output per sample",
                    f"choose from: {', '.join(list_layers(network))}",
                )
            parts.append(outputs[0])
    return torch.cat(parts)
