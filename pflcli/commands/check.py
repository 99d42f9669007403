"""``pfl check``: judge a file, the user's own or a built-in one, by the laws of its kind."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pflcli import laws, models, registry
from pflcli.artifacts.kinds import partition
from pflcli.artifacts.open_by_path import open_one
from pflcli.errors import UsageError, closest
from pflcli.laws import Shape, Subject, Verdict


def check(
    word: str,
    *,
    options: Mapping[str, Any] | None = None,
    only: Collection[str] = (),
    root: Path | str | None = None,
    like: Path | str | None = None,
) -> Iterator[Verdict]:
    """Judge a file by the laws of its kind, and yield one verdict for each law.

    ``word`` is the path of a Python file, or the name of a built-in method, model, dataset, scheme, upload step or
    aggregator; ``schemes/clusters`` is the name of a scheme, and ``./net.py:Net`` a network in a file of several.
    ``options`` are those of the file. ``only`` names the laws, by default all. ``root`` is the folder with the files of
    a dataset. With the partition ``like``, a model is judged by samples of its shape and number of classes. Raises
    UsageError for unknown names, InputError for an invalid file.
    """
    subject = replace(_subject(word, options or {}), root=None if root is None else Path(root))
    if like is not None:
        if subject.group != "models":
            raise UsageError(f"--like is for models; {word} is a {registry.GROUPS[subject.group]}", "leave it out")
        subject = replace(subject, like=_read_shape(like))
    known = {law.name: law for law in laws.list_laws(subject.group)}
    unknown = [name for name in only if name not in known]
    if unknown:
        raise UsageError(f"there is no law '{unknown[0]}' of {subject.group}", closest(unknown[0], known))
    if subject.group in ("methods", "aggregators"):
        from pflcli.laws import other_process  # imports PyTorch

        other_process.start()
    return (laws.judge(law, subject) for name, law in known.items() if not only or name in only)


def _read_shape(like: Path | str) -> Shape:
    """Return the shape of a partition's samples as networks take it."""
    return Shape.of_form(partition.read_form(open_one(like, "partition")))


def _subject(word: str, options: Mapping[str, Any]) -> Subject:
    """Return what a word stands for: a file, a name, or a group and a name."""
    if registry.is_file(word):
        group = registry.group_of(Path(registry.split_file(word)[0]))
        subject = Subject(group, registry.use(group, word), options)
    elif "." in word.partition(":")[0]:
        subject = Subject("models", registry.use("models", word), options)
    else:
        group, slash, name = word.partition("/")
        groups = [each for each in registry.GROUPS if registry.exists(each, word.partition(":")[0])]
        if slash:
            subject = Subject(group, name, options)
        elif len(groups) == 1:
            subject = Subject(groups[0], word, options)
        elif groups:
            raise UsageError(f"there are several '{word}'", *(f"pfl check {each}/{word}" for each in groups))
        else:
            names = [name for each in registry.GROUPS for name in registry.names(each)]
            raise UsageError(
                f"there is no '{word}'", closest(word, names), "a file of your own: pfl check ./my_method.py"
            )
    registry.card(subject.group, subject.name)  # raises an error for an unknown name
    if subject.group == "models":
        models.check(registry.add_arguments(subject.name, options) if options else subject.name)
    return subject
