"""Checks the input file of a batch line by line, in bounded memory, and orders its lines for the run.

A line's body is parsed when the line runs; a body that its endpoint refuses is an error of that line alone. Here the
line itself is checked: its JSON, its endpoint, its `custom_id` and the name of its model.
"""

from __future__ import annotations

import codecs
import hashlib
import re
import zlib
from collections.abc import Iterator, Mapping

import msgspec

LINES_MAX = 50_000
CUSTOM_ID_CHARS_MAX = 512
BLANK_LINES_MAX = 100_000  # of a file: a file of blank lines alone would occupy a thread for minutes
ERRORS_MAX = 100  # that a batch lists
BYTES_PER_TOKEN = 4  # of a body, in the estimate of enqueued tokens
# Lines are ordered so that prompts with a common beginning run one after another: by its first PREFIX_BYTES, then by
# checksums of its first CHECKED_BYTES, each a fifth longer than the one before. So each line shares with one of its
# neighbours at least five sixths of the longest beginning that it shares with any line.
PREFIX_BYTES = 192
CHECKED_BYTES = tuple(int(PREFIX_BYTES * 1.2**number) for number in range(1, 64))
METHOD = "POST"
FAULT_CHARS_MAX, PARAM_CHARS_MAX = 256, 128  # of a message and of a field's name, which can quote the line


class BatchError(msgspec.Struct, frozen=True):
    """Why a batch failed or ended early. `line`: from 1, in the input file; None: it concerns no line."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class InputLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of an input file."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _PromptFields(msgspec.Struct, frozen=True):
    """The fields of a body by which lines are ordered."""

    model: str
    tools: msgspec.Raw = msgspec.Raw(b"")
    system: msgspec.Raw = msgspec.Raw(b"")
    instructions: msgspec.Raw = msgspec.Raw(b"")
    messages: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")

    def order_key(self) -> bytes:
        """The key by which lines of one target are ordered, at most 444 bytes."""
        before = (self.tools, self.system or self.instructions)
        text = memoryview(b"".join([*before, self.messages or self.input or self.prompt]))
        parts, at, checksum = [bytes(text[:PREFIX_BYTES])], 0, 0
        for upto in CHECKED_BYTES:
            if upto > len(text):
                break
            checksum = zlib.crc32(text[at:upto], checksum)
            parts.append(checksum.to_bytes(4))
            at = upto
        return b"".join(parts)


class ValidLine(msgspec.Struct, frozen=True, gc=False):
    """`offset`: bytes of the file before the line; `length`: its bytes without its end. `order_key`: of its prompt."""

    line: int
    offset: int
    length: int
    model: str
    order_key: bytes


read_line = msgspec.json.Decoder(InputLine).decode
_read_fields = msgspec.json.Decoder(_PromptFields).decode
# The field at fault in a message of msgspec's about an object whose fields are not decoded further.
_FAULT = re.compile(r"(?:Object (?:missing required|contains unknown) field `|.* - at `\$\.)(.*)`", re.DOTALL)


class LineScanner:
    """Feed it the file's parts in order, then call `finish_scan`. It may be used in a thread, one call at a time."""

    def __init__(self, endpoint: str, line_bytes_max: int, lines_max: int = LINES_MAX) -> None:
        self._endpoint = endpoint
        self._lines_max = lines_max
        self._line_bytes_max = line_bytes_max
        self._rest = bytearray()  # of a line whose end has not arrived
        self._rest_offset = 0
        self._blank_lines = 0
        self._skipped = 0  # bytes of a line that is too long
        self._number = 0
        self._known: dict[bytes, int] = {}  # line by the digest of its custom_id
        self._names: dict[str, str] = {}
        self.lines: list[ValidLine] = []
        self.models: dict[str, int] = {}  # names, with the first line of each
        self.errors: list[BatchError] = []
        self.requests = 0  # lines that are not blank
        self.body_bytes = 0

    @property
    def has_failed(self) -> bool:
        """Whether the limit of errors or of lines is reached. The rest of the file is not read then."""
        has_lines = self.requests > self._lines_max or self._blank_lines > BLANK_LINES_MAX
        return has_lines or len(self.errors) >= ERRORS_MAX

    @property
    def enqueued_tokens(self) -> int:
        """The estimate of the tokens of all prompts."""
        return -(-self.body_bytes // BYTES_PER_TOKEN)

    def scan_part(self, data: bytes) -> None:
        """Check the lines that end in `data`."""
        if not self._number and not self._rest and not self._rest_offset and data.startswith(codecs.BOM_UTF8):
            data, self._rest_offset = data[len(codecs.BOM_UTF8) :], len(codecs.BOM_UTF8)
        *ended, rest = data.split(b"\n")
        for part in ended:
            if self.has_failed:
                return
            self._end_line(part)
        self._add_rest(rest)

    def finish_scan(self) -> None:
        """Check the last line, if it has no end, and the file as a whole."""
        if self._rest or self._skipped:
            self._end_line(b"")
        if not self.requests and not self.errors:
            self._add_error(BatchError("empty_file", "The input file has no request."))

    def _add_rest(self, rest: bytes) -> None:
        if self._skipped or len(self._rest) + len(rest) > self._line_bytes_max:
            self._skipped += len(self._rest) + len(rest)
            self._rest.clear()
        else:
            self._rest += rest

    def _end_line(self, part: bytes) -> None:
        self._number += 1
        self._add_rest(part)
        size = self._skipped or len(self._rest)
        offset, line = self._rest_offset, bytes(self._rest).rstrip()
        self._rest_offset += size + 1
        self._rest.clear()
        is_long, self._skipped = bool(self._skipped), 0
        if self.has_failed:
            return
        if not (line or is_long):
            self._blank_lines += 1
            if self._blank_lines > BLANK_LINES_MAX:
                self._refuse("too_many_blank_lines", f"The input file has over {BLANK_LINES_MAX} blank lines.")
            return
        self.requests += 1
        if is_long:
            message = f"The line has {size} bytes; the limit is {self._line_bytes_max}."
            self._refuse("line_too_long", message)
        elif self.requests > self._lines_max:
            self._refuse("too_many_lines", f"The input file has over {self._lines_max} requests.")
        else:
            self._check_line(line, offset)

    def _check_line(self, line: bytes, offset: int) -> None:
        within = ""
        try:
            found = read_line(line)
            within = "body"
            fields = _read_fields(found.body)
        except msgspec.ValidationError as error:
            fault = str(error)[:FAULT_CHARS_MAX]
            self._refuse("invalid_request_line", f"The line is no request: {fault}.", _path(str(error), within))
            return
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._refuse("invalid_json_line", f"The line is not valid JSON: {error}.")
            return
        if not 1 <= len(found.custom_id) <= CUSTOM_ID_CHARS_MAX:
            self._refuse("invalid_custom_id", f"'custom_id' has 1 to {CUSTOM_ID_CHARS_MAX} characters.", "custom_id")
        elif found.method != METHOD:
            self._refuse("invalid_method", f"'method' is {found.method[:16]!r}; it must be {METHOD!r}.", "method")
        elif found.url != self._endpoint:
            message = f"'url' is {found.url[:64]!r}; the endpoint of the batch is {self._endpoint!r}."
            self._refuse("mismatched_url", message, "url")
        elif (first := self._first_with(found.custom_id)) is not None:
            self._refuse("duplicate_custom_id", f"Line {first} has the same 'custom_id'.", "custom_id")
        else:
            self.models.setdefault(fields.model, self._number)
            name = self._names.setdefault(fields.model, fields.model)  # one text for all lines
            self.lines.append(ValidLine(self._number, offset, len(line), name, fields.order_key()))
            self.body_bytes += len(found.body)

    def _first_with(self, custom_id: str) -> int | None:
        digest = hashlib.blake2b(custom_id.encode(errors="surrogatepass"), digest_size=16).digest()
        first = self._known.setdefault(digest, self._number)
        return None if first == self._number else first

    def refuse_model(self, name: str, code: str, message: str) -> None:
        """The name is of no model that the caller may call, or that the endpoint serves."""
        self._add_error(BatchError(code, message, "body.model", self.models[name]))

    def _refuse(self, code: str, message: str, param: str | None = None) -> None:
        """Refuse the present line."""
        self._add_error(BatchError(code, message, param, self._number))

    def _add_error(self, error: BatchError) -> None:
        if len(self.errors) < ERRORS_MAX:
            self.errors.append(error)


def in_order(lines: list[ValidLine], targets: Mapping[str, str]) -> Iterator[tuple[ValidLine, str]]:
    """The lines in the order in which they run, each with its target: by target, then by the beginning of the prompt
    (`order_key`). `targets`: what the names of models stand for."""
    ordered = sorted(lines, key=lambda line: (targets[line.model], line.order_key, line.line))
    return ((line, targets[line.model]) for line in ordered)


def _path(message: str, within: str) -> str | None:
    """The field at fault, from a message of msgspec's about the field `within` of a line; "": about the line."""
    found = _FAULT.fullmatch(message)
    names = [name for name in (within, found[1] if found is not None else "") if name]
    return ".".join(names)[:PARAM_CHARS_MAX] or None
