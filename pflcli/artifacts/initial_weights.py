"""``--weights``: read initial parameters from a file, and match their names to those of the model.

The file is a state dict in safetensors or torch's format; the latter is read with ``weights_only``, so that no code in
it is run. Its names are those of pfl (``body.*``, ``head.*``) or of the library that defines the body, such as
torchvision.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pflcli.core import parameters, registry
from pflcli.core.errors import InputError, UsageError
from pflcli.core.foreign import reading, size
from pflcli.core.parameters import Params
from pflcli.core.settings import Settings
from pflcli.core.wording import counted

INITIAL = "initial.safetensors"
"""The file, in a backbone that started from ``--weights``, with these weights, for methods that run on the backbone."""

_HOW_TO_SAVE = "torch.save(net.state_dict(), FILE)"
_MAX_LISTED = 3


@dataclass(frozen=True)
class Weights:
    """A state dict from a file, and a hash of its tensors that does not depend on the format of the file."""

    path: Path
    tensors: Mapping[str, Tensor]
    digest: str


def read(source: Path | str | Weights) -> Weights:
    """Read a state dict, unless it was already read; raises InputError if it is missing, damaged or not finite."""
    if isinstance(source, Weights):
        return source
    path = Path(source)
    if path.suffix not in (".safetensors", ".pt", ".pth"):
        raise UsageError(f"--weights {path} is neither .safetensors nor .pt or .pth", _HOW_TO_SAVE)
    with reading(path, "weights", "save a state dict as .safetensors"):
        content = _load(path)
        return Weights(path, content, parameters.digest(_check(path, content)))


def require_weights(settings: Settings, digest: str | None) -> None:
    """Raise UsageError if a run would freeze a network whose weights are random, as ``digest`` is None."""
    if settings.adapter is not None and digest is None:
        raise UsageError(
            f"--adapter {settings.adapter} freezes the body of {settings.model}, whose weights would be random",
            "--weights FILE, a state dict of the trained network",
        )


def _check(path: Path, content: Any) -> Mapping[str, Tensor]:
    """Return a state dict; raises InputError if it is not one, or if tensors are not finite or lack their data."""
    is_dict = isinstance(content, Mapping)
    if not is_dict or not content or not all(isinstance(value, Tensor) for value in content.values()):
        actual = (
            f"a dict with {_join_first([str(key) for key in content]) or 'nothing'}"
            if is_dict
            else f"a {type(content).__name__}"
        )
        raise InputError(f"{path} contains {actual}, not a state dict", _HOW_TO_SAVE)
    for name, value in content.items():
        if value.layout != torch.strided or value.device.type != "cpu":
            raise InputError(f"{path}: {name} is not a dense tensor but {value.layout} on {value.device.type}")
        declared, actual_size = value.numel() * value.element_size(), value.untyped_storage().nbytes()
        if declared > actual_size:
            raise InputError(f"{path}: {name} declares {size(declared)} but contains {size(actual_size)}")
        if not value.isfinite().all():
            raise InputError(f"{path}: {name} is not finite")
    checked: Mapping[str, Tensor] = content
    return checked


def _load(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as file:
            declared = sum(item.file_size for item in file.infolist())
        if declared > path.stat().st_size:
            raise InputError(f"{path} declares {size(declared)} but contains {size(path.stat().st_size)}")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # its message explains how to run the code in the file
        raise InputError(
            f"{path} cannot be read as weights: it is damaged, or contains code, which pfl does not run",
            _HOW_TO_SAVE,
        ) from None


def apply_weights(weights: Weights, settings: Settings, init: Params, say: Callable[[str], None]) -> Params:
    """Return the result of ``fit``; also report if the weights may expect images that are normalized differently."""
    is_pretrained = (
        settings.model.startswith(("torchvision:", "timm:"))
        or "PREFIXES" in registry.card("models", settings.model).facts
    )
    if is_pretrained and settings.normalize == "none":
        say(f"images have values in [0, 1]; if {weights.path} was trained on ImageNet, it expects --normalize imagenet")
    return fit(weights, settings.model, init, say)


def fit(weights: Weights, model: str, init: Params, say: Callable[[str], None]) -> Params:
    """Return ``init`` with the values of the file; a head for other classes is not used, which ``say`` reports.

    Raises InputError if the names or shapes in the file are not those of the model.
    """
    tensors = _rename(weights, model, init)
    file = weights.path
    heads = [name for name in init if name.startswith("head.")]
    if any(name not in tensors or tensors[name].shape != init[name].shape for name in heads):
        classes = f"{len(tensors[heads[0]])} classes" if heads[0] in tensors else "no head"
        say(f"the head is initialized at random: {file} has {classes}, the data {len(init[heads[0]])} classes")
        tensors = {name: value for name, value in tensors.items() if name not in heads} | {n: init[n] for n in heads}
    missing = [name for name in init if name not in tensors and not name.endswith("num_batches_tracked")]
    if missing:
        raise InputError(f"{file} lacks {len(missing)} of {len(init)} names of {model}: {_join_first(missing)}")
    wrong = [
        f"{name} {_format_shape(tensors[name])} in the file, {_format_shape(init[name])} in the model"
        for name in init
        if name in tensors and tensors[name].shape != init[name].shape
    ]
    if wrong:
        raise InputError(
            f"{file} has {counted(len(wrong), 'tensor')} of another shape than {model}: {_join_first(wrong, '; ')}"
        )
    return {name: tensors[name].to(value) if name in tensors else value for name, value in init.items()}


def _rename(weights: Weights, model: str, init: Params) -> Params:
    """Return the file's tensors under the model's names; raises InputError for names that the model lacks."""
    prefixes: dict[str, str] = registry.card("models", model).facts.get("PREFIXES", {"": "body."})
    renamed: Params = {}
    unknown: dict[str, Tensor] = {}
    for name, value in weights.tensors.items():
        candidates = (new + name.removeprefix(old) for old, new in prefixes.items() if name.startswith(old))
        target = next((candidate for candidate in (name, *candidates) if candidate in init), None)
        if target is None:
            unknown[name] = value
        else:
            renamed[target] = value
    # If exactly one unknown layer has the tensors of a head, it is the head under the library's name.
    head = {name.removeprefix("head.") for name in init if name.startswith("head.")}
    layers: dict[str, set[str]] = {}
    for layer, _, part in (name.rpartition(".") for name in unknown):
        layers.setdefault(layer, set()).add(part)
    alike = [layer for layer, parts in layers.items() if parts == head]
    if len(alike) == 1 and not any(name.startswith("head.") for name in renamed):
        renamed |= {f"head.{part}": unknown.pop(f"{alike[0]}.{part}") for part in sorted(head)}
    if unknown:
        raise InputError(
            f"{weights.path} contains {counted(len(unknown), 'name')} that {model} lacks: {_join_first([*unknown])}"
        )
    return renamed


def _format_shape(value: Tensor) -> str:
    return "x".join(map(str, value.shape)) or "one number"


def _join_first(words: Sequence[str], separator: str = ", ") -> str:
    return separator.join(words[:_MAX_LISTED]) + (f"{separator}..." if len(words) > _MAX_LISTED else "")
