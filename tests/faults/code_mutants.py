"""Change the code of pflcli in one place at a time and see whether a test fails.

    python tests/faults/code_mutants.py map MAP [TESTS...]       # record which tests run which lines; once, some hours
    python tests/faults/code_mutants.py run MAP RESULTS.jsonl    # 300 mutants drawn by seed 0
    python tests/faults/code_mutants.py report RESULTS.jsonl     # the share that was killed, and the survivors
    python tests/faults/choose_fast_tests.py MAP RESULTS.jsonl   # choose the fast tests

A mutant is one plausible slip: another comparison or operator, a constant that is off, a condition turned round, an
argument or a statement left out. Docstrings, messages, annotations and decorators are not mutated. The tests that run a
mutated line are run, related and fast files first, until one fails; a mutant at which they hang counts as killed. Each
runs in a fork of a process that has imported what pflcli needs but not pflcli. ``run`` goes on where it ended. At last
it runs the tests that killed a mutant on the code as it is: a mutant whose test fails there too counts as alive.

Mutants that change nothing that can be seen are listed in ``equivalent_mutants.toml`` with the reasons.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import itertools
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import warnings
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import mutant_import

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "methods",
    "core/engine",
    "plugins/accelerated",
    "core/metrics",
    "evaluation/metrics",
    "core/federation",
    "commands",
    "workflow/prediction",
    "plugins/audits",
)
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
MAX_TESTS_PER_FILE = 40
MAX_SECONDS = 60.0
"""Tests of a mutant are chosen until they took so many seconds when the map was made."""
_OF_STORED_CODE = "tests/plugins/accelerated/test_code_cache.py"
"""Tests that compiled code is stored, which that of a mutant is not."""
KILLED = ("killed", "timeout")
WARM = (
    *("torch", "torch.func", "numba", "pandas", "scipy.stats", "scipy.special", "sklearn.metrics"),
    *("h5py", "faiss", "safetensors.torch", "safetensors.numpy", "pydantic", "typer", "rich.progress", "hypothesis"),
    *("optuna", "onnxruntime", "pyarrow.parquet", "dp_accounting", "numba.np.arraymath"),
)
"""What is imported once for all mutants."""


@dataclass(frozen=True)
class Mutant:
    """A change of the source text of one file: the characters from ``start`` to ``end`` become ``new``."""

    path: str
    line: int
    last_line: int
    start: int
    end: int
    column: int
    change: str
    text: str
    new: str

    @property
    def key(self) -> str:
        """What names the mutant in results, and as long as its line stays the same."""
        return f"{self.path}: {self.text} [{self.column}] {self.change}"


# Drawing

_COMPARISONS = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
}
_OPERATORS = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
    **{ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}
_NAMES = {
    **{"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any"},
    **{"argmin": "argmax", "argmax": "argmin", "floor": "ceil", "ceil": "floor", "sum": "mean", "mean": "sum"},
    **{"zeros": "ones", "ones": "zeros", "zeros_like": "ones_like", "ones_like": "zeros_like"},
}
_UNWRAPPED = {"minimum", "maximum", "clip", "abs", "sorted", "round", "min", "max"}
_UNWRAPPED_METHODS = {"clone", "copy", "detach", "clamp", "contiguous"}
_SILENT_KEYWORDS = {"strict", "encoding", "newline", "stacklevel", "name", "help"}
_MESSAGES = {"say", "detail", "warn", "warning", "progress", "plural", "fix"}


def _name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


class _Sites(ast.NodeVisitor):
    """Collects each node that a mutant replaces, with its replacement and a few words."""

    def __init__(self) -> None:
        self.sites: list[tuple[ast.AST, ast.AST | str]] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for part in (*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body):
            self.visit(part)

    def visit_Assign(self, node: ast.Assign) -> None:
        if ast.unparse(node.targets[0]) not in ("YEAR", "__all__"):  # facts for readers
            self.visit(node.value)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in node.body:
            self.visit(part)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def _skip(self, node: ast.AST) -> None:
        """Leave out messages, imports and types."""

    visit_Raise = visit_JoinedStr = visit_Assert = visit_Import = visit_ImportFrom = visit_TypeAlias = _skip

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return  # a docstring
        if isinstance(node.value, ast.Call):
            if _name_of(node.value) in _MESSAGES:
                return
            self.sites.append((node, "pass"))
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        other = _OPERATORS.get(type(node.op))
        if other is not None and not isinstance(node.value, ast.JoinedStr | ast.List | ast.ListComp):
            self.sites.append((node, ast.AugAssign(node.target, other(), node.value)))
        self.sites.append((node, "pass"))
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for i, op in enumerate(node.ops):
            ops = [*node.ops[:i], _COMPARISONS[type(op)](), *node.ops[i + 1 :]]
            self.sites.append((node, ast.Compare(node.left, ops, node.comparators)))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        other = _OPERATORS.get(type(node.op))
        sides = (node.left, node.right)
        is_text = any(isinstance(s, ast.JoinedStr | ast.List | ast.Tuple | ast.Dict) for s in sides)
        is_text |= any(isinstance(s, ast.Constant) and not isinstance(s.value, int | float) for s in sides)
        if other is not None and not is_text:
            self.sites.append((node, ast.BinOp(node.left, other(), node.right)))
        if not is_text:
            self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.sites.append((node, ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        self.sites.append((node, node.operand))
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self.sites.append((node.test, ast.UnaryOp(ast.Not(), node.test)))
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.sites.append((node, ast.IfExp(node.test, node.orelse, node.body)))
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for condition in node.ifs:
            self.sites.append((condition, ast.Constant(True)))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.sites.append((node, ast.Constant(not value)))
        elif isinstance(value, int):
            self.sites.append((node, ast.Constant(value + 1)))
        elif isinstance(value, float):
            self.sites.append((node, ast.Constant(2 * value if value else 1.0)))

    def visit_Break(self, node: ast.Break) -> None:
        self.sites.append((node, "continue"))

    def visit_Continue(self, node: ast.Continue) -> None:
        self.sites.append((node, "pass"))

    def visit_Call(self, node: ast.Call) -> None:
        name = _name_of(node)
        if name in _MESSAGES or name.endswith(("Error", "Warning")):
            return
        for i, keyword in enumerate(node.keywords):
            if keyword.arg and keyword.arg not in _SILENT_KEYWORDS:
                rest = [*node.keywords[:i], *node.keywords[i + 1 :]]
                self.sites.append((node, ast.Call(node.func, node.args, rest)))
        if name in _NAMES:
            func = ast.parse(ast.unparse(node.func), mode="eval").body
            if isinstance(func, ast.Attribute):
                func.attr = _NAMES[name]
                self.sites.append((node, ast.Call(func, node.args, node.keywords)))
            elif name not in ("sum", "mean"):
                self.sites.append((node, ast.Call(ast.Name(_NAMES[name]), node.args, node.keywords)))
        if name in _UNWRAPPED and node.args:
            self.sites.append((node, node.args[0]))
        if name in _UNWRAPPED_METHODS and isinstance(node.func, ast.Attribute):
            self.sites.append((node, node.func.value))
        self.generic_visit(node)


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield all mutants of a file."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def place(number: int, column: int) -> int:
        return starts[number - 1] + len(lines[number - 1].encode()[:column].decode())

    visitor = _Sites()
    visitor.visit(ast.parse(source))
    for node, other in visitor.sites:
        at: Any = node
        start, end = place(at.lineno, at.col_offset), place(at.end_lineno, at.end_col_offset)
        new = other if isinstance(other, str) else ast.unparse(ast.fix_missing_locations(other))
        new = f"({new})" if isinstance(other, ast.expr) else new
        change = f"{' '.join(source[start:end].split())} => {new}"
        name, text = path.relative_to(ROOT).as_posix(), lines[at.lineno - 1].strip()
        column = start - starts[at.lineno - 1]
        yield Mutant(name, at.lineno, at.end_lineno, start, end, column, change, text, new)


def mutated_source(mutant: Mutant) -> str:
    """Return the source of the mutated file."""
    source = (ROOT / mutant.path).read_text(encoding="utf-8")
    return source[: mutant.start] + mutant.new + source[mutant.end :]


def _compiles(mutant: Mutant) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(mutated_source(mutant), mutant.path, "exec")
        except SyntaxError:
            return False
    return True


def draw(count: int, seed: int, packages: Iterable[str] = PACKAGES) -> list[Mutant]:
    """Return ``count`` mutants of the packages, each place as likely as any other.

    Raises ValueError if a package has no file.
    """
    files = {package: [*(ROOT / "pflcli" / package).rglob("*.py")] for package in packages}
    if empty := [package for package, found in files.items() if not found]:
        raise ValueError(f"no files in {', '.join(empty)}")
    paths = sorted(path for found in files.values() for path in found)
    places: dict[tuple[str, int, int], list[Mutant]] = defaultdict(list)
    for path in paths:
        for mutant in mutants_of(path):
            places[mutant.path, mutant.start, mutant.end].append(mutant)
    generator = random.Random(seed)
    order = sorted(places)
    generator.shuffle(order)
    drawn = (generator.choice(places[place]) for place in order)
    return list(itertools.islice(filter(_compiles, drawn), count))


# Choosing tests


@dataclass(frozen=True)
class Definition:
    """A function, class or constant at the top of a module, and the names that it mentions."""

    path: str
    name: str
    first: int
    last: int
    mentions: frozenset[str]
    is_compiled: bool


def _mentions(node: ast.AST) -> frozenset[str]:
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return frozenset(names | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)})


@cache
def definitions() -> tuple[Definition, ...]:
    """Return all definitions of the package."""
    collected = []
    for path in sorted((ROOT / "pflcli").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names, decorators = [node.name], {*map(ast.unparse, node.decorator_list)}
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names, decorators = [p.id for t in targets for p in ast.walk(t) if isinstance(p, ast.Name)], set()
            else:
                continue
            for name in names:
                place = str(path.relative_to(ROOT)), name, node.lineno, node.end_lineno or node.lineno
                collected.append(Definition(*place, _mentions(node) - {name}, "compiled" in decorators))
    return tuple(collected)


@cache
def _compiling_files() -> frozenset[str]:
    """Return the files whose functions are compiled, or become part of compiled functions."""
    marks = ("@compiled", "@inlined", "_intrinsic", "llvmlite")
    return frozenset(
        str(path.relative_to(ROOT))
        for path in (ROOT / "pflcli").rglob("*.py")
        if any(mark in path.read_text(encoding="utf-8") for mark in marks)
    )


def definition_of(mutant: Mutant) -> Definition | None:
    """Return the definition that a mutant lies in."""
    own = [d for d in definitions() if d.path == mutant.path and d.first <= mutant.line <= d.last]
    return own[0] if own else None


def recompiled(mutant: Mutant) -> set[str]:
    """Return the names of compiled functions that contain the mutated code."""
    start = definition_of(mutant)
    if start is None or mutant.path not in _compiling_files():
        return set()
    parts, names = [start], {start.name}
    while parts:
        part = parts.pop()
        if part.is_compiled:
            continue  # its callers call it where it lies
        for other in definitions():
            if part.name in other.mentions and other.path in _compiling_files() and other.name not in names:
                names.add(other.name)
                parts.append(other)
    return names


def callers(mutant: Mutant) -> list[tuple[str, int]]:
    """Return lines that mention what a mutant changes and no tracer sees: constants and compiled functions."""
    start = definition_of(mutant)
    if start is None:
        return []
    names, parts = {start.name}, [start]
    while parts:
        part = parts.pop()
        for other in definitions():
            if part.name in other.mentions and other.path in _compiling_files() and other.name not in names:
                names.add(other.name)
                parts.append(other)
    paths = {d.path for d in definitions() if names & d.mentions} | {mutant.path}
    return [(path, line) for path in paths for name, line in _names_by_line(path) if name in names]


@cache
def _names_by_line(path: str) -> list[tuple[str, int]]:
    """Return each name that a file mentions, with its line."""
    nodes: Iterator[Any] = ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
    return [
        (getattr(n, "id", getattr(n, "attr", "")), n.lineno) for n in nodes if isinstance(n, ast.Name | ast.Attribute)
    ]


class TestMap:
    """Which tests run which lines, as ``coverage_map.py`` has recorded it, and how long each took."""

    __test__ = False

    def __init__(self, folder: Path, listed: Path | None = None) -> None:
        """Read the map of a folder, of the tests alone that a file lists, if it is given."""
        from coverage import CoverageData

        self.tests: dict[str, Any] = {}
        for path in sorted(folder.glob("tests.*.json")):
            self.tests |= json.loads(path.read_text())
        if listed is not None:
            names = {*listed.read_text(encoding="utf-8").splitlines()}
            # A line without brackets stands for the test with all its parameters.
            self.tests = {test: self.tests[test] for test in self.tests if {test, test.partition("[")[0]} & names}
        self._users: dict[str, list[str]] = defaultdict(list)
        for test, facts in self.tests.items():
            for fixture in facts["fixtures"]:
                self._users[fixture].append(test)
        self._lines: dict[str, dict[int, set[str]]] = {}
        self._data = []
        for path in sorted(folder.glob("lines.*")):
            data = CoverageData(str(path))
            data.read()
            self._data.append(data)

    def _contexts(self, path: str) -> dict[int, set[str]]:
        if path not in self._lines:
            merged: dict[int, set[str]] = defaultdict(set)
            for data in self._data:
                for file in data.measured_files():
                    if file.endswith("/" + path):
                        for line, contexts in data.contexts_by_lineno(file).items():
                            merged[line].update(context.removeprefix("import|") for context in contexts)
            self._lines[path] = merged
        return self._lines[path]

    def runners(self) -> Iterator[set[str]]:
        """Yield, for each line of the package that is run after imports, the passing tests that run it."""
        names = {file.partition("/pflcli/")[2] for data in self._data for file in data.measured_files()}
        for name in sorted(names):
            path = f"pflcli/{name}"
            for line, contexts in self._contexts(path).items():
                if not contexts & {"", "import"} and (tests := self.covering(path, line, line)):
                    yield tests

    def covering(self, path: str, first: int, last: int) -> set[str]:
        """Return the passing tests that run one of these lines, themselves or by a fixture."""
        contexts = {c for line in range(first, last + 1) for c in self._contexts(path).get(line, ())}
        tests = {test for c in contexts for test in ([c] if c in self.tests else self._users.get(c, ()))}
        return {test for test in tests if self.tests[test]["passed"]}

    def choose(self, mutant: Mutant, seconds: float) -> list[str]:
        """Return the tests to run, files that concern the mutated module first, then the fastest."""
        tests = self.covering(mutant.path, mutant.line, mutant.last_line)
        own = definition_of(mutant)
        is_module_level = own is None or not tests or mutant.path in _compiling_files()
        if is_module_level or own.last == own.first:  # constants are read where they are mentioned
            for path, line in callers(mutant):
                tests |= self.covering(path, line, line)
        if not tests:
            for line in self._contexts(mutant.path):
                tests |= self.covering(mutant.path, line, line)
        if mutant.path in _compiling_files():
            tests = {test for test in tests if not test.startswith(_OF_STORED_CODE)}
        parts = set(Path(mutant.path).with_suffix("").parts[1:])
        by_file: dict[str, list[str]] = defaultdict(list)
        for test in sorted(tests, key=lambda test: self.tests[test]["seconds"]):
            by_file[test.partition("::")[0]].append(test)

        def cost(file: str) -> tuple[bool, float]:
            words = {part for name in Path(file).with_suffix("").parts for part in (name, name.removeprefix("test_"))}
            return not words & parts, sum(self.tests[test]["seconds"] for test in by_file[file]) / len(by_file[file])

        files = sorted(by_file, key=cost)
        turns = {file: self._spread(by_file[file]) for file in files}
        chosen: dict[str, list[str]] = {file: [] for file in files}
        total = 0.0
        # A few tests of every file come before many of one, as a line may be run by all and matter to one file alone.
        for first, last in ((0, 5), (5, 15), (15, MAX_TESTS_PER_FILE)):
            for file in files:
                for test in turns[file][first:last]:
                    if total <= seconds:
                        total += self.tests[test]["seconds"]
                        chosen[file].append(test)
        return [test for file in files for test in chosen[file]]

    @staticmethod
    def _spread(tests: list[str]) -> list[str]:
        """Return some tests of a file, all functions in turn, with parameters from anywhere among theirs."""
        by_function: dict[str, list[str]] = defaultdict(list)
        for test in tests:
            by_function[test.partition("[")[0]].append(test)
        for own in by_function.values():
            own.sort(key=lambda test: zlib.crc32(test.encode()))
        turns: list[str] = []
        for turn in range(max(map(len, by_function.values()))):
            turns += [own[turn] for own in by_function.values() if turn < len(own)]
        return turns


# Running


def _child(mutant: Mutant | None, tests: list[str], folder: Path) -> None:
    """Run the tests on a mutant until one fails, or all of them on the code as it is; end with pytest's exit code."""
    os.setsid()
    # Of data, not of addresses: what draws figures reserves terabytes of these.
    resource.setrlimit(resource.RLIMIT_DATA, (24 << 30, 24 << 30))
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    options = ["-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:randomly", "--tb=line", "-p", "no:xdist"]
    if mutant is not None:
        name = ".".join(Path(mutant.path).with_suffix("").parts).removesuffix(".__init__")
        facts: dict[str, Any] = {"name": name, "path": str(ROOT / mutant.path), "source": mutated_source(mutant)}
        facts["recompiled"] = sorted(recompiled(mutant))
        (folder / "mutant.json").write_text(json.dumps(facts))
        os.environ[mutant_import.VARIABLE] = str(folder / "mutant.json")
        mutant_import.install(**facts)
        options.append("-x")
    import pytest

    code = pytest.main([*options, f"--basetemp={folder / 'tests'}", *tests])
    sys.stdout.flush()
    os._exit(int(code))


def _outcome(mutant: Mutant | None, tests: list[str], folder: Path, seconds: float) -> tuple[str, list[str]]:
    """Return how the tests ended, and the lines of pytest about those that failed, or its exit code."""
    pid = os.fork()
    if not pid:
        try:
            _child(mutant, tests, folder)
        finally:
            os._exit(1)  # a mutant that cannot be imported
    deadline, ended, status = time.monotonic() + seconds, 0, 0
    while not ended and time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if not ended:
        os.waitpid(pid, 0)
        return "timeout", [""]
    code = os.waitstatus_to_exitcode(status)
    lines = (folder / "log").read_text(errors="replace").splitlines()
    failed = [line[:300] for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return "survived" if code == 0 else "error" if code in (4, 5) else "killed", failed or [f"exit {code}"]


def _failed_test(line: str) -> str:
    """Return the test that a line of pytest is about."""
    return line.partition(" ")[2].partition(" - ")[0]


def _doubt(results: Path, folder: Path, seconds: float) -> None:
    """Run the tests that killed mutants on the code as it is; what one kills that fails there too is ``doubtful``."""
    killed = [facts for facts in read_results(results).values() if facts["outcome"] == "killed"]
    tests = sorted({_failed_test(facts["by"]) for facts in killed if "::" in facts["by"]})
    failed = set(map(_failed_test, _outcome(None, tests, folder, seconds)[1])) if tests else set()
    with results.open("a") as file:
        for facts in killed:
            if _failed_test(facts["by"]) in failed and "::" in facts["by"]:
                file.write(json.dumps(facts | {"outcome": "doubtful"}) + "\n")
                print(f"doubtful: {facts['path']}:{facts['line']} {facts['by']}", flush=True)


def _site(folder: Path) -> Path:
    """Make a folder by which processes that tests start import the mutant too."""
    site = folder / "site"
    site.mkdir()
    lines = ["import sys", f"sys.path.append({str(Path(__file__).parent)!r})"]
    lines += ["import mutant_import", "mutant_import.install_from_environment()"]
    (site / "sitecustomize.py").write_text("\n".join(lines) + "\n")
    return site


def run(tests: TestMap, mutants: list[Mutant], results: Path, *, seconds: float, again: bool) -> None:
    """Run the mutants that ``results`` lacks, and ``again`` those that survived; append a line for each."""
    outcomes = {key: facts["outcome"] for key, facts in read_results(results).items()} if results.exists() else {}
    finished = {key for key, outcome in outcomes.items() if outcome in KILLED or not again}
    for name in WARM:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import pytest  # noqa: F401

    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    folder = Path(tempfile.mkdtemp())  # a TemporaryDirectory would be removed by processes that a mutant lets end early
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_site(folder)), str(ROOT)])
    for mutant in mutants:
        if mutant.key in finished:
            continue
        began, chosen = time.monotonic(), tests.choose(mutant, seconds)
        limit = 60 + 4 * sum(tests.tests[test]["seconds"] for test in chosen) + 60 * bool(recompiled(mutant))
        outcome, (by, *_) = _outcome(mutant, chosen, folder, limit) if chosen else ("not covered", [""])
        facts = {"key": mutant.key, "outcome": outcome, "by": by, "tests": len(chosen)}
        facts |= {"seconds": round(time.monotonic() - began, 1), **asdict(mutant)}
        with results.open("a") as file:
            file.write(json.dumps(facts) + "\n")
        place = f"{mutant.path}:{mutant.line}"
        print(f"{outcome:11} {facts['seconds']:6.1f} s  {place} {mutant.change[:100]}  {by[:90]}", flush=True)
    if results.exists():
        _doubt(results, folder, 60 + 60 * seconds)
    shutil.rmtree(folder)


def read_results(results: Path) -> dict[str, Any]:
    """Return the last outcome of each mutant."""
    return {facts["key"]: facts for facts in map(json.loads, results.read_text().splitlines())}


def report(results: Path) -> bool:
    """Print how many mutants were killed, and the others; return whether enough of those that change anything."""
    listed = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["mutant"] if EQUIVALENT.exists() else []
    reasons = {one["key"]: one["why"] for one in listed}
    outcomes = read_results(results)
    counts: Counter[str] = Counter()
    for key, facts in outcomes.items():
        is_killed = facts["outcome"] in KILLED
        counts["killed" if is_killed else "equivalent" if key in reasons else "survived"] += 1
        if not is_killed and key not in reasons:
            print(f"{facts['outcome']}: {facts['path']}:{facts['line']}: {facts['text']}\n    {facts['change']}")
    judged = counts["killed"] + counts["survived"]
    share = counts["killed"] / max(judged, 1)
    print(f"{len(outcomes)} mutants, {counts['equivalent']} of them equivalent; {counts['killed']} of {judged} killed")
    print(f"{share:.1%}")
    return share >= 0.95


def record(folder: Path, tests: list[str], jobs: int) -> int:
    """Run tests and record in ``folder`` which lines of the package each runs."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    environment = {**os.environ, "PYTHONPATH": paths, "PFL_COVERAGE_MAP": str(folder.resolve()), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "pytest", "-p", "coverage_map", "-p", "no:cacheprovider", "-n", str(jobs)]
    return subprocess.run([*line, "--dist", "loadfile", *tests], cwd=ROOT, env=environment).returncode


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("map")
    one.add_argument("map", type=Path)
    one.add_argument("tests", nargs="*", default=["tests"])
    one.add_argument("--jobs", type=int, default=2)
    one = commands.add_parser("run")
    one.add_argument("map", type=Path)
    one.add_argument("results", type=Path)
    one.add_argument("--count", type=int, default=300)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--part", default="0/1", help="run every Nth mutant from the Ith on, I/N")
    one.add_argument("--seconds", type=float, default=MAX_SECONDS, help="of tests for each mutant")
    one.add_argument("--tests", type=Path, help="choose among the tests that this file lists, such as tests/fast.txt")
    one.add_argument("--again", action="store_true", help="run those that survived again")
    one.add_argument("--only", help="run mutants whose path contains this")
    one.add_argument("--packages", default=",".join(PACKAGES))
    one = commands.add_parser("report")
    one.add_argument("results", type=Path)
    return parser.parse_args()


def _mutants(arguments: argparse.Namespace) -> Iterator[Mutant]:
    first, step = map(int, arguments.part.split("/"))
    for mutant in draw(arguments.count, arguments.seed, arguments.packages.split(","))[first::step]:
        if not arguments.only or arguments.only in mutant.path:
            yield mutant


if __name__ == "__main__":
    arguments = _arguments()
    if arguments.command == "map":
        sys.exit(record(arguments.map, arguments.tests, arguments.jobs))
    if arguments.command == "report":
        sys.exit(not report(arguments.results))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    tests = TestMap(arguments.map, arguments.tests)
    if not tests.tests:
        sys.exit(f"{arguments.map} holds no tests: record it with `code_mutants.py map {arguments.map}`")
    run(
        tests,
        [*_mutants(arguments)],
        arguments.results.resolve(),
        seconds=arguments.seconds,
        again=arguments.again,
    )
