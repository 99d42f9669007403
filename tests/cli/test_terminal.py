"""Tables on terminals of several widths: names and numbers are not cut, and omitted columns are named."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys

import pytest

from pflcli.artifacts.kinds.evaluation import read
from pflcli.artifacts.reader import open_artifact
from pflcli.cli.console import Console
from pflcli.cli.layout import fit_table
from pflcli.commands.compare import compare
from pflcli.evaluation.presentation import tables

WIDTHS = (80, 100, 120, 160)

# All commands in one process: imports take most of the time.
_RUN = """
import fcntl, json, struct, sys, termios
from pflcli.__main__ import main
widths, lines = json.loads(sys.argv[1])
for width in widths:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    for line in lines:
        print("##", *line, flush=True)
        try:
            main(line)
        except SystemExit as end:
            assert not end.code, end.code
        sys.stderr.flush()
"""


def run_in_terminal(widths, lines):
    """Return the lines that a terminal shows of each command line, by its width."""
    parent_end, child_end = pty.openpty()
    env = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    words = json.dumps([widths, [[str(word) for word in line] for line in lines]])
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN, words],
        stdin=child_end,
        stdout=child_end,
        stderr=child_end,
        env={**env, "TERM": "xterm"},
    )
    os.close(child_end)
    output = b""
    while True:
        try:
            piece = os.read(parent_end, 65536)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        output += piece
    os.close(parent_end)
    assert process.wait() == 0, output.decode()
    parts = re.split(r"^## .*\n", output.decode().replace("\r\n", "\n"), flags=re.MULTILINE)[1:]
    shown = iter([part.splitlines() for part in parts])
    return {width: [next(shown) for _ in lines] for width in widths}


@pytest.fixture(scope="module")
def terminal_comparison(small, tmp_path_factory):
    out = tmp_path_factory.mktemp("terminal") / "c"
    words = {"model": "logistic", "rounds": 2}
    methods = ["fedavg", "local", "fedavg-plus", "fedavg-plus@with-a-long-name"]
    compare([small.p], out, methods=methods, seeds=(0, 1), settings=words, references=False)
    line = ["compare", small.p, "-o", out, "--seeds", "0,1", "--model", "logistic", "--rounds", "2"]
    return out / "comparison", [*line, "--methods", ",".join(methods)]


def assert_whole(lines, width, artifact, table):
    """Assert that each method stands there with numbers that are in the whole table, in its order."""
    rule = next(place for place, line in enumerate(lines) if line.startswith("──"))
    body = lines[rule + 1 : rule + 1 + len(table.rows)]
    left_out = next((line for line in lines if re.match(r"\d+ more column", line)), "0")
    for line, row in zip(body, table.rows, strict=True):
        cells = re.split(r"\s{2,}", line)
        assert cells[0] == row[0]
        assert len(cells) == len(row) - int(left_out.split()[0])
        remaining = iter(row)
        assert all(cell in remaining for cell in cells), (cells, row)
    text = " ".join(lines)
    assert (f"{artifact}/table.csv, or pfl show {artifact} --json" in text) == (left_out != "0")
    assert max(map(len, lines)) <= width or any(len(word) > width / 2 for word in text.split())
    assert "Personalization pays here" in text or "No gain was shown" in text or "is shown to be worse" in text


@pytest.fixture(scope="module")
def shown_by_width(small, terminal_comparison):
    """What terminals of all widths show of tables and lists."""
    comparison, again = terminal_comparison
    evaluation = ["evaluate", small.fedavg, small.knn, "-o", small.ev]
    lists = [["list", "methods"], ["list", "datasets"], ["list", "methods", "fedham"], ["list"]]
    return run_in_terminal(WIDTHS, [again, ["show", comparison], evaluation, ["show", small.ev], *lists])


@pytest.mark.parametrize("width", WIDTHS)
def test_tables_keep_names_and_numbers_whole(small, terminal_comparison, shown_by_width, width):
    comparison, _ = terminal_comparison
    outputs = shown_by_width[width]
    for part, artifact in zip(outputs[:4], (comparison, comparison, small.ev, small.ev), strict=True):
        opened = open_artifact(artifact)
        assert_whole(part, width, artifact, tables.build(read(opened), opened.kind))
    for part in outputs[4:]:
        assert max(map(len, part)) <= max(width, 120 if part is outputs[6] else 0)  # docstrings are 120 wide
    from pflcli.core import registry

    names = {line.split("  ")[0] for line in outputs[4]}
    assert {*registry.names("methods")} <= names


def test_wide_terminal_shows_more_than_a_narrow_one(shown_by_width):
    """Otherwise the sizes of the terminal had no effect."""
    narrow, wide = ([len(line) for line in shown_by_width[width][0] if line.startswith("──")] for width in (80, 160))
    assert max(narrow) <= 80 < max(wide)


HEADING = ["method", "accuracy %", "bottom decile %", "note"]
ROWS = [["fedavg-plus", "79.8 ± 0.6", "-", "two words"], ["local", "+1.0 [-1, +3]", "5.0", ""]]


def test_fit_table_drops_columns_in_the_given_order():
    previous = []
    for width in range(80, 0, -1):
        lines, left_out = fit_table(HEADING, ROWS, width, ["bottom decile %", "note"])
        assert left_out == ["bottom decile %", "note"][: len(left_out)]
        assert len(left_out) >= len(previous)
        previous = left_out
        text = "\n".join(lines)
        assert all(cell in text for cell in ("fedavg-plus", "79.8 ± 0.6", "+1.0 [-1, +3]"))
        if width >= 26:
            assert max(map(len, lines)) <= width
    assert previous == ["bottom decile %", "note"]


def test_fit_table_wraps_text_between_words():
    text = "a sentence of some length that is not to be cut anywhere but between words"
    lines, left_out = fit_table(["name", "summary"], [["knn-per", text]], 30)
    assert left_out == []
    assert max(map(len, lines)) <= 30
    assert " ".join(line[9:].strip() for line in lines[2:]) == text


def test_piped_table_is_complete(pfl, terminal_comparison):
    comparison, _ = terminal_comparison
    ran = pfl("show", comparison)
    table = tables.build(read(open_artifact(comparison)), "comparison")
    assert [line.split("\t") for line in ran.out.splitlines()] == [table.heading, *table.rows]
    assert "fedavg" in ran.err.splitlines()[0]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_progress_bar_keeps_its_numbers_when_the_note_is_long(monkeypatch, width):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    with Console().progress("compare", 100) as advance:
        advance(47, "seed 0, ditto, 47/60, loss 0.143, validation accuracy 0.860, personal accuracy 0.943")
    shown = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", stream.getvalue()).replace("\n", "\r").rstrip("\r").split("\r")[-1]
    assert re.match(r"compare [━╸╺]+  47/100 \d:\d\d:\d\d eta [-:\d]+ seed 0, .*…$", shown), shown
    assert len(shown) == width
