"""The options and settings of runs that differ from their defaults, and labels that tell runs apart by them."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pflcli.artifacts.reader import Artifact
from pflcli.core import config, registry
from pflcli.core.settings import Settings
from pflcli.core.wording import as_typed


def list_set_options(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a method that differ from the defaults; all of them if the method is unknown here."""
    usual = dict[str, str]()
    for option in registry.card("methods", method).options if registry.exists("methods", method) else ():
        with suppress(ValueError, SyntaxError):  # a default that is an expression
            usual[option.name] = as_typed(ast.literal_eval(option.default))
    return {name: value for name, value in options.items() if as_typed(value) != usual.get(name)}


def list_set_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the training settings that differ from the defaults."""
    usual = config.plain(Settings())
    return {name: value for name, value in settings.items() if name not in usual or value != usual[name]}


def assign(values: Mapping[str, Any]) -> str:
    """Return options as one types them, such as ``lr=0.03 epochs=2``."""
    return " ".join(f"{name}={as_typed(value)}" for name, value in values.items())


def label_by_options(predictions: Sequence[Artifact]) -> list[str]:
    """Return a label for each of some predictions: the method, with what was set otherwise than in another run of it.

    Options and settings at their defaults are not in a label. Runs with the same options have the same label.
    """
    runs, labels = [artifact.manifest.request for artifact in predictions], []
    chosen = [{**list_set_settings(run["settings"]), **list_set_options(run["method"], run["options"])} for run in runs]
    for run, own in zip(runs, chosen, strict=True):
        others = [other for each, other in zip(runs, chosen, strict=True) if each["method"] == run["method"]]
        differing = {key: own[key] for key in own if any((key, own[key]) not in other.items() for other in others)}
        labels.append(f"{run['method']} {assign(differing)}".rstrip())
    return labels
