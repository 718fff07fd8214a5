"""Makes the certificates of a fleet: an authority, and a certificate for each engine and each gateway.

For fleets without an existing certificate authority. Keys are written with mode 0600 and are in no message.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
import time
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gateway.config.private_files import DIRECTORY_MODE, write_private

AUTHORITY = "authority"
AUTHORITY_DAYS = 3650
# Clocks of two hosts may differ by this much when a new certificate is used for the first time.
CLOCK_SKEW = datetime.timedelta(hours=1)
MEMBER_NAME = re.compile(r"^[a-z0-9]([a-z0-9.-]{0,62}[a-z0-9])?$")


class CertificateRefused(Exception):
    """The certificates cannot be made; the message says why."""


@dataclass(frozen=True, slots=True)
class MemberNames:
    """An engine or a gateway. `hosts`: DNS names and IP addresses under which gateways reach an engine, beside its
    name. A process that is both has both roles in one certificate."""

    name: str
    hosts: tuple[str, ...] = ()
    is_engine: bool = False
    is_gateway: bool = False


def merge_roles(members: list[MemberNames]) -> list[MemberNames]:
    """One member for each name, in order. Raises CertificateRefused for a name that cannot be a file's or a host's."""
    merged: dict[str, MemberNames] = {}
    for member in members:
        if not MEMBER_NAME.match(member.name) or member.name == AUTHORITY:
            raise CertificateRefused(
                f"{member.name!r} cannot be a name: it must have at most 64 small letters, digits, '.' and '-', begin "
                f"and end with a letter or a digit, and not be {AUTHORITY!r}"
            )
        before = merged.get(member.name, MemberNames(member.name))
        merged[member.name] = MemberNames(
            member.name,
            tuple(dict.fromkeys((*before.hosts, *member.hosts))),
            before.is_engine or member.is_engine,
            before.is_gateway or member.is_gateway,
        )
    return list(merged.values())


def make_certificates(directory: Path, members: list[MemberNames], days: int) -> list[Path]:
    """Write NAME.pem and NAME.key of each member, signed by the authority in `directory`, which is made unless it is
    there. Files of the same name are replaced. Returns the certificates. Raises CertificateRefused, OSError."""
    merged = merge_roles(members)
    directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    authority, key = _authority(directory)
    made = []
    for member in merged:
        own_key = ec.generate_private_key(ec.SECP256R1())
        certificate = _sign_member(member, own_key, authority, key, days)
        # The key first: a process that reads between the two writes continues with the certificate and the key that it
        # has.
        _write_key(directory / f"{member.name}.key", own_key)
        made.append(directory / f"{member.name}.pem")
        _write(made[-1], certificate)
    return made


def first_expiry(path: Path) -> float:
    """When the first of the certificates in a PEM file expires, in Unix seconds; 0: the file cannot be read."""
    try:
        certificates = x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError):
        return 0.0
    return min(certificate.not_valid_after_utc for certificate in certificates).timestamp()


class CertificateExpired(OSError):
    """This process's own certificate has expired: whatever it connects to would only close the connection."""


def check_expiry(path: Path) -> None:
    """Raises CertificateExpired. A file that cannot be read is not judged."""
    if 0 < first_expiry(path) < time.time():
        raise CertificateExpired(f"the certificate {path} has expired")


def _authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    path, key_path = directory / f"{AUTHORITY}.pem", directory / f"{AUTHORITY}.key"
    if path.exists() != key_path.exists():
        missing, found = (key_path, path) if path.exists() else (path, key_path)
        raise CertificateRefused(f"{found} is there and {missing.name} is not; put it there, or use another directory")
    if path.exists():
        try:
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
            key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
        except (ValueError, TypeError) as error:
            raise CertificateRefused(f"{path} or {key_path.name} is no PEM file of an authority") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise CertificateRefused(f"{key_path} is not the key of {path.name}")
        return certificate, key
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _self_sign(key)
    _write_key(key_path, key)
    _write(path, certificate)
    return certificate, key


def _builder(name: str, public_key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _self_sign(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    builder = _builder("laneway fleet", key.public_key(), AUTHORITY_DAYS)
    return (
        builder.issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "laneway fleet")]))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def _sign_member(
    member: MemberNames,
    own_key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    days: int,
) -> x509.Certificate:
    """An engine's certificate is for servers and a gateway's for clients: the key of an engine opens no other."""
    usages = [ExtendedKeyUsageOID.SERVER_AUTH] if member.is_engine else []
    usages += [ExtendedKeyUsageOID.CLIENT_AUTH] if member.is_gateway else []
    names = [_general_name(host) for host in dict.fromkeys((member.name, *member.hosts))]
    return (
        _builder(member.name, own_key.public_key(), days)
        .issuer_name(authority.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise CertificateRefused(f"{host!r} is no name of a host") from error


def _write(path: Path, certificate: x509.Certificate) -> None:
    write_private(path, certificate.public_bytes(serialization.Encoding.PEM).decode(), replace=True)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    write_private(path, text, replace=True)
