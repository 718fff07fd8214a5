"""The console's files as a gateway serves them: each by its name, the page for every other, and nothing else."""

from __future__ import annotations

import gzip
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.config.file import default_console_directory, parse_gateway_config
from gateway.http import console_files
from gateway.http.console_files import BuildRefused, ConsoleFiles
from support.stack import Stack

PAGE = b"<!doctype html><title>Laneway</title>"
SCRIPT = b"console.log('laneway');" * 50
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


def build(directory: Path, page: bytes = PAGE) -> None:
    (directory / "assets").mkdir(parents=True, exist_ok=True)
    (directory / "assets" / "app-1a2b.js").write_bytes(SCRIPT)
    (directory / "assets" / "app-1a2b.js.gz").write_bytes(gzip.compress(SCRIPT))
    (directory / "assets" / "app-1a2b.js.br").write_bytes(b"as brotli has it")
    (directory / "favicon.svg").write_bytes(b"<svg/>")
    (directory.parent / "secret.txt").write_text("outside")
    (directory / "link.txt").unlink(missing_ok=True)
    (directory / "link.txt").symlink_to(directory.parent / "secret.txt")
    (directory / "index.html").write_bytes(page)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, model_dir: Any) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("console")
    build(directory / "dist")
    stack = Stack(
        directory, f"sqlite:///{directory}/laneway.db", model_dir, gateway_toml=f'console_dir = "{directory}/dist"'
    )
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


def get(stack: Stack, path: str, **headers: str) -> httpx.Response:
    return httpx.get(stack.url + path, headers=headers)


def check_security(answer: httpx.Response) -> None:
    assert answer.headers["content-security-policy"] == CSP
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("path", ["/admin", "/admin/", "/admin/keys", "/admin/tenants/ten_1/keys", "/admin/index.html"])
def test_the_page(built: Stack, path: str) -> None:
    answer = get(built, path)
    assert (answer.status_code, answer.content) == (200, PAGE)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    check_security(answer)
    unchanged = get(built, path, **{"If-None-Match": answer.headers["etag"]})
    assert (unchanged.status_code, unchanged.content) == (304, b"")


def test_a_hashed_file_is_kept_for_ever(built: Stack) -> None:
    answer = get(built, "/admin/assets/app-1a2b.js", **{"Accept-Encoding": "identity"})
    assert (answer.status_code, answer.content) == (200, SCRIPT)
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    check_security(answer)
    assert get(built, "/admin/favicon.svg").headers["cache-control"] == "no-cache"
    head = httpx.head(f"{built.url}/admin/assets/app-1a2b.js")
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip, deflate, br", "br"),
        ("gzip", "gzip"),
        ("GZIP;q=0.5", "gzip"),
        ("br;q=0, gzip", "gzip"),
        ("br; q=0.0", ""),
        ("identity", ""),
        ("zstd", ""),
    ],
)
def test_what_was_compressed_before(built: Stack, accepted: str, encoding: str) -> None:
    with httpx.stream("GET", f"{built.url}/admin/assets/app-1a2b.js", headers={"Accept-Encoding": accepted}) as answer:
        raw = b"".join(answer.iter_raw())
    assert answer.headers.get("content-encoding", "") == encoding
    assert answer.headers["vary"] == "accept-encoding"
    assert raw == {"br": b"as brotli has it", "gzip": gzip.compress(SCRIPT), "": SCRIPT}[encoding] or (
        encoding == "gzip" and gzip.decompress(raw) == SCRIPT
    )


@pytest.mark.parametrize(
    "path",
    [
        "/admin/../secret.txt",
        "/admin/%2e%2e/secret.txt",
        "/admin/..%2fsecret.txt",
        "/admin/assets/..%2f..%2fsecret.txt",
        "/admin//etc/passwd.txt",
        "/admin/%2fetc/passwd.d",
        "/admin/link.txt",
        "/admin/assets/app-1a2b.js.gz",
        "/admin/assets/absent.js",
        "/admin/index.html%00",
        "/admin/..\\secret.txt",
        "/admin.txt",
    ],
)
def test_nothing_else_is_served(built: Stack, path: str) -> None:
    """As sent: a client would tidy the path first."""
    with socket.create_connection(("127.0.0.1", built.port), timeout=10) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while part := connection.recv(65536):
            answer += part
    assert answer.split(b" ", 2)[1] in (b"404", b"400"), answer
    for inside in (b"outside", b"root:", PAGE, SCRIPT):
        assert inside not in answer


def test_only_reading(built: Stack) -> None:
    assert httpx.post(f"{built.url}/admin/keys").status_code == 405


def test_without_a_build_it_says_how(make_stack: Callable[..., Stack], tmp_path: Path) -> None:
    directory = tmp_path / "later" / "dist"
    stack = make_stack(gateway_toml=f'console_dir = "{directory}"')
    answer = get(stack, "/admin")
    assert answer.status_code == 404
    assert "make admin-ui" in answer.text
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    check_security(answer)
    build(directory)
    assert get(stack, "/admin").content == PAGE, "without a restart"
    build(directory, b"<title>newer</title>")
    os.utime(directory / "index.html", (1, 1))
    assert get(stack, "/admin/keys").content == b"<title>newer</title>"


def test_where_they_are(tmp_path: Path) -> None:
    assert parse_gateway_config(b"", tmp_path, "test", {}).console_dir == default_console_directory()
    named = parse_gateway_config(b'[gateway]\nconsole_dir = "built"', tmp_path, "test", {})
    assert named.console_dir == tmp_path / "built"


async def test_what_is_no_build_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path / "dist")
    monkeypatch.setattr(console_files, "FILES_MAX", 3)
    with pytest.raises(BuildRefused, match="over 3 files"):
        await ConsoleFiles(tmp_path / "dist").files()
