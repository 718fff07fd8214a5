"""Encrypts what sign-ins keep in the database or in a cookie: a provider's tokens, states of sign-ins, TOTP secrets.

AES-256-GCM under a key derived (HKDF-SHA-256) from the secret in `gateway.secret_file`. A value is bound to its place,
for example the row that has it: moved elsewhere it cannot be decrypted.
"""

from __future__ import annotations

import contextlib
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.config.server_secrets import ServerSecrets

NONCE_BYTES = 12  # random: a key is safe for 2**32 values


class ValueUnreadable(Exception):
    """The value was changed, moved, or encrypted with a secret that is not known any more."""


class SealedValues:
    """`purpose` names the kind of value and its format: values of two purposes have different keys."""

    def __init__(self, secrets: ServerSecrets, purpose: str) -> None:
        self._ciphers = [AESGCM(key) for key in secrets.derive_keys(f"laneway: {purpose}".encode())]

    def seal(self, value: bytes, place: str) -> bytes:
        """Nonce, ciphertext and tag."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._ciphers[0].encrypt(nonce, value, place.encode())

    def unseal(self, sealed: bytes, place: str) -> bytes:
        """Raises ValueUnreadable."""
        nonce, ciphertext = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
        for cipher in self._ciphers if len(nonce) == NONCE_BYTES else ():
            with contextlib.suppress(InvalidTag):
                return cipher.decrypt(nonce, ciphertext, place.encode())
        raise ValueUnreadable("it was changed, moved, or encrypted with another secret")
