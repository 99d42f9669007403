"""Text tables, such as CSV and TSV: pandas reads the values, and Python's csv module finds lines with errors.

pandas alone would not do: it fills up a line that has too few cells, and takes comments of one character only.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import itertools
import lzma
import re
import shlex
import zipfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TextIO, cast

from pflcli.artifacts.codebook import NO_DIALECT, Dialect
from pflcli.core.errors import InputError, UsageError
from pflcli.core.foreign import require_room
from pflcli.core.wording import counted
from pflcli.data.formats import is_number
from pflcli.data.formats.cells import MISSING, list_missing

WHITESPACE = "whitespace"
"""The value of ``--delimiter`` for columns that any number of spaces and tabs separates."""
_OPENERS: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
COMPRESSED = (*_OPENERS, ".zip")
"""The suffixes of compressed text."""
_MAX_LINE_LENGTH = 2**24
"""Maximum number of characters of a line; a table with 100,000 columns needs a tenth of it."""
_MAX_EXAMINED = 1000
"""Records by which the header is judged."""
_MAX_HEADER_SHARE = 0.05
"""Maximum share of records that may repeat the header."""
_MIN_NUMBERED_NAMES = 8
"""Minimum number of increasing numbers that are taken as names of columns, such as wavelengths."""


def content_suffix(path: Path) -> str:
    """Return the suffix of a file without that of its compression, in lower case: ``.csv`` for ``a.csv.gz``."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in COMPRESSED else suffix


def read_text(path: Path) -> str:
    """Return the text of a compressed file; raises InputError if it is larger than memory, or its size, allows."""
    _require_room(path)
    with _open_bytes(path) as file:
        return file.read().decode("utf-8-sig")


def _require_room(path: Path) -> None:
    """Raise InputError as soon as compressed content is larger than memory, or its size in the file, allows."""
    total, stored = 0, path.stat().st_size
    with _open_bytes(path) as file:
        while piece := file.read(1 << 20):
            total += len(piece)
            require_room(path.name, total, stored)


def _open_bytes(path: Path) -> IO[bytes]:
    """Open the content of a file; raises InputError for a ZIP file with several files."""
    suffix = path.suffix.lower()
    if suffix in _OPENERS:
        return cast(IO[bytes], _OPENERS[suffix](path))
    if suffix != ".zip":
        return path.open("rb")
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX")]
        names = [name for name in names if not name.rpartition("/")[2].startswith(".")]
        if len(names) != 1:
            raise InputError(f"{path.name} contains {len(names)} files instead of one table", "unzip it first")
        return archive.open(names[0])  # the member keeps the file open


class Delimited:
    """A text file of records; blank lines are skipped, and so are comments and the lines before the header."""

    def __init__(self, path: Path, dialect: Dialect | None = None, min_columns: int = 2) -> None:
        """Check every line of ``path``; the default delimiter is a comma, in TSV a tab.

        Raises InputError, with the line, if the file is not a table with at least ``min_columns`` columns, 1 or 2.
        """
        self.path = path
        self.name = path.name
        self._dialect = dialect or NO_DIALECT
        self._has_header = not self._dialect.names if self._dialect.header is None else self._dialect.header
        given = self._dialect.delimiter
        character = {"tab": "\t", "\\t": "\t", WHITESPACE: " "}.get(given, given) if given else None
        if character is not None and (len(character) != 1 or character in '"\r\n'):
            raise UsageError(
                f"--delimiter '{given}' is not one character",
                f"--delimiter ';', --delimiter tab or --delimiter {WHITESPACE}",
            )
        self._newlines: str | tuple[str, ...] = ()
        if path.suffix.lower() in COMPRESSED:
            _require_room(path)
        self._declared = self._require_text()
        tabs = content_suffix(path) in (".tsv", ".tab")
        self.delimiter = character or self._declared or ("\t" if tabs else ",")
        self._records = self._count_records(min_columns)
        self._require_header()

    @cached_property
    def columns(self) -> list[str]:
        """The names in the first line without spaces around them, those of ``--names``, or numbers from 0."""
        header = next(self._lines(), None)
        if header is None:
            return []
        names = self._dialect.names
        if names and len(names) != len(header[1]):
            raise UsageError(
                f"--names has {len(names)} names; {self.name} has {len(header[1])} columns", "name every column once"
            )
        if names:
            return list(names)
        return [cell.strip() if self._has_header else str(at) for at, cell in enumerate(header[1])]

    @property
    def _header_count(self) -> int:
        """The number of records that are names of columns."""
        return int(self._has_header)

    def _require_text(self) -> str:
        """Return the delimiter in a first line such as ``sep=;``, which Excel reads; raises InputError for no text."""
        with _open_bytes(self.path) as file:
            start = file.read(4096)
        if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise InputError(f"{self.name} is UTF-16, not UTF-8", f"iconv -f utf-16 -t utf-8 {self.path} > utf8.csv")
        if b"\0" in start:
            raise InputError(f"{self.name} is not text", "save it as CSV")
        declared = re.match(rb"(?:\xef\xbb\xbf)?sep=([^\r\n])\r?\n", start)
        return "" if declared is None else declared[1].decode("latin-1")

    def _open_text(self, newline: str | None) -> TextIO:
        return io.TextIOWrapper(_open_bytes(self.path), encoding="utf-8-sig", newline=newline)

    def _count_records(self, min_columns: int) -> int:
        """Return the number of records after the header; raises InputError if one has more or fewer cells than it."""
        width = len(self.columns)
        if not width:
            raise InputError(f"{self.name} is empty", "its first line must have the names of the columns")
        if width == 1:
            self._check_single_column(min_columns)
        records = 0
        for line, cells in itertools.islice(self._lines(), self._header_count, None):
            if len(cells) != width:
                raise self._ragged_error(line, cells, width)
            records += 1
        if not records:
            raise InputError(f"{self.name} has column names but no samples")
        return records

    def _check_single_column(self, min_columns: int) -> None:
        """Raise InputError if the first lines are titles or contain another delimiter, or if one column is too few."""
        first_lines = list(itertools.islice(self._lines(), _MAX_EXAMINED))
        numbered = [(line, len(cells)) for line, cells in first_lines]
        # Decimal commas divide lines that another character separates: then that one occurs equally often in each.
        texts = [self.delimiter.join(cells) for _, cells in first_lines if cells]
        by_mark = [{text.count(mark) for text in texts} for mark in ";\t|" if mark != self.delimiter]
        is_separated = any(len(counts) == 1 and counts != {0} for counts in by_mark)
        titles = [] if is_separated else self._find_titles(numbered, 1)
        if titles:
            raise InputError(
                f"{self.name}, line {numbered[0][0]} has a single cell, '{self.columns[0][:40]}', and others have more",
                *titles,
            )
        lines = [(line, cells[0].strip()) for line, cells in itertools.islice(self._lines(), 50) if cells]
        header = lines[0][1]
        for first, text in (lines[0], lines[min(len(lines) - 1, 5)]):
            counts = {mark: text.count(mark) for mark in ",;\t|" if mark != self.delimiter}
            mark = max(counts, key=lambda mark: counts[mark])
            if not counts[mark]:
                continue
            are_aligned = mark == "\t" and any(cell != cell.strip() for cell in text.split(mark))
            option = f"--delimiter {WHITESPACE if are_aligned else 'tab'}" if mark == "\t" else f"--delimiter '{mark}'"
            skipped = next(line for line, other in lines if mark in other) - 1
            raise InputError(
                f"{self.name}, line {first}: '{_show(self.delimiter)}' does not separate the columns of '{text[:40]}'",
                option + (f" --skip-rows {skipped}" if mark not in header else ""),
            )
        widths = {len(text.split()) for _, text in lines}
        if len(widths) == 1 and widths != {1} and (min_columns > 1 or len(lines) > 1) and self.delimiter != " ":
            raise InputError(
                f"{self.name}, line {lines[0][0]}: '{_show(self.delimiter)}' does not separate the columns of "
                f"'{header[:40]}'",
                f"--delimiter {WHITESPACE}"
                + ("" if self._is_header(header.split(), [text.split() for _, text in lines[1:]]) else " --no-header"),
            )
        if min_columns > 1:
            raise InputError(
                f"{self.name} has a single column, '{header[:40]}'", "clients, labels and features need more"
            )

    def _ragged_error(self, line: int, cells: list[str], width: int) -> InputError:
        hint = f"put a cell that contains '{_show(self.delimiter)}' in double quotes"
        if len(cells) > width and not cells[-1].strip():
            hint = f"does it end with an extra '{_show(self.delimiter)}'?"
        numbered = [(line, len(each)) for line, each in self._lines()]
        last = numbered[-1][0]
        problem = f"{self._place_line(line)} has {len(cells)} cells where the header has {width}"
        if line == last and len(cells) < width and len(numbered) > 3:
            problem = f"{self.name}, line {line}, the last line, has only {counted(len(cells), 'cell')} of {width}"
            hint = f"if it is a footer: --skip-footer {1 + (self._dialect.skip_footer or 0)}"
        return InputError(problem, *self._find_titles(numbered, width), hint)

    def _find_titles(self, numbered: Sequence[tuple[int, int]], width: int) -> list[str]:
        """Return the option that skips lines before the header, if the records after them have more cells."""
        usual = Counter(cells for _, cells in numbered[: 2 * _MAX_EXAMINED]).most_common(1)[0][0]
        if width >= usual:
            return []
        first = next(line for line, cells in numbered if cells == usual)
        with self._open_text("") as file:
            above = [text.strip() for text in itertools.islice(self._read_lines(file), first - 1)]
        marks = {text[:1] for text in above if text}
        if len(marks) == 1 and not next(iter(marks)).isalnum() and marks != {'"'}:
            return [f"--comment {shlex.quote(marks.pop())}"]
        return [f"--skip-rows {first - 1}"]

    def _require_header(self) -> None:
        """Raise InputError if the first line looks like a sample instead of the names of columns."""
        if not self._has_header or self._dialect.header is not None:
            return
        records = [cells for _, cells in itertools.islice(self._lines(), _MAX_EXAMINED)]
        if not self._is_header(records[0], records[1:]):
            raise InputError(
                f"{self.name}: are the column names missing? Its first line has '{', '.join(self.columns)[:60]}'",
                "if it is a sample: --no-header, and columns are called 0, 1, ..., or --names NAME,NAME,...",
                "if it has the names of the columns: --header",
                *(["if no lines precede the names in this file: --skip-rows 0"] if self._dialect.skip_rows else []),
            )

    def _is_header(self, first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
        """Return whether the first record has names of columns, judged by the ``others``.

        A sample has numbers, or words that occur again in their columns. Increasing numbers, such as 0, 1, 2 or
        wavelengths, are names.
        """
        names = [cell.strip() for cell in first]
        missing = {*MISSING, *list_missing(self._dialect)}
        numbers = [float(name) for name in names if is_number(name)]
        is_increasing = all(low < high for low, high in itertools.pairwise(numbers))
        is_counting = is_increasing and numbers and numbers[-1] - numbers[0] == len(numbers) - 1
        is_counting = is_counting and (numbers[0] in (0, 1) or len(numbers) > 2)
        is_named_by_numbers = bool(is_counting) or (is_increasing and len(numbers) >= _MIN_NUMBERED_NAMES)
        same = [list(map(str.strip, cells)) == names for cells in others]
        if sum(same) <= _MAX_HEADER_SHARE * len(same):  # headers of files that were joined
            others = [cells for cells, is_same in zip(others, same, strict=True) if not is_same]
        others = [cells for cells in others if len(cells) == len(names)]
        found = 0 if is_named_by_numbers else len(numbers)
        repeated = [
            at
            for at, name in enumerate(names)
            if name and not is_number(name) and any(cells[at].strip() == name for cells in others)
        ]
        repeated_words = [at for at in repeated if names[at] not in missing]
        used = sum(bool(name) for name in names)
        if not used:
            return True
        is_sample = found + len(repeated) > used / 2 and found + len(repeated) > 1
        return not (is_sample or (found and repeated_words))

    def explain_missing(self, column: str) -> list[str]:
        """Return the option that may find a missing column: in a later line, as in a file with titles."""
        lines = itertools.islice(self._lines(), 1, 50)
        found = (
            next((line for line, cells in lines if column in map(str.strip, cells)), None) if self._has_header else None
        )
        return [] if found is None else [f"line {found} has it: --skip-rows {found - 1}"]

    def _place_line(self, line: int) -> str:
        header = (
            " (the header is line 1)" if self._has_header and not self._dialect.skip_rows and not self._declared else ""
        )
        return f"{self.name}, line {line}{header}"

    def _lines(self) -> Iterator[tuple[int, list[str]]]:
        """Yield each record and the line on which it begins, the header first."""
        line = 1
        try:
            with self._open_text("") as file:
                reader = csv.reader(self._read_lines(file), delimiter=self.delimiter, strict=True)
                for cells in reader:
                    # pandas also skips lines of spaces.
                    if cells and not (len(cells) == 1 and cells[0].isspace()):
                        yield line, cells
                    line = reader.line_num + 1
                self._newlines = file.newlines or ()
        except UnicodeDecodeError as error:
            raise self._encoding_error(error) from None
        except csv.Error as error:
            is_open = "end of data" in str(error) or "field limit" in str(error)
            problem = "a double quote is not closed" if is_open else str(error)
            raise InputError(
                f"{self._place_line(line)}: {problem}", 'write a double quote inside a cell twice: ""'
            ) from None

    def _read_lines(self, file: TextIO) -> Iterator[str]:
        """Yield the lines of a file, those that are skipped as blank lines.

        Raises InputError for a line that is too long or has a zero byte.
        """
        comment, is_quoted = self._dialect.comment, False
        lines = iter(lambda: file.readline(_MAX_LINE_LENGTH), "")
        for number, line in enumerate(_drop_footer(lines, self._dialect.skip_footer or 0), 1):
            if len(line) == _MAX_LINE_LENGTH:
                raise InputError(
                    f"{self._place_line(number)} has more than {_MAX_LINE_LENGTH} characters", "is it a table?"
                )
            if "\0" in line:
                raise InputError(
                    f"{self._place_line(number)} has a zero byte, so the file is not text", "save it as CSV"
                )
            if number <= (self._dialect.skip_rows or 0) or (number == 1 and self._declared):
                yield "\n"
                continue
            text = line
            if comment:
                text, is_quoted = _cut_comment(line, comment, is_quoted)
            yield _join_columns(text) if self._dialect.delimiter == WHITESPACE else text

    def _encoding_error(self, error: UnicodeDecodeError) -> InputError:
        with _open_bytes(self.path) as file:
            for line, content in enumerate(iter(lambda: file.readline(4 * _MAX_LINE_LENGTH), b""), 1):
                try:
                    content.decode("utf-8")
                except UnicodeDecodeError as found:
                    byte = content[found.start]
                    return InputError(
                        f"{self._place_line(line)}: byte {byte:#x} is not UTF-8",
                        f"iconv -f latin1 -t utf-8 {self.path} > utf8{self.path.suffix}",
                    )
        return InputError(f"{self.name} is not UTF-8: {error.reason}")

    def load(self, texts: Sequence[int], others: Sequence[int]) -> dict[int, Any]:
        """Return columns as pandas Series by position; see ``table.Table``."""
        import pandas as pd

        # pandas before 3 does not end a line at a carriage return before a space, so Python translates line ends.
        has_carriage_returns = "\r" in ([self._newlines] if isinstance(self._newlines, str) else self._newlines)
        as_text = (
            self._dialect.decimal or self._dialect.thousands or self._dialect.strip or self._dialect.na is not None
        )
        missing: dict[Any, list[str]] = {at: [] if as_text else list(MISSING) for at in others}
        with self._open_text(None if has_carriage_returns else "") as file:
            frame: Any = pd.read_csv(
                io.BytesIO("".join(self._read_lines(file)).encode()) if self._is_edited else file,
                sep=self.delimiter,
                header=0 if self._has_header else None,
                names=list(range(len(self.columns))),
                usecols=[*texts, *others],
                dtype=dict.fromkeys((*texts, *others) if as_text else texts, str),
                na_values=missing,
                keep_default_na=False,
                index_col=False,
                low_memory=False,
            )
        if len(frame) != self._records:
            raise InputError(f"{self.name} cannot be read as CSV: {len(frame)} of {self._records} records were found")
        return {at: frame[at] for at in (*texts, *others)}

    @property
    def _is_edited(self) -> bool:
        """Whether the lines to read differ from those in the file."""
        dialect = self._dialect
        return bool(
            self._declared
            or dialect.skip_rows
            or dialect.skip_footer
            or dialect.comment
            or dialect.delimiter == WHITESPACE
        )

    def _record(self, row: int) -> tuple[int, list[str]]:
        return next(itertools.islice(self._lines(), row + self._header_count, None))

    def place(self, row: int) -> str:
        """Return the line of the file on which a row begins, counted from 1."""
        return self._place_line(self._record(row)[0])

    def cell(self, row: int, column: int) -> str:
        """Return the text of a cell."""
        return self._record(row)[1][column]


def _show(delimiter: str) -> str:
    return "tab" if delimiter == "\t" else delimiter


def _drop_footer(lines: Iterator[str], count: int) -> Iterator[str]:
    """Yield lines but the last ``count`` that are not blank, and blank ones between and after them."""
    kept: deque[str] = deque()
    filled = 0
    for line in lines:
        kept.append(line)
        filled += not line.isspace()
        while filled > count:
            filled -= not kept[0].isspace()
            yield kept.popleft()


def _cut_comment(line: str, mark: str, is_quoted: bool) -> tuple[str, bool]:
    """Return the line without a comment, which may follow a record, and whether a quoted cell goes on after it."""
    at = 0
    while (at := line.find(mark, at)) >= 0:
        if not is_quoted ^ (line.count('"', 0, at) % 2 == 1):
            return line[:at].rstrip() + "\n", False
        at += len(mark)
    return line, is_quoted ^ (line.count('"') % 2 == 1)


def _join_columns(line: str) -> str:
    """Return a line in which one space separates columns that spaces and tabs separated."""
    cells = re.findall(r'"(?:[^"]|"")*"|[^ \t\r\n]+', line)
    return " ".join(cells) + "\n"
