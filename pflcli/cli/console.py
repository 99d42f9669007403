"""The only place that writes to a terminal: results to stdout, messages to stderr."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from pflcli.core import plugins
from pflcli.core.errors import PflError
from pflcli.core.reporter import SILENT, Advance, StderrReporter

if TYPE_CHECKING:
    from pflcli.artifacts.make import Outcome
    from pflcli.artifacts.reader import Artifact


class Console(StderrReporter):
    """Prints messages at the chosen level; the reporter of commands."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet = quiet
        self.verbose = verbose

    def say(self, text: str) -> None:
        """Print a line to stderr, unless quiet."""
        if not self.quiet:
            _print(sys.stderr, text)

    def detail(self, text: str) -> None:
        """Print a line to stderr if verbose."""
        if self.verbose:
            self.say(text)

    @contextmanager
    def progress(self, label: str, total: int, completed: int = 0) -> Iterator[Advance]:
        """Show progress on stderr, unless quiet."""
        show = SILENT.progress if self.quiet else super().progress
        with show(label, total, completed) as advance:
            yield advance

    def error(self, error: PflError) -> None:
        """Print an error, then what to type instead."""
        fail(error.message, *error.fix)


def fail(message: str, *fix: str) -> None:
    """Print an error to stderr, at every level."""
    lines = (f"pfl: {message}", *(f"     {line}" for line in fix if line))
    _print(sys.stderr, *(line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..." for line in lines))


_LONGEST = 2000
"""Characters after which a line of an error is truncated, because names in users' files may have any length."""
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, bidirectional marks and surrogates, which names in users' files may contain."""


def _visible(text: str) -> str:
    """Return a text with control characters escaped as in Python, such as \\x1b."""
    return _INVISIBLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _print(stream: TextIO, *lines: str) -> None:
    """Print lines. If stderr is closed, messages are dropped; if stdout is closed, BrokenPipeError is raised."""
    try:
        print(*map(_visible, lines), sep="\n", file=stream, flush=stream is sys.stderr)
    except BrokenPipeError:
        if stream is not sys.stderr:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def result(outcome: Outcome, *, as_json: bool) -> None:
    """Print a step's result to stdout: the artifact's path, or one JSON object."""
    if as_json:
        facts = {
            "path": str(outcome.path),
            "kind": outcome.kind,
            "decision": str(outcome.decision),
            "fingerprint": outcome.fingerprint,
            "request": outcome.request,
            "summary": outcome.summary,
        }
        print(json.dumps(facts))
    else:
        print(outcome.path)


def data(value: Any) -> None:
    """Print one JSON value to stdout."""
    print(json.dumps(value, indent=2))


def table(
    heading: Sequence[str],
    rows: Sequence[Sequence[str]],
    gives_way: Sequence[str] = (),
    *,
    where: str = "",
    to_stderr: bool = False,
) -> None:
    """Print a table: fitted to the terminal, or complete and tab-separated if the stream is not a terminal.

    On a narrow terminal the columns ``gives_way`` are omitted in this order; ``where`` says where to see them.
    """
    stream = sys.stderr if to_stderr else sys.stdout
    if not stream.isatty():
        for row in [heading, *rows]:
            _print(stream, "\t".join(cell.replace("\t", " ").replace("\n", "\\n") for cell in row))
        return
    from pflcli.cli.layout import fit_table

    printable = [[_visible(cell).replace("\n", "\\n") for cell in row] for row in rows]
    lines, left_out = fit_table(heading, printable, _width(stream), gives_way)
    _print(stream, *lines)
    if left_out:
        columns = f"{len(left_out)} more column{'s' if len(left_out) > 1 else ''}"
        note = f"{columns} ({', '.join(left_out)}){': ' + where if where else ''}"
        sentence(note, stream)


def scores(artifact: Artifact, *, to_stderr: bool) -> None:
    """Print the table of an evaluation or a comparison, and its conclusion and notes on stderr."""
    from pflcli.artifacts.kinds.evaluation import read
    from pflcli.evaluation.presentation import conclusion, further_tables, notes, tables

    metrics = read(artifact)
    where = f"{artifact.path / 'table.csv'}, or pfl show {artifact.path} --json"
    table(*tables.build(metrics, artifact.kind), where=where, to_stderr=to_stderr)
    for title, further, name in further_tables.list_tables(metrics):
        _print(sys.stderr if to_stderr else sys.stdout, "", title)
        table(*further, where=str(artifact.path / name), to_stderr=to_stderr)
    for line in [*conclusion.Conclusion.read(metrics).sentences, *notes.list_notes(metrics)]:
        sentence(line)


def artifact(item: Artifact, *, to_stderr: bool) -> bool:
    """Print the table of an artifact; return whether artifacts of its kind have one."""
    prints = {"evaluation": scores, "comparison": scores, "tuning": trials}
    show = prints.get(item.kind) or plugins.load("KINDS", item.kind, "print")
    if show is not None:
        show(item, to_stderr=to_stderr)
    return show is not None


def trials(artifact: Artifact, *, to_stderr: bool) -> None:
    """Print the trials of a tuning, the best one first."""
    from pflcli.artifacts.kinds import tuning
    from pflcli.evaluation.presentation import notes
    from pflcli.workflow.tuning.trials import readable

    record = tuning.read(artifact)
    table(*readable(record), to_stderr=to_stderr)
    values = record["trials"][record["best"] - 1]["values"]
    for key, side in record.get("borders", {}).items():
        sentence(notes.describe_border(key, values[key], side))


def sentence(text: str, stream: TextIO | None = None) -> None:
    """Print a sentence, by default to stderr, wrapped between words on a terminal."""
    stream = stream or sys.stderr
    wide = max(_width(stream), 40)
    lines = textwrap.wrap(text, wide, break_on_hyphens=False, break_long_words=False) if stream.isatty() else [text]
    _print(stream, *lines)


def _width(stream: TextIO) -> int:
    """Return the number of columns of a terminal; the variable COLUMNS overrides it, as in shells."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80


def lines(texts: Sequence[str]) -> None:
    """Print lines to stdout."""
    _print(sys.stdout, *texts)


def content(text: bytes) -> None:
    """Write the bytes of a text file to stdout; on a terminal, control characters are escaped as in Python."""
    if sys.stdout.isatty():
        _print(sys.stdout, *text.decode().splitlines())
    else:
        sys.stdout.write(text.decode())


def facts(values: Mapping[str, Any], indent: str = "") -> None:
    """Print nested facts to stdout, one line per fact."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            _print(sys.stdout, f"{indent}{key}")
            facts(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for item in value:
                _print(sys.stdout, f"{indent}{key}")
                facts(item, indent + "  ")
        else:
            _print(sys.stdout, f"{indent}{key}: {json.dumps(value) if not isinstance(value, str) else value}")
