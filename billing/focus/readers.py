"""CSV, JSONL and Parquet as batches of columns: bounded memory, however large the file.

A cell is None (null), a string, or the text of a number as bytes; what is of another type is any other value.
"""

from __future__ import annotations

import csv
import datetime
import itertools
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

import msgspec

BATCH_ROWS = 8192
LINE_CHARS_MAX = 1 << 20  # of a JSONL line and of a CSV cell
COLUMNS_MAX = 1000
SUFFIXES = (".csv", ".jsonl", ".parquet")


class CannotRead(Exception):
    """The file is none of ours to judge: no such format, broken in the middle, or what reads it is not installed."""


class Misfit(msgspec.Struct, frozen=True):
    """A row that is not as the header says; its cells are in no batch."""

    row: int
    rule: str
    message: str


class Batch(msgspec.Struct, frozen=True):
    """Rows that follow each other, by column, in the file's order. `rows` are their numbers, from 1."""

    rows: list[int]
    columns: list[list[Any]]
    misfits: list[Misfit]


class Reader(msgspec.Struct, frozen=True):
    """`names` as the file has them, repeated ones too. `typed`: numbers and strings differ."""

    names: list[str]
    typed: bool
    batches: Iterator[Batch]


def open_file(path: Path, file: IO[bytes]) -> Reader:
    """By the end of the path's name. Raises CannotRead, now or from the batches."""
    if path.suffix == ".csv":
        return _csv(file)
    if path.suffix == ".jsonl":
        return _jsonl(file)
    if path.suffix == ".parquet":
        return _parquet(file)
    raise CannotRead(f"the name of the file ends in none of {', '.join(SUFFIXES)}")


# ---- CSV


# Two quotes that may be a whole cell: a quoted cell may have such a part too.
_EMPTY = re.compile(r'(?:^|,)""(?:,|\r|\n|$)')


class _Lines:
    """Lines of a CSV file. Notes whether the record that is being read may have a quoted empty cell: to the csv module
    it is the same as an empty one."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._record: list[str] = []

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        raw = self._file.readline(LINE_CHARS_MAX)
        if not raw:
            raise StopIteration
        if len(raw) >= LINE_CHARS_MAX:
            raise CannotRead(f"a line is longer than {LINE_CHARS_MAX} bytes")
        try:
            line = raw.decode()
        except UnicodeDecodeError as error:
            raise CannotRead(f"the file is not UTF-8: {error}") from error
        self._record.append(line)
        return line

    def take(self) -> str | None:
        """The text of the record just read, if it may have a quoted empty cell."""
        found = "".join(self._record) if any('""' in line and _EMPTY.search(line) for line in self._record) else None
        self._record.clear()
        return found


def _csv(file: IO[bytes]) -> Reader:
    if file.read(3) != b"\xef\xbb\xbf":  # a byte order mark, as spreadsheets write it
        file.seek(0)
    lines = _Lines(file)
    csv.field_size_limit(LINE_CHARS_MAX)
    records = csv.reader(lines, strict=True)
    try:
        names = next(records)
    except StopIteration:
        raise CannotRead("the file is empty") from None
    except csv.Error as error:
        raise CannotRead(f"the header is no CSV: {error}") from error
    if len(names) > COLUMNS_MAX:
        raise CannotRead(f"the file has more than {COLUMNS_MAX} columns")
    lines.take()
    return Reader(names, False, _csv_batches(records, lines, len(names)))


def _csv_batches(records: Iterator[list[str]], lines: _Lines, width: int) -> Iterator[Batch]:
    row = 0
    while True:
        numbers: list[int] = []
        cells: list[list[str | None]] = []
        misfits: list[Misfit] = []
        try:
            for record in itertools.islice(records, BATCH_ROWS):
                row += 1
                text = lines.take()
                if len(record) != width:
                    misfits.append(Misfit(row, "row-width", f"has {len(record)} cells, the header {width}"))
                    continue
                numbers.append(row)
                cells.append([cell or None for cell in record] if text is None else _quoted_empty(record, text))
        except csv.Error as error:
            raise CannotRead(f"row {row + 1} is no CSV: {error}") from error
        if not numbers and not misfits:
            return
        yield Batch(
            numbers, [list(column) for column in zip(*cells, strict=True)] or [[] for _ in range(width)], misfits
        )


def _quoted_empty(record: list[str], text: str) -> list[str | None]:
    """The record's cells: an empty one that is quoted is an empty string, and no null."""
    found: list[str | None] = []
    at = 0
    for cell in record:
        quoted = text[at : at + 1] == '"'
        if quoted:
            at += 1
            while text[at] != '"' or text[at + 1 : at + 2] == '"':
                at += 2 if text[at] == '"' else 1
            at += 1
        else:
            at += len(cell)
        at += 1  # the comma, or the end of the line
        found.append(cell if cell or quoted else None)
    return found


# ---- JSONL


def _jsonl(file: IO[bytes]) -> Reader:
    lines = iter(lambda: file.readline(LINE_CHARS_MAX), b"")
    first = next(lines, None)
    if first is None:
        return Reader([], True, iter(()))
    names = [name for name, _ in _object(first, 1)]
    if len(names) > COLUMNS_MAX:
        raise CannotRead(f"the first row has more than {COLUMNS_MAX} columns")
    return Reader(names, True, _jsonl_batches(itertools.chain([first], lines), names))


def _object(line: bytes, row: int) -> tuple[tuple[str, Any], ...]:
    if len(line) >= LINE_CHARS_MAX:
        raise CannotRead(f"row {row} is longer than {LINE_CHARS_MAX} bytes")
    try:
        found = _DECODER.decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise CannotRead(f"row {row} is no JSON: {error}") from error
    if not isinstance(found, tuple):
        raise CannotRead(f"row {row} is no JSON object")
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


# Numbers keep their text, objects their order and repeated keys.
_DECODER = json.JSONDecoder(
    parse_float=str.encode, parse_int=str.encode, parse_constant=_constant, object_pairs_hook=tuple
)


def _jsonl_batches(lines: Iterator[bytes], names: list[str]) -> Iterator[Batch]:
    row = 0
    expected = tuple(names)
    while True:
        numbers: list[int] = []
        cells: list[list[Any]] = []
        misfits: list[Misfit] = []
        for line in itertools.islice(lines, BATCH_ROWS):
            row += 1
            pairs = _object(line, row)
            if tuple(name for name, _ in pairs) != expected:
                by_name = dict(pairs)
                if len(by_name) != len(pairs) or set(by_name) != set(names):
                    differ = sorted(set(by_name) ^ set(names)) or ["a key twice"]
                    misfits.append(Misfit(row, "row-columns", f"has not the first row's columns: {', '.join(differ)}"))
                    continue
                pairs = tuple((name, by_name[name]) for name in names)
            numbers.append(row)
            cells.append([tuple(cell) if isinstance(cell, list) else cell for _, cell in pairs])
        if not numbers and not misfits:
            return
        yield Batch(numbers, [list(column) for column in zip(*cells, strict=True)] or [[] for _ in names], misfits)


# ---- Parquet


def _parquet(file: IO[bytes]) -> Reader:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise CannotRead("to read Parquet, pyarrow is needed: install laneway[exports]") from error
    try:
        found = parquet.ParquetFile(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise CannotRead(f"the file is no Parquet: {error}") from error
    names = list(found.schema_arrow.names)
    if len(names) > COLUMNS_MAX:
        raise CannotRead(f"the file has more than {COLUMNS_MAX} columns")
    return Reader(names, True, _parquet_batches(found, pyarrow.ArrowException))


def _parquet_batches(found: Any, broken: type[Exception]) -> Iterator[Batch]:
    row = 0
    try:
        for batch in found.iter_batches(BATCH_ROWS):
            rows = list(range(row + 1, row + 1 + batch.num_rows))
            row += batch.num_rows
            yield Batch(rows, [_cells(column) for column in batch.columns], [])
    except (broken, OSError) as error:
        raise CannotRead(f"the file breaks off after row {row}: {error}") from error


def _cells(column: Any) -> list[Any]:
    """Each distinct value becomes a cell once: making them is what takes time."""
    encoded = column.dictionary_encode() if not hasattr(column, "dictionary") else column
    values = [_cell(value) for value in encoded.dictionary.to_pylist()]
    return [None if index is None else values[index] for index in encoded.indices.to_pylist()]


def _cell(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None or value.microsecond:
            return value.isoformat()  # not in UTC, or finer than a second: not the format asked for
        return value.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float | Decimal):
        return (f"{value:f}" if isinstance(value, Decimal) else repr(value)).encode()
    return tuple(value) if isinstance(value, list) else value
