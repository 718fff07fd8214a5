"""Writes FOCUS rows as CSV, JSONL and Parquet. Equal rows give equal bytes; amounts are exact.

Shared cells are rendered once; a row adds a few strings to a list (text) or a few numbers to arrays (Parquet).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import IO, Any, Protocol

from billing.exports.amounts import csv_cell, decimal_text, moment_text, pointed_text
from billing.exports.rows import COLUMNS, MOMENTS, MONEY, PRICES, QUANTITIES, VARYING, Row, SharedCells

# Version of the cells; raised when equal rows give other bytes. 2: Tags name the key and the project. 3: FOCUS's
# texts are ASCII, numbers in CSV have a point, and the original names are x_BillingAccountName and x_SubAccountName.
VERSION = 3
ROW_GROUP = 65_536  # rows of Parquet in memory at once


class Writer(Protocol):
    """`name`: all that the bytes depend on in addition to the rows, such as versions."""

    name: str

    def write(self, rows: Sequence[Row]) -> None: ...

    def close(self) -> None:
        """Write buffered rows to the file, which remains open."""


class MissingLibrary(Exception):
    """The format needs a library that is not installed."""


def make(format_: str, file: IO[bytes]) -> Writer:
    """A writer of csv, jsonl or parquet. Raises MissingLibrary."""
    if format_ == "parquet":
        return ParquetWriter(file)
    return TextWriter(file, jsonl=format_ == "jsonl")


def _text(name: str, value: Any) -> str | None:
    """A shared cell as text."""
    if value is None or isinstance(value, str):
        return value
    return moment_text(value) if name in MOMENTS else decimal_text(value)


class TextWriter:
    """CSV as in RFC 4180 with \\n, or a JSON object per line."""

    def __init__(self, file: IO[bytes], *, jsonl: bool) -> None:
        self.name = f"laneway {'jsonl' if jsonl else 'csv'} {VERSION}"
        self._file = file
        self._jsonl = jsonl
        self._moments: dict[int, str] = {}
        if not jsonl:
            file.write((",".join(COLUMNS) + "\n").encode())

    def write(self, rows: Sequence[Row]) -> None:
        """Write the rows with one join: a row's own cells alternate with the rendered text between them."""
        moments = self._moments
        number = decimal_text if self._jsonl else pointed_text
        point = "" if self._jsonl else ".0"
        pieces: list[str] = []
        for group, start, end, tokens, picos in rows:
            between = group.rendered
            if between is None:
                between = group.rendered = self._between(group, tokens is None)
            cost = number(picos)
            try:
                begin, finish = moments[start], moments[end]
            except KeyError:
                if len(moments) > 100_000:
                    moments.clear()
                begin, finish = moments.setdefault(start, moment_text(start)), moments.setdefault(end, moment_text(end))
            if tokens is None:
                first, second, third, fourth, fifth, sixth, last = between
                pieces += (first, cost, second, finish, third, begin, fourth, cost, fifth, cost, sixth, cost, last)
            else:
                first, second, third, fourth, fifth, sixth, seventh, eighth, last = between
                many = f"{tokens}{point}"
                pieces += (
                    first, cost, second, finish, third, begin, fourth, many, fifth, cost, sixth, cost, seventh, cost,
                    eighth, many, last,
                )  # fmt: skip
        self._file.write("".join(pieces).encode())

    def close(self) -> None:
        pass

    def _between(self, group: SharedCells, no_tokens: bool) -> tuple[str, ...]:
        """A row's text, cut at the cells of VARYING, in the order of COLUMNS."""
        parts = [""]
        for at, name in enumerate(COLUMNS):
            parts[-1] += ("{" if self._jsonl else "") if at == 0 else ","
            if self._jsonl:
                parts[-1] += f"{json.dumps(name)}:"
            if name not in VARYING or (no_tokens and name in QUANTITIES):
                parts[-1] += self._cell(name, group.cells[name])
                continue
            quote = '"' if self._jsonl and name in MOMENTS else ""
            parts[-1] += quote
            parts.append(quote)
        parts[-1] += "}\n" if self._jsonl else "\n"
        return tuple(parts)

    def _cell(self, name: str, cell: Any) -> str:
        text = _text(name, cell)
        if not self._jsonl:
            return pointed_text(cell) if name in PRICES and cell is not None else csv_cell(text)
        if text is None:
            return "null"
        return text if name in PRICES else json.dumps(text, ensure_ascii=False)


class ParquetWriter:
    """Amounts as decimal128(38, 12), tokens as decimal128(38, 0), moments as timestamps in UTC."""

    def __init__(self, file: IO[bytes]) -> None:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError as error:
            raise MissingLibrary("Parquet needs pyarrow: install laneway[exports]") from error
        self.name = f"laneway parquet {VERSION}, pyarrow {pyarrow.__version__}"
        self._arrow = pyarrow
        self._schema = pyarrow.schema([(name, self._type(name)) for name in COLUMNS])
        self._writer = parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._waiting: list[Row] = []

    def _type(self, name: str) -> Any:
        if name in MONEY or name in PRICES:
            return self._arrow.decimal128(38, 12)
        if name in QUANTITIES:
            return self._arrow.decimal128(38, 0)
        return self._arrow.timestamp("ms", "UTC") if name in MOMENTS else self._arrow.string()

    def write(self, rows: Sequence[Row]) -> None:
        self._waiting += rows
        while len(self._waiting) >= ROW_GROUP:
            self._flush(self._waiting[:ROW_GROUP])
            self._waiting = self._waiting[ROW_GROUP:]

    def close(self) -> None:
        if self._waiting:
            self._flush(self._waiting)
            self._waiting = []
        self._writer.close()

    def _flush(self, rows: list[Row]) -> None:
        import numpy

        groups: dict[int, int] = {}
        distinct: list[SharedCells] = []
        places = numpy.empty(len(rows), numpy.int32)
        for at, row in enumerate(rows):
            place = groups.get(id(row[0]))
            if place is None:
                place = groups[id(row[0])] = len(distinct)
                distinct.append(row[0])
            places[at] = place
        varying = {
            "ChargePeriodStart": self._moments([row[1] for row in rows]),
            "ChargePeriodEnd": self._moments([row[2] for row in rows]),
            **dict.fromkeys(QUANTITIES, self._decimals([row[3] for row in rows], 0)),
            **dict.fromkeys(MONEY, self._decimals([row[4] for row in rows], 12)),
        }
        taken = self._arrow.array(places)
        arrays = [
            varying[name]
            if name in VARYING
            else self._constant(name, [group.cells[name] for group in distinct]).take(taken)
            for name in COLUMNS
        ]
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema), row_group_size=ROW_GROUP)

    def _constant(self, name: str, cells: list[Any]) -> Any:
        if name in PRICES:
            return self._decimals(cells, 12)
        return self._moments(cells) if name in MOMENTS else self._arrow.array(cells, self._arrow.string())

    def _moments(self, micros: list[int]) -> Any:
        return self._arrow.array([value // 1000 for value in micros], self._arrow.timestamp("ms", "UTC"))

    def _decimals(self, numbers: list[int | None], scale: int) -> Any:
        """64-bit integers as decimal128: the lower half of 128 bits is the integer, the upper half its sign."""
        import numpy

        there = numpy.fromiter((number is not None for number in numbers), bool, len(numbers))
        halves = numpy.empty((len(numbers), 2), "<i8")
        halves[:, 0] = [number or 0 for number in numbers]
        halves[:, 1] = halves[:, 0] >> 63
        valid = None if there.all() else self._arrow.py_buffer(numpy.packbits(there, bitorder="little"))
        buffers = [valid, self._arrow.py_buffer(halves)]
        return self._arrow.Array.from_buffers(self._arrow.decimal128(38, scale), len(numbers), buffers)
