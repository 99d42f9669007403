"""The part of a request that says which run it is, and what is read from the request of a finished run."""

from __future__ import annotations

from typing import Any

from pflcli.artifacts.reader import Artifact
from pflcli.core import config, methods, registry
from pflcli.core.errors import UnsuitedError, UsageError
from pflcli.core.methods import Method
from pflcli.core.settings import ADDED, Settings


def load_method(artifact: Artifact) -> Method:
    """Return the method that made an artifact; raises UsageError if the run needs a user's file that is not used.

    Raises UnsuitedError for predictions of another tool.
    """
    if artifact.manifest.summary.get("foreign"):
        raise UnsuitedError(
            f"{artifact.path} has predictions of another tool alone: pfl has no model for them",
            "score them: pfl evaluate PREDICTIONS... -o DIR",
        )
    require_files(artifact)
    return methods.load(str(artifact.manifest.request["method"]))


def require_files(artifact: Artifact) -> None:
    """Raise UsageError if an artifact was made with a user's file that is not used now."""
    for name, file in artifact.manifest.made.get("files", {}).items():
        group, _, member = name.partition("/")
        if not registry.exists(group, member):
            code = artifact.manifest.code
            digest = next(code[key] for key in code if key.partition(":")[0] == name)[:12]
            raise UsageError(
                f"{artifact.path} was made with the {registry.GROUPS[group]} in {file} (code {digest}), which is not"
                " part of pfl",
                f"pfl --use {member if '.' in member else f'PATH/{file}'} COMMAND ...",
                f"a copy to read, which is never run, is {artifact.path / file}",
            )


def recorded_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings as a request records them: all, but for those in ``ADDED`` at their defaults."""
    defaults, values = config.plain(Settings()), config.plain(settings)
    if settings.round_metric is not None:
        values["round_metric"] = settings.compares_rounds_by
    return {key: value for key, value in values.items() if key not in ADDED or value != defaults[key]}


def describe_run(method: str, cfg: Any, settings: Settings, seed: int) -> dict[str, Any]:
    """Return the part of a request that says which run it is."""
    return {"method": method, "options": config.plain(cfg), "settings": recorded_settings(settings), "seed": seed}


def code_files(settings: Settings) -> list[str]:
    """Return the files of the registry, such as models/mlp, on which training with these settings depends."""
    steps = [f"uploads/{step.partition(':')[0]}" for step in settings.upload]
    rule = settings.aggregator.partition(":")[0]
    return [f"models/{settings.model}", *steps, *([f"aggregators/{rule}"] if rule != "mean" else [])]


def reported_round(artifact: Artifact) -> dict[str, Any]:
    """Return the reported round of an artifact from its summary."""
    summary = artifact.manifest.summary
    return {"reported": "last round", **{key: summary[key] for key in ("reported", "reported_round") if key in summary}}


def choose_seed(seed: int | None, source: Artifact) -> int:
    """Return ``seed``, or the seed of the source if it is None, so that all artifacts of a lineage share a seed."""
    return int(source.manifest.request.get("seed", 0)) if seed is None else seed
