"""A tiny chain of artifacts, made once, and ways to run the command line on it."""

from __future__ import annotations

import functools
import gc
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pflcli.__main__ import main
from pflcli.core import registry, tasks

# As the command line sets it, and before torch is imported: idle threads that spin take the cores of other workers.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from helpers import NAMES
from pflcli.core.engine import backend

# A shell that runs the tests in the background ignores SIGINT, nohup SIGHUP, and a child of theirs would too.
_PFL = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from pflcli.__main__ import run
run()
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let tests that take minutes run when they are asked for."""
    parser.addoption("--long", action="store_true", help="run the long tests too")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Ignore the tests of compiled code, which import it, where there is none."""
    return True if collection_path.name == "accelerated" and backend.why_off() else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Collect no garbage while modules are imported and tests collected: they stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)  # the heap is large, and each test adds little to it
        gc.enable()


@pytest.fixture(autouse=True, scope="session")
def save_time() -> Iterator[None]:
    """Describe the commands to Typer once instead of for each command line, and do not wait for the disk.

    Killed processes lose nothing by the latter; only a machine that loses power does.
    """
    import typer.main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        patch.setattr(os, "fsync", lambda handle: None)
        yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long tests out unless they are asked for, and those of compiled loops where there are none."""
    if not config.getoption("--long"):
        long = [item for item in items if item.get_closest_marker("long")]
        items[:] = [item for item in items if item not in long]
        if long:
            config.hook.pytest_deselected(items=long)
    if why := backend.why_off():
        for item in items:
            if item.get_closest_marker("compiled"):
                item.add_marker(pytest.mark.skip(reason=f"tests compiled loops, and {why}"))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Number parameters that are bytes: an id made of compressed bytes would change from one worker to the next."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture(autouse=True)
def placeholder_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a placeholder, another for each specification, in place of a picture, unless a test looks at pictures.

    Those in tests/evaluation do, and those that use ``drawn_pictures``.
    """
    if "evaluation" in request.path.parts or "drawn_pictures" in request.fixturenames:
        return
    from pflcli.evaluation.charts import vega

    draw = vega.render

    def render(spec: vega.Spec, form: str = "png", **size: float) -> bytes:
        if form != "png":
            return draw(spec, form, **size)
        return b"\x89PNG\r\n\x1a\n" + hashlib.sha256(vega.encode(vega.finish(spec))).digest()

    monkeypatch.setattr(vega, "render", render)


@pytest.fixture
def drawn_pictures() -> None:
    """Draw pictures rather than write placeholders, as for the shared chain."""


@pytest.fixture(autouse=True)
def gradients_stay_on() -> Iterator[None]:
    """Fail a test that leaves PyTorch without gradients, rather than all that come after it."""
    import torch

    yield
    on = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    assert on, "the test left torch.is_grad_enabled() False"


@pytest.fixture(autouse=True)
def forget_users_files() -> Iterator[None]:
    """Undo what using files of users changes in this process, in which the tests run many commands."""
    yield
    files = registry.used_files()
    if not files:
        return
    del os.environ[registry.USED]
    folders = {str(file.parent) for key, file in files.items() if "." not in key}  # the others are installed modules
    sys.path[:] = [folder for folder in sys.path if folder not in folders]
    for group in registry.GROUPS:
        package = sys.modules.get(f"pflcli.{registry.package(group)}")
        if package is not None:
            package.__path__[:] = [folder for folder in package.__path__ if folder not in folders]
    for name, module in [*sys.modules.items()]:
        if str(Path(str(getattr(module, "__file__", ""))).parent) in folders:
            del sys.modules[name]
            parent, _, stem = name.rpartition(".")
            vars(sys.modules[parent]).pop(stem, None) if parent else None
    for kind in [file.stem for key, file in files.items() if key.startswith("tasks/")]:
        place = tasks.KINDS.pop(kind, None)
        tasks.RANKING[:] = [name for name in tasks.RANKING if place is None or name not in place.metrics]
        tasks.RANKING.extend(
            name for each in tasks.KINDS.values() for name in each.metrics if name not in tasks.RANKING
        )
    if (catalogue := sys.modules.get("pflcli.core.metrics.catalogue")) is not None:
        catalogue.METRICS.clear()
        catalogue.METRICS.update((entry.name, entry) for entry in catalogue._ENTRIES)
        for kind in tasks.KINDS:
            catalogue.add_entries(kind)
    models = sys.modules.get("pflcli.core.models")
    if models is not None:
        models.outline.cache_clear()


@dataclass(frozen=True)
class Ran:
    """What a command line left behind: its exit code, its result and what it said."""

    code: int
    out: str
    err: str


def build_chain(root: Path) -> SimpleNamespace:
    """Make the whole chain in ``root`` through the Python API."""
    import numpy as np

    from pflcli.artifacts.kinds import partition as partitions
    from pflcli.artifacts.reader import open_artifact
    from pflcli.commands.build_datastore import build_datastore
    from pflcli.commands.evaluate import evaluate
    from pflcli.commands.extract import extract
    from pflcli.commands.new_client import new_client
    from pflcli.commands.partition import partition
    from pflcli.commands.personalize import personalize
    from pflcli.commands.stack import stack
    from pflcli.commands.train_global import train_global
    from pflcli.plugins.audits.audit import audit
    from pflcli.plugins.knn_tools.sweep import sweep
    from pflcli.plugins.knn_tools.update_datastore import update_datastore

    at = paths(root)
    partition("writers", at.p, clients=6, seed=0)
    train_global(at.p, at.b, settings={"model": "mlp", "rounds": 2, "participation": 0.5})
    extract(at.b, at.e)
    build_datastore(at.e, at.d)
    personalize("knn-per", at.d, at.knn)
    personalize("fedavg", at.d, at.fedavg)
    stack([at.fedavg, at.knn], at.st)
    evaluate([at.fedavg, at.knn], at.ev)
    audit(at.knn, at.au)
    sweep(at.e, at.sw)
    update_datastore(at.d, at.e, at.ud)
    data = partitions.read(open_artifact(at.p))
    np.savez(at.samples, x=data.x[:40], y=data.y[:40])
    new_client(at.knn, at.samples, at.nc, client="late")
    return at


def paths(root: Path) -> SimpleNamespace:
    return SimpleNamespace(root=root, samples=root / "late.npz", **{name: root / name for name in NAMES})


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> SimpleNamespace:
    """The chain of six writers; shared, so only to be read."""
    return build_chain(tmp_path_factory.mktemp("small"))


@pytest.fixture
def small_copy(small, tmp_path) -> SimpleNamespace:
    """A copy of the chain that a test may damage."""
    shutil.copytree(small.root, tmp_path / "mine")
    return paths(tmp_path / "mine")


@pytest.fixture
def again(tmp_path) -> SimpleNamespace:
    """The chain, made a second time in another folder."""
    return build_chain(tmp_path / "deeper" / "again")


@pytest.fixture
def pfl(capsys) -> Iterator[Callable[..., Ran]]:
    """Run a command line in this process; ``compare`` without references unless it is asked for them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def run(*args: object) -> Ran:
        capsys.readouterr()
        words = [str(arg) for arg in args]
        if words[:1] == ["compare"] and not {"--references", "--no-references", "--help"} & {*words}:
            words.insert(1, "--no-references")
        with pytest.raises(SystemExit) as end:
            main(words)
        captured = capsys.readouterr()
        return Ran(int(end.value.code or 0), captured.out, captured.err)

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command line in a process of its own, which does not outlive the test."""
    started: list[subprocess.Popen[str]] = []

    def run(*args: object, **kwargs: object) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, **kwargs}
        started.append(subprocess.Popen([sys.executable, "-c", _PFL, *map(str, args)], text=True, **pipes))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def tree() -> Callable[[Path], dict[str, tuple[bytes, int]]]:
    """Everything below a folder, with the time each file was last written: what must not change does not.

    The time of a folder also changes when a file beside the others marks it as in use.
    """

    def look(root: Path) -> dict[str, tuple[bytes, int]]:
        return {
            str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns) if path.is_file() else (b"", 0)
            for path in sorted(root.rglob("*"))
        }

    return look


@pytest.fixture(scope="session")
def compared(small, tmp_path_factory) -> SimpleNamespace:
    """A comparison of three methods under two seeds, beside it its runs; shared, so only to be read."""
    from pflcli.commands.compare import compare

    at = tmp_path_factory.mktemp("compared")
    settings = {"model": "logistic", "rounds": 3, "participation": 1.0, "eval_every": 1}
    compare(
        [small.p], at / "c", methods=["fedavg", "knn-per", "panm"], seeds=[0, 1], settings=settings, references=False
    )
    return SimpleNamespace(path=at / "c" / "comparison", out=at / "c", partition=small.p)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory) -> Any:
    """A comparison whose clients and methods have names that are markup elsewhere; shared, so only to be read."""
    import synthetic

    at = tmp_path_factory.mktemp("hostile") / "comparison"
    return synthetic.write_comparison(at, ["fedavg", "local@</script>", "<b>knn</b>"], synthetic.HOSTILE)


@pytest.fixture
def forbid_training(monkeypatch) -> None:
    """Fail the test if anything is trained."""

    def refuse(*args: object) -> None:
        raise AssertionError("something is trained")

    monkeypatch.setattr("pflcli.core.simulation.create_run.Engine", refuse)


@pytest.fixture
def without_vega(monkeypatch) -> None:
    """Leave out of pages the script that draws charts and the pictures in their place, which take seconds to make."""
    from pflcli.evaluation.charts import vega
    from pflcli.plugins.page import charts

    monkeypatch.setattr(vega, "bundle_javascript", lambda: "/* Vega */")
    monkeypatch.setattr(charts, "render_still", lambda chart: "data:image/png;base64,AA==")
