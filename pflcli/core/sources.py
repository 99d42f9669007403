"""Hashes of the code that a result depends on: a method and the modules that contain its mathematics.

A method is one file and its imports: attention, mixtures, tuning and the like. The modules in ``SHARED`` are excluded,
so that changes of the engine, which must not change results, do not invalidate artifacts.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

from pflcli import __version__
from pflcli.core import plugins, registry
from pflcli.core.registry.sent_files import SentFile

SHARED = {
    *("", "artifacts", "data", "data.datasets", "data.formats", "method", "methods", "models", "options"),
    *(f"core.{name}" for name in ("datasets", "methods", "models", "models.net", "engine", "knn.embedded", "vision")),
    *(f"core.{name}" for name in ("errors", "foreign", "registry", "rng", "settings", "wording")),
    *(f"core.parameters{name}" for name in ("", ".model_table", ".row_storage")),
    *(f"core.federation{name}" for name in ("", ".aggregators", ".uploads", ".attack", ".attendance")),
    *(f"core.federation.{name}" for name in ("predictor", "private_mean", "run")),
}
"""Modules and packages whose code belongs to no single method, scheme or model. Those in
``_SHARED_WITH_CONTENTS`` include all their modules; the modules of other packages are not shared unless listed."""

_SHARED_WITH_CONTENTS = ("artifacts.", "core.engine.", "core.registry.", "options.")


def code_hash(group: str, name: str) -> str:
    """Return the SHA-256 of a file of the registry and its imports outside ``SHARED``.

    It does not depend on import statements, docstrings, comments, layout, the names of modules, or a method's ``GRID``,
    ``KEEPS``, ``RECORDS``, ``SENDS_MORE`` and ``TASKS``.
    """
    return _hash([registry.path(group, name)])


def module_hash(*modules: str) -> str:
    """Return the same hash for modules given by their names below the package, such as ``core.knn.capacity``.

    Raises LookupError if there is no such module: the hash of nothing would never change.
    """
    return _hash(_require_file(module) for module in modules)


def part_hashes() -> dict[str, str]:
    """Return the SHA-256 of the files of each package and module of pfl, of ``core``, ``plugins`` and ``workflow``.

    Unlike the other hashes, it covers every byte: two installations with the same hashes are the same pfl.
    """
    parts: dict[str, bytes] = {}
    for file in sorted(registry.ROOT.rglob("*.py")):
        inner = file.relative_to(registry.ROOT).with_suffix("")
        hashed = hashlib.sha256(f"{inner.as_posix()}\0".encode() + file.read_bytes()).digest()
        name = ".".join(inner.parts[: 2 if inner.parts[0] in ("core", "plugins", "workflow") else 1])
        parts[name] = parts.get(name, b"") + hashed
    return {name: hashlib.sha256(content).hexdigest() for name, content in parts.items()}


def read_versions() -> dict[str, str]:
    """Return the versions of pfl, PyTorch and NumPy, and as ``code`` a hash of all files of pfl."""
    packages = {name: version(name).partition("+")[0] for name in ("torch", "numpy")}
    code = hashlib.sha256("".join(sorted(part_hashes().values())).encode()).hexdigest()
    return {"pfl": __version__, **packages, "code": code}


def is_shared(module: str) -> bool:
    """Return whether a module, given by its name below the package, belongs to no single method, scheme or model."""
    return module in SHARED or module.startswith(_SHARED_WITH_CONTENTS) or f"pflcli.{module}" in _list_kinds()


@functools.cache
def _list_kinds() -> frozenset[str]:
    """Return the modules of plug-ins that describe the files of artifacts."""
    kinds = plugins.added("KINDS").values()
    return frozenset(f"{plug.package}.{facts['module']}" for plug, facts in kinds if "module" in facts)


def read_used_files() -> list[SentFile]:
    """Read the users' files, and the modules of theirs that they import, for workers on other machines."""
    sent = []
    for key, file in registry.used_files().items():
        root, modules, ahead = _import_root(file), list[Path](), [file]
        while ahead:
            path = ahead.pop()
            if path not in modules and path.is_relative_to(root):
                packages = [folder / "__init__.py" for folder in path.parents if folder.is_relative_to(root)][:-1]
                modules.append(path)
                ahead += [*packages, *_find_own_modules(path, path.read_text(encoding="utf-8"))]
        contents = {str(path.relative_to(root)): path.read_bytes() for path in modules}
        sent.append(SentFile(key, root, str(file.relative_to(root)), contents))
    return sent


def _import_root(path: Path) -> Path:
    """Return the folder from which Python imports a file: the one that contains its outermost package."""
    top = path.parent
    while (top / "__init__.py").is_file():
        top = top.parent
    return top


def _hash(begin: Iterable[Path]) -> str:
    _require_shared_files(registry.ROOT)
    ahead, known, contents = list(begin), set[Path](), set[str]()
    while ahead:
        path = ahead.pop()
        if path in known:
            continue
        known.add(path)
        code = path.read_text(encoding="utf-8")
        content, modules = _hash_content(code)
        ahead += [file for module in modules if (file := _find_file(module)) is not None]
        if not path.is_relative_to(registry.ROOT):
            ahead += _find_own_modules(path, code)
        contents.add(content)
    # Sorted contents without names: a module may move, and an empty package may be added or removed.
    contents.discard(_EMPTY)
    return hashlib.sha256("".join(sorted(contents)).encode()).hexdigest()


@functools.cache
def _hash_content(code: str) -> tuple[str, tuple[str, ...]]:
    """Return the hash of a file's content, and the modules that it imports outside ``SHARED``."""
    tree = ast.parse(code)
    names = [name for level, name in _list_imports(tree) if not level and name.startswith("pflcli.")]
    if _FACADE in names:  # imported as a whole, so that its names do not tell what the code uses
        names += [each for name, home in registry.read_homes().items() for each in (home, f"{home}.{name}")]
    imported = tuple(below for name in names if not is_shared(below := name.removeprefix("pflcli.")))
    return hashlib.sha256(ast.dump(_Stripper().visit(tree)).encode()).hexdigest(), imported


_EMPTY = hashlib.sha256(ast.dump(ast.parse("")).encode()).hexdigest()


def _find_file(module: str) -> Path | None:
    """Return the file of a module, or of a package; None if there is none of that name."""
    path = registry.ROOT.joinpath(*module.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def _require_file(module: str) -> Path:
    if (path := _find_file(module)) is None:
        raise LookupError(f"pflcli has no module {module}: sources.py, or a call of module_hash, still names it")
    return path


@functools.cache
def _require_shared_files(root: Path) -> None:
    """Require that all names in ``SHARED`` exist: a module that moved away would become part of each method's hash."""
    for module in (*SHARED, *(name.removesuffix(".") for name in _SHARED_WITH_CONTENTS)):
        _require_file(module)


def _find_own_modules(path: Path, code: str) -> list[Path]:
    """Return the modules of a user's own that a file imports: those of its package, and those beside a user's file.

    Other packages are not part of the code, although they may lie in the same folder, such as ``site-packages``.
    """
    top = _import_root(path)
    own_package = path.relative_to(top).parts[0]
    is_beside_file = path.parent in {file.parent for file in registry.used_files().values()}
    files = list[Path]()
    for level, name in _list_imports(ast.parse(code)):
        parts = [part for part in name.split(".") if part]
        folders = [path.parents[level - 1]] if level else []
        folders += [top] if not level and parts[0] == own_package else []
        folders += [path.parent] if not level and is_beside_file else []
        modules = [folder.joinpath(*parts) for folder in folders]
        files += [file for module in modules for file in (module.with_suffix(".py"), module / "__init__.py")]
    return [file for file in files if file.is_file()]


def _list_imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield possible modules and their levels, 0 for absolute ones: ``a`` and ``a.b`` for ``from a import b``.

    For a name of ``pflcli.method``, ``a`` is the module that defines it.
    """
    homes = registry.read_homes()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                module = homes.get(alias.name, _FACADE) if node.module == _FACADE else node.module or ""
                yield from ((node.level, name) for name in (module, f"{module}.{alias.name}"))


_FACADE = "pflcli.method"
"""What methods import from: a module without code of its own, which offers names that other modules define."""


_UNHASHED_CONSTANTS = ("GRID", "KEEPS", "RECORDS", "SENDS_MORE", "SERVES", "TASKS")


class _Stripper(ast.NodeTransformer):
    """Removes code that cannot change a result: imports, docstrings, ``_UNHASHED_CONSTANTS``, and emptied blocks."""

    def visit_Assign(self, node: ast.Assign | ast.AnnAssign) -> ast.Assign | ast.AnnAssign | None:
        """Remove constants that are not part of the mathematics; the request records the value chosen from ``GRID``."""
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return None if ast.unparse(target) in _UNHASHED_CONSTANTS else node

    visit_AnnAssign = visit_Assign

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Remove it."""

    visit_ImportFrom = visit_Import

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        """Remove a docstring."""
        return None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node

    def visit_If(self, node: ast.If) -> ast.If | None:
        """Remove an ``if`` whose branches have become empty."""
        self.generic_visit(node)
        return node if node.body or node.orelse else None
