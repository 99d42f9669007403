"""Frozen encoders: networks that compute features of images, with weights from a file that are never trained.

Their kinds are ``torchvision:NAME``, ``timm:NAME`` and ``onnx:FILE``. Images are resized to a square, scaled to [0, 1],
normalized per channel, and passed to the network in evaluation mode. The features are the input of its last linear
layer, or the output of the ONNX file.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pflcli.artifacts import initial_weights
from pflcli.artifacts.codebook import Encoder
from pflcli.core import models, parameters, vision
from pflcli.core.engine import process_settings
from pflcli.core.errors import ComputationError, InputError, UsageError, closest
from pflcli.core.foreign import parsing, require_file
from pflcli.core.wording import counted

KINDS = ("torchvision", "timm", "onnx")
BATCH = 64
"""Images per pass."""

_MAX_ONNX_BYTES = 2**31 - 1
"""Maximum size of an ONNX model with its external data: that of a message of Protocol Buffers."""
_IMAGENET_SIZE = 224
"""The side of the images, in pixels, with which most networks are trained on ImageNet."""
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation of ImageNet's channels, https://docs.pytorch.org/vision/stable/models.html."""


@dataclass(frozen=True)
class Loaded:
    """A network (n, channels, size, size) -> (n, d), the hash of its weights, and the images that it was trained on.

    ``size`` is the side of these images in pixels, 0 if any size will do. ``mean`` and ``deviation`` of the channels
    are None if they are unknown. ``takes_any_size`` is false if the network accepts no other size.
    """

    network: nn.Module
    weights: str
    size: int = 224
    mean: tuple[float, ...] | None = None
    deviation: tuple[float, ...] | None = None
    takes_any_size: bool = True


class FrozenEncoder(nn.Module):
    """Computes features (n, d) of uint8 images (n, H, W) or (n, H, W, channels), as ``facts`` describe.

    The module contains the whole computation, so that it can be exported.
    """

    rows: Tensor
    columns: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self, network: nn.Module, facts: Encoder) -> None:
        super().__init__()
        # Convolutions are twice as fast on a CPU if the channels are last.
        self.network: nn.Module = network.eval().requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.facts = facts
        self._repeats = False
        """whether a batch is known to have the same features each time"""
        height, width = facts.shape[:2]
        self.register_buffer("rows", _resize_matrix(height, facts.size))
        self.register_buffer("columns", _resize_matrix(width, facts.size).T)
        self.register_buffer("mean", torch.tensor(facts.mean)[:, None, None])
        self.register_buffer("deviation", torch.tensor(facts.deviation)[:, None, None])

    def prepare(self, x: Tensor) -> Tensor:
        """Return images as inputs of the network (n, channels, size, size): resized, scaled and normalized."""
        x = (x.unsqueeze(1) if x.ndim == 3 else x.permute(0, 3, 1, 2)).float() / 255
        x = self.rows @ x @ self.columns
        return (x - self.mean) / self.deviation  # a single channel becomes as many as there are means

    def forward(self, x: Tensor) -> Tensor:
        """Return the features (n, d) in float32."""
        features: Tensor = self.network(self.prepare(x))
        return features.flatten(1)

    def embed(self, x: NDArray[Any], threads: int = 1) -> NDArray[np.float32]:
        """Return the features (n, d) of images (n, ...).

        Raises ComputationError if one is not finite, InputError if the first batch has other features a second time.
        """
        pieces = []
        with torch.inference_mode(), process_settings.intra_op(threads):
            for first in range(0, len(x), BATCH):
                batch = torch.from_numpy(x[first : first + BATCH].copy())
                pieces.append(self(batch.to(self.mean.device)).cpu().numpy())
                if not self._repeats:
                    again = self(batch.to(self.mean.device)).cpu().numpy()
                    if not np.array_equal(pieces[0], again, equal_nan=True):
                        raise InputError(
                            f"{self.facts.name} computes other features for the same images when it is asked again: it"
                            " contains random operators, such as dropout",
                            "export the network for inference, after model.eval()",
                        )
                    self._repeats = True
        features = np.concatenate(pieces)
        if not np.isfinite(features).all():
            raise ComputationError(f"the features that {self.facts.name} computes are not finite")
        return features


def _resize_matrix(source: int, target: int) -> Tensor:
    """Return the matrix (target, source) that resizes one axis: bilinear, with antialiasing if it becomes shorter.

    A matrix product can be exported to ONNX, where this kind of resizing exists only in newer versions.
    """
    if source == target:
        return torch.eye(source)
    identity = torch.eye(source)[None, None]
    resized = nn.functional.interpolate(identity, size=(target, source), mode="bilinear", antialias=target < source)
    return resized[0, 0]


@dataclass(frozen=True)
class Choice:
    """The encoder that a user chose: ``word``, such as torchvision:mobilenet_v2, and the options of ``pfl embed``."""

    word: str
    weights: Path | None = None
    size: int | None = None
    normalize: str | None = None
    output: str | None = None

    @property
    def kind(self) -> str:
        """The kind, one of ``KINDS``."""
        return self.word.partition(":")[0]

    @property
    def member(self) -> str:
        """The part after the colon: a name, or the path of an ONNX file."""
        return self.word.partition(":")[2]

    @property
    def file(self) -> Path:
        """The file with the weights."""
        return Path(self.member) if self.kind == "onnx" else self.weights or Path()

    def check(self) -> None:
        """Raise UsageError for an unknown kind of encoder, or options that do not apply to it."""
        kind, colon, member = self.word.partition(":")
        if kind not in KINDS or not colon or not member:
            hint = closest(kind, KINDS) if kind not in KINDS else ""
            raise UsageError(
                f"--encoder {self.word} is not torchvision:NAME, timm:NAME or onnx:FILE", hint,
                "--encoder torchvision:mobilenet_v2 --weights FILE",
            )  # fmt: skip
        if kind == "onnx" and self.weights is not None:
            raise UsageError("an ONNX file contains its weights", "leave out --weights")
        if kind != "onnx" and self.weights is None:
            raise UsageError(f"--encoder {self.word} needs its weights", "--weights FILE.safetensors, FILE.pt or .pth")
        if kind != "onnx" and self.output is not None:
            raise UsageError("--output names a tensor of an ONNX file", "leave it out")

    def open(self, shape: tuple[int, ...]) -> FrozenEncoder:
        """Read the weights, and return the encoder for images of ``shape`` (H, W) or (H, W, channels).

        Raises UsageError or InputError if it cannot be made from the file, or does not take such images.
        """
        loaded = _load(self.kind, self.member, self.file, self.size, self.output)
        channels = shape[2] if len(shape) == 3 else 1
        if channels not in (1, 3):
            raise InputError(f"encoders take images with 1 or 3 channels; these have {channels}")
        size = self.size or loaded.size or min(shape[:2])
        if not loaded.takes_any_size and loaded.size and size != loaded.size:
            raise UsageError(f"{self.word} takes images of {loaded.size} pixels only", f"--size {loaded.size}")
        mean: tuple[float, ...] = _IMAGENET[0]
        deviation: tuple[float, ...] = _IMAGENET[1]
        if self.normalize == "none":
            mean, deviation = (0.0,) * 3, (1.0,) * 3
        elif self.normalize is None and loaded.mean is not None and loaded.deviation is not None:
            mean, deviation = loaded.mean, loaded.deviation
        name = f"onnx:{self.file.name}" if self.kind == "onnx" else self.word
        facts = Encoder(name, loaded.weights, size, mean, deviation, self.output or "", shape)
        return _require_images(FrozenEncoder(loaded.network, facts))


@dataclass(frozen=True)
class StoredEncoder:
    """An encoder that a codebook describes; its weights are read from ``file`` when they are first needed.

    ``where`` names the artifact in messages. ``file`` is None if the artifact does not record it.
    """

    facts: Encoder
    file: Path | None
    where: str
    threads: int = 1

    @functools.cached_property
    def opened(self) -> FrozenEncoder:
        """The encoder; raises InputError if the file is missing, or contains other weights."""
        fix = "--encoder-weights FILE, with the weights that pfl embed used"
        if self.file is None or not self.file.is_file():
            place = "the file with its weights is not on record" if self.file is None else f"{self.file} does not exist"
            raise InputError(f"{self.where} takes features of images by {self.facts}, and {place}", fix)
        kind, _, member = self.facts.name.partition(":")
        loaded = _load(kind, member, self.file, self.facts.size, self.facts.output or None)
        if loaded.weights != self.facts.weights:
            raise InputError(f"{self.file} contains weights {loaded.weights[:12]}, and not those of {self.facts}", fix)
        return _require_images(FrozenEncoder(loaded.network, self.facts))

    def embed(self, x: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the features (n, d) of images (n, ...); raises InputError for images of another shape."""
        if x.shape[1:] != self.facts.shape:
            taken, given = ("x".join(map(str, shape)) for shape in (self.facts.shape, x.shape[1:]))
            raise InputError(f"{self.where} takes images of {taken}, or their features; the samples have {given}")
        return self.opened.embed(x, self.threads)


def _load(kind: str, member: str, file: Path, size: int | None, output: str | None) -> Loaded:
    """Return the network of an encoder, with the weights in a file."""
    return _load_onnx(file, output) if kind == "onnx" else _load_classifier(f"{kind}:{member}", file, size)


def _load_classifier(word: str, weights: Path, size: int | None) -> Loaded:
    """Return a classifier of torchvision or timm, such as torchvision:resnet50, without its last linear layer.

    Images of timm's networks have the size and the normalization that timm recommends for the weights of that name.
    Raises UsageError if the library has no such classifier, InputError if the weights are not those of it.
    """
    models.check(word)
    side, mean, deviation = _IMAGENET_SIZE, None, None
    kind, _, member = word.partition(":")
    if kind == "timm":
        advice = vision.timm().get_pretrained_cfg(member)
        side, mean, deviation = advice.input_size[1], advice.mean, advice.std
    side = size or side
    net = models.create(word, (3, side, side), 2, 0)
    read = initial_weights.read(weights)
    fitted = initial_weights.fit(read, word, parameters.state(net), lambda _: None)
    net.load_state_dict(fitted, strict=False)
    # Networks with attention may have positions for one size of images; all others take any.
    return Loaded(net.body, read.digest, side, mean, deviation)


class OnnxNetwork(nn.Module):
    """The computation of one ``output`` of a ``graph`` by onnxruntime."""

    def __init__(self, graph: bytes, session: Any, output: str) -> None:
        super().__init__()
        self.graph, self.session, self.output = graph, session, output

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for images (n, channels, height, width)."""
        name = self.session.get_inputs()[0].name
        return torch.from_numpy(np.asarray(self.session.run([self.output], {name: x.cpu().numpy()})[0], np.float32))


def _load_onnx(file: Path, output: str | None) -> Loaded:
    """Return the network in an ONNX file, which takes float32 images (n, 3, height, width).

    ``output`` is one of its outputs or another tensor of the graph, such as the input of its last layer. The hash of
    the weights covers the file and the files with its external data. Raises UsageError if a package is missing or
    ``output`` is unknown; InputError for another kind of file, or as ``_read_external_data``.
    """
    missing = [name for name in ("onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
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
        digests = _read_external_data(model, file)
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
        raise InputError(f"{file} takes exactly {counted(batch, 'image')} at a time", "export it with a dynamic batch")
    if isinstance(height, int) and height != width:
        raise InputError(f"{file} takes images of {height}x{width}, and pfl resizes to squares")
    is_fixed = isinstance(height, int)
    return Loaded(
        OnnxNetwork(graph, session, chosen),
        hashlib.sha256(content + b"".join(digests)).hexdigest(),
        height if is_fixed else 0,
        takes_any_size=not is_fixed,
    )


def _read_external_data(model: Any, file: Path) -> list[bytes]:
    """Copy tensors from other files into the ONNX ``model`` of ``file``; return the SHA-256 of each of these files.

    onnxruntime then opens no file itself, so that it computes with the weights that were hashed, in any working
    directory, and an exported model is complete. Raises InputError for data that are missing, too short or too large,
    or that are not in the folder of ``file``.
    """
    contents: dict[str, bytes] = {}
    folder, total = file.parent.resolve(), model.ByteSize()
    for tensor in _find_tensors(model):
        if tensor.data_location != tensor.EXTERNAL:
            continue
        facts = {entry.key: entry.value for entry in tensor.external_data}
        location = facts.get("location", "")
        path, what = file.parent / location, f"{file} reads the tensor '{tensor.name}' from {location!r}"
        if not path.resolve().is_relative_to(folder):
            raise InputError(f"{what}, which is outside its folder", "save it again, with its data in the same folder")
        if location not in contents:
            require_file(path)
            contents[location] = path.read_bytes()
        stored = len(contents[location])
        first = int(facts.get("offset", 0))
        length = int(facts.get("length", stored - first))
        if first < 0 or length < 0 or first + length > stored:
            raise InputError(f"{what}, bytes {first} to {first + length}, but {path} has {stored} bytes")
        total += length
        if total > _MAX_ONNX_BYTES:
            raise InputError(f"{file} and its external data have {total} bytes; the maximum is {_MAX_ONNX_BYTES}")
        tensor.raw_data = contents[location][first : first + length]
        tensor.data_location = tensor.DEFAULT
        del tensor.external_data[:]
    return [hashlib.sha256(contents[location]).digest() for location in sorted(contents)]


def _find_tensors(message: Any) -> Iterator[Any]:
    """Yield all tensors of an ONNX message: weights and constants, also those in inner graphs and functions."""
    if message.DESCRIPTOR.name == "TensorProto":
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for item in [value] if hasattr(value, "ListFields") else value:
                yield from _find_tensors(item)


def _require_images(encoder: FrozenEncoder) -> FrozenEncoder:
    """Return the encoder, applied to one image; raises UsageError if it does not take images of that size."""
    try:
        encoder.embed(np.zeros((1, *encoder.facts.shape), np.uint8))
    except (RuntimeError, ValueError, AssertionError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(
            f"{encoder.facts.name} does not take images of {encoder.facts.size} pixels: {reason[:200]}", "--size 224"
        ) from None
    return encoder
