"""One export to an OTLP collector over HTTP, within one deadline whatever the collector does."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from gateway.telemetry.otlp import AnswerMalformed, PartialSuccess, partial_success

TRACES_PATH = "/v1/traces"
HEADERS_BYTES_MAX = 16 * 1024
ANSWER_BYTES_MAX = 64 * 1024
ANSWER_LINES_MAX = 100
# OTLP names these statuses as retryable; the other statuses refuse the export.
RETRYABLE_STATUSES = frozenset((429, 502, 503, 504))
_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e]*)")


class ExportFailed(Exception):
    """The collector did not accept the export; the message says why. `retryable`: it may accept it later."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class Collector:
    """The address of a collector, and how to send to it. Each export opens a new connection: there is one export a
    second, and a half-dead connection is never reused."""

    def __init__(self, endpoint: str, headers_file: str, timeout_s: float) -> None:
        """`endpoint`: http or https; without a path, TRACES_PATH. `headers_file`: of `read_headers`, read for every
        export, so that a token may be rotated; "": none. `timeout_s`: of one export, from the name look-up to the end
        of the answer."""
        url = urlsplit(endpoint)
        assert url.hostname is not None, "the configuration was not checked"
        self.endpoint = endpoint
        self._host, self._netloc = url.hostname, url.netloc
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._path = TRACES_PATH if url.path in ("", "/") else url.path
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._headers_file = headers_file
        self._timeout_s = timeout_s

    async def send(self, body: bytes) -> PartialSuccess:
        """Raises ExportFailed."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._post(body)
        except TimeoutError:
            raise ExportFailed(f"it did not answer within {self._timeout_s:g} s", retryable=True) from None
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", None) or error.reason or str(error)
            raise ExportFailed(f"TLS failed: {reason}", retryable=True) from error
        except (OSError, EOFError) as error:
            number = getattr(error, "errno", None) or 0  # negative: of the name look-up
            reason = os.strerror(number) if number > 0 else str(error)
            raise ExportFailed(f"the connection failed: {reason}", retryable=True) from error
        except (ValueError, AnswerMalformed) as error:
            raise ExportFailed(f"it did not answer in HTTP and OTLP: {error}", retryable=False) from error

    async def _post(self, body: bytes) -> PartialSuccess:
        """Raises ExportFailed, OSError, EOFError, ValueError, AnswerMalformed."""
        head = self._head(len(body))
        reader, writer = await asyncio.open_connection(
            self._host, self._port, ssl=self._tls, server_hostname=self._host if self._tls else None
        )
        try:
            writer.write(head + body)
            await writer.drain()
            status, answer = await _read_answer(reader)
        finally:
            writer.transport.abort()
        if not 200 <= status <= 299:
            raise ExportFailed(f"it answered {status}", retryable=status in RETRYABLE_STATUSES)
        return partial_success(answer)

    def _head(self, length: int) -> bytes:
        """Raises ExportFailed if the file of headers cannot be used."""
        headers = {
            "Host": self._netloc,
            "User-Agent": "laneway",
            "Content-Type": "application/x-protobuf",
            "Content-Length": str(length),
            "Connection": "close",
        }
        if self._headers_file:
            try:
                headers |= read_headers(Path(self._headers_file))
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                raise ExportFailed(f"headers_file {self._headers_file}: {reason}", retryable=True) from error
        lines = [f"POST {self._path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        return "\r\n".join(lines).encode("ascii")


def read_headers(path: Path) -> dict[str, str]:
    """The header fields in a file, one `Name: value` a line; empty lines and lines that begin with # are skipped.
    Raises OSError, and ValueError without quoting the file, which has secrets."""
    with path.open("rb") as file:
        data = file.read(HEADERS_BYTES_MAX + 1)
    if len(data) > HEADERS_BYTES_MAX:
        raise ValueError(f"the file is over the limit of {HEADERS_BYTES_MAX} bytes")
    found: dict[str, str] = {}
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _FIELD.fullmatch(line.rstrip())
        if match is None:
            raise ValueError(f'line {number} is not "Name: value" in ASCII')
        found[match[1]] = match[2]
    return found


async def _read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body; b"" for a body in chunks. Raises EOFError, ValueError."""
    words = (await reader.readline()).split(maxsplit=2)
    if not words:
        raise EOFError("it closed without an answer")
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not (words[1].isdigit() and len(words[1]) == 3):
        raise ValueError("its first line is no status line")
    length: int | None = None
    is_chunked = False
    for _ in range(ANSWER_LINES_MAX):
        line = (await reader.readline()).strip()
        if not line:
            break
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length" and value.strip().isdigit():
            length = int(value)
        is_chunked |= name.lower() == b"transfer-encoding"
    else:
        raise ValueError(f"it sent over {ANSWER_LINES_MAX} header fields")
    if is_chunked:
        return int(words[1]), b""
    if (length or 0) > ANSWER_BYTES_MAX:
        raise ValueError(f"its answer is over {ANSWER_BYTES_MAX} bytes")
    if length is not None:
        return int(words[1]), await reader.readexactly(length)
    return int(words[1]), await reader.read(ANSWER_BYTES_MAX)
