"""The secrets of a deployment: the file `gateway.secret_file`, the same for all gateways of one database.

The file has a hexadecimal secret of 32 bytes, and during a rotation a second one on its own line.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.config.file import Config, ConfigError
from gateway.config.private_files import DIRECTORY_MODE, write_private

SECRET_BYTES = 32
SECRETS_MAX = 2
_FINGERPRINT = b"laneway: fingerprint of a server's secret, format 1"


class ServerSecrets(msgspec.Struct, frozen=True):
    """`current` encrypts. `other` decrypts as well; without a rotation there is none."""

    current: bytes
    other: bytes | None = None

    @property
    def all(self) -> list[bytes]:
        """The current secret first."""
        return [self.current] if self.other is None else [self.current, self.other]

    def derive_keys(self, purpose: bytes) -> list[bytes]:
        """Keys of 32 bytes for one purpose (HKDF-SHA-256), that of the current secret first. Takes microseconds."""
        return [_derive(secret, purpose) for secret in self.all]

    def fingerprints(self) -> list[str]:
        """Names the secrets without revealing them; the current secret's first."""
        return [key.hex()[:32] for key in self.derive_keys(_FINGERPRINT)]


def _derive(secret: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=SECRET_BYTES, salt=None, info=purpose).derive(secret)


def read_server_secrets(config: Config) -> ServerSecrets:
    """The secrets in `gateway.secret_file`. The file is made with mode 0600 if it is missing. Raises ConfigError for
    contents of another form."""
    path = Path(config.gateway.secret_file)
    if not path.exists():
        path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        write_private(path, secrets.token_hex(SECRET_BYTES), replace=False)
    try:
        found = [bytes.fromhex(line) for line in path.read_text().split()]
    except ValueError as error:
        raise ConfigError(f"gateway.secret_file: {path} must hold a hexadecimal secret of 32 bytes") from error
    if not 1 <= len(found) <= SECRETS_MAX:
        raise ConfigError(f"gateway.secret_file: {path} holds {len(found)} secrets; it must hold 1 or {SECRETS_MAX}")
    for secret in found:
        if len(secret) != SECRET_BYTES:
            raise ConfigError(f"gateway.secret_file: {path} holds {len(secret)} bytes; it must hold {SECRET_BYTES}")
    return ServerSecrets(*found)


def write_server_secrets(config: Config, secrets_: ServerSecrets) -> None:
    """Replace the contents of `gateway.secret_file` in one step."""
    text = "\n".join([secret.hex() for secret in secrets_.all])
    write_private(Path(config.gateway.secret_file), text + "\n", replace=True)


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)
