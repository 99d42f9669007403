"""``--weights``: initial parameters from a file, their names matched to the model's own.

The file is a state dict: safetensors, or torch's format, read with ``weights_only`` so that no code in it is run. Its
names are pfl's (``body.*``, ``head.*``) or those of the library that the body comes from, such as torchvision's.
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

from pflcli import parameters, registry
from pflcli.errors import InputError, UsageError
from pflcli.foreign import reading, size
from pflcli.parameters import Params
from pflcli.settings import Settings

INITIAL = "initial.safetensors"
"""In a backbone that began with weights from a file: these weights, so that methods on it can begin with them too."""

_SAVE = "torch.save(net.state_dict(), FILE)"
_LISTED = 3


@dataclass(frozen=True)
class Weights:
    """A state dict from a file, and a hash of its tensors, which does not depend on the file's format."""

    path: Path
    tensors: Mapping[str, Tensor]
    digest: str


def read(source: Path | str | Weights) -> Weights:
    """Read a state dict, unless that was done; raises InputError if it is missing, damaged, or not finite."""
    if isinstance(source, Weights):
        return source
    path = Path(source)
    if path.suffix not in (".safetensors", ".pt", ".pth"):
        raise UsageError(f"--weights {path} is neither .safetensors nor .pt or .pth", _SAVE)
    with reading(path, "weights", "save a state dict as .safetensors"):
        content = _loaded(path)
        return Weights(path, content, parameters.digest(_checked(path, content)))


def _checked(path: Path, content: Any) -> Mapping[str, Tensor]:
    """Return a state dict; raises InputError if it is none, or if tensors are not finite or lack their data."""
    is_dict = isinstance(content, Mapping)
    if not is_dict or not content or not all(isinstance(value, Tensor) for value in content.values()):
        actual = (
            f"a dict with {_first([str(key) for key in content]) or 'nothing'}"
            if is_dict
            else f"a {type(content).__name__}"
        )
        raise InputError(f"{path} holds {actual}, not a state dict", _SAVE)
    for name, value in content.items():
        if value.layout != torch.strided or value.device.type != "cpu":
            raise InputError(f"{path}: {name} holds no numbers in rows, but is {value.layout} on {value.device.type}")
        declared, actual_size = value.numel() * value.element_size(), value.untyped_storage().nbytes()
        if declared > actual_size:
            raise InputError(f"{path}: {name} declares {size(declared)} and holds {size(actual_size)}")
        if not value.isfinite().all():
            raise InputError(f"{path}: {name} is not finite")
    checked: Mapping[str, Tensor] = content
    return checked


def _loaded(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as file:
            declared = sum(item.file_size for item in file.infolist())
        if declared > path.stat().st_size:
            raise InputError(f"{path} declares {size(declared)} and holds {size(path.stat().st_size)}")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # its message explains how to run the code in the file
        raise InputError(
            f"{path} cannot be read as weights: it is damaged, or holds more than tensors, of which pfl runs nothing",
            _SAVE,
        ) from None


def begun(weights: Weights, settings: Settings, init: Params, say: Callable[[str], None]) -> Params:
    """Return ``fit``; ``say`` is also called if the weights may need images that are normalized in another way."""
    is_pretrained = (
        settings.model.startswith("torchvision:") or "PREFIXES" in registry.card("models", settings.model).facts
    )
    if is_pretrained and settings.normalize == "none":
        say(f"images lie in [0, 1]; if {weights.path} was trained on ImageNet, it expects --normalize imagenet")
    return fit(weights, settings.model, init, say)


def fit(weights: Weights, model: str, init: Params, say: Callable[[str], None]) -> Params:
    """Return ``init`` with the file's values; if the head has other classes it stays as it is, which ``say`` reports.

    Raises InputError if the names or shapes in the file are not those of the model.
    """
    tensors = _renamed(weights, model, init)
    file = weights.path
    heads = [name for name in init if name.startswith("head.")]
    if any(name not in tensors or tensors[name].shape != init[name].shape for name in heads):
        classes = f"{len(tensors[heads[0]])} classes" if heads[0] in tensors else "no head"
        say(f"the head starts anew: {file} has {classes}, the data {len(init[heads[0]])} classes")
        tensors = {name: value for name, value in tensors.items() if name not in heads} | {n: init[n] for n in heads}
    missing = [name for name in init if name not in tensors and not name.endswith("num_batches_tracked")]
    if missing:
        raise InputError(f"{file} lacks {len(missing)} of {len(init)} names of {model}: {_first(missing)}")
    wrong = [
        f"{name} {_shape(tensors[name])} in the file, {_shape(init[name])} in the model"
        for name in init
        if name in tensors and tensors[name].shape != init[name].shape
    ]
    if wrong:
        raise InputError(f"{file} holds {len(wrong)} shapes that differ from {model}'s: {_first(wrong, '; ')}")
    return {name: tensors[name].to(value) if name in tensors else value for name, value in init.items()}


def _renamed(weights: Weights, model: str, init: Params) -> Params:
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
    # If a single unknown layer has the tensors of a head, it is the head, whatever the library calls it.
    head = {name.removeprefix("head.") for name in init if name.startswith("head.")}
    layers: dict[str, set[str]] = {}
    for layer, _, part in (name.rpartition(".") for name in unknown):
        layers.setdefault(layer, set()).add(part)
    alike = [layer for layer, parts in layers.items() if parts == head]
    if len(alike) == 1 and not any(name.startswith("head.") for name in renamed):
        renamed |= {f"head.{part}": unknown.pop(f"{alike[0]}.{part}") for part in sorted(head)}
    if unknown:
        raise InputError(f"{weights.path} holds {len(unknown)} names that {model} lacks: {_first([*unknown])}")
    return renamed


def _shape(value: Tensor) -> str:
    return "x".join(map(str, value.shape)) or "one number"


def _first(words: Sequence[str], separator: str = ", ") -> str:
    return separator.join(words[:_LISTED]) + (f"{separator}..." if len(words) > _LISTED else "")
