"""GET requests to the Kubernetes API server, with the service account of this pod.

Token and CA are read again for each connection, because the kubelet rotates them. A watch is one answer whose lines
arrive over minutes.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import httptools

from gateway.config.file import ConfigError

ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CONNECT_S = 10.0
READ_BYTES = 64 * 1024
# The limit of a line of a watch, and of a whole list: an EndpointSlice has at most 1,000 endpoints, less than 1 KiB
# each.
LINE_BYTES_MAX = 16 * 1024 * 1024


class ApiUnavailable(Exception):
    """The API server did not answer, or not with a success. `status`: HTTP's, 0 without an answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class PodAccount:
    """The address of the API server, and the files of this pod's service account."""

    host: str
    port: int
    directory: Path

    @property
    def namespace(self) -> str:
        """Raises ConfigError."""
        try:
            return (self.directory / "namespace").read_text().strip()
        except OSError as error:
            raise ConfigError(f"fleet.kubernetes.namespace: {error}; set the namespace") from error


def find_pod_account(environ: Mapping[str, str] = os.environ, directory: Path = ACCOUNT_DIR) -> PodAccount:
    """Raises ConfigError outside a pod."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdigit():
        raise ConfigError(
            "fleet.driver: kubernetes works in a pod, where KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are set"
        )
    return PodAccount(host, int(port), directory)


class _AnswerParser:
    """Callbacks of httptools; `body` holds the parsed bytes that were not taken yet."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.headers_read = False
        self.complete = False

    def on_headers_complete(self) -> None:
        self.headers_read = True

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True

    def take_lines(self) -> list[bytes]:
        """The whole lines of `body`; a partial last line remains in it. Raises ApiUnavailable for a line that is too
        long."""
        if b"\n" in self.body:
            *lines, self.body = self.body.split(b"\n")
        else:
            lines = []
        if len(self.body) > LINE_BYTES_MAX:
            raise ApiUnavailable(f"a line of the answer is over {LINE_BYTES_MAX} bytes")
        return [bytes(line) for line in lines if line]


class KubernetesApi:
    """The API server as this pod may read it."""

    def __init__(self, account: PodAccount) -> None:
        self._account = account

    async def read_lines(
        self, path: str, silence_s: float, on_success: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[bytes]:
        """The lines of the answer, each when it arrives; a list is one line. `on_success` is called before the first,
        when the status is 200. Raises ApiUnavailable, also when no byte arrives for `silence_s`."""
        parser = _AnswerParser()
        response = httptools.HttpResponseParser(parser)
        checked = False
        async with aclosing(self._read_chunks(path, silence_s)) as chunks:
            async for data in chunks:
                try:
                    response.feed_data(data)
                except httptools.HttpParserError as error:
                    raise ApiUnavailable(f"the answer is not HTTP: {error}") from error
                if parser.headers_read and not checked:
                    checked = True
                    if (status := response.get_status_code()) != 200:
                        raise ApiUnavailable(f"HTTP {status} for {path.partition('?')[0]}", status)
                    on_success()
                for line in parser.take_lines():
                    yield line
                if parser.complete:
                    break
        if not checked:
            raise ApiUnavailable("the API server closed the connection without an answer")
        if parser.body:
            yield bytes(parser.body)

    async def _read_chunks(self, path: str, silence_s: float) -> AsyncGenerator[bytes]:
        account = self._account
        try:
            context, token = await asyncio.to_thread(_read_account, account.directory)
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(account.host, account.port, ssl=context)
        except (OSError, TimeoutError, ValueError) as error:  # SSLError is an OSError
            raise ApiUnavailable(f"no connection: {error or 'timeout'}") from error
        host = f"[{account.host}]" if ":" in account.host else account.host
        head = (
            f"GET {path} HTTP/1.1\r\nHost: {host}:{account.port}\r\nAuthorization: Bearer {token}\r\n"
            "Accept: application/json\r\nUser-Agent: laneway\r\nConnection: close\r\n\r\n"
        )
        try:
            writer.write(head.encode())
            while True:
                async with asyncio.timeout(silence_s):
                    data = await reader.read(READ_BYTES)
                if not data:
                    return
                yield data
        except TimeoutError as error:
            raise ApiUnavailable(f"no byte for {silence_s:g} s") from error
        except OSError as error:
            raise ApiUnavailable(f"the connection broke: {error}") from error
        finally:
            writer.transport.abort()


def _read_account(directory: Path) -> tuple[ssl.SSLContext, str]:
    """Raises OSError, ValueError."""
    context = ssl.create_default_context(cafile=str(directory / "ca.crt"))
    token = (directory / "token").read_text().strip()
    if not token.isascii() or not token.isprintable():
        raise ValueError("the token of the service account has characters that no header may have")
    return context, token
