"""Reads CSV, JSONL and Parquet as batches of columns, in bounded memory.

A cell is None (null), a string, the text of a number as bytes, or a value of another type.
"""

from __future__ import annotations

import csv
import datetime
import io
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

import msgspec

BATCH_ROWS = 512  # about a MB of cells: batches larger than the processor's cache take twice as long
PARQUET_BATCH_ROWS = 8192  # more than BATCH_ROWS, since few cells are distinct and each batch has a fixed cost
LINE_CHARS_MAX = 1 << 20  # of a JSONL line and of a CSV cell
BLOCK_BYTES = LINE_CHARS_MAX // 4  # of CSV; less than LINE_CHARS_MAX, so that a longer line is detected
COLUMNS_MAX = 1000
SUFFIXES = (".csv", ".jsonl", ".parquet")


class UnreadableFile(Exception):
    """The file cannot be checked: its format is unknown or broken, or the format's library is not installed."""


class MalformedRow(msgspec.Struct, frozen=True):
    """A row that does not match the header. Its cells are in no batch."""

    row: int
    rule: str
    message: str


class Batch(msgspec.Struct, frozen=True):
    """Consecutive rows by column, in the file's order. `rows`: their numbers from 1. `distinct`: the distinct cells of
    each column. Columns with equal cells may be the same list."""

    rows: list[int]
    columns: list[list[Any]]
    misfits: list[MalformedRow]
    distinct: list[set[Any]]


def _batch(rows: list[int], columns: Iterable[Sequence[Any]], misfits: list[MalformedRow]) -> Batch:
    """A batch in which equal columns, such as the costs of a provider without discounts, are the same list."""
    lists: list[list[Any]] = []
    distinct: list[set[Any]] = []
    seen: dict[tuple[Any, Any, int], int] = {}
    for at, column in enumerate(columns):
        cells, once = _column(column)
        same = seen.setdefault((cells[0], cells[-1], len(once)), at) if cells else at
        if same != at and lists[same] == cells:
            cells, once = lists[same], distinct[same]
        lists.append(cells)
        distinct.append(once)
    return Batch(rows, lists, misfits, distinct)


def _column(cells: Sequence[Any]) -> tuple[list[Any], set[Any]]:
    """A column and its distinct cells. Arrays become tuples, also inside cells, so that cells are hashable."""
    try:
        once = set(cells)
    except TypeError:
        cells = [_tuples(cell) for cell in cells]
        once = set(cells)
    return list(cells), once


def _tuples(cell: Any) -> Any:
    return tuple([_tuples(one) for one in cell]) if isinstance(cell, list | tuple) else cell


class Reader(msgspec.Struct, frozen=True):
    """`names`: the file's column names, repeated names included. `typed`: the format distinguishes numbers from
    strings."""

    names: list[str]
    typed: bool
    batches: Iterator[Batch]


def open_file(path: Path, file: IO[bytes]) -> Reader:
    """The reader for the suffix of `path`. This function and the reader's batches raise UnreadableFile."""
    if path.suffix == ".csv":
        return _csv(file)
    if path.suffix == ".jsonl":
        return _jsonl(file)
    if path.suffix == ".parquet":
        return _parquet(file)
    raise UnreadableFile(f"the name of the file ends in none of {', '.join(SUFFIXES)}")


# ---- CSV


EMPTY = ""
_QUOTED = object()  # in place of a quoted empty cell, which is an empty string and not null

# Text around a quoted empty cell. A longer quoted cell may contain this text too.
_EMPTY = (',"",', ',""\n', ',""\r', '\n""')


def _may_be_empty(text: str) -> bool:
    """Whether the text, of one or many records, may have a quoted empty cell."""
    return text.startswith('""') or text.endswith(',""') or any(part in text for part in _EMPTY)


class _Lines:
    """Lines of a CSV file, read in blocks and buffered until `take_lines`: the csv module does not distinguish a quoted
    empty cell from an empty cell, so the lines are needed again."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._kept: list[str] = []

    def __iter__(self) -> Iterator[str]:
        while lines := self._block():
            self._kept += lines
            yield from lines

    def _block(self) -> list[str]:
        block, rest = self._file.read(BLOCK_BYTES), self._file.readline(LINE_CHARS_MAX)
        if len(block) - (block.rfind(b"\n") + 1) + len(rest) >= LINE_CHARS_MAX:
            raise UnreadableFile(f"a line is longer than {LINE_CHARS_MAX} bytes")
        try:
            text = (block + rest).decode()
        except UnicodeDecodeError as error:
            raise UnreadableFile(f"the file is not UTF-8: {error}") from error
        return io.StringIO(text, newline="\n").readlines()  # splits at \n only, as for bytes

    def take_lines(self, count: int) -> list[str]:
        """Take the next `count` lines from the buffer."""
        taken, self._kept = self._kept[:count], self._kept[count:]
        return taken


def _csv(file: IO[bytes]) -> Reader:
    if file.read(3) != b"\xef\xbb\xbf":  # a byte order mark, which spreadsheets write, is skipped
        file.seek(0)
    lines = _Lines(file)
    csv.field_size_limit(LINE_CHARS_MAX)
    records = csv.reader(lines, strict=True)
    try:
        names = next(records)
    except StopIteration:
        raise UnreadableFile("the file is empty") from None
    except csv.Error as error:
        raise UnreadableFile(f"the header is no CSV: {error}") from error
    if len(names) > COLUMNS_MAX:
        raise UnreadableFile(f"the file has more than {COLUMNS_MAX} columns")
    lines.take_lines(records.line_num)
    return Reader(names, False, _csv_batches(records, lines, len(names)))


def _csv_batches(records: Any, lines: _Lines, width: int) -> Iterator[Batch]:
    row, taken = 0, records.line_num
    while True:
        found: list[list[Any]] = []
        try:
            found.extend(itertools.islice(records, BATCH_ROWS))
        except csv.Error as error:
            raise UnreadableFile(f"row {row + len(found) + 1} is no CSV: {error}") from error
        if not found:
            return
        text = lines.take_lines(records.line_num - taken)
        taken = records.line_num
        quoted = _may_be_empty("".join(text))
        if quoted:
            found = _with_quoted(text)
        numbers = list(range(row + 1, row + 1 + len(found)))
        row += len(found)
        misfits: list[MalformedRow] = []
        if set(map(len, found)) != {width}:
            rows = list(zip(numbers, found, strict=True))
            numbers = [number for number, record in rows if len(record) == width]
            found = [record for record in found if len(record) == width]
            misfits = [
                MalformedRow(number, "row-width", f"has {len(record)} cells, the header {width}")
                for number, record in rows
                if len(record) != width
            ]
        columns = [_nulls(column, quoted) for column in zip(*found, strict=True)]
        yield _batch(numbers, columns or [[]] * width, misfits)


def _nulls(column: tuple[Any, ...], quoted: bool) -> Sequence[Any]:
    """The column with null for empty cells, and EMPTY for quoted empty cells."""
    if quoted:
        return [EMPTY if cell is _QUOTED else cell or None for cell in column]
    return [cell or None for cell in column] if "" in column else column


def _with_quoted(lines: list[str]) -> list[list[Any]]:
    """The lines' records, with _QUOTED for quoted empty cells."""
    found: list[list[Any]] = []
    records, taken = csv.reader(lines, strict=True), 0
    for record in records:
        text = "".join(lines[taken : records.line_num])
        taken = records.line_num
        found.append(_quoted_empty(record, text) if _may_be_empty(text) else record)
    return found


def _quoted_empty(record: list[str], text: str) -> list[Any]:
    """The record's cells, with _QUOTED for quoted empty cells."""
    found: list[Any] = []
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
        found.append(_QUOTED if quoted and not cell else cell)
    return found


# ---- JSONL


def _jsonl(file: IO[bytes]) -> Reader:
    lines = iter(lambda: file.readline(LINE_CHARS_MAX), b"")
    first = next(lines, None)
    if first is None:
        return Reader([], True, iter(()))
    names = [name for name, _ in _object(first, 1)]
    if len(names) > COLUMNS_MAX:
        raise UnreadableFile(f"the first row has more than {COLUMNS_MAX} columns")
    return Reader(names, True, _jsonl_batches(itertools.chain([first], lines), names))


def _object(line: bytes, row: int) -> tuple[tuple[str, Any], ...]:
    if len(line) >= LINE_CHARS_MAX:
        raise UnreadableFile(f"row {row} is longer than {LINE_CHARS_MAX} bytes")
    try:
        found = _DECODER.decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise UnreadableFile(f"row {row} is no JSON: {error}") from error
    if not isinstance(found, tuple):
        raise UnreadableFile(f"row {row} is no JSON object")
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


# Numbers become their text; objects become pairs in order, with repeated keys.
_DECODER = json.JSONDecoder(
    parse_float=str.encode, parse_int=str.encode, parse_constant=_constant, object_pairs_hook=tuple
)


def _jsonl_batches(lines: Iterator[bytes], names: list[str]) -> Iterator[Batch]:
    row = 0
    expected = tuple(names)
    while True:
        numbers: list[int] = []
        cells: list[tuple[Any, ...]] = []
        misfits: list[MalformedRow] = []
        for line in itertools.islice(lines, BATCH_ROWS):
            row += 1
            pairs = _object(line, row)
            found, values = zip(*pairs, strict=True) if pairs else ((), ())
            if found != expected:
                by_name = dict(pairs)
                if len(by_name) != len(pairs) or set(by_name) != set(names):
                    differ = sorted(set(by_name) ^ set(names)) or ["a key twice"]
                    misfits.append(
                        MalformedRow(row, "row-columns", f"has not the first row's columns: {', '.join(differ)}")
                    )
                    continue
                values = tuple([by_name[name] for name in names])
            numbers.append(row)
            cells.append(values)
        if not numbers and not misfits:
            return
        yield _batch(numbers, list(zip(*cells, strict=True)) or [[]] * len(names), misfits)


# ---- Parquet


def _parquet(file: IO[bytes]) -> Reader:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise UnreadableFile("to read Parquet, pyarrow is needed: install laneway[exports]") from error
    try:
        found = parquet.ParquetFile(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise UnreadableFile(f"the file is no Parquet: {error}") from error
    names = list(found.schema_arrow.names)
    if len(names) > COLUMNS_MAX:
        raise UnreadableFile(f"the file has more than {COLUMNS_MAX} columns")
    return Reader(names, True, _parquet_batches(found, pyarrow.ArrowException))


def _parquet_batches(found: Any, broken: type[Exception]) -> Iterator[Batch]:
    row = 0
    try:
        for batch in found.iter_batches(PARQUET_BATCH_ROWS):
            rows = list(range(row + 1, row + 1 + batch.num_rows))
            row += batch.num_rows
            yield _batch(rows, [_cells(column) for column in batch.columns], [])
    except (broken, OSError) as error:
        raise UnreadableFile(f"the file breaks off after row {row}: {error}") from error


def _cells(column: Any) -> list[Any]:
    """Convert each distinct value to a cell once, since conversion takes most of the time."""
    encoded = column.dictionary_encode() if not hasattr(column, "dictionary") else column
    values = [_cell(value) for value in encoded.dictionary.to_pylist()]
    return [None if index is None else values[index] for index in encoded.indices.to_pylist()]


def _cell(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None or value.microsecond:
            return value.isoformat()  # without a zone, or finer than a second: not FOCUS's format
        return value.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float | Decimal):
        return (f"{value:f}" if isinstance(value, Decimal) else repr(value)).encode()
    return tuple(value) if isinstance(value, list) else value
