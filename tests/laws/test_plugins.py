"""``pfl check`` refuses each wrong file, and passes each right file in ``plugins/right``.

A wrong file is wrong in one believable way. Those in the table ``plugins/wrong.toml`` are patches of right ones: each
has the file to change as its ``base``, a template or a right file; ``changes``, pairs of a text that occurs once in the
base and its replacement; the laws that it ``breaks`` or that it ``warns`` about; and ``options``. Those in
``plugins/wrong`` differ from right files in more lines. They say the same in their docstring: ``Breaks: LAW, LAW``,
``Warns: LAW``, ``Options: KEY=VALUE``. All names begin with the kind of the file.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from unittest import mock

import pytest

from pflcli.core import config, registry
from pflcli.plugins.checks.check import check
from pflcli.plugins.checks.laws import list_laws

PLUGINS = Path(__file__).parent / "plugins"
PATCHES = tomllib.loads((PLUGINS / "wrong.toml").read_text(encoding="utf-8"))
WRONG = sorted((PLUGINS / "wrong").glob("*.py"))
RIGHT = sorted((PLUGINS / "right").glob("*.py"))


def read_line(file: Path, name: str) -> list[str]:
    """Return the words after ``NAME:`` in the docstring of a file, separated by commas."""
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    found = re.search(rf"^{name}: (.+)$", docstring, re.MULTILINE)
    return [] if found is None else [word.strip() for word in found[1].split(",")]


def judge(file: Path, only: list[str], options: list[str]) -> dict[str, dict[str, str]]:
    """Return the reasons of the laws that a file breaks, and of those that warn, by name."""
    verdicts = [*check(str(file), options=config.parse_assignments(options), only=only)]
    return {
        result: {verdict.law.name: verdict.reason for verdict in verdicts if verdict.result == result}
        for result in ("failed", "warning")
    }


def require_exactly(file: Path, broken: list[str], doubtful: list[str], options: list[str]) -> dict[str, str]:
    """Require that a file breaks these laws and warns about those; return the reasons."""
    assert broken + doubtful, "no law is named"
    judged = judge(file, [*broken, *doubtful], options)
    assert (judged["failed"].keys(), judged["warning"].keys()) == (set(broken), set(doubtful)), judged
    return judged["failed"] | judged["warning"]


def write_patched(name: str, folder: Path) -> Path:
    """Write a file of the table into a folder; require that each old text occurs exactly once in its base."""
    patch = PATCHES[name]
    base = (registry.ROOT / "plugins" / "checks" if patch["base"].startswith("templates/") else PLUGINS) / patch["base"]
    text = base.read_text(encoding="utf-8")
    for old, _ in patch["changes"]:
        assert text.count(old) == 1, f"'{old}' occurs {text.count(old)} times in {base}"
    for old, new in patch["changes"]:
        text = text.replace(old, new)
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder / f"{name}.py"


@pytest.mark.parametrize("name", PATCHES)
def test_patched_file_fails_exactly_the_laws_that_the_table_names(name, tmp_path):
    patch = PATCHES[name]
    assert patch.keys() <= {"says", "base", "breaks", "warns", "options", "changes"}
    file = write_patched(name, tmp_path)
    require_exactly(file, patch.get("breaks", []), patch.get("warns", []), patch.get("options", []))


@pytest.mark.parametrize("file", WRONG, ids=lambda file: file.stem)
def test_wrong_plugin_fails_exactly_the_laws_that_its_docstring_names(file):
    require_exactly(file, *(read_line(file, name) for name in ("Breaks", "Warns", "Options")))


@pytest.mark.parametrize("file", RIGHT, ids=lambda file: file.stem)
def test_right_plugin_passes_every_law(file):
    judged = judge(file, [], read_line(file, "Options"))
    assert judged == {"failed": {}, "warning": {name: mock.ANY for name in read_line(file, "Warns")}}


def test_every_law_has_a_file_that_breaks_it():
    named = [law for patch in PATCHES.values() for kind in ("breaks", "warns") for law in patch.get(kind, [])]
    named += [law for file in WRONG for kind in ("Breaks", "Warns") for law in read_line(file, kind)]
    assert {law.name for group in registry.KINDS.values() for law in list_laws(group)} == set(named)


def test_a_broken_law_says_by_how_much(tmp_path):
    file = write_patched("method_absent_clients_change_no_other_draw", tmp_path)
    (reason,) = require_exactly(file, PATCHES[file.stem]["breaks"], [], []).values()
    assert re.search(r"client \d trains otherwise if others drop out \(\S+ differs by up to \d\.\de-\d\d\)", reason)


def test_a_method_whose_server_reads_numbers_of_samples_is_told_what_to_declare(tmp_path):
    (reason,) = require_exactly(
        write_patched("method_nova", tmp_path), ["differential-privacy-bounds-each-client"], [], []
    ).values()
    assert 'SENDS_MORE = "numbers of samples"' in reason


def test_the_order_of_names_in_a_state_does_not_matter(tmp_path):
    text = (PLUGINS / "right" / "method_fine_tunes.py").read_text(encoding="utf-8")
    parts = '"parts": {"z": torch.tensor(1e8), "y": torch.tensor(-1e8), "a": torch.tensor(1.0)}'
    for old, new in (
        ("import numpy as np", "import numpy as np\nimport torch"),
        ('{"global": run.initial_model()}', f'{{"global": run.initial_model(), {parts}}}'),
        (
            "start, t=t), start)}",
            'start, t=t, lr=0.1 + float(sum(state["parts"].values()))), start), "parts": state["parts"]}',
        ),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    file = tmp_path / "method_sums_in_order.py"
    file.write_text(text, encoding="utf-8")
    laws = ["a-resumed-run-gives-the-same-bytes", "another-process-gives-the-same-bytes"]
    assert judge(file, laws, []) == {"failed": {}, "warning": {}}
