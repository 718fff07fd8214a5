"""OpenAI's Files API through its SDK, on both databases: a gateway with a store of its own."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import sqlalchemy as sa

from gateway.access import keys
from gateway.files.contents import CHUNK_BYTES
from gateway.tables import files as file_rows
from support.documents import DOCS
from support.stack import MODEL, Stack
from support.waiting import eventually

FILE_BYTES, TENANT_BYTES, COUNT = 3 * 1024 * 1024, 7 * 1024 * 1024, 4
TEXT = b'{"custom_id": "1"}\n'
UNKNOWN = "file-" + "0" * 32
TOML = f"""
[files]
file_bytes_max = {FILE_BYTES}
tenant_files_max = {COUNT}
tenant_bytes_max = {TENANT_BYTES}
uploads_per_tenant_max = 2
upkeep_s = 0.2
"""


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, model_dir: Path
) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("files")
    url = f"sqlite:///{directory}/laneway.db"
    if request.param == "postgres":
        url = request.getfixturevalue("modules_postgres_url")
    stack = Stack(directory, url, model_dir, toml=TOML)
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


@pytest.fixture
def stack(shared: Stack) -> Stack:
    """Nothing is stored."""
    shared.write(lambda c: c.execute(sa.delete(file_rows)))
    for path in contents(shared):
        path.unlink()
    return shared


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.keys["acme"], max_retries=0) as made:
        yield made


@pytest.fixture
def other(stack: Stack, client: openai.OpenAI) -> openai.OpenAI:
    return client.with_options(api_key=stack.keys["globex"])


def contents(stack: Stack) -> list[Path]:
    return [path for path in stack.config.files_dir.rglob("*") if path.is_file()]


def upload(client: openai.OpenAI, data: bytes = TEXT, **fields: Any) -> Any:
    return client.files.create(file=("lines.jsonl", data), **{"purpose": "batch", **fields})


def refusal(stack: Stack, **form: Any) -> httpx.Response:
    answer = httpx.post(f"{stack.url}/v1/files", headers=stack.headers("acme"), timeout=30, **form)
    assert contents(stack) == []
    return answer


def test_a_file_is_uploaded_listed_read_and_deleted(stack: Stack, client: openai.OpenAI) -> None:
    data = os.urandom(2 * CHUNK_BYTES + 123)
    made = upload(client, data)
    assert (made.object, made.status, made.purpose, made.filename) == ("file", "processed", "batch", "lines.jsonl")
    assert made.bytes == len(data)
    assert made.expires_at == made.created_at + 30 * 24 * 3600
    assert client.files.retrieve(made.id) == made
    assert client.files.content(made.id).read() == data
    assert [file.id for file in client.files.list()] == [made.id]
    deleted = client.files.delete(made.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (made.id, "file", True)
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError, match=made.id):
            call(made.id)
    assert list(client.files.list()) == []


def test_the_documented_calls_run(stack: Stack) -> None:
    text = (DOCS / "users/files.md").read_text().split("```python\n", 1)[1].split("```", 1)[0]
    environ = {**os.environ, "LANEWAY_URL": stack.url, "LANEWAY_KEY": stack.keys["acme"]}
    done = subprocess.run([sys.executable, "-c", text], env=environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "['lines.jsonl']\n"), done.stderr


def test_the_content_is_stored_encrypted(stack: Stack, client: openai.OpenAI) -> None:
    data = b"a line that nobody may read\n" * 1000
    upload(client, data)
    [path] = contents(stack)
    assert b"nobody may read" not in path.read_bytes()
    assert path.stat().st_mode & 0o077 == 0
    row = stack.read(lambda c: c.execute(sa.select(file_rows)).one())
    assert row.sha256 == hashlib.sha256(data).hexdigest()


def test_the_sdk_pages_through_a_list(client: openai.OpenAI) -> None:
    made = [upload(client).id for _ in range(COUNT)]
    assert [file.id for file in client.files.list(limit=1, order="asc")] == made
    assert [file.id for file in client.files.list(limit=3)] == made[::-1]
    assert [file.id for file in client.files.list(purpose="batch_output")] == []
    with pytest.raises(openai.BadRequestError, match="'after' is wrong"):
        client.files.list(after=UNKNOWN)
    with pytest.raises(openai.BadRequestError):
        client.files.list(limit=10_001)


def test_a_file_of_another_tenant_does_not_exist(stack: Stack, client: openai.OpenAI, other: openai.OpenAI) -> None:
    made = upload(client)
    for call in (other.files.retrieve, other.files.content, other.files.delete):
        with pytest.raises(openai.NotFoundError) as refused:
            call(made.id)
        unknown = str(refused.value).replace(made.id, UNKNOWN)
        with pytest.raises(openai.NotFoundError) as refused:
            call(UNKNOWN)
        assert str(refused.value) == unknown, "the answer does not say whether the file exists"
    with pytest.raises(openai.BadRequestError, match="not found"):
        other.files.list(after=made.id)
    assert list(other.files.list()) == []
    below = client.with_options(base_url=f"{stack.url}/t/globex/v1")
    with pytest.raises(openai.NotFoundError):
        below.files.retrieve(made.id)
    assert client.with_options(base_url=f"{stack.url}/t/acme/v1").files.content(made.id).read() == TEXT


def test_an_expiry_is_set_by_the_upload(stack: Stack, client: openai.OpenAI) -> None:
    made = upload(client, expires_after={"anchor": "created_at", "seconds": 3600})
    assert made.expires_at == made.created_at + 3600
    for wrong in (3599, 2_592_001, "soon"):
        with pytest.raises(openai.BadRequestError, match="from 3600 to 2592000") as refused:
            upload(client, expires_after={"anchor": "created_at", "seconds": wrong})
        assert refused.value.param == "expires_after[seconds]"
    with pytest.raises(openai.BadRequestError, match="must be 'created_at'"):
        upload(client, expires_after={"anchor": "last_used_at", "seconds": 3600})
    stack.write(lambda c: c.execute(sa.update(file_rows).values(expires_at=1)))
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(made.id)
    eventually(lambda: contents(stack) == [])


@pytest.mark.parametrize("purpose", ["user_data", "assistants", "batch_output", "fine-tune"])
def test_a_purpose_that_nothing_uses_is_refused_by_name(stack: Stack, client: openai.OpenAI, purpose: str) -> None:
    with pytest.raises(openai.BadRequestError, match="files are served for: batch") as refused:
        upload(client, purpose=purpose)
    assert purpose in refused.value.message
    assert (refused.value.code, refused.value.param) == ("unsupported_value", "purpose")
    assert contents(stack) == []


def test_a_form_that_is_wrong_names_the_field(stack: Stack) -> None:
    batch, file = {"purpose": "batch"}, ("a.jsonl", TEXT)
    cases: list[tuple[dict[str, Any], str, str | None]] = [
        ({"files": {"file": file}}, "'purpose' is missing", "purpose"),
        ({"data": batch, "files": {"file": ("a.jsonl", b"")}}, "is empty", "file"),
        ({"data": batch, "files": {"purpose": (None, "batch")}}, "lacks the file file", "file"),
        ({"data": {**batch, "name": "x"}, "files": {"file": file}}, "no field 'name'", "name"),
        ({"data": batch, "files": {"file": ("../a", TEXT)}}, "is a path", "file"),
        ({"data": batch, "files": {"file": ("x" * 256, TEXT)}}, "at most 255 characters", "file"),
        ({"json": batch}, "multipart/form-data", None),
    ]
    for form, words, param in cases:
        answer = refusal(stack, **form)
        assert answer.status_code == 400, answer.text
        assert words in answer.json()["error"]["message"]
        assert answer.json()["error"]["param"] == param


def test_the_purpose_may_follow_the_file(stack: Stack) -> None:
    form: Any = [("file", ("a.jsonl", TEXT)), ("purpose", (None, "batch"))]
    answer = httpx.post(f"{stack.url}/v1/files", headers=stack.headers("acme"), files=form)
    assert answer.json()["bytes"] == len(TEXT)


def test_a_file_over_the_limit_is_refused(stack: Stack, client: openai.OpenAI) -> None:
    assert upload(client, b"x" * FILE_BYTES).bytes == FILE_BYTES
    for more in (1, 2 * 1024 * 1024):  # the second is refused by its Content-Length
        with pytest.raises(openai.APIStatusError, match=f"limit of {FILE_BYTES} bytes") as refused:
            upload(client, b"x" * (FILE_BYTES + more))
        assert (refused.value.status_code, refused.value.code) == (413, "request_too_large")
    assert len(contents(stack)) == 1


def test_quotas_of_a_tenant(stack: Stack, client: openai.OpenAI, other: openai.OpenAI) -> None:
    made = [upload(client, b"x" * FILE_BYTES) for _ in range(2)]
    with pytest.raises(openai.RateLimitError, match=r"files.tenant_bytes_max.*Delete") as refused:
        upload(client, b"x" * (1024 * 1024 + 1))
    assert (refused.value.code, refused.value.type) == ("quota_exceeded", "insufficient_quota")
    made += [upload(client) for _ in range(COUNT - 2)]
    with pytest.raises(openai.RateLimitError, match=r"files.tenant_files_max"):
        upload(client)
    assert len(contents(stack)) == COUNT
    upload(other)


class HalfUpload:
    """A client that has sent the first half of an upload and waits."""

    def __init__(self, stack: Stack) -> None:
        form: Any = {"data": {"purpose": "batch"}, "files": {"file": ("a", os.urandom(2 * 1024 * 1024))}}
        request = httpx.Request("POST", stack.url, **form)
        body = request.read()
        head = f"POST /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {stack.keys['acme']}\r\n"
        head += f"content-type: {request.headers['content-type']}\r\ncontent-length: {len(body)}\r\n\r\n"
        self.connection = socket.create_connection(("127.0.0.1", stack.port))
        self.connection.sendall(head.encode() + body[: len(body) // 2])


def test_uploads_that_their_client_aborts_leave_nothing(
    stack: Stack, client: openai.OpenAI, other: openai.OpenAI
) -> None:
    running = [HalfUpload(stack).connection for _ in range(2)]
    eventually(lambda: len(contents(stack)) == 2)
    with pytest.raises(openai.RateLimitError, match=r"files\.uploads_per_tenant_max"):
        upload(client)
    made = upload(other)
    for connection in running:
        connection.close()
    eventually(lambda: len(contents(stack)) == 1)
    assert stack.read(lambda c: c.execute(sa.select(file_rows.c.id)).scalars().all()) == [made.id]
    upload(client)


def test_a_revoked_key_ends_its_upload(stack: Stack) -> None:
    made = stack.new_key("acme")
    stack.known()

    def slow() -> Iterator[bytes]:
        yield b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * 600_000
        eventually(lambda: len(contents(stack)) == 1)
        stack.write(lambda c: keys.revoke(c, made.key.id))
        eventually(lambda: contents(stack) == [])
        yield b"x" * 1000

    headers = {"authorization": f"Bearer {made.secret}", "content-type": "multipart/form-data; boundary=b"}
    answer = httpx.post(f"{stack.url}/v1/files", headers=headers, content=slow(), timeout=30)
    assert answer.status_code == 401
    assert "revoked" in answer.json()["error"]["message"]
    assert contents(stack) == []


def test_an_exhausted_budget_does_not_refuse_a_download(stack: Stack, client: openai.OpenAI) -> None:
    made = upload(client)
    key = stack.new_key("acme")
    stack.budget(key.key, "tokens", 1)
    stack.known()
    poor = client.with_options(api_key=key.secret)
    with pytest.raises(openai.RateLimitError, match="budget"):
        poor.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
    assert poor.files.content(made.id).read() == TEXT


@pytest.mark.parametrize("damage", ["changed", "truncated", "lost"])
def test_a_damaged_content_is_never_sent(stack: Stack, client: openai.OpenAI, damage: str) -> None:
    made = upload(client, os.urandom(6 * CHUNK_BYTES))
    [path] = contents(stack)
    sealed = path.read_bytes()
    if damage == "lost":
        path.unlink()
        with pytest.raises(openai.NotFoundError, match="is lost"):
            client.files.content(made.id)
        return
    path.write_bytes(sealed[:-1] if damage == "truncated" else sealed[:-100] + bytes(100))
    with pytest.raises((openai.InternalServerError, openai.APIConnectionError, httpx.RemoteProtocolError)):
        client.files.content(made.id).read()


def test_a_full_disk_is_named(tmp_path: Path, model_dir: Path) -> None:
    toml = "[adapters]\ndisk_free_min_bytes = 1125899906842624\n"  # more than any disk has free
    stack = Stack(tmp_path, f"sqlite:///{tmp_path}/laneway.db", model_dir, toml=toml)
    try:
        stack.start()
        answer = refusal(stack, data={"purpose": "batch"}, files={"file": ("a.jsonl", io.BytesIO(TEXT))})
    finally:
        stack.stop()
    assert answer.status_code == 507
    assert answer.json()["error"]["code"] == "file_store_full"
    assert answer.headers["x-should-retry"] == "false"


def test_the_metrics_count_files(stack: Stack, client: openai.OpenAI) -> None:
    upload(client)
    eventually(lambda: f"laneway_file_bytes {float(len(TEXT))}" in stack.metrics())
    assert "laneway_files 1.0" in stack.metrics()
