"""Answers kept for replays: encrypted in the database, for one call alone, by one installation's secret."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
import sqlalchemy as sa

from gateway.config.server_secrets import ServerSecrets
from gateway.generation import sealing
from gateway.generation.replays import HEADER, SEALED_HERE_BYTES_MAX
from gateway.generation.sealing import AnswerEncryption, AnswerOwner, DecryptionFailed
from gateway.tables import replays
from support.stack import Stack, body

SECRET = ServerSecrets(bytes(range(32)))
OWNER = AnswerOwner(tenant_id="ten_1", key_id="key_1", name_hash="aa", fingerprint="bb")


def ask(stack: Stack, name: str, tenant: str = "acme", **fields: Any) -> httpx.Response:
    headers = stack.headers(tenant) | {HEADER: name}
    return httpx.post(f"{stack.url}/v1/chat/completions", headers=headers, json=body(**fields), timeout=30)


def kept(stack: Stack, name: str) -> bytes:
    query = sa.select(replays.c.answer).where(replays.c.name == name)
    return bytes(stack.read(lambda c: c.execute(query).scalar_one()))


def put(stack: Stack, name: str, answer: bytes) -> None:
    stack.write(lambda c: c.execute(sa.update(replays).where(replays.c.name == name).values(answer=answer)))


@pytest.mark.parametrize("size", [0, 1, 1000, SEALED_HERE_BYTES_MAX + 1])
def test_what_is_sealed_is_read_again(size: int) -> None:
    answer = b"a" * size
    first, second = (AnswerEncryption(SECRET).seal(answer, OWNER) for _ in range(2))
    assert AnswerEncryption(SECRET).unseal(first, OWNER) == AnswerEncryption(SECRET).unseal(second, OWNER) == answer
    assert first != second, "each has a nonce of its own"
    assert len(first) == size + 1 + sealing.NONCE_BYTES + 16


@pytest.mark.parametrize("field", AnswerOwner.__struct_fields__)
def test_it_opens_for_its_owner_alone(field: str) -> None:
    sealed = AnswerEncryption(SECRET).seal(b"answer", OWNER)
    with pytest.raises(DecryptionFailed, match="not this call's"):
        AnswerEncryption(SECRET).unseal(sealed, msgspec.structs.replace(OWNER, **{field: "other"}))


def test_neither_another_secret_nor_a_changed_byte_opens_it() -> None:
    sealed = AnswerEncryption(SECRET).seal(b"answer", OWNER)
    with pytest.raises(DecryptionFailed, match="another secret"):
        AnswerEncryption(ServerSecrets(bytes(32))).unseal(sealed, OWNER)
    for at in range(len(sealed)):
        changed = sealed[:at] + bytes((sealed[at] ^ 1,)) + sealed[at + 1 :]
        with pytest.raises(DecryptionFailed):
            AnswerEncryption(SECRET).unseal(changed, OWNER)
    for short in (b"", b"{}", sealed[:1], sealed[: sealing.NONCE_BYTES + 1], b'{"id": "chatcmpl"}'):
        with pytest.raises(DecryptionFailed):
            AnswerEncryption(SECRET).unseal(short, OWNER)


def test_the_database_has_no_answer_in_plain(make_stack: Callable[..., Stack], database_url: str) -> None:
    stack = make_stack(database_url)
    first = ask(stack, "secret-plan", max_tokens=30)
    content = first.json()["choices"][0]["message"]["content"].encode()
    assert len(content) > 20
    again = ask(stack, "secret-plan", max_tokens=30)
    assert again.content == first.content, "to the byte"
    assert stack.holds() == 1
    sealed = kept(stack, "secret-plan")
    assert len(sealed) == len(first.content) + 29
    for part in (content, content[:12], first.json()["id"].encode(), b'"choices"'):
        assert part not in sealed
    if stack.database.is_sqlite:  # nor elsewhere
        for file in stack.directory.glob("laneway.db*"):
            assert content not in file.read_bytes(), file


def test_an_answer_moved_to_another_call_is_refused_and_nothing_runs(stack: Stack) -> None:
    calls = {"mine": ("acme", "One"), "my-other": ("acme", "Two"), "theirs": ("globex", "One")}
    for name, (tenant, text) in calls.items():
        assert ask(stack, name, tenant, messages=[{"role": "user", "content": text}]).status_code == 200
    answers = {name: kept(stack, name) for name in calls}
    holds = stack.holds()
    for name, moved in (("mine", "my-other"), ("theirs", "mine"), ("my-other", "theirs")):
        put(stack, name, answers[moved])
        tenant, text = calls[name]
        refused = ask(stack, name, tenant, messages=[{"role": "user", "content": text}])
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "idempotency_unreadable")
        assert refused.headers["x-should-retry"] == "false"
    assert stack.holds() == holds, "none ran again"


def test_a_gateway_with_another_secret_does_not_start(make_stack: Callable[..., Stack]) -> None:
    """During a rotation a gateway decrypts with both secrets."""
    stack = make_stack()
    first = ask(stack, "n")
    file = stack.config.data_dir / "server.secret"
    own, new = file.read_text().strip(), "11" * 32
    _stop(stack)
    file.write_text(new)
    stack.start_gateway()
    assert stack.gateway is not None
    assert stack.gateway.wait(30) == 1
    assert "laneway secret adopt" in stack.log_lines("gateway.cannot_start")[-1]["reason"]
    for secrets in (f"{own}\n{new}\n", f"{new}\n{own}\n"):  # added, then promoted
        file.write_text(secrets)
        stack.start_gateway()
        stack.wait_ready()
        assert ask(stack, "n").content == first.content
        _stop(stack)
    file.write_text(new)  # the old secret is dropped
    stack.start_gateway()
    stack.wait_ready()
    refused = ask(stack, "n")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "idempotency_unreadable")
    assert "gateway.secret_file" in refused.json()["error"]["message"]
    assert stack.log_lines("replay.unreadable")
    assert stack.holds() == 1


def _stop(stack: Stack) -> None:
    assert stack.gateway is not None
    stack.gateway.terminate()
    stack.gateway.wait(30)
