"""Reasoning and summaries that a client holds between turns: encrypted for its tenant. Reasoning is opened only for
the model that wrote it.

A blob is base64url of the format (1 byte), the model (MODEL_BYTES of its digest), a nonce, and ciphertext with tag
(AES-256-GCM under a key of the tenant's). Format, model and tenant are authenticated.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
from collections.abc import Mapping, Sequence

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.errors import InvalidEncryptedContent
from gateway.tools.rendering import SEALED_REASONING, SEALED_SUMMARY, Message

FORMAT = 1
MODEL_BYTES = 16
NONCE_BYTES = 12  # random: one tenant's key is safe for 2**32 blobs
PURPOSE = b"laneway: reasoning held by clients, format 1: tenant "
SUMMARY = ""  # in place of a model's digest: any model reads a summary
SUMMARY_BEGINS = "Summary of the conversation so far:\n\n"
_HEAD_BYTES = 1 + MODEL_BYTES


class ReasoningKeys(msgspec.Struct, frozen=True):
    """The keys of one tenant. `keys`: the key that seals first; the others open as well."""

    tenant: str
    keys: list[bytes]

    def seal(self, text: str, model: str) -> str:
        """The blob of a text that the model with the digest `model` (hex) wrote."""
        head = bytes((FORMAT,)) + _model_bytes(model)
        nonce = os.urandom(NONCE_BYTES)
        sealed = AESGCM(self.keys[0]).encrypt(nonce, text.encode(), head + self.tenant.encode())
        return base64.urlsafe_b64encode(head + nonce + sealed).decode()

    def open(self, blob: str, model: str) -> str | None:
        """The text; None: another model wrote it. Raises ValueError for a blob that is not this tenant's, was changed,
        or was sealed with a secret that is not known any more."""
        try:
            data = base64.b64decode(blob.encode(), altchars=b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError):
            raise ValueError("it is not base64url") from None
        head, nonce, sealed = data[:_HEAD_BYTES], data[_HEAD_BYTES:][:NONCE_BYTES], data[_HEAD_BYTES + NONCE_BYTES :]
        if head[:1] != bytes((FORMAT,)) or not sealed:
            raise ValueError("it has another format")
        for key in self.keys:
            with contextlib.suppress(InvalidTag):
                text = AESGCM(key).decrypt(nonce, sealed, head + self.tenant.encode()).decode()
                return text if head[1:] == _model_bytes(model) else None
        raise ValueError("it does not decrypt")


def _model_bytes(digest: str) -> bytes:
    return bytes.fromhex(digest[: 2 * MODEL_BYTES]).ljust(MODEL_BYTES, b"\0")


class ReasoningReader(msgspec.Struct, frozen=True):
    """Opens the sealed reasoning in conversations for the model with the digest `model`."""

    keys: ReasoningKeys
    model: str

    def open_messages(self, messages: Sequence[Message]) -> tuple[list[Message], list[str]]:
        """The messages of a conversation with their reasoning as text, and the fields whose reasoning another model
        wrote: it is left out. Raises InvalidEncryptedContent."""
        opened: list[Message] = []
        ignored: list[str] = []
        for message in messages:
            if (sealed := message.get(SEALED_SUMMARY)) is not None:
                opened.append({"role": message["role"], "content": SUMMARY_BEGINS + self._summary(sealed)})
                continue
            if (sealed := message.get(SEALED_REASONING)) is None:
                opened.append(message)
                continue
            text = self._text(sealed, self.model)
            rest = {name: value for name, value in message.items() if name != SEALED_REASONING}
            if text is not None:
                rest["reasoning_content"] = text
            else:
                ignored.append(sealed["param"])
            if text or rest["content"] or "tool_calls" in rest:
                opened.append(rest)
        return opened, ignored

    def _summary(self, sealed: Mapping[str, str]) -> str:
        text = self._text(sealed, SUMMARY)
        if text is None:
            raise _refusal(sealed, "it is no summary")
        return text

    def _text(self, sealed: Mapping[str, str], model: str) -> str | None:
        """See `ReasoningKeys.open`. Raises InvalidEncryptedContent."""
        try:
            return self.keys.open(sealed["blob"], model)
        except ValueError as error:
            raise _refusal(sealed, str(error)) from None


def _refusal(sealed: Mapping[str, str], why: str) -> InvalidEncryptedContent:
    param = sealed["param"]
    return InvalidEncryptedContent(
        f"{param!r} is wrong: {why}. Send it as it was received, with a key of the same tenant, or leave the item out.",
        param=param,
    )
