"""``pfl check``: judge a file, the user's own or a built-in one, by the laws of its kind."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from pflcli.artifacts.kinds import partition
from pflcli.artifacts.open_by_path import open_one
from pflcli.core import models, registry, tasks
from pflcli.core.errors import UsageError, closest
from pflcli.options.function import command
from pflcli.plugins.checks import laws
from pflcli.plugins.checks.check_options import Check
from pflcli.plugins.checks.laws import Subject, Verdict
from pflcli.workflow.admission import Shape


@command(Check)
def check(asked: Check) -> Iterator[Verdict]:
    """Judge a file by the laws of its kind, and yield one verdict for each law.

    ``word`` is the path of a Python file, a module of one, or the name of a built-in method, model, dataset, scheme,
    upload step or aggregator; ``schemes/clusters`` is the name of a scheme, and ``./net.py:Net``, or the class itself,
    a network in a file of several. Laws import the file in other processes, so code in a notebook is not enough.
    ``options`` are those of the file. ``only`` names the laws, by default all. ``root`` is the folder with the files of
    a dataset. With the partition ``like``, a model is judged by samples of its shape and number of classes. Raises
    UsageError for unknown names, InputError for an invalid file.

    >>> from pflcli import check
    >>> {verdict.result for verdict in check("median")}
    {'passed'}
    """
    word, like, only = _find_file(asked.word), asked.like, asked.only or ()
    subject = replace(_subject(word, asked.options or {}), root=None if asked.root is None else Path(asked.root))
    if like is not None:
        if subject.group != "models":
            raise UsageError(f"--like is for models; {word} is a {registry.GROUPS[subject.group]}", "leave it out")
        subject = replace(subject, like=Shape.of_form(partition.read_form(open_one(like, "partition"))))
    if asked.root is not None and subject.group != "datasets":
        raise UsageError(f"--root is for datasets; {word} is a {registry.GROUPS[subject.group]}", "leave it out")
    known = {law.name: law for law in laws.list_laws(subject.group)}
    only = [only] if isinstance(only, str) else only
    unknown = [name for name in only if name not in known]
    if unknown:
        raise UsageError(f"there is no law '{unknown[0]}' of {subject.group}", closest(unknown[0], known))
    if subject.group in ("methods", "aggregators"):
        from pflcli.plugins.checks.laws import other_process  # imports PyTorch

        other_process.start()
    return (laws.judge(law, subject) for name, law in known.items() if not only or name in only)


def _find_file(given: Any) -> str:
    """Return the word for a name, a path, a module or a network of a file; raises UsageError for other values."""
    if isinstance(given, str | Path):
        return str(given)
    file = getattr(given, "__file__", None)
    if isinstance(given, ModuleType) and file:
        return str(file)
    home = sys.modules.get(getattr(given, "__module__", ""))
    file = getattr(home, "__file__", None)
    if isinstance(given, type) and any(base.__name__ == "Module" for base in given.__mro__) and file:
        return f"{file}:{given.__name__}"
    what = f"{given.__name__} is a class" if isinstance(given, type) else f"{reprlib.repr(given)} is no name"
    raise UsageError(
        f"{what}: check takes names, files, modules of files, and networks in files",
        "save it as my_method.py with its functions at the top level, then check('./my_method.py')",
    )


def _subject(word: str, options: Mapping[str, Any]) -> Subject:
    """Return what a word stands for: a file, a name, or a group and a name."""
    if registry.is_file(word):
        group = registry.group_of(Path(registry.split_file(word)[0]))
        subject = Subject(group, registry.use(group, word), options)
        tasks.add_used()
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
