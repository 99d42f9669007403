"""The registry: every file in a folder is a method, model, scheme and so on; others come from users and packages.

Cards are read from the syntax tree, so that ``pfl list`` and ``pfl --help`` never import torch. The contract of a
folder defines what a file must contain, and the defaults: ``methods.Method``, ``schemes.Scheme``, ``datasets.Dataset``,
``models.Model``. ``load`` checks the contract.
"""

from __future__ import annotations

import ast
import atexit
import difflib
import functools
import importlib
import importlib.util
import inspect
import json
import os
import re
import reprlib
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Mapping, MutableSequence
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from pflcli.core.errors import InputError, UsageError, closest

GROUPS = {
    "methods": "method",
    "datasets": "dataset",
    "models": "model",
    "schemes": "scheme",
    "uploads": "upload step",
    "aggregators": "aggregator",
}
KINDS = {group.removesuffix("s"): group for group in GROUPS}
"""The groups by the word for one file of them, such as ``method``."""
ROOT = Path(__file__).parents[1]
"""The folder of the package."""
_FUNCTIONS = {
    "methods": "personalize",
    "models": "build",
    "datasets": "load",
    "schemes": "split",
    "uploads": "apply",
    "aggregators": "begin",
}
"""The function that every file of a group has, and no file of another group."""
_PARENTS = {
    "datasets": "data",
    "schemes": "core",
    "uploads": "core.federation",
    "aggregators": "core.federation",
}
"""The parent packages of groups that are not at the top level."""


@dataclass(frozen=True)
class Option:
    """One field of a ``Config``: ``--set name=value``."""

    name: str
    type: str
    default: str
    doc: str

    @property
    def help(self) -> str:
        """The doc as a sentence, with a capital letter and a period."""
        return f"{self.doc[:1].upper()}{self.doc[1:]}."


@dataclass(frozen=True)
class Card:
    """The description of a file: its docstring, its upper-case constants, and its options."""

    group: str
    name: str
    doc: str
    facts: dict[str, Any] = field(default_factory=dict)
    options: tuple[Option, ...] = ()

    @property
    def summary(self) -> str:
        """The first line of the docstring, without its period."""
        return self.doc.strip().splitlines()[0].rstrip(".") if self.doc.strip() else ""


def folder(group: str) -> Path:
    """Return the folder with the files of ``group``."""
    return ROOT.joinpath(*package(group).split("."))


def package(group: str) -> str:
    """Return the package of ``group`` below ``pflcli``, such as ``core.schemes``."""
    return f"{_PARENTS[group]}.{group}" if group in _PARENTS else group


def names(group: str) -> list[str]:
    """Return the sorted names in ``group``, as typed on the command line: built-in files and installed packages'."""
    return sorted({*_built_in(group), *_installed(group)})


def _built_in(group: str) -> frozenset[str]:
    """Return the names of the files of ``group`` in this package, in kebab case."""
    return _names_in(folder(group))


@functools.cache
def _names_in(folder: Path) -> frozenset[str]:
    stems = (file.stem for file in folder.glob("*.py") if not file.stem.startswith("_"))
    return frozenset(stem.replace("_", "-") for stem in stems)


@functools.cache
def _installed(group: str) -> dict[str, EntryPoint]:
    """Return what installed packages offer by entry points ``pflcli.methods`` and so on: modules by name."""
    return {each.name: each for each in entry_points(group=f"pflcli.{group}") if each.name not in _built_in(group)}


def origin(group: str, name: str) -> str:
    """Return where a name comes from: ``pfl``, an installed package, or a user's file."""
    used = used_files().get(f"{group}/{name}")
    if used is not None:
        return str(used)
    point = None if name in _built_in(group) else _installed(group).get(name)
    return "pfl" if point is None or point.dist is None else point.dist.name


USED = "PFL_USED_FILES"
"""The environment variable that contains ``used_files`` as JSON, so that worker processes have them."""


def used_files() -> dict[str, Path]:
    """Return the files that users have named for this command, by ``group/name``, such as ``methods/mine``.

    They are the files at a path, and the modules that contain a network, such as ``models/package.module``. Nothing in
    an artifact adds to them: what an artifact names is imported only if the user has named it too.
    """
    used = os.environ.get(USED)
    return {key: Path(file) for key, file in json.loads(used).items()} if used else {}


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
    bases = [ast.unparse(base) for node in body if isinstance(node, ast.ClassDef) for base in node.bases]
    if any(base.rpartition(".")[2] == "Module" for base in bases):
        return "models"
    listed = ", ".join(f"{needed} ({GROUPS[group]})" for group, needed in _FUNCTIONS.items())
    raise InputError(
        f"{file} has no subclass of torch.nn.Module and none of the functions {listed}",
        "pfl new method my_method.py writes an example",
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
        _add_used(f"{group}/{module_name}", _path_of_module(module_name, word))
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
    _add_used(f"{group}/{name}", file)
    return name + rest


def _add_used(key: str, file: Path) -> None:
    """Add a file to ``used_files``, also for the processes that this one starts."""
    files = {**used_files(), key: file}
    os.environ[USED] = json.dumps({key: str(file) for key, file in files.items()})
    group = key.partition("/")[0]
    module = sys.modules.get(f"pflcli.{package(group)}")
    if module is not None:
        search_used_folders(group, module.__path__)
    importlib.invalidate_caches()


@dataclass(frozen=True)
class SentFile:
    """A user's file on its way to a worker on another machine."""

    key: str
    """its key in ``used_files``"""
    root: Path
    """the folder from which Python imports it, on the machine of the user"""
    name: str
    """its path below ``root``"""
    contents: Mapping[str, bytes]
    """the file and the modules of the user that it imports, by their paths below ``root``"""


def use_sent_files(sent: Iterable[SentFile]) -> None:
    """Use files that ``sources.read_used_files`` has read in another process.

    A file that this machine has, with the same contents, is used where it is, since messages name its path. Others are
    written to a temporary folder.
    """
    for each in sent:
        root = each.root
        if not all(
            (root / path).is_file() and (root / path).read_bytes() == each.contents[path] for path in each.contents
        ):
            root = Path(tempfile.mkdtemp(prefix="pfl-files-"))
            atexit.register(shutil.rmtree, root, ignore_errors=True)
            for path, content in each.contents.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(content)
        if str(root) not in sys.path:
            sys.path.append(str(root))
        _add_used(each.key, root / each.name)


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


def place_of_failure(error: BaseException) -> str:
    """Return in which line of a user's file an error was raised; an empty string if in none."""
    files = [*used_files().values()]
    for module in (point.module for group in GROUPS for point in _installed(group).values()):
        with suppress(InputError):
            files.append(_path_of_module(module, ""))
    if isinstance(error, SyntaxError) and Path(error.filename or "") in files:
        return f"{error.filename}, line {error.lineno}"
    folders = {file.parent for file in files}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).parent in folders]
    return f"{frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name}" if frames else ""


def exists(group: str, name: str) -> bool:
    """Return whether there is a file of this name, built in or used."""
    return name in _built_in(group) or is_foreign(group, name)


def is_foreign(group: str, name: str) -> bool:
    """Return whether a name is that of a user's file, or of a module of an installed package."""
    return f"{group}/{name}" in used_files() or (name not in _built_in(group) and name in _installed(group))


def path(group: str, name: str) -> Path:
    """Return the file of ``name``; raises UsageError with the nearest name if there is none."""
    if group not in GROUPS:
        raise UsageError(f"unknown kind '{group}'", closest(group, GROUPS))
    file = name.partition(":")[0]  # `torchvision:resnet50` is one of many that a file builds
    used = used_files().get(f"{group}/{file}")
    if used is not None:
        return used
    if file in _built_in(group):
        return folder(group) / f"{file.replace('-', '_')}.py"
    if file in _installed(group):
        return _path_of_module(_installed(group)[file].module, f"{GROUPS[group]} '{file}'")
    raise UsageError(f"unknown {GROUPS[group]} '{name}'", closest(name, names(group)), f"pfl list {group}")


def _path_of_module(module: str, owner: str) -> Path:
    """Return the file of an installed module; raises InputError, which begins with ``owner``, if there is none."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    except Exception as error:  # whatever the package raises when it is imported
        raise InputError(f"{owner}: {module}: {type(error).__name__}: {error}") from error
    if spec is None or spec.origin is None:
        raise InputError(f"{owner}: there is no module {module}")
    return Path(spec.origin)


def load(group: str, name: str, contract: type[Any]) -> Any:
    """Import the file of ``name``, and return it with the defaults of its contract.

    ``contract`` is a Protocol: its abstract methods and the annotations without a value must be in the file, the others
    may be; the returned object has the type of the contract. Raises UsageError with the nearest name if there is no
    such file, InputError if the file breaks the contract.
    """
    return complete(import_file(group, name), f"{path(group, name)}: {GROUPS[group]} {name}", contract)


def import_file(group: str, name: str) -> ModuleType:
    """Import the file of ``name``; raises UsageError if there is none, InputError if it cannot be imported."""
    file, family = path(group, name), name.partition(":")[0]
    module = f"pflcli.{package(group)}.{file.stem}"
    if "." in family:
        module = family
    elif family not in _built_in(group) and f"{group}/{family}" not in used_files():
        module = _installed(group)[family].module
    try:
        return importlib.import_module(module)
    except Exception as error:
        place = place_of_failure(error)
        if not place:
            raise
        message = error.msg if isinstance(error, SyntaxError) else error
        raise InputError(f"{place}: {type(error).__name__}: {message}") from error


def complete(module: object, origin: str, contract: type) -> Any:
    """Return a module or object with the defaults of the contract; raises InputError if it breaks the contract.

    ``origin`` names it at the start of the error.
    """
    known = _read_members(contract)
    own_members = {key: getattr(module, key) for key in known if hasattr(module, key)}
    for key in sorted(known - own_members.keys()):
        own = [other for other in _list_own_names(module) if other not in known and other.isupper() == key.isupper()]
        near = difflib.get_close_matches(key, own, n=1, cutoff=0.75)
        if near and not near[0].startswith(f"{key}_"):
            raise InputError(f"{origin} has '{near[0]}', which is not used", f"did you mean '{key}'?")
        if key in getattr(contract, "__abstractmethods__", ()) or not hasattr(contract, key):
            raise InputError(
                f"{origin} has no {key}", f"what it must have: {contract.__name__} in {contract.__module__}"
            )
    for key, value in own_members.items():
        if key == "Config" and value is not None and not (isinstance(value, type) and is_dataclass(value)):
            raise InputError(f"{origin}: Config is no dataclass", "@dataclass(frozen=True) above class Config")
        if isinstance(value, FunctionType):
            _require_same_parameters(value, getattr(contract, key), f"{origin}: {key}")
    body = {key: staticmethod(value) if callable(value) else value for key, value in own_members.items()}
    return type(contract.__name__, (contract,), body)()


def complete_object(group: str, given: Any, contract: type) -> tuple[str, Any]:
    """Return the name of a module, a class or an object, and what ``complete`` makes of it.

    Raises UsageError for a value that is none of them, such as a number.
    """
    kind = GROUPS[group]
    if given is None or isinstance(given, int | float | list | tuple | set | dict):
        raise UsageError(
            f"{reprlib.repr(given)} is no {kind}: give a name, a file, a module, a class or an object",
            f"pfl list {group}",
        )
    made = given() if isinstance(given, type) else given
    name = getattr(made, "__name__", type(made).__name__).rpartition(".")[2].replace("_", "-")
    return name, complete(made, f"{kind} {name}", contract)


def find_longer_name(module: ModuleType, contract: type) -> tuple[str, str] | None:
    """Return a name of a module that continues one of the contract that it lacks, such as GRID_T and GRID."""
    own = _list_own_names(module)
    missing = sorted(_read_members(contract) - set(own))
    return next(((name, key) for key in missing for name in own if name.startswith(f"{key}_")), None)


@functools.cache
def _read_members(contract: type) -> frozenset[str]:
    """Return the names of what a file has to or may have by the contract."""
    annotated, defined = inspect.get_annotations(contract), (key for key in dir(contract) if not key.startswith("_"))
    return frozenset({*annotated, *defined})


def _list_own_names(module: object) -> list[str]:
    """Return the public names that a module or object defines itself."""
    home = getattr(module, "__name__", type(module).__module__)
    return [
        name
        for name in dir(module)
        if not name.startswith("_") and getattr(getattr(module, name), "__module__", home) == home
    ]


def _require_same_parameters(written: FunctionType, contract: FunctionType, origin: str) -> None:
    """Raise InputError unless a function has the parameters of the contract, with the same names."""
    has, needs = _read_parameters(written), _read_parameters(contract)
    empty = inspect.Parameter.empty
    missing = [
        name for name, parameter in needs.items() if name != "self" and parameter.default is empty and name not in has
    ]
    unknown = [name for name, parameter in has.items() if parameter.default is empty and name not in needs]
    if missing or unknown:
        wrong = f"has no parameter '{missing[0]}'" if missing else f"has the unknown parameter '{unknown[0]}'"
        raise InputError(f"{origin} {wrong}", f"its parameters: {', '.join(name for name in needs if name != 'self')}")


@functools.lru_cache(maxsize=1024)
def _read_parameters(function: FunctionType) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def card(group: str, name: str) -> Card:
    """Read a file's card without importing it."""
    tree = _parse(path(group, name).read_text(encoding="utf-8"))
    return Card(
        group, name, ast.get_docstring(tree) or "", constants(tree), tuple(_read_inherited_options(tree, "Config"))
    )


@functools.lru_cache(maxsize=512)
def _parse(text: str) -> ast.Module:
    return ast.parse(text)


def constants(tree: ast.Module) -> dict[str, Any]:
    """Return the upper-case constants of a file that are literals."""
    values: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name.isupper() and not name.startswith("_"):
                with suppress(ValueError):
                    values[name] = ast.literal_eval(node.value)
    return values


def suggest_option(key: str, owner: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown option: the extension of the method ``owner`` that has it, else the nearest name."""
    for each in cards("methods"):
        if each.facts.get("EXTENDS") == owner.partition("@")[0] and key in {option.name for option in each.options}:
            return f"'{key}' is an option of {each.name}"
    return closest(key, known)


def read_homes() -> dict[str, str]:
    """Return the module that defines each name of ``pflcli.method``: what that file imports for type checkers."""
    tree = _parse((ROOT / "method.py").read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def cards(group: str) -> list[Card]:
    """Read the cards of all files of ``group``: built-in ones, those of installed packages, and users' files."""
    used = (key.partition("/")[2] for key in used_files() if key.startswith(f"{group}/"))
    return [card(group, name) for name in sorted({*names(group), *used})]


@functools.cache
def options(config: type) -> tuple[Option, ...]:
    """Read the fields of an imported dataclass, with their docstrings."""
    (node,) = ast.parse(inspect.getsource(config)).body
    assert isinstance(node, ast.ClassDef)
    return tuple(_read_options(node))


def _read_inherited_options(tree: ast.Module, name: str) -> Iterator[Option]:
    """Yield the fields of a class of a file, then those of its bases, if imported from the package."""
    imported = {
        alias.asname or alias.name: (ROOT.parent.joinpath(*node.module.split(".")).with_suffix(".py"), alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield from _read_options(node)
            for base in node.bases:
                if not isinstance(base, ast.Name) or base.id not in imported:
                    continue
                file, base_name = imported[base.id]
                if file.is_file():
                    yield from _read_inherited_options(_parse(file.read_text(encoding="utf-8")), base_name)


def _read_options(config: ast.ClassDef) -> list[Option]:
    fields = []
    for node, after in zip(config.body, [*config.body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        doc = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            doc = " ".join(str(after.value.value).split())
        default = ast.unparse(node.value) if node.value is not None else ""
        fields.append(Option(node.target.id, _format_type(node.annotation), default, doc))
    return fields


_BOUND_SIGNS = {"Gt": ">", "Ge": ">=", "Lt": "<", "Le": "<="}


def _format_type(annotation: ast.expr) -> str:
    """Return a type as readable text: ``int >= 1`` for ``Annotated[int, Ge(1)]``, ``a | b`` for a Literal."""
    if isinstance(annotation, ast.BinOp):
        return f"{_format_type(annotation.left)} | {_format_type(annotation.right)}"
    if isinstance(annotation, ast.Constant):
        return "none" if annotation.value is None else str(annotation.value)
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.value, ast.Name):
        items = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        if annotation.value.id == "Literal":
            return " | ".join(_format_type(item) for item in items)
        if annotation.value.id == "tuple":
            return f"{_format_type(items[0])}, ..."
        if annotation.value.id == "Annotated":
            bounds = [_format_bound(item) for item in items[1:] if isinstance(item, ast.Call)]
            return " ".join([_format_type(items[0]), *([" and ".join(bounds)] if bounds else [])])
    return ast.unparse(annotation)


def _format_bound(call: ast.Call) -> str:
    sign = _BOUND_SIGNS.get(ast.unparse(call.func), ast.unparse(call.func))
    return f"{sign} {', '.join(ast.unparse(arg) for arg in call.args)}"
