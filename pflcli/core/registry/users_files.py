"""Users' files: the words that stand for them, and how they become members of a group for this command."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping, MutableSequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pflcli.core.errors import InputError, UsageError
from pflcli.core.registry.files import GROUPS, USED, installed, names, origin, package, path_of_module, used_files

_FUNCTIONS = {
    "methods": "personalize",
    "models": "build",
    "datasets": "load",
    "schemes": "split",
    "uploads": "apply",
    "aggregators": "begin",
}
"""The function that every file of a group has, and no file of another group."""


def group_of(file: Path) -> str:
    """Return the group of a user's file, by the functions and classes in it; raises InputError if it fits no group."""
    if not file.is_file():
        raise InputError(f"{file} does not exist")
    try:
        body = ast.parse(file.read_text(encoding="utf-8"), str(file)).body
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {file}: {error}") from None
    except SyntaxError as error:
        raise InputError(f"{file}, line {error.lineno}: SyntaxError: {error.msg}") from None
    functions = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    for group, needed in _FUNCTIONS.items():
        if needed in functions:
            return group
    if any(isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TASK" for node in body):
        return "tasks"
    bases = [ast.unparse(base) for node in body if isinstance(node, ast.ClassDef) for base in node.bases]
    if any(base.rpartition(".")[2] == "Module" for base in bases):
        return "models"
    listed = ", ".join(f"{needed} ({GROUPS[group]})" for group, needed in _FUNCTIONS.items())
    raise InputError(
        f"{file} has no subclass of torch.nn.Module, no TASK (task) and none of the functions {listed}",
        "docs/methods.md has an example",
    )


def is_file(word: str) -> bool:
    """Return whether a word stands for a Python file, not for a name: it ends in .py.

    The variant of a method or the option of an upload step may follow: ``./mine.py@strong``, ``./top.py:0.1``.
    """
    return split_file(word)[0].endswith(".py")


def locate(group: str, word: str) -> tuple[Path | None, str]:
    """Return the user's file that a path or name stands for, None for other names, and what follows it in ``word``."""
    if is_file(word):
        file, rest = split_file(word)
        return Path(file), rest
    name = re.split("[@:]", word, maxsplit=1)[0]
    return None if "." in name else used_files().get(f"{group}/{name}"), word.removeprefix(name)


def split_file(word: str) -> tuple[str, str]:
    """Split ``./mine.py@strong`` into the file and ``@strong``, and ``./net.py:Net`` into the file and ``:Net``."""
    match = re.fullmatch(r"(.*?\.py)([@:].*)?", word)
    return (match[1], match[2] or "") if match else (word, "")


def split_arguments(name: str) -> tuple[str, dict[str, Any]]:
    """Split ``net:Net(width=32)`` into ``net:Net`` and the arguments; raises UsageError unless these are literals."""
    base, parenthesis, rest = name.partition("(")
    if not parenthesis:
        return base, {}
    try:
        call = ast.parse(f"f({rest}", mode="eval").body
        if isinstance(call, ast.Call) and not call.args:
            return base, {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    except (SyntaxError, ValueError):
        pass
    raise UsageError(f"{name}: arguments are not literal", f"--model '{base}(width=32)'")


def join_arguments(base: str, arguments: Mapping[str, Any]) -> str:
    """Return the name that ``split_arguments`` splits."""
    return base + (f"({','.join(f'{key}={value!r}' for key, value in arguments.items())})" if arguments else "")


def add_arguments(name: str, typed: Mapping[str, Any]) -> str:
    """Return a name with further arguments, as they are typed: ``16`` is a number, ``relu`` a word."""
    base, arguments = split_arguments(name)
    for key, value in typed.items():
        arguments[key] = value
        with suppress(ValueError, SyntaxError):
            arguments[key] = ast.literal_eval(value) if isinstance(value, str) else value
    return join_arguments(base if ":" in base else f"{base}:", arguments)


def use(group: str, word: str) -> str:
    """Return the name of a word: names stay as they are; the user's file at a path becomes a member of ``group``.

    The name of a file is its stem in kebab case, and ``./mine.py@strong`` becomes ``mine@strong``. For models, the word
    may be a module: ``package.module:Net``. Raises InputError if the file or module does not exist, UsageError if its
    name is invalid or taken.
    """
    module_name = word.partition(":")[0]
    if group == "models" and "." in module_name and not is_file(word):
        add_used(f"{group}/{module_name}", path_of_module(module_name, word))
        return word
    if not is_file(word):
        return word
    word, rest = split_file(word)
    file, name = Path(word).absolute(), name_of_file(group, Path(word))
    if not file.is_file():
        raise InputError(f"{word} does not exist")
    known = used_files().get(f"{group}/{name}", file)
    if known != file:
        raise UsageError(f"{word} has the same name as {known}", "rename one of them")
    add_used(f"{group}/{name}", file)
    return name + rest


def add_used(key: str, file: Path) -> None:
    """Add a file to ``used_files``, also for the processes that this one starts."""
    files = {**used_files(), key: file}
    os.environ[USED] = json.dumps({key: str(file) for key, file in files.items()})
    group = key.partition("/")[0]
    module = sys.modules.get(f"pflcli.{package(group)}")
    if module is not None:
        search_used_folders(group, module.__path__)
    importlib.invalidate_caches()


def name_of_file(group: str, file: Path) -> str:
    """Return the name of a user's file in a group: its stem in kebab case.

    Raises UsageError if it is not a valid name, or that of a built-in file.
    """
    name = file.stem.replace("_", "-")
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        raise UsageError(f"{file}: the name of a file consists of lower-case letters, digits and _", "./my_method.py")
    if name in names(group):
        raise UsageError(f"{file}: '{name}' is a {GROUPS[group]} of {origin(group, name)}", f"rename {file.name}")
    return name


def search_used_folders(group: str, folders: MutableSequence[str]) -> None:
    """Add the folders of users' files to those in which a package finds its modules, and to ``sys.path``."""
    for key, file in used_files().items():
        is_at_path = key.startswith(f"{group}/") and "." not in key
        for known in (folders, sys.path) if is_at_path else ():
            if str(file.parent) not in known:
                known.append(str(file.parent))


def place_of_failure(error: BaseException, others: Iterable[Path] = ()) -> str:
    """Return in which line of a user's file, or of a file in ``others``, an error was raised; empty if in none."""
    files = [*used_files().values()]
    for module in (point.module for group in GROUPS for point in installed(group).values()):
        with suppress(InputError):
            files.append(path_of_module(module, ""))
    if isinstance(error, SyntaxError) and Path(error.filename or "") in files:
        return f"{error.filename}, line {error.lineno}"
    folders = {*(file.parent for file in files), *others}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).parent in folders]
    return f"{frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name}" if frames else ""
