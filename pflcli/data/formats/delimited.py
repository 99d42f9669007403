"""CSV and TSV: pandas reads the values, and Python's csv module finds lines with errors."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

from pflcli.data.formats.tables import MISSING
from pflcli.errors import InputError, UsageError

_MAX_LINE_LENGTH = 2**24
"""Maximum number of characters of a line; a table with 100,000 columns needs a tenth of it."""


class Delimited:
    """A text file of records; the header is line 1, and blank lines are skipped."""

    def __init__(self, path: Path, delimiter: str | None, min_columns: int = 2) -> None:
        """Check every line of ``path``; the default ``delimiter`` is a comma, in TSV a tab.

        Raises InputError, with the line, if the file is not a table with at least ``min_columns`` columns, 1 or 2.
        """
        self.path = path
        self.name = path.name
        character = {"tab": "\t", "\\t": "\t"}.get(delimiter, delimiter) if delimiter else None
        if character is not None and (len(character) != 1 or character in '"\r\n'):
            raise UsageError(f"--delimiter '{delimiter}' is not one character", "--delimiter ';' or --delimiter tab")
        self.delimiter = character or ("\t" if path.suffix.lower() == ".tsv" else ",")
        self._newlines: str | tuple[str, ...] = ()
        self._records = self._count_records(min_columns)

    @cached_property
    def columns(self) -> list[str]:
        """The names in the first line, without spaces around them."""
        header = next(self._lines(), None)
        return [] if header is None else [cell.strip() for cell in header[1]]

    def _count_records(self, min_columns: int) -> int:
        """Return the number of records after the header; raises InputError if one has more or fewer cells than it."""
        with self.path.open("rb") as file:
            start = file.read(4096)
        if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise InputError(f"{self.name} is UTF-16, not UTF-8", f"iconv -f utf-16 -t utf-8 {self.path} > utf8.csv")
        if b"\0" in start:
            raise InputError(f"{self.name} is not text", "save it as CSV")
        width = len(self.columns)
        if not width:
            raise InputError(f"{self.name} is empty", "its first line must have the names of the columns")
        if width == 1:
            self._check_single_column(min_columns)
        records = 0
        for line, cells in itertools.islice(self._lines(), 1, None):
            if len(cells) != width:
                raise self._ragged_error(line, cells, width)
            records += 1
        if not records:
            raise InputError(f"{self.name} has column names but no samples")
        return records

    def _check_single_column(self, min_columns: int) -> None:
        """Raise InputError if the header contains another delimiter, or if one column is not enough."""
        header = self.columns[0]
        counts = {mark: header.count(mark) for mark in ",;\t|" if mark != self.delimiter}
        mark = max(counts, key=lambda mark: counts[mark])
        if counts[mark]:
            raise InputError(
                f"{self.name}, line 1: '{_show(self.delimiter)}' does not separate the columns of '{header[:40]}'",
                "--delimiter tab" if mark == "\t" else f"--delimiter '{mark}'",
            )
        if min_columns > 1:
            raise InputError(
                f"{self.name} has a single column, '{header[:40]}'", "clients, labels and features need more"
            )

    def _ragged_error(self, line: int, cells: list[str], width: int) -> InputError:
        hint = f"put a cell that contains '{_show(self.delimiter)}' in double quotes"
        if len(cells) > width and not cells[-1].strip():
            hint = f"does it end with an extra '{_show(self.delimiter)}'?"
        return InputError(f"{self._place_line(line)} has {len(cells)} cells where the header has {width}", hint)

    def _place_line(self, line: int) -> str:
        return f"{self.name}, line {line} (the header is line 1)"

    def _lines(self) -> Iterator[tuple[int, list[str]]]:
        """Yield each record and the line on which it begins, the header first."""
        line = 1
        try:
            with self.path.open(encoding="utf-8-sig", newline="") as file:
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
        """Yield the lines of a file; raises InputError for a line that is too long or has a zero byte."""
        for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_LENGTH), ""), 1):
            if len(line) == _MAX_LINE_LENGTH:
                raise InputError(
                    f"{self._place_line(number)} has more than {_MAX_LINE_LENGTH} characters", "is it a table?"
                )
            if "\0" in line:
                raise InputError(
                    f"{self._place_line(number)} has a zero byte, so the file is not text", "save it as CSV"
                )
            yield line

    def _encoding_error(self, error: UnicodeDecodeError) -> InputError:
        with self.path.open("rb") as file:
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
        missing: dict[Any, list[str]] = {at: list(MISSING) for at in others}
        with self.path.open(encoding="utf-8-sig", newline=None if has_carriage_returns else "") as file:
            frame: Any = pd.read_csv(
                file,
                sep=self.delimiter,
                header=0,
                names=list(range(len(self.columns))),
                usecols=[*texts, *others],
                dtype=dict.fromkeys(texts, str),
                na_values=missing,
                keep_default_na=False,
                index_col=False,
                low_memory=False,
            )
        if len(frame) != self._records:
            raise InputError(f"{self.name} cannot be read as CSV: {len(frame)} of {self._records} records were found")
        return {at: frame[at] for at in (*texts, *others)}

    def _record(self, row: int) -> tuple[int, list[str]]:
        return next(itertools.islice(self._lines(), row + 1, None))

    def place(self, row: int) -> str:
        """Return the line of the file on which a row begins, counted from 1."""
        return self._place_line(self._record(row)[0])

    def cell(self, row: int, column: int) -> str:
        """Return the text of a cell."""
        return self._record(row)[1][column]


def _show(delimiter: str) -> str:
    return "tab" if delimiter == "\t" else delimiter
