"""CSV and TSV: pandas reads the values, and Python's csv module finds lines with errors."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

from pflcli.data.formats.table import MISSING
from pflcli.errors import InputError, UsageError

_LONGEST = 2**24
"""Maximum number of characters of a line: a table with 100,000 columns has a tenth of it."""


class Delimited:
    """A text file of records; the header is line 1, and blank lines are skipped."""

    def __init__(self, path: Path, delimiter: str | None, fewest: int = 2) -> None:
        """Check every line of ``path``; the default ``delimiter`` is a comma, in TSV a tab.

        Raises InputError for fewer than ``fewest`` columns, 2 or 1.
        """
        self.path = path
        self._fewest = fewest
        self.name = path.name
        character = {"tab": "\t", "\\t": "\t"}.get(delimiter, delimiter) if delimiter else None
        if character is not None and (len(character) != 1 or character in '"\r\n'):
            raise UsageError(f"--delimiter '{delimiter}' is not one character", "--delimiter ';' or --delimiter tab")
        self.delimiter = character or ("\t" if path.suffix.lower() == ".tsv" else ",")
        self._newlines: str | tuple[str, ...] = ()
        self._records = self._count_records()

    @cached_property
    def columns(self) -> list[str]:
        """The names in the first line, without spaces around them."""
        header = next(self._lines(), None)
        return [] if header is None else [cell.strip() for cell in header[1]]

    def _count_records(self) -> int:
        """Return the number of records after the header; raises InputError for a line of another width."""
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
            self._require_columns()
        records = 0
        for line, cells in itertools.islice(self._lines(), 1, None):
            if len(cells) != width:
                raise self._ragged_error(line, cells, width)
            records += 1
        if not records:
            raise InputError(f"{self.name} has column names but no samples")
        return records

    def _require_columns(self) -> None:
        header = self.columns[0]
        counts = {mark: header.count(mark) for mark in ",;\t|" if mark != self.delimiter}
        mark = max(counts, key=lambda mark: counts[mark])
        if counts[mark]:
            typed = "tab" if mark == "\t" else f"'{mark}'"
            raise InputError(
                f"{self.name}, line 1: '{self._word(self.delimiter)}' does not separate the columns of '{header[:40]}'",
                f"--delimiter {typed}",
            )
        if self._fewest > 1:
            raise InputError(
                f"{self.name} has a single column, '{header[:40]}'", "clients, labels and features need more"
            )

    def _word(self, mark: str) -> str:
        return "tab" if mark == "\t" else mark

    def _ragged_error(self, line: int, cells: list[str], width: int) -> InputError:
        many = len(cells) > width
        hint = f"does it end with an extra '{self._word(self.delimiter)}'?" if many and not cells[-1].strip() else ""
        return InputError(
            f"{self._at(line)} has {len(cells)} cells where the header has {width}",
            hint or f"put a cell that contains '{self._word(self.delimiter)}' in double quotes",
        )

    def _at(self, line: int) -> str:
        return f"{self.name}, line {line} (the header is line 1)"

    def _lines(self) -> Iterator[tuple[int, list[str]]]:
        """Yield each record and the line on which it begins, the header first."""
        line = 1
        try:
            with self.path.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.reader(self._read_lines(file), delimiter=self.delimiter, strict=True)
                for cells in reader:
                    # Like pandas, take a line of spaces as blank.
                    if cells and not (len(cells) == 1 and cells[0].isspace()):
                        yield line, cells
                    line = reader.line_num + 1
                self._newlines = file.newlines or ()
        except UnicodeDecodeError as error:
            raise self._encoding_error(error) from None
        except csv.Error as error:
            problem = "a double quote is not closed" if _is_open(error) else str(error)
            raise InputError(f"{self._at(line)}: {problem}", 'write a double quote inside a cell twice: ""') from None

    def _read_lines(self, file: TextIO) -> Iterator[str]:
        """Yield the lines of a file; raises InputError for a line that is too long or has a zero byte."""
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST), ""), 1):
            if len(line) == _LONGEST:
                raise InputError(f"{self._at(number)} has more than {_LONGEST} characters", "is it a table?")
            if "\0" in line:
                raise InputError(f"{self._at(number)} has a zero byte, so the file is not text", "save it as CSV")
            yield line

    def _encoding_error(self, error: UnicodeDecodeError) -> InputError:
        with self.path.open("rb") as file:
            for line, content in enumerate(iter(lambda: file.readline(4 * _LONGEST), b""), 1):
                try:
                    content.decode("utf-8")
                except UnicodeDecodeError as found:
                    byte = content[found.start]
                    return InputError(
                        f"{self._at(line)}: byte {byte:#x} is not UTF-8",
                        f"iconv -f latin1 -t utf-8 {self.path} > utf8{self.path.suffix}",
                    )
        return InputError(f"{self.name} is not UTF-8: {error.reason}")

    def load(self, texts: Sequence[int], others: Sequence[int]) -> dict[int, Any]:
        """Return columns as pandas Series by position; see ``table.Table``."""
        import pandas as pd

        # pandas before 3 does not end at a carriage return before a space.
        old = "\r" in ([self._newlines] if isinstance(self._newlines, str) else self._newlines)
        marks: dict[Any, list[str]] = {at: list(MISSING) for at in others}
        with self.path.open(encoding="utf-8-sig", newline=None if old else "") as file:
            frame: Any = pd.read_csv(
                file,
                sep=self.delimiter,
                header=0,
                names=list(range(len(self.columns))),
                usecols=[*texts, *others],
                dtype=dict.fromkeys(texts, str),
                na_values=marks,
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
        return self._at(self._record(row)[0])

    def cell(self, row: int, column: int) -> str:
        """Return the text of a cell."""
        return self._record(row)[1][column]


def _is_open(error: csv.Error) -> bool:
    return "end of data" in str(error) or "field limit" in str(error)
