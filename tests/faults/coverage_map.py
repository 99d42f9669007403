"""Record which tests run which lines of pflcli: a pytest plugin for ``code_mutants.py map``.

Each process writes one file of coverage.py, in which a context is a test or a fixture that several tests share. A JSON
file beside it lists the tests, whether they passed, how long they took, and the shared fixtures that they use.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

FOLDER = Path(os.environ["PFL_COVERAGE_MAP"])
_ROOT = Path(__file__).parents[2]

_coverage = coverage.Coverage(
    data_file=FOLDER / f"lines.{os.getpid()}", source=[str(_ROOT / "pflcli")], context="import", config_file=False
)
_tests: dict[str, Any] = {}
_contexts = ["import"]
_saved = [time.monotonic()]
_SECONDS_BETWEEN_SAVES = 30.0


def fixture_context(base: str, name: str) -> str:
    """Return the context of a fixture that several tests share."""
    return f"fixture {base}::{name}"


def pytest_configure(config: pytest.Config) -> None:
    """Trace worker processes, or the only process."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        _coverage.start()


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Give a test a context of its own."""
    yield from _within(item.nodeid)
    if time.monotonic() > _saved[0] + _SECONDS_BETWEEN_SAVES:
        _save()


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Iterator[None]:
    """Give a fixture that several tests share a context of its own."""
    if fixturedef.scope == "function":
        yield
    else:
        yield from _within(fixture_context(fixturedef.baseid, fixturedef.argname))


def _within(context: str) -> Iterator[None]:
    _contexts.append(context)
    _coverage.switch_context(context)
    yield
    _contexts.pop()
    _coverage.switch_context(_contexts[-1])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[None]:
    """Note how long a test took, without what it shares, and whether it passed."""
    outcome = yield
    report = outcome.get_result()
    info = getattr(item, "_fixtureinfo", None)
    definitions = info.name2fixturedefs.values() if info else ()
    shared = [fixture_context(d[-1].baseid, d[-1].argname) for d in definitions if d[-1].scope != "function"]
    test = _tests.setdefault(item.nodeid, {"seconds": 0.0, "passed": True, "fixtures": shared})
    test["seconds"] += report.duration if report.when == "call" else 0.0
    test["passed"] = test["passed"] and report.passed


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what this process has seen."""
    if _tests:
        _save()
        _coverage.stop()


def _save() -> None:
    _coverage.save()
    (FOLDER / f"tests.{os.getpid()}.json").write_text(json.dumps(_tests))
    _saved[0] = time.monotonic()
