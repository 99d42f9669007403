"""Write docs/methods: a card for each method, and what the file of a method may call.

python docs/reference.py
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fill
import numpy as np

from pflcli.commands import listing
from pflcli.core import methods, registry
from pflcli.core.federation.run import Run
from pflcli.core.wording import as_typed
from pflcli.plugins.checks.laws.federations import add_new_clients, make_numbers
from pflcli.plugins.sites import admission
from pflcli.plugins.sites.after_rounds import sends_after_rounds
from pflcli.plugins.sites.sizes import describe_messages
from pflcli.workflow.admission import small_federation as small

FOLDER = fill.ROOT / "docs" / "methods"
_RESULTS = "../results"
_WRITTEN = "<!-- written by docs/reference.py, which a test compares with this page -->\n"
_KINDS = {
    "local": "clients send nothing",
    "posthoc": "clients personalize a trained global model, and send nothing more",
    "server": "clients send to a server",
    "peer": "clients send to each other",
}
_COSTS = ("performance-", "scale-")
"""How the names of tables of costs begin, which the first table of a card sums up."""
_SHORT = (
    ("accuracy %", "bottom decile %", "gain (points)", "MB sent"),
    ("RMSE (µg/m³)", "worst", "gain (µg/m³)", "MB sent"),
)
"""Columns of comparisons that a card shows, by their first one."""
_ATTRIBUTES = ("run.federation", "run.engine", "run.task", "run.attendance")
"""Objects of a run of which the page of calls lists what methods use."""
_ABOUT = {
    "run.cfg": "the options of the method: `run.cfg.x` is the option `x`",
    "run.init": "the initial model; `run.initial_model()` returns a copy",
    "run.network": "the network with the initial parameters",
    "run.attendance.diverged": "the clients whose training diverged, which the next attempt at the round leaves out",
    "run.attendance.rejected": "the clients that the method leaves out of this round",
    "run.engine.joins_single": "whether a last minibatch of one sample is joined to the one before it",
    "run.engine.parameters": "the names of the network's parameters, without those of its buffers",
    "run.engine.threads": "the number of threads",
    "run.federation.y": "the labels of all samples (n,)",
    "AUTO": "the value of an option that leaves the choice to each client",
}
"""What has no docstring of its own."""

Rows = list[list[str]]


def write_files() -> dict[Path, str]:
    """Return the text of each file."""
    cards = {FOLDER / f"{name}.md": write_card(name) for name in registry.names("methods")}
    return {FOLDER / "calls.md": _write_calls(), **cards}


def write_card(name: str) -> str:
    """Return the page of a method."""
    entry, code = listing.options("methods", name), methods.load(name)
    _, _, text = entry["doc"].partition("\n")
    parts = [
        f"# {entry['paper']}\n",
        _WRITTEN,
        f"{_to_markdown(entry['summary'])}.\n",
        f"```sh\npfl compare runs/p -o runs/c --methods {','.join(dict.fromkeys(['fedavg', name]))}\n```\n",
        fill.to_markdown([["", ""], *_describe(name, entry, code)]),
        "\n## What it does\n",
        _to_markdown(text.strip()),
    ]
    if entry["options"]:
        parts += ["\n## Options\n", _describe_options(entry["options"], code.GRID)]
    if messages := _describe_messages(name, code):
        parts += ["\n## Messages among real sites\n", messages]
    results = "\n\n".join(_list_results(name))
    parts += ["\n## Published results\n", results or "None of the stored tables has it."]
    return "\n".join([*parts, "\n<!-- end -->", ""])


def _describe(name: str, entry: dict[str, Any], code: methods.Method) -> Iterator[list[str]]:
    """Yield what the first table of a card says: its label and text."""
    predicts, exports = _find_abilities(name)
    obstacle = re.sub(r"^round \d+, client \d+: | \(\S+\)$", "", admission.find_obstacle(name, {}, 1, ()))
    yield ["name", f"`{name}`" + (", a reference by which methods are judged" if code.REFERENCE else "")]
    yield ["in papers", f"{entry['paper']} ({entry['year']})"]
    yield ["kind", f"`{entry['kind']}`: {_KINDS[entry['kind']]}"]
    yield ["needs", entry["needs"]]
    yield ["exchanges", _describe_exchange(name, code)]
    kept = [f"`{key}`" for key in (code.PERSONAL_MODELS, *code.KEEPS) if key]
    yield ["each client keeps", ", ".join(kept) or "nothing between rounds"]
    if passes := _describe_cost(name):
        yield ["training", passes]
    yield ["learns", "classes" if code.TASKS == ("classes",) else "classes and other tasks"]
    yield ["`pfl new-client`", "yes" if predicts else "no"]
    yield ["`pfl export`", "yes" if exports else "no: it predicts by more than networks and a store of samples"]
    yield ["`pfl federation`", f"no: {_escape(obstacle)}" if obstacle else "yes: it runs among real sites"]


def _describe_exchange(name: str, code: methods.Method) -> str:
    """Return what a participant sends and receives in a round, in models, and what it sends besides."""
    rows = {row[0]: row[1:5] for row in fill.read(fill.RESULTS / "scale-rounds.csv")[1:]}
    links = ("up", "down", "to peers", "once, before the rounds")
    sent = [f"{float(size):.2f} {link}" for size, link in zip(rows.get(name, []), links, strict=False) if float(size)]
    measured = f"models per participant and round: {', '.join(sent)} ([measured]({_RESULTS}/scale-rounds.csv))"
    parts = [measured] * bool(sent)
    parts += [f"beside the update that a server averages: {code.SENDS_MORE}"] * bool(code.SENDS_MORE)
    if parts or code.has_rounds:
        return "; ".join(parts) or "updates, of which the server takes a mean"
    return "nothing after the rounds of its global model" if code.KIND == "posthoc" else "nothing"


def _describe_messages(name: str, code: methods.Method) -> str:
    """Return what a client receives and sends among real sites, as a table; empty if the method does not run there."""
    if (not code.has_rounds and not sends_after_rounds(code)) or admission.find_obstacle(name, {}, 1, ()):
        return ""
    found = describe_messages(admission.rehearse_small(name))
    heading = ["when", "a client", "tensors", "bytes"]
    shown = [
        [
            each["when"] if code.has_rounds else "after the rounds of the backbone",
            f"{each['does']}{', or refuses' * each['record']}",
            each["tensors"],
            f"{each['bytes']:,}",
        ]
        for each in found
    ]
    return "Seven clients, five features, three classes, `mlp`:\n\n" + fill.to_markdown([heading, *shown])


def _describe_cost(name: str) -> str:
    """Return how much a method computes; empty if that was not measured."""
    heading, *rows = fill.read(fill.RESULTS / "performance-methods.csv")
    for row in (dict(zip(heading, cells, strict=True)) for cells in rows if cells[0] == name):
        passes, seconds = (
            ", ".join(f"{cell} (`{model}`)" for model in ("mlp", "cnn") if (cell := row[f"{model}: {column}"]))
            for column in ("arithmetic", "seconds")
        )
        table = f"[measured]({_RESULTS}/performance-methods.csv)"
        return f"arithmetic of a round over that of FedAvg: {passes}; seconds over those of FedAvg: {seconds} ({table})"
    return ""


def _find_abilities(name: str) -> tuple[bool, bool]:
    """Return whether a client that joins after the rounds gets predictions, and whether its model can be exported."""
    joined = add_new_clients(small.make_federation(), ((6, 2, 3),))
    data = make_numbers("series") if methods.load(name).TASKS == ("series",) else joined
    run = small.make_run(name, rounds=1, data=data)
    state, late = small.play_rounds(name, run), int(data.clients[-1])
    run = replace(run, keeps_models=True)
    with run.personalizing():
        predictor = small.personalize(name, run, state, np.asarray([late]))
        probabilities = predictor.answer("test")["p"]
        exports = predictor.model_of(late) is not None
    return bool(np.isfinite(probabilities).all()), exports


def _describe_options(options: list[dict[str, str]], grid: Any) -> str:
    rows = [
        [
            f"`{option['option']}`",
            f"`{_escape(option['default'])}`",
            _escape(option["type"]),
            ", ".join(map(as_typed, grid.get(option["option"], ()))),
            _plain(option["meaning"]),
        ]
        for option in options
    ]
    return fill.to_markdown([["option", "default", "type", "`pfl tune` tries", "meaning"], *rows])


def _list_results(name: str) -> Iterator[str]:
    """Yield the tables of what stored tables have of a method and its variants: of comparisons, then of all others."""
    compared: dict[tuple[str, ...], Rows] = {}
    others: Rows = []
    for path in sorted(fill.RESULTS.glob("*.csv")):
        heading, *rows = fill.read(path)
        own = [cells for cells in rows if re.split("[@: ]", cells[0])[0] == name]  # such as `alone (reference)`
        if heading[0] != "method" or path.stem.startswith(_COSTS):
            continue
        link = f"[{path.stem}]({_RESULTS}/{path.name})"
        short = next((columns for columns in _SHORT if columns[0] in heading), None)
        for method, *cells in own:
            if short:
                row = dict(zip(heading[1:], cells, strict=True))
                row[short[2]] = row.get(short[2], "") + _name_baseline(heading, rows, short[2])
                compared.setdefault(short, []).append([link, f"`{method}`", *(row.get(key) or "-" for key in short)])
            else:  # has columns of its own
                shown = (f"{of}: {cell}" for of, cell in zip(heading[1:], cells, strict=True) if cell)
                others.append([link, f"`{method}`", _escape("; ".join(shown))])
    for short in filter(compared.get, _SHORT):
        yield fill.to_markdown([["table", "method", *short], *compared[short]])
    if others:
        yield fill.to_markdown([["table", "method", "results"], *others])


def _name_baseline(heading: list[str], rows: Rows, column: str) -> str:
    """Return what gains of a table are over, if that is not FedAvg: the method whose own gain is zero."""
    if column not in heading:
        return ""
    zeros = [cells[0] for cells in rows if re.fullmatch("0.0+", cells[heading.index(column)])]
    return f" over `{zeros[0]}`" if zeros and "fedavg" not in zeros else ""


def _write_calls() -> str:
    """Return the page of what files of methods call."""
    used = list_calls()
    run = {call: count for call, count in used.items() if call.startswith("run.")}
    names = {call: count for call, count in used.items() if call not in run}
    intro = (
        "All that the methods of this package call, from their syntax trees, with the number of files that do. "
        "[methods.md](../methods.md#what-a-method-may-call) says how to begin.\n"
    )
    return "\n".join(
        [
            "# What a method may call\n",
            _WRITTEN,
            intro,
            "## Of the run\n",
            _table_calls(run),
            "\n## From `pflcli.method`\n",
            "`from pflcli.method import Predictor, Run`\n",
            _table_calls(names),
            "\n<!-- end -->",
            "",
        ]
    )


def _table_calls(used: dict[str, int]) -> str:
    rows = [[f"`{call}`", _plain(describe_call(call)), str(count)] for call, count in used.items()]
    return fill.to_markdown([["name", "what it is or returns", "files"], *rows])


def list_calls() -> dict[str, int]:
    """Return what files of methods use of ``run`` and of ``pflcli.method``, with the number of files, sorted."""
    homes, files = registry.read_homes(), defaultdict[str, set[Path]](set)
    for path in registry.folder("methods").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imports = [
            node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "pflcli.method"
        ]
        imported = {alias.name for node in imports for alias in node.names}
        modules = {name for name in imported if homes[name] in ("pflcli.core", "pflcli.core.engine", "pflcli.core.knn")}
        for name in imported - modules:
            files[name].add(path)
        for node in ast.walk(tree):
            if call := _shorten(ast.unparse(node) if isinstance(node, ast.Attribute) else "", modules):
                files[call].add(path)
    return {call: len(files[call]) for call in sorted(files, key=lambda call: (call.lower(), call))}


def _shorten(call: str, modules: set[str]) -> str:
    """Return the part of a call that the page lists, such as ``run.engine.infer``; empty if none."""
    first, _, rest = call.partition(".")
    if not re.fullmatch(r"[\w.]+", call) or first not in {"run", *modules}:
        return ""
    depth = 2 if call.startswith(tuple(f"{each}." for each in _ATTRIBUTES)) else 1
    return ".".join([first, *rest.split(".")[:depth]])


def describe_call(call: str) -> str:
    """Return the parameters and the first line of the docstring of what ``list_calls`` names; empty without one."""
    if call in _ABOUT:
        return _ABOUT[call]
    first, *rest = call.split(".")
    method = importlib.import_module("pflcli.method")
    owner: Any = Run if first == "run" else getattr(method, first) if rest else method
    for name in rest[:-1]:
        owner = _find_type(owner, name)
    name = rest[-1] if rest else first
    if not isinstance(owner, type):
        return _describe_name(owner if rest else importlib.import_module(registry.read_homes()[name]), name)
    value = inspect.getattr_static(owner, name, None)
    if inspect.isfunction(value):
        return f"`({', '.join([*inspect.signature(value).parameters][1:])})`: {_read_summary(value)}"
    if isinstance(value, property):
        return _read_summary(value)
    field = next(option for option in registry.options(owner) if option.name == name)
    return field.doc or _read_summary(_find_type(owner, name))


def _describe_name(module: Any, name: str) -> str:
    """Return what a module says about a function, a class, or a name that it assigns."""
    value = getattr(module, name) if hasattr(module, name) else importlib.import_module(f"{module.__name__}.{name}")
    if inspect.isfunction(value):
        return f"`({', '.join(inspect.signature(value).parameters)})`: {_read_summary(value)}"
    if inspect.isclass(value) or inspect.ismodule(value):
        return _read_summary(value)
    body = ast.parse(inspect.getsource(module)).body
    for node, after in itertools.pairwise(body):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name and isinstance(after, ast.Expr):
            return ast.literal_eval(after.value).partition("\n")[0]
    return ""


def _read_summary(value: Any) -> str:
    return (inspect.getdoc(value) or "").partition("\n")[0]


def _find_type(owner: type, name: str) -> type:
    """Return the class of a field or a property of a class."""
    value = inspect.getattr_static(owner, name, None)
    hint = value.fget.__annotations__["return"] if isinstance(value, property) else owner.__annotations__[name]
    found: type = getattr(inspect.getmodule(owner), hint)
    return found


def _to_markdown(text: str) -> str:
    """Return the text of a docstring in Markdown."""
    return re.sub(r"(?<!<)https?://[^\s,;)]+[^\s,;:).]", r"<\g<0>>", re.sub(r"``(.+?)``", r"`\1`", text))


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def _plain(text: str) -> str:
    return _escape(_to_markdown(" ".join(text.split())))
