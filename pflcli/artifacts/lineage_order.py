"""The order of artifacts from a partition to a datastore, and the error for a source that is too early in it."""

from __future__ import annotations

from pflcli.artifacts.reader import Artifact
from pflcli.errors import InputError

KINDS = {
    "partition": "",
    "backbone": "pfl train-global {} -o {}",
    "embeddings": "pfl extract {} -o {}",
    "datastore": "pfl build-datastore {} -o {}",
}
"""The kinds in order; each is made from the one before by this command."""


def required_kinds(needs: tuple[str, ...]) -> set[str]:
    """Return the kinds in ``needs`` and those they are made from: a datastore needs embeddings and a backbone."""
    order = list(KINDS)
    deepest = max((order.index(need) for need in needs), default=0)
    return set(order[1 : deepest + 1])


def missing_input_error(method: str, need: str, source: Artifact) -> InputError:
    """Return the error for a ``source`` without the kind that a method needs, with the commands that make it."""
    order = list(KINDS)
    path, commands = source.path, []
    for kind in order[order.index(source.kind) + 1 : order.index(need) + 1]:
        target = source.path.parent / kind
        commands.append(KINDS[kind].format(path, target))
        path = target
    needed, actual = ("embeddings" if kind == "embeddings" else f"a {kind}" for kind in (need, source.kind))
    return InputError(f"{method} needs {needed}; {source.path} is {actual}", " && ".join(commands))
