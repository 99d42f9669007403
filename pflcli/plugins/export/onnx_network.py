"""Export the networks of a client as one ONNX graph, from samples as read from a file to predictions."""

from __future__ import annotations

import copy
import importlib.util
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pflcli.core.errors import ComputationError, UsageError
from pflcli.core.models import Net
from pflcli.data.preparation.preprocessing import Preprocessing
from pflcli.plugins.export.standalone_model import StandaloneModel
from pflcli.workflow.prediction.encoders import FrozenEncoder, OnnxNetwork

_OPSET = 17
"""Operator set version; onnxruntime 1.12 and later support it."""
_PACKAGES = ("onnx", "onnxruntime")


def require_packages() -> None:
    """Raise UsageError if a package that ONNX needs is not installed."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"pfl export needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            "pip install 'pflcli[export]'",
        )


def export_network(model: StandaloneModel) -> bytes:
    """Return the graph: input ``x`` (n, ...), outputs ``p`` (n, C) and, with neighbours, representations ``z`` (n, d).

    The graph includes the treatment of missing values, scaling and normalization, but not the encoding of words.
    """
    sample = torch.zeros(2, *input_shape(model.preprocessing), dtype=_DTYPES[model.preprocessing.form.dtype])
    return trace(_Graph(model).eval(), sample, ["p", "z"] if model.neighbours else ["p"])


def export_encoder(encoder: FrozenEncoder) -> tuple[bytes, bytes]:
    """Return the graphs that prepare images for an encoder and that compute their features."""
    images = torch.zeros(2, *encoder.facts.shape, dtype=torch.uint8)
    encoder = copy.deepcopy(encoder).cpu() if not isinstance(encoder.network, OnnxNetwork) else encoder
    prepared = trace(_Prepare(encoder), images, ["prepared"])
    if isinstance(encoder.network, OnnxNetwork):
        return prepared, encoder.network.graph
    return prepared, trace(encoder.network, encoder.prepare(images), ["features"])


class _Prepare(nn.Module):
    """Resize, scale and normalize images for an encoder."""

    def __init__(self, encoder: FrozenEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor) -> Tensor:
        """Return the inputs of the encoder's network."""
        return self.encoder.prepare(x)


def trace(graph: nn.Module, sample: Tensor, outputs: Sequence[str]) -> bytes:
    """Return a module as an ONNX graph with input ``x``, like ``sample`` (2, ...), and the named outputs.

    It is exported with TorchScript, which needs ``onnx`` only; PyTorch's newer exporter also needs onnxscript and takes
    seconds. Raises ComputationError if ONNX has no operator for a part of the module.
    """
    content: Any = io.BytesIO()
    try:
        with warnings.catch_warnings(), _silent_exporter():
            warnings.simplefilter("ignore")  # the exporter is deprecated; the number of samples varies
            torch.onnx.export(
                graph,
                (sample,),
                content,
                dynamo=False,
                opset_version=_OPSET,
                input_names=["x"],
                output_names=list(outputs),
                dynamic_axes={name: {0: "n"} for name in ("x", *outputs)},
            )
    except RuntimeError as error:  # the base class of the exporter's errors
        reason = re.split(r"\n|\[Caused by|\. Please feel free|, try exporting", str(error).strip())[0].strip()
        raise ComputationError(
            f"the network cannot be written as ONNX: {reason}", "pfl predict needs no ONNX graph"
        ) from None
    return bytes(content.getvalue())


@contextmanager
def _silent_exporter() -> Iterator[None]:
    """Keep the exporter from printing its graph beside an error: PyTorch's own switch for that has no effect."""
    printing = torch._C._jit_onnx_log
    torch._C._jit_onnx_log = lambda *args: None
    try:
        yield
    finally:
        torch._C._jit_onnx_log = printing


_DTYPES = {"uint8": torch.uint8, "int16": torch.int64, "float32": torch.float64}
"""Input type of the graph by type of the partition's samples: features have the precision of a file."""


def input_dtype(preprocessing: Preprocessing) -> str:
    """Return the type of the graph's input, such as ``float64``."""
    return str(_DTYPES[preprocessing.form.dtype]).removeprefix("torch.")


def input_shape(preprocessing: Preprocessing) -> tuple[int, ...]:
    """Return the shape of a sample as read from a file, without the features that mark missing values."""
    shape = preprocessing.form.shape
    gaps = sum(column.gaps for column in preprocessing.columns) if preprocessing.median else 0
    return (*shape[:-1], shape[-1] - gaps)


class _Graph(nn.Module):
    """Map samples as read from a file to predictions, by the same operations as the engine."""

    def __init__(self, model: StandaloneModel) -> None:
        super().__init__()
        self.networks, self.task = nn.ModuleList(model.networks), model.task
        self.shares, self.has_store = model.shares, model.neighbours is not None
        self.preprocessing, self.pixels = model.preprocessing, model.pixels

    def forward(self, x: Tensor) -> Any:
        """Return the predictions (n, C) and, with a store, the representations (n, d)."""
        ready, z, p = self._preprocess(x), [], []
        for network, share in zip(self.networks, self.shares, strict=True):
            assert isinstance(network, Net)
            z.append(network.body(ready))
            p.append(share * self.task.activate(network.head(z[-1]).double()))
        mixed = torch.stack(p).sum(dim=0).float()
        return (mixed, z[0]) if self.has_store else mixed

    def _preprocess(self, x: Tensor) -> Tensor:
        """Return samples as inputs of a network; see ``Preprocessing`` and ``Federation.inputs``."""
        if self.preprocessing.is_images:
            x = (x.unsqueeze(1) if x.ndim == 3 else x.permute(0, 3, 1, 2)).float() / 255
            if self.pixels is None:
                return x
            mean, deviation = (torch.from_numpy(values)[:, None, None] for values in self.pixels)
            return (x - mean) / deviation
        if self.preprocessing.is_tokens:
            return x
        if self.preprocessing.median:
            x = self._mark_gaps(x)
            x = torch.where(torch.isnan(x), _constant(self.preprocessing.median), x)
        scale = self.preprocessing.scale
        if scale is not None:
            # A constant feature has standard deviation 0 and becomes 0.
            factor = np.divide(1, scale.sd, out=np.zeros_like(scale.sd), where=scale.sd != 0)
            x = (x - _constant(scale.mean)) * _constant(factor)
        return x.float()

    def _mark_gaps(self, x: Tensor) -> Tensor:
        """Return features (n, ..., d) with one more after each column that has gaps: 1 where its value is missing."""
        features, at = [], 0
        for column in self.preprocessing.columns:
            width = len(column.features)
            features.append(x[..., at : at + width])
            if column.gaps:
                features.append(torch.isnan(x[..., at : at + 1]).double())
            at += width
        return torch.cat(features, dim=-1) if features else x


def _constant(values: tuple[float, ...] | NDArray[np.float64]) -> Tensor:
    return torch.tensor(np.asarray(values, dtype=np.float64))
