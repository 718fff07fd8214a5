"""Encrypts the answers stored for replays: the database, or a dump of it, does not reveal them.

AES-256-GCM under a key for each tenant, derived (HKDF-SHA-256) from the secret in `gateway.secret_file`. The owner of
an answer is authenticated with it: moved to another tenant, key, Idempotency-Key or body, it cannot be decrypted.
"""

from __future__ import annotations

import contextlib
import os

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.config.server_secrets import ServerSecrets

FORMAT = 1  # the first byte of a stored answer
NONCE_BYTES = 12  # random: one tenant's key is safe for 2**32 answers
_PURPOSE = b"laneway: answers kept for replays, format 1: tenant "


class DecryptionFailed(Exception):
    """The answer was encrypted with another secret or for another owner, was changed, or has another format."""


class AnswerOwner(msgspec.Struct, frozen=True, array_like=True):
    """The owner of an answer. `tenant_id` "": the operator's. `name_hash` and `fingerprint`: SHA-256 in hex, of the
    Idempotency-Key, and of the call's route and body."""

    tenant_id: str
    key_id: str
    name_hash: str
    fingerprint: str


class AnswerEncryption:
    """Encrypts answers with keys of the deployment's secrets. Each call derives the tenant's keys anew: that takes
    microseconds."""

    def __init__(self, secrets: ServerSecrets) -> None:
        self._secrets = secrets

    def seal(self, answer: bytes, owner: AnswerOwner) -> bytes:
        """Format, nonce, ciphertext and tag."""
        nonce = os.urandom(NONCE_BYTES)
        return bytes((FORMAT,)) + nonce + self._ciphers(owner)[0].encrypt(nonce, answer, _authenticated(owner))

    def unseal(self, sealed: bytes, owner: AnswerOwner) -> bytes:
        """Raises DecryptionFailed."""
        if sealed[:1] != bytes((FORMAT,)) or len(sealed) <= NONCE_BYTES:
            raise DecryptionFailed("it has another format")
        nonce, ciphertext = sealed[1 : 1 + NONCE_BYTES], sealed[1 + NONCE_BYTES :]
        for cipher in self._ciphers(owner):
            with contextlib.suppress(InvalidTag):
                return cipher.decrypt(nonce, ciphertext, _authenticated(owner))
        raise DecryptionFailed("it was encrypted with another secret, or is not this call's")

    def _ciphers(self, owner: AnswerOwner) -> list[AESGCM]:
        return [AESGCM(key) for key in self._secrets.derive_keys(_PURPOSE + owner.tenant_id.encode())]


def _authenticated(owner: AnswerOwner) -> bytes:
    return bytes((FORMAT,)) + msgspec.json.encode(owner)  # an array of strings: no two owners have the same bytes
