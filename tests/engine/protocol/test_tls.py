"""Frames over TCP with mutual TLS: who receives a frame, whom a gateway trusts, and certificates that change."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from engine.protocol.addresses import TlsAddress, UnixAddress, parse_address, parse_host_port
from engine.protocol.client import EngineClient
from engine.protocol.codec import encode
from engine.protocol.frames import PROTOCOL_VERSION, Finished, GatewayHello, Sampling, Status
from engine.protocol.listeners import DESCRIPTORS_RESERVED, HANDSHAKES_MAX
from engine.protocol.tls import (
    CertificateFiles,
    CertificatesUnusable,
    CurrentContext,
    client_context,
    server_context,
    set_tcp_options,
)
from support.engine.certificates import ENGINE, GATEWAY, expire, files_of, listen_flags, make_fleet
from support.engine.generations import IterableGeneration
from support.engine.process import REPO, STOP_ID, EngineProcess, Peer
from support.waiting import eventually, eventually_async

Start = Callable[..., EngineProcess]


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    return make_fleet(tmp_path / "fleet")


@pytest.fixture
def engine(fleet: Path, start_engine: Start) -> EngineProcess:
    return start_engine(flags=listen_flags(files_of(fleet, ENGINE)))


def address_of(engine: EngineProcess) -> str:
    return f"tls://{engine.ready['listen']}"


@asynccontextmanager
async def client_at(address: str, files: CertificateFiles, **settings: Any) -> AsyncIterator[EngineClient]:
    context = CurrentContext(files, client_context).current
    client = EngineClient(address, tls=context, generation=IterableGeneration, **settings)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def run_request(client: EngineClient, max_tokens: int = 8) -> None:
    generation = client.submit(
        request_id="req", model="fake-model", adapter=None, namespace="ns", tier="standard", share="share",
        prompt_ids=list(range(300, 2300)), max_tokens=max_tokens, sampling=Sampling(temperature=0.0),
        stop_ids=[STOP_ID],
    )  # fmt: skip
    events = [event async for event in cast(IterableGeneration, generation)]
    assert isinstance(events[-1], Finished)
    assert sum(len(event) for event in events if isinstance(event, list)) == max_tokens


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record for record in caplog.records if record.getMessage() == "engine.connect_failed"]
    return [cast(Any, record).fields["reason"] for record in found]


# ---- both ends


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_client_runs_requests_over_tls(engine: EngineProcess, fleet: Path, runner: Callable[..., None]) -> None:
    async def scenario() -> None:
        async with client_at(address_of(engine), files_of(fleet, GATEWAY), gateway="g") as client:
            await client.wait_ready(30)
            await asyncio.gather(*(run_request(client, 20 + n) for n in range(20)))
            assert client.version == PROTOCOL_VERSION
            link = client._link
            assert link is not None
            transport = cast(asyncio.Transport, link._transport)
            own = transport.get_extra_info("socket")
            assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert transport.get_extra_info("cipher")[1] == "TLSv1.3"
            os.kill(engine.pid, 9)
            await eventually_async(lambda: not client.ready)

    runner(scenario())
    [opened] = [line for line in engine.events("stream.opened") if "certificate" in line]
    assert opened["certificate"] == GATEWAY


async def test_the_unix_socket_serves_beside_it(engine: EngineProcess, fleet: Path) -> None:
    peer = await Peer.connect(engine.socket)
    async with client_at(address_of(engine), files_of(fleet, GATEWAY)) as client:
        await client.wait_ready(30)
        peer.send(peer.submit(1))
        await asyncio.gather(peer.until_ended(1), run_request(client))
    await peer.close()
    assert engine.stop() == 0


# ---- who receives a frame


def context_of(files: CertificateFiles | None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    """A client's, which trusts anyone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    if files is not None:
        context.load_cert_chain(files.certificate, files.key)
    return context


def received_by(engine: EngineProcess, context: ssl.SSLContext | None, said: bytes) -> bytes:
    """All that the engine sends to a client which says `said`, until it closes the connection."""
    host, port = parse_host_port(engine.ready["listen"])
    received = b""
    with socket.create_connection((host, port), timeout=30) as plain:
        try:
            connection = plain if context is None else context.wrap_socket(plain)
            connection.sendall(said)
            while data := connection.recv(65536):
                received += data
        except (ssl.SSLError, ConnectionError):
            pass
        finally:
            if context is not None and "connection" in locals():
                connection.close()
    return received


def test_a_foreign_client_receives_no_frame(engine: EngineProcess, fleet: Path, tmp_path: Path) -> None:
    other = make_fleet(tmp_path / "other")
    expired = shutil.copytree(fleet, tmp_path / "expired")
    expire(expired, GATEWAY)
    said = encode(GatewayHello(5, "foreign")) + encode(Status())
    clients = {
        "no certificate": context_of(None),
        "another authority's": context_of(files_of(other, GATEWAY)),
        "an engine's": context_of(files_of(fleet, ENGINE)),
        "an expired one": context_of(files_of(expired, GATEWAY)),
        "TLS 1.2": context_of(files_of(fleet, GATEWAY), ssl.TLSVersion.TLSv1_2),
    }
    for name, context in clients.items():
        assert received_by(engine, context, said) == b"", name
    # No TLS at all: the answer is at most an alert record, which begins with 0x15.
    assert received_by(engine, None, said)[:1] in (b"", b"\x15")
    assert received_by(engine, None, b"GET / HTTP/1.1\r\n\r\n")[:1] in (b"", b"\x15")
    assert not engine.events("stream.opened")
    assert engine.events("tls.refused")
    # With the right one the first frame is Hello.
    host, port = parse_host_port(engine.ready["listen"])
    plain = socket.create_connection((host, port), timeout=30)
    with plain, context_of(files_of(fleet, GATEWAY)).wrap_socket(plain) as connection:
        assert b"hello" in connection.recv(65536)


async def test_connections_without_a_handshake_keep_no_gateway_out(engine: EngineProcess, fleet: Path) -> None:
    host, port = parse_host_port(engine.ready["listen"])
    silent = [await asyncio.open_connection(host, port) for _ in range(HANDSHAKES_MAX + 20)]
    async with client_at(address_of(engine), files_of(fleet, GATEWAY)) as client:
        await client.wait_ready(30)
        await run_request(client)
    for _, writer in silent:
        writer.close()


def test_no_log_line_has_a_key_or_a_certificate(engine: EngineProcess, fleet: Path) -> None:
    async def scenario() -> None:
        async with client_at(address_of(engine), files_of(fleet, GATEWAY)) as client:
            await client.wait_ready(30)

    asyncio.run(scenario())
    received_by(engine, context_of(None), b"x")
    log = engine.log()
    for path in fleet.iterdir():
        for line in path.read_text().splitlines():
            assert line not in log, path.name


# ---- whom a gateway trusts


async def test_a_client_checks_the_name_and_the_authority(
    engine: EngineProcess, fleet: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "engine")
    other = make_fleet(tmp_path / "other")
    mixed = CertificateFiles(fleet / f"{GATEWAY}.pem", fleet / f"{GATEWAY}.key", other / "authority.pem")
    port = engine.ready["listen"].rpartition(":")[2]
    refused: list[tuple[CertificateFiles, dict[str, Any]]] = [
        (files_of(fleet, GATEWAY), {"server_name": "engine-2"}),
        (mixed, {}),
        (files_of(other, GATEWAY), {}),
    ]
    for files, settings in refused:
        caplog.clear()
        async with client_at(f"tls://127.0.0.1:{port}", files, **settings) as client:
            await eventually_async(lambda: bool(reasons(caplog)))
            assert not client.ready
        assert "certificate verify failed" in reasons(caplog)[0].lower()
    for host, settings in (("localhost", {}), ("127.0.0.1", {"server_name": ENGINE})):
        async with client_at(f"tls://{host}:{port}", files_of(fleet, GATEWAY), **settings) as client:
            await client.wait_ready(30)
            await run_request(client)


async def test_an_engine_that_refuses_the_certificate_is_logged_once(
    engine: EngineProcess, fleet: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "engine")
    mixed = CertificateFiles(fleet / f"{ENGINE}.pem", fleet / f"{ENGINE}.key", fleet / "authority.pem")
    async with client_at(address_of(engine), mixed) as client:
        await eventually_async(lambda: sum(line["refused"] for line in engine.events("tls.refused")) >= 3)
        assert not client.ready
    assert len(set(reasons(caplog))) == len(reasons(caplog)) <= 2


# ---- certificates that change


def serial_of(engine: EngineProcess, fleet: Path) -> str:
    host, port = parse_host_port(engine.ready["listen"])
    plain = socket.create_connection((host, port), timeout=30)
    context = client_context(files_of(fleet, GATEWAY))
    with plain, context.wrap_socket(plain, server_hostname=host) as connection:
        connection.recv(65536)
        certificate = connection.getpeercert()
        assert certificate is not None
        return str(certificate["serialNumber"])


async def test_new_files_serve_new_connections_and_running_streams_stay(
    engine: EngineProcess, fleet: Path, tmp_path: Path
) -> None:
    before = serial_of(engine, fleet)
    assert serial_of(engine, fleet) == before
    async with client_at(address_of(engine), files_of(fleet, GATEWAY)) as client:
        await client.wait_ready(30)
        make_fleet(fleet)
        assert serial_of(engine, fleet) != before
        await run_request(client)
        old = shutil.copytree(fleet, tmp_path / "old")
        # Another authority: its gateways are let in, those of the one before are not.
        replaced = make_fleet(tmp_path / "replaced")
        for path in replaced.iterdir():
            shutil.copy(path, fleet / path.name)
        assert serial_of(engine, fleet)
        assert received_by(engine, context_of(files_of(old, GATEWAY)), b"") == b""
        await run_request(client)
        link = client._link
        assert link is not None
        cast(asyncio.Transport, link._transport).abort()  # it connects again, with the new files
        await eventually_async(lambda: client._link is not None and client._link is not link and client.ready)
        await run_request(client)
    assert len(engine.events("certificates.reloaded")) == 2
    assert not engine.events("certificates.unusable")


def test_an_authority_is_replaced_while_both_are_trusted(engine: EngineProcess, fleet: Path, tmp_path: Path) -> None:
    """The two have the same name, and the file has both."""
    replaced = make_fleet(tmp_path / "replaced")
    new = client_context(files_of(replaced, GATEWAY))
    new.check_hostname, new.verify_mode = False, ssl.CERT_NONE
    assert received_by(engine, new, b"") == b""
    both = (fleet / "authority.pem").read_text() + (replaced / "authority.pem").read_text()
    (fleet / "authority.pem").write_text(both)
    host, port = parse_host_port(engine.ready["listen"])
    for context in (new, client_context(files_of(fleet, GATEWAY))):
        plain = socket.create_connection((host, port), timeout=30)
        with plain, context.wrap_socket(plain, server_hostname=host) as connection:
            assert b"hello" in connection.recv(65536)


def test_files_that_do_not_fit_together_leave_the_context_before(
    fleet: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "engine")
    files = files_of(fleet, ENGINE)
    current = CurrentContext(files, server_context)
    before = current.current()
    fresh = files_of(make_fleet(tmp_path / "fresh"), ENGINE)
    shutil.copy(fresh.key, files.key)
    assert current.current() is current.current() is before
    assert [record.getMessage() for record in caplog.records] == ["certificates.unusable"]
    assert str(files.key) in str(cast(Any, caplog.records[0]).fields)
    shutil.copy(fresh.certificate, files.certificate)
    assert current.current() is not before
    files.authority.unlink()
    after = current.current()
    assert current.current() is after
    files.key.chmod(0o644)
    shutil.copy(fresh.authority, files.authority)
    assert current.current() is not after
    assert [record.getMessage() for record in caplog.records][-2:] == ["certificates.reloaded", "files.readable"]


def encrypted(files: CertificateFiles, tmp_path: Path) -> CertificateFiles:
    locked = tmp_path / "locked.key"
    argv = ["openssl", "pkcs8", "-topk8", "-in", str(files.key), "-passout", "pass:x", "-out", str(locked)]
    subprocess.run(argv, check=True)
    return CertificateFiles(files.certificate, locked, files.authority)


def test_files_that_cannot_be_used_are_named(fleet: Path, tmp_path: Path) -> None:
    files = files_of(fleet, ENGINE)
    (tmp_path / "empty").write_text("")
    (tmp_path / "text").write_text("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n")
    cases = [
        (CertificateFiles(tmp_path / "none", files.key, files.authority), "none"),
        (CertificateFiles(files.certificate, tmp_path / "empty", files.authority), "empty"),
        (CertificateFiles(files.certificate, fleet / f"{GATEWAY}.key", files.authority), f"{GATEWAY}.key"),
        (CertificateFiles(files.certificate, files.key, tmp_path / "none"), "none"),
        (CertificateFiles(files.certificate, files.key, tmp_path / "text"), "text"),
        (CertificateFiles(files.certificate, files.key, tmp_path / "empty"), "empty"),
        (encrypted(files, tmp_path), "locked.key"),
    ]
    for bad, name in cases:
        for make in (server_context, client_context):
            with pytest.raises(CertificatesUnusable, match=name) as raised:
                make(bad)
            assert "BEGIN" not in str(raised.value)


def test_an_engine_with_bad_files_or_arguments_does_not_start(fleet: Path, tmp_path: Path, socket_dir: Path) -> None:
    config = tmp_path / "engine.json"
    config.write_text('{"models": [{"name": "fake-model"}]}')
    never = str(socket_dir / "never.sock")
    argv = [sys.executable, "-m", "engine", "--fake", "--config", str(config), "--socket", never]
    files = files_of(fleet, ENGINE)
    taken = socket.create_server(("127.0.0.1", 0))
    cases = [
        (["--listen", "127.0.0.1:9443"], "--listen needs --certificate, --key and --authority"),
        (listen_flags(files, "9443"), "is no HOST:PORT"),
        (["--lease-s", "-1"], "--lease-s must be at least 0"),
        (listen_flags(encrypted(files, tmp_path)), "locked.key"),
        (listen_flags(files, f"127.0.0.1:{taken.getsockname()[1]}"), "cannot listen at"),
    ]
    for flags, said in cases:
        done = subprocess.run([*argv, *flags], cwd=REPO, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr
        assert not Path(never).exists()
    taken.close()


# ---- addresses and limits


def test_addresses() -> None:
    assert (
        parse_address("/run/engine.sock") == parse_address("unix:/run/engine.sock") == UnixAddress("/run/engine.sock")
    )
    assert parse_address(Path("engine.sock")) == UnixAddress("engine.sock")
    assert parse_address("tls://[::1]:9443") == TlsAddress("::1", 9443)
    assert str(parse_address("tls://[::1]:9443")) == "tls://[::1]:9443"
    assert str(TlsAddress("host", 1)) == "tls://host:1"
    bad = ["", "unix:", "tcp://host:1", "tls://host", "tls://:9", "tls://::1:9", "tls://host:65536", "tls://host:x"]
    for text in bad:
        with pytest.raises(ValueError, match=r"is no|names no"):
            parse_address(text)
    with pytest.raises(ValueError, match="needs certificates"):
        EngineClient("tls://host:1")


async def test_tcp_options_leave_a_unix_socket_alone(engine: EngineProcess) -> None:
    transport, _ = await asyncio.get_running_loop().create_unix_connection(asyncio.Protocol, str(engine.socket))
    set_tcp_options(transport)
    transport.abort()


@pytest.mark.parametrize(
    ("soft", "hard", "fit"),
    [(1024, 8192, 4096), (1024, 1024, 1024 - DESCRIPTORS_RESERVED), (8192, 8192, 4096), (16, 16, 1)],
)
def test_the_limit_of_descriptors_is_raised_or_bounds_the_streams(soft: int, hard: int, fit: int) -> None:
    code = (
        "import resource\n"
        "from engine.protocol.listeners import STREAMS_MAX, limit_streams\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "print(limit_streams(STREAMS_MAX), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    streams, limit = map(int, done.stdout.split())
    assert streams == fit
    assert limit == max(soft, min(4096 + DESCRIPTORS_RESERVED, hard))


async def test_more_streams_than_a_setting_allows_are_closed(start_engine: Start) -> None:
    engine = start_engine(flags=["--streams-max", "70"])
    peers = [await Peer.connect(engine.socket) for _ in range(70)]
    with pytest.raises(EOFError):
        await Peer.connect(engine.socket)
    await peers[0].close()
    await asyncio.to_thread(eventually, lambda: bool(engine.events("stream.lost")))
    peers[0] = await Peer.connect(engine.socket)
    peers[0].send(peers[0].submit(1))
    await peers[0].until_ended(1)
    for peer in peers:
        await peer.close()
