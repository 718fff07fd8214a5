"""Slow, many or large uploads: bounded per tenant in number, time and disk space."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters.files.check import CONFIG_FILE, WEIGHTS_FILE
from adapters.files.generate import Recipe, write_random
from adapters.files.spec import BaseShape
from gateway.access import keys
from gateway.access.keys import MadeKey
from gateway.uploads.disk_reserve import RESERVE_FILE, DiskFull, DiskReserve
from support.gateway.adapter_uploads import AdapterOperator, files_of
from support.stack import MODEL, Stack
from support.waiting import PATIENCE_S, eventually

MIB = 1024 * 1024
PART = (
    b'--b\r\nContent-Disposition: form-data; name="f"; filename="' + WEIGHTS_FILE.encode() + b'"\r\n'
    b"Content-Type: application/octet-stream\r\n\r\n"
)


class Begun:
    """A client that has sent the head of an upload and the beginning of its weights."""

    def __init__(self, stack: Stack, key: MadeKey, announced: int | None = MIB, sent: int = 1000) -> None:
        self._chunked = announced is None
        framing = "transfer-encoding: chunked" if announced is None else f"content-length: {announced}"
        head = f"POST /v1/admin/adapters HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key.secret}\r\n{framing}\r\n"
        self.connection = socket.create_connection(("127.0.0.1", stack.port), PATIENCE_S)
        self.connection.sendall(head.encode() + b"content-type: multipart/form-data; boundary=b\r\n\r\n")
        self.send(PART + b"\0" * sent)

    def send(self, data: bytes) -> None:
        self.connection.sendall(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def answer(self) -> tuple[int, dict[str, Any]]:
        """Status and error of its answer."""
        text = b""
        with contextlib.suppress(ConnectionResetError):
            while not text.endswith(b"}}") and (part := self.connection.recv(65536)):
                text += part
        head, _, body = text.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)["error"]

    def __enter__(self) -> Begun:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()


def admin_key(stack: Stack, tenant: str | None = None) -> MadeKey:
    owner = None if tenant is None else stack.tenants[tenant]
    role = "owner" if tenant is None else "tenant_admin"
    return stack.write(lambda c: keys.create_key(c, tenant_id=owner, name="me", kind="admin", role=role))  # type: ignore[arg-type]


@contextlib.contextmanager
def operator_of(stack: Stack, key: MadeKey) -> Iterator[AdapterOperator]:
    operator = AdapterOperator(stack.url, key.secret)
    yield operator
    operator.close()


def incoming(stack: Stack) -> list[Path]:
    root = stack.config.adapters_dir / ".incoming"
    return list(root.iterdir()) if root.is_dir() else []


def disk_bytes(stack: Stack) -> int:
    """Bytes allocated for running uploads."""
    found = 0
    for folder in incoming(stack):
        with contextlib.suppress(FileNotFoundError):
            found += sum(file.stat().st_blocks * 512 for file in folder.iterdir())
    return found


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Callable[[int], Path]:
    base = BaseShape.from_config(json.loads((model_dir / "config.json").read_bytes()))
    made: dict[int, Path] = {}

    def make(seed: int) -> Path:
        if seed not in made:
            directory = tmp_path_factory.mktemp("adapter")
            made[seed] = write_random(directory, base, Recipe(seed, 1, ("k_proj",)), MODEL)
        return made[seed]

    return make


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("uploads")
    stack = Stack(directory, f"sqlite:///{directory}/laneway.db", model_dir, fake={"step_ms": 1.0})
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


def test_trickled_uploads_leave_places_for_others(served: Stack, adapter: Callable[[int], Path]) -> None:
    acme, globex, initech, owner = (admin_key(served, name) for name in ("acme", "globex", "initech", None))
    with contextlib.ExitStack() as closing, operator_of(served, owner) as operator:
        running = [closing.enter_context(Begun(served, acme)) for _ in range(2)]
        eventually(lambda: len(operator.ok("GET", "adapters/uploads")) == 2)
        with Begun(served, acme) as third:
            status, error = third.answer()
        assert (status, error["code"]) == (429, "rate_limit_exceeded")
        assert "adapters.uploads_per_tenant_max" in error["message"]
        running.append(closing.enter_context(Begun(served, globex)))
        eventually(lambda: len(operator.ok("GET", "adapters/uploads")) == 3)
        shown = operator.ok("GET", "adapters/uploads")
        assert [(one["tenant_id"], one["key_id"]) for one in shown] == [
            (served.tenants["acme"], acme.key.id),
            (served.tenants["acme"], acme.key.id),
            (served.tenants["globex"], globex.key.id),
        ]
        with Begun(served, initech) as fourth:
            assert fourth.answer()[0] == 503
        operator.upload(adapter(1), "operators-own")  # a place is kept for it
        operator.ok("DELETE", "adapters/operators-own")
    eventually(lambda: incoming(served) == [])


def test_an_upload_ends_with_its_key(served: Stack) -> None:
    key, owner = admin_key(served, "acme"), admin_key(served)
    with Begun(served, key) as begun, operator_of(served, owner) as operator:
        eventually(lambda: len(operator.ok("GET", "adapters/uploads")) == 1)
        served.write(lambda c: keys.revoke(c, key.key.id))
        status, error = begun.answer()
        assert (status, error["code"]) == (401, "invalid_api_key")
        assert operator.ok("GET", "adapters/uploads") == []
    eventually(lambda: incoming(served) == [])


def test_space_is_taken_before_the_bytes_come(served: Stack) -> None:
    """For the files, and for their slab: at most float32 made from float16."""
    key, announced = admin_key(served, "acme"), 30 * MIB
    with Begun(served, key, announced, 100) as begun:
        eventually(lambda: disk_bytes(served) >= 3 * announced)
        begun.send(b"\0" * (announced // 2))
        time.sleep(0.5)
        assert 3 * announced <= disk_bytes(served) <= 3 * announced + 20 * MIB, "what was written left the reserve"
    eventually(lambda: incoming(served) == [])


def test_without_an_announced_length_space_is_taken_as_bytes_come(served: Stack) -> None:
    key, sent = admin_key(served, "acme"), 20 * MIB
    with Begun(served, key, None, 100) as begun:
        eventually(lambda: disk_bytes(served) > 0)
        assert disk_bytes(served) < 3 * sent
        for _ in range(20):
            begun.send(b"\0" * MIB)
        eventually(lambda: disk_bytes(served) >= 3 * sent)
    eventually(lambda: incoming(served) == [])


def test_a_slow_upload_is_given_up(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack(toml="[adapters]\nupload_idle_s = 3.0\nupload_s_max = 6.0\n")
    key = admin_key(stack, "acme")
    for size, every_s, said in ((1, 0.1, "slower than the limit"), (50_000, 0.2, "over 6 s")):
        with Begun(stack, key, 100 * MIB) as begun, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            began = time.monotonic()
            while time.monotonic() - began < PATIENCE_S and not readable(begun.connection):
                begun.send(b"\0" * size)
                time.sleep(every_s)
            status, error = begun.answer()
            assert status == 408
            assert said in error["message"]
    eventually(lambda: incoming(stack) == [])


def readable(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


def test_a_disk_below_the_mark_takes_no_upload_and_serves_requests(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack(toml=f"[adapters]\ndisk_free_min_bytes = {2**50}\n")
    key = admin_key(stack, "acme")
    for announced in (MIB, None):
        with Begun(stack, key, announced) as begun:
            assert begun.answer()[0] == 507
    assert incoming(stack) == []
    assert stack.chat().status_code == 200


def test_a_tenants_quotas(make_stack: Callable[..., Stack], adapter: Callable[[int], Path], database_url: str) -> None:
    stack = make_stack(database_url, toml="[adapters]\ntenant_adapters_max = 2\ntenant_versions_max = 3\n")
    key, owner = admin_key(stack, "initech"), admin_key(stack)
    with operator_of(stack, key) as tenant, operator_of(stack, owner) as operator:

        def refused(seed: int, name: str) -> tuple[int, str]:
            answer = tenant.post_files(files_of(adapter(seed)), name=name)
            return answer.status_code, answer.json()["error"]["message"]

        for seed, name in ((1, "a"), (2, "b"), (3, "a")):
            tenant.upload(adapter(seed), name)
        tenant.upload(adapter(3), "a")  # the same content adds no version
        status, said = refused(4, "b")
        assert status == 429
        assert "adapters.tenant_versions_max, 3" in said
        tenant.ok("DELETE", "adapters/a/versions/2")
        status, said = refused(4, "c")
        assert status == 429
        assert "adapters.tenant_adapters_max, 2" in said
        operator.upload(adapter(4), "c", tenant="initech")  # an operator may
        tenant.ok("DELETE", "adapters/c")
        tenant.upload(adapter(4), "b")
        tenant.ok("DELETE", "adapters/b")
        assert len([one for one in tenant.ok("GET", "adapters")["data"] if one["tenant_id"]]) == 1


def test_a_tenants_bytes(make_stack: Callable[..., Stack], adapter: Callable[[int], Path]) -> None:
    """Slabs count: an adapter takes the bytes of its files, and at most twice as many for its slab."""
    size = sum((adapter(1) / name).stat().st_size for name in (CONFIG_FILE, WEIGHTS_FILE))
    limit = max(MIB, 4 * size)
    stack = make_stack(toml=f"[adapters]\ntenant_bytes_max = {limit}\n")
    key = admin_key(stack, "initech")
    with operator_of(stack, key) as tenant:
        with Begun(stack, key, limit + 1) as begun:
            status, error = begun.answer()
        assert (status, error["code"], error["param"]) == (413, "request_too_large", WEIGHTS_FILE)
        assert "adapters.tenant_bytes_max" in error["message"]
        answers = [tenant.post_files(files_of(adapter(seed)), name=f"n{seed}") for seed in range(1, 15)]
        statuses = [answer.status_code for answer in answers]
        kept = statuses.index(413)
        assert statuses == [201] * kept + [413] * (len(statuses) - kept)
        assert 2 * size * kept < limit < 3.5 * size * (kept + 1), "files and slabs"
        assert "adapters.tenant_bytes_max" in answers[kept].json()["error"]["message"]


# ---- the reserve


def test_a_reserve_grows_to_the_mark_and_no_further(tmp_path: Path) -> None:
    def free(_: Path) -> int:
        there = tmp_path / RESERVE_FILE
        return 10 * MIB - (there.stat().st_size if there.exists() else 0)

    reserve = DiskReserve(tmp_path, 4 * MIB, free)
    reserve.resize(5 * MIB)
    assert (tmp_path / RESERVE_FILE).stat().st_blocks * 512 >= 5 * MIB
    reserve.resize(6 * MIB)
    with pytest.raises(DiskFull):
        reserve.resize(6 * MIB + 1)
    assert reserve.bytes == (tmp_path / RESERVE_FILE).stat().st_size == 6 * MIB
    reserve.resize(MIB)
    assert (tmp_path / RESERVE_FILE).stat().st_blocks * 512 < 2 * MIB
    reserve.close()
    reserve.close()
    assert os.listdir(tmp_path) == []


def test_a_reserve_shrinks_again_when_another_took_the_room(tmp_path: Path) -> None:
    said = iter([10 * MIB, 3 * MIB])
    reserve = DiskReserve(tmp_path, 4 * MIB, lambda _: next(said))
    with pytest.raises(DiskFull):
        reserve.resize(2 * MIB)
    assert (tmp_path / RESERVE_FILE).stat().st_blocks == 0
