"""Reasoning that a client holds: only its tenant and its model read it."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from gateway.config.server_secrets import ServerSecrets
from gateway.errors import InvalidEncryptedContent
from gateway.tools.sealed_reasoning import PURPOSE, ReasoningKeys, ReasoningReader

OLD, NEW = bytes(range(32)), bytes(32)
MODEL, OTHER_MODEL = "ab" * 32, "cd" * 32
TEXT = "Paris is in France. " * 20


def keys(tenant: str = "ten_1", secrets: ServerSecrets = ServerSecrets(OLD)) -> ReasoningKeys:  # noqa: B008
    return ReasoningKeys(tenant, secrets.derive_keys(PURPOSE + tenant.encode()))


def test_a_tenant_reads_what_its_model_wrote() -> None:
    first, second = keys().seal(TEXT, MODEL), keys().seal(TEXT, MODEL)
    assert first != second, "a random nonce"
    assert keys().open(first, MODEL) == keys().open(second, MODEL) == TEXT
    assert keys().open(first, OTHER_MODEL) is None
    assert TEXT[:8].encode() not in base64.urlsafe_b64decode(first)


def test_a_blob_that_was_changed_or_is_another_tenants_is_refused() -> None:
    blob = keys().seal(TEXT, MODEL)
    with pytest.raises(ValueError, match="does not decrypt"):
        keys("ten_2").open(blob, MODEL)
    data = base64.urlsafe_b64decode(blob)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises(ValueError, match=r"decrypt|format"):
            keys().open(base64.urlsafe_b64encode(changed).decode(), MODEL)
    for wrong in ("", "é", "gAAAA", "!!!!", blob[:40], blob[:-4], "AA" * 40):
        with pytest.raises(ValueError, match=r"base64url|format|decrypt"):
            keys().open(wrong, MODEL)


def test_a_rotation_reads_both_secrets() -> None:
    old = keys().seal(TEXT, MODEL)
    rotating = keys(secrets=ServerSecrets(NEW, OLD))
    assert rotating.open(old, MODEL) == rotating.open(rotating.seal(TEXT, MODEL), MODEL) == TEXT
    with pytest.raises(ValueError, match="does not decrypt"):
        keys(secrets=ServerSecrets(NEW)).open(old, MODEL)


def test_a_prompt_is_opened_for_one_model() -> None:
    def sealed(blob: str, **rest: object) -> dict[str, object]:
        return {"role": "assistant", "content": "", "sealed_reasoning": {"blob": blob, "param": "input[1]"}, **rest}

    user = {"role": "user", "content": "a"}
    own, foreign = keys().seal("own", MODEL), keys().seal("foreign", OTHER_MODEL)
    calls = [{"id": "call_1"}]
    further = [sealed(foreign, tool_calls=calls), sealed(own, content="b")]
    messages: list[Any] = [user, sealed(own), sealed(foreign), *further]
    opened, ignored = ReasoningReader(keys(), MODEL).open_messages(messages)
    assert opened == [
        user,
        {"role": "assistant", "content": "", "reasoning_content": "own"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "assistant", "content": "b", "reasoning_content": "own"},
    ]
    assert ignored == ["input[1]", "input[1]"]
    with pytest.raises(InvalidEncryptedContent, match=r"'input\[1\]' is wrong: it does not decrypt") as refusal:
        ReasoningReader(keys("ten_2"), MODEL).open_messages(messages)
    assert refusal.value.code == "invalid_encrypted_content"
