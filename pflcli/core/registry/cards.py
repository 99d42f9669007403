"""Descriptions of files, read from the syntax tree: ``pfl list`` and ``pfl --help`` never import torch."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pflcli.core.errors import closest
from pflcli.core.registry.files import ROOT, names, path, used_files


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
