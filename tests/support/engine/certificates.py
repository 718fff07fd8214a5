"""Certificates of a small fleet for tests: by `laneway fleet certificates`, and foreign or expired ones."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from engine.protocol.tls import CertificateFiles
from gateway.host.fleet_certificates import MemberNames, make_certificates

ENGINE, GATEWAY = "engine-1", "gateway-1"


def files_of(directory: Path, name: str) -> CertificateFiles:
    return CertificateFiles(directory / f"{name}.pem", directory / f"{name}.key", directory / "authority.pem")


def make_fleet(directory: Path, days: int = 30) -> Path:
    """An engine that is reached at 127.0.0.1 and localhost, and a gateway; or new certificates for them."""
    engine = MemberNames(ENGINE, ("127.0.0.1", "localhost"), is_engine=True)
    make_certificates(directory, [engine, MemberNames(GATEWAY, is_gateway=True)], days)
    return directory


def listen_flags(files: CertificateFiles, address: str = "127.0.0.1:0") -> list[str]:
    """The arguments of an engine that listens with TLS."""
    return [
        "--listen", address, "--certificate", str(files.certificate), "--key", str(files.key),
        "--authority", str(files.authority),
    ]  # fmt: skip


def expire(directory: Path, name: str) -> None:
    """Replace the certificate by a certificate that expired yesterday."""
    path = directory / f"{name}.pem"
    old = x509.load_pem_x509_certificate(path.read_bytes())
    key = serialization.load_pem_private_key((directory / "authority.key").read_bytes(), None)
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(old.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=9))
        .not_valid_after(now - datetime.timedelta(days=1))
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    certificate = builder.sign(key, hashes.SHA256())  # type: ignore[arg-type]
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
