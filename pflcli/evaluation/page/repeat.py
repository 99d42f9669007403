"""The command lines that make an artifact again, from the requests in its lineage."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pflcli import registry
from pflcli.artifacts import kinds
from pflcli.artifacts.kinds import evaluation
from pflcli.artifacts.reader import Artifact
from pflcli.errors import PflError
from pflcli.evaluation.page.lineage import Lineage
from pflcli.settings import Settings

_IN_COMPARE = {"backbone", "embeddings", "datastore", "predictions", "tuning"}
"""Kinds that ``pfl compare`` makes itself."""


def lines(lineage: Lineage) -> list[str]:
    """Return the commands in their order; what cannot be told from manifests alone stands in capital letters."""
    last = lineage.artifacts[-1]
    inside = _IN_COMPARE if last.kind == "comparison" else set()
    artifacts = [item for item in lineage.artifacts if item.kind not in inside]
    return [shlex.join(["pfl", *_words(item, lineage)]).replace("'...'", "...") for item in artifacts]


def _words(artifact: Artifact, lineage: Lineage) -> list[str]:
    builders = {
        "dataset": _import,
        "partition": _partition,
        "backbone": _train_global,
        "embeddings": _extract,
        "datastore": _build_datastore,
        "predictions": _personalize,
        "evaluation": _evaluate,
        "comparison": _compare,
    }
    inputs = [lineage.name(item) for item in lineage.inputs(artifact)]
    builder = builders.get(artifact.kind)
    if builder is None:
        return [kinds.made_by(artifact.kind).split()[1], *inputs, "...", "-o", lineage.name(artifact)]
    out = Path(lineage.name(artifact))
    return [*builder(artifact, inputs, lineage), "-o", str(out.parent if artifact.kind == "comparison" else out)]


def _import(artifact: Artifact, inputs: list[str], lineage: Lineage) -> list[str]:
    request = artifact.manifest.request
    words = ["import", str(artifact.manifest.made.get("source", "DATA"))]
    for key in (
        "client",
        "label",
        "features",
        "categorical",
        "layout",
        "split_column",
        "group",
        "order",
        "resize",
        "delimiter",
    ):
        value = request.get(key)
        if value is not None and (key, value) != ("categorical", "words"):  # the default, which no option stands for
            words += [_flag(key), _word(value)]
    if request.get("classes"):
        words.append("--classes")
    if request.get("missing", "error") != "error":
        words += ["--missing", str(request["missing"])]
    if request.get("standardize"):
        words += ["--standardize", "client"] if "each client" in str(request["standardize"]) else ["--standardize"]
    return words + (["--like", "DATASET"] if "like" in request else [])


def _partition(artifact: Artifact, inputs: list[str], lineage: Lineage) -> list[str]:
    request = artifact.manifest.request
    dataset = inputs[0] if inputs else "DATASET" if request["dataset"] == "imported" else str(request["dataset"])
    words = ["partition", dataset, "--scheme", str(request["scheme"])]
    words += _sets(request["options"]) + _sets(request.get("dataset_options", {}))
    if request["clients"] is not None:
        words += ["--clients", str(request["clients"])]
    if request["min_samples"]:
        words += ["--min-samples", str(request["min_samples"])]
    if "keep_validation" not in request:
        words += ["--fractions", _word(request["fractions"])]
    if "keep_test" in request and not inputs:
        words.append("--keep-test")
    for key, usual in (("new_clients", 0), ("new_capacity", 1)):
        if request.get(key, usual) != usual:
            words += [_flag(key), str(request[key])]
    if "part" in request:
        words += ["--part", "/".join(map(str, request["part"]))]
    if "poison" in request:
        words += ["--poison", request["poison"]]
    if "split_seed" in request:
        words += ["--split-seed", str(request["split_seed"])]
    return [*words, "--seed", str(request["seed"])]


def _train_global(artifact: Artifact, inputs: list[str], lineage: Lineage) -> list[str]:
    request = artifact.manifest.request
    words = ["train-global", *inputs[:1], *_settings(request["settings"], asdict(Settings()))]
    if request["method"] != "fedavg":
        words += ["--method", str(request["method"])]
    return words + _of_method(str(request["method"]), request["options"]) + _start(request)


def _extract(artifact: Artifact, inputs: list[str], lineage: Lineage) -> list[str]:
    return ["extract", *inputs[:1]]


def _build_datastore(artifact: Artifact, inputs: list[str], lineage: Lineage) -> list[str]:
    request = artifact.manifest.request
    if "policy" in request:
        return ["update-datastore", *inputs[:2], "--policy", str(request["policy"]), "..."]
    words = ["build-datastore", *inputs[:1], "--index", str(request["index"])]
    for key in ("capacity", "capacity_spread", "prototypes"):
        if key in request:
            words += [_flag(key), str(request[key])]
    return words + _sets(request.get("parameters", {}))


def _personalize(artifact: Artifact, inputs: list[str], lineage: Lineage) -> list[str]:
    request = artifact.manifest.request
    if request["method"] == "stack":
        switches = [] if request["options"]["gate"] else ["--no-gate"]
        return ["stack", *inputs, *switches, *(["--own"] if request["options"]["own"] else [])]
    if request.get("later_clients"):
        return _new_client(request["later_clients"][-1], inputs)
    backbone = lineage.nearest(artifact, "backbone")
    base = asdict(Settings()) if backbone is None else {**asdict(Settings()), **backbone.manifest.request["settings"]}
    words = ["personalize", str(request["method"]), *inputs[:1], *_settings(request["settings"], base)]
    return words + _of_method(str(request["method"]), request["options"]) + _start(request)


def _new_client(values: Mapping[str, Any], inputs: list[str]) -> list[str]:
    words = ["new-client", *inputs[:1], "DATA"]
    for key in ("client", "label", "features", "split_column", "layout", "delimiter", "fractions"):
        words += [_flag(key), _word(values[key])] if key in values else []
    return words


def _evaluate(artifact: Artifact, inputs: list[str], lineage: Lineage) -> list[str]:
    request = artifact.manifest.request
    split = [] if request["split"] == "test" else ["--split", str(request["split"])]
    return ["evaluate", *inputs, *split, *_table(request)]


def _compare(artifact: Artifact, inputs: list[str], lineage: Lineage) -> list[str]:
    request = artifact.manifest.request
    partitions = list(
        dict.fromkeys(
            lineage.name(partition)
            for item in lineage.inputs(artifact)
            if (partition := lineage.nearest(item, "partition")) is not None
        )
    )
    words = ["compare", *(partitions or ["PARTITION"]), "--methods", ",".join(request["methods"])]
    tune = request.get("tune", {})
    if len(partitions) < 2:  # the first seed is that of the trials
        words += ["--seeds", _word(sorted(request["seeds"], key=lambda seed: (seed != tune.get("seed"), seed)))]
    words += ["--tune", str(tune["trials"])] if tune else []
    chosen = _chosen(artifact) if tune else {}
    words += _settings(_without(request["settings"], chosen.get("fedavg", ())), asdict(Settings()))
    for label, variant in request["methods"].items():
        options, settings = (_without(variant[part], chosen.get(label, ())) for part in ("options", "settings"))
        words += _of_method(label.partition("@")[0], options, f"{label}.") + _sets(settings, f"{label}.")
    return words + _table(request) + (["--weights", "FILE"] if "weights" in request else [])


def _chosen(comparison: Artifact) -> dict[str, set[str]]:
    """Return by method the names of the options and training settings that ``--tune`` chose: nobody typed them."""
    methods = evaluation.read(comparison).get("tune", {}).get("methods", {})
    return {label: {key.removeprefix("training.") for key in facts["values"]} for label, facts in methods.items()}


def _without(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in {*names}}


def _table(request: Mapping[str, Any]) -> list[str]:
    words = [] if request["baseline"] == "fedavg" else ["--baseline", str(request["baseline"])]
    for key in ("target", "link", "metric", "positive"):
        if key in request:
            words += [_flag(key), _word(request[key])]
    return words


def _start(request: Mapping[str, Any]) -> list[str]:
    return ["--seed", str(request["seed"]), *(["--weights", "FILE"] if "weights" in request else [])]


def _settings(settings: Mapping[str, Any], usual: Mapping[str, Any]) -> list[str]:
    """Return training settings as options, those that differ from what is ``usual``; the model is always said."""
    words: list[str] = []
    for key, value in settings.items():
        other = usual.get(key)
        if key != "model" and (_plain(value) == _plain(other) or (key == "epochs" and settings.get("steps"))):
            continue
        if isinstance(value, bool):
            words.append(_flag(key) if value else f"--no-{key.replace('_', '-')}")
        elif isinstance(value, list) and key == "upload":
            words += [word for step in value for word in (_flag(key), str(step))]
        else:
            words += [_flag(key), _word(value)]
    return words


def _of_method(method: str, options: Mapping[str, Any], owner: str = "") -> list[str]:
    """Return the options of a method that differ from their defaults."""
    try:
        usual = {option.name: _literal(option.default) for option in registry.card("methods", method).options}
    except PflError:  # a method that this version does not have
        usual = {}
    changed = {key: value for key, value in options.items() if key not in usual or usual[key] != _plain(value)}
    return _sets(changed, owner)


def _literal(source: str) -> Any:
    try:
        return _plain(ast.literal_eval(source))
    except (ValueError, SyntaxError):
        return source


def _sets(options: Mapping[str, Any], owner: str = "") -> list[str]:
    return [word for key, value in options.items() for word in ("--set", f"{owner}{key}={_word(value)}")]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _word(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(_word, value)) if isinstance(value, list) else str(value)


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"
