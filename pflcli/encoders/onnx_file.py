"""Encoders in ONNX files, computed by onnxruntime."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pflcli.encoders import Loaded
from pflcli.errors import InputError, UsageError, closest
from pflcli.foreign import parsing, require_file

_PACKAGES = ("onnx", "onnxruntime")


class OnnxNetwork(nn.Module):
    """The computation of one ``output`` of a ``graph`` by onnxruntime."""

    def __init__(self, graph: bytes, session: Any, output: str) -> None:
        super().__init__()
        self.graph, self.session, self.output = graph, session, output

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for images (n, channels, height, width)."""
        name = self.session.get_inputs()[0].name
        return torch.from_numpy(np.asarray(self.session.run([self.output], {name: x.cpu().numpy()})[0], np.float32))


def load(file: Path, output: str | None) -> Loaded:
    """Return the network in an ONNX file, which takes float32 images (n, 3, height, width).

    ``output`` is one of its outputs or another tensor of the graph, such as the input of its last layer. Raises
    UsageError if a package is missing or ``output`` is unknown; InputError for another kind of file.
    """
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"encoders in ONNX files need {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            "installed",
            "pip install 'pflcli[export]'",
        )
    import onnx
    import onnxruntime

    require_file(file)
    with parsing(str(file), "ONNX"):
        content = file.read_bytes()
        model = onnx.load_from_string(content)
        outputs = [each.name for each in model.graph.output]
        if output is None and len(outputs) != 1:
            raise UsageError(f"{file} has several outputs", f"--output {outputs[0]}")
        chosen = outputs[0] if output is None else output
        tensors = [name for node in model.graph.node for name in node.output if name]
        if chosen not in [*outputs, *tensors]:
            raise UsageError(f"{file} has no tensor '{chosen}'", closest(chosen, outputs))
        if chosen not in outputs:
            model.graph.output.append(onnx.helper.make_empty_tensor_value_info(chosen))
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        graph = model.SerializeToString()
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    inputs = session.get_inputs()
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type != "tensor(float)":
        raise InputError(f"{file} must have one input, float32 images (n, channels, height, width)")
    batch, channels, height, width = inputs[0].shape
    if channels != 3 and not isinstance(channels, str | None):
        raise InputError(f"{file} takes images with {channels} channels, and encoders need 3")
    if isinstance(batch, int):
        raise InputError(f"{file} takes exactly {batch} images at a time", "export it with a dynamic batch size")
    if isinstance(height, int) and height != width:
        raise InputError(f"{file} takes images of {height}x{width}, and pfl resizes to squares")
    is_fixed = isinstance(height, int)
    return Loaded(
        OnnxNetwork(graph, session, chosen),
        hashlib.sha256(content).hexdigest(),
        height if is_fixed else 0,
        takes_any_size=not is_fixed,
    )
