"""`laneway fleet certificates`, and an engine and a client that use its files by laneway.toml."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from engine.protocol.client import EngineClient
from engine.protocol.frames import Hello
from engine.protocol.tls import CertificateFiles, CurrentContext, client_context, server_context
from gateway.cli import main
from gateway.config import file as configuration
from gateway.config.file import ConfigError
from support.paths import REPO
from support.ports import free_port

SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


def certificates(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(main, ["fleet", "certificates", *arguments])
    assert result.exit_code == status, result.output
    return result.output


def usages(path: Path) -> set[x509.ObjectIdentifier]:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    return set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def test_one_command_makes_an_authority_and_a_certificate_for_each(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    said = certificates(
        str(fleet), "--engine", "gpu-1,10.0.0.11,gpu-1.example", "--gateway", "gateway-1", "--engine", "both",
        "--gateway", "both", "--days", "7",
    )  # fmt: skip
    names = {"authority", "gpu-1", "gateway-1", "both"}
    assert {path.name for path in fleet.iterdir()} == {f"{name}.{end}" for name in names for end in ("pem", "key")}
    assert stat.S_IMODE(fleet.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in fleet.iterdir()} == {0o600}
    assert "BEGIN" not in said
    assert "keep authority.key off them all" in said
    assert usages(fleet / "gpu-1.pem") == {SERVER}
    assert usages(fleet / "gateway-1.pem") == {CLIENT}
    assert usages(fleet / "both.pem") == {SERVER, CLIENT}
    made = x509.load_pem_x509_certificate((fleet / "gpu-1.pem").read_bytes())
    names_in_it = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names_in_it.get_values_for_type(x509.DNSName) == ["gpu-1", "gpu-1.example"]
    assert [str(address) for address in names_in_it.get_values_for_type(x509.IPAddress)] == ["10.0.0.11"]
    argv = ["openssl", "verify", "-x509_strict", "-CAfile", str(fleet / "authority.pem"), str(fleet / "gpu-1.pem")]
    subprocess.run(argv, check=True, capture_output=True)


def test_a_second_command_renews_a_certificate_under_the_same_authority(tmp_path: Path) -> None:
    certificates(str(tmp_path), "--engine", "gpu-1", "--gateway", "gateway-1")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    certificates(str(tmp_path), "--engine", "gpu-1", "--gateway", "gateway-2")
    changed = {name for name, data in before.items() if (tmp_path / name).read_bytes() != data}
    assert changed == {"gpu-1.pem", "gpu-1.key"}
    for name, make in (("gpu-1", server_context), ("gateway-1", client_context), ("gateway-2", client_context)):
        files = CertificateFiles(tmp_path / f"{name}.pem", tmp_path / f"{name}.key", tmp_path / "authority.pem")
        assert make(files).verify_mode == ssl.CERT_REQUIRED


def test_what_cannot_be_made_is_refused(tmp_path: Path) -> None:
    assert "nothing was given" in certificates(str(tmp_path), status=2)
    for name in ("../gpu", "authority", "GPU", "-gpu", "", "a" * 65):
        assert "cannot be a name" in certificates(str(tmp_path), "--engine", name, status=2)
    assert "no name of a host" in certificates(str(tmp_path), "--engine", "gpu-1,höst", status=2)
    certificates(str(tmp_path), "--engine", "gpu-1")
    (tmp_path / "authority.key").rename(tmp_path / "moved")
    assert "authority.key is not" in certificates(str(tmp_path), "--engine", "gpu-1", status=2)
    (tmp_path / "gpu-1.key").rename(tmp_path / "authority.key")
    assert "is not the key of authority.pem" in certificates(str(tmp_path), "--engine", "gpu-2", status=2)
    (tmp_path / "authority.key").write_text("nothing")
    assert "no PEM file" in certificates(str(tmp_path), "--engine", "gpu-2", status=2)


CONFIGURATION = """
[engine]
listen = "127.0.0.1:{port}"
lease_s = 2.5
streams_max = 100

[fleet]
certificate_file = "fleet/{name}.pem"
key_file = "fleet/{name}.key"
authority_file = "fleet/authority.pem"
"""


async def hello_at(address: str, files: CertificateFiles) -> Hello:
    client = EngineClient(address, tls=CurrentContext(files, client_context).current)
    await client.start()
    try:
        return await client.wait_ready(60)
    finally:
        await client.close()


def test_an_engine_and_a_gateway_use_the_files_of_laneway_toml(tmp_path: Path) -> None:
    certificates(str(tmp_path / "fleet"), "--engine", "gpu-1,127.0.0.1", "--gateway", "gateway-1")
    (tmp_path / "fleet/gpu-1.key").chmod(0o644)
    port = free_port()
    toml = tmp_path / "engine.toml"
    toml.write_text(CONFIGURATION.format(port=port, name="gpu-1"))
    with (tmp_path / "engine.log").open("wb") as log:
        argv = [sys.executable, "-m", "gateway.cli", "--config", str(toml), "engine", "--fake"]
        process = subprocess.Popen(argv, cwd=REPO, stdout=subprocess.PIPE, stderr=log)
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["listen"] == f"127.0.0.1:{port}"
        assert stat.S_IMODE((tmp_path / "fleet/gpu-1.key").stat().st_mode) == 0o600, "closed at the start"
        other = tmp_path / "gateway.toml"
        other.write_text(CONFIGURATION.format(port=port, name="gateway-1"))
        files = configuration.load_gateway_config(other, {}).certificates
        assert files is not None
        hello = asyncio.run(hello_at(f"tls://127.0.0.1:{port}", files))
        assert (hello.epoch, hello.lease_s) == (ready["epoch"], 2.5)
        assert hello.build
    finally:
        process.send_signal(signal.SIGTERM)
        status = process.wait(30)
        assert process.stdout is not None
        process.stdout.close()
    assert status == 0


def test_the_arguments_of_an_engine(tmp_path: Path) -> None:
    alone = configuration.parse_gateway_config(b"", tmp_path, "", {})
    assert configuration.engine_arguments(alone) == ["--lease-s", "5", "--streams-max", "4096"]
    assert alone.certificates is None
    config = configuration.parse_gateway_config(CONFIGURATION.format(port=7801, name="a").encode(), tmp_path, "", {})
    assert configuration.engine_arguments(config) == [
        "--lease-s", "2.5", "--streams-max", "100", "--listen", "127.0.0.1:7801", "--certificate",
        f"{tmp_path}/fleet/a.pem", "--key", f"{tmp_path}/fleet/a.key", "--authority", f"{tmp_path}/fleet/authority.pem",
    ]  # fmt: skip
    written = json.loads(configuration.write_engine_file(config).read_text())
    assert not {"listen", "lease_s", "streams_max", "socket"} & written.keys()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[fleet]\ncertificate_file = 'c'", "key_file and authority_file must be set too"),
        ("[fleet]\ncertificate_file = 'c'\nkey_file = 'k'", "authority_file must be set too"),
        ("[engine]\nlisten = '127.0.0.1:7801'", "engine.listen 127.0.0.1:7801 needs fleet.certificate_file, fleet.key"),
        ("[[engines]]\nname = 'a'\naddress = 'tls://h:1'", "engines.address tls://h:1 needs fleet.certificate_file"),
        ("[engine]\nlisten = '7801'", "engine: listen: '7801' is no HOST:PORT"),
        ("[engine]\nlisten = '127.0.0.1:0'", "engine: listen is '127.0.0.1:0'; its port must be from 1 to 65535"),
        ("[engine]\nlease_s = -1", "engine.lease_s: .*0"),
        ("[engine]\nstreams_max = 0", "engine.streams_max: .*1"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        configuration.parse_gateway_config(text.encode(), Path("/"), "laneway.toml", {})
