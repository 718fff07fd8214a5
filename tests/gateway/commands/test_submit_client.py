"""The client of `laneway batches submit` against a gateway that refuses and fails now and then."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.commands import batch_client
from gateway.commands.batch_client import BatchClient, BatchFailed, SubmittedBatch, SubmittedCounts

CHAT = "/v1/chat/completions"
FILE: dict[str, Any] = {"id": "file_1"}
BUSY = (429, {"error": {"message": "Too many requests.", "type": "rate_limit_error"}}, "0")
FAILED = (503, {"error": {"message": "No engine."}}, "0")
SPENT = (429, {"error": {"message": "The quota is used up.", "type": "insufficient_quota"}}, None)

Answer = tuple[int, Any, str | None]  # status, body, Retry-After


def batch(status: str) -> dict[str, Any]:
    counts = {"total": 1, "completed": 1, "failed": 0}
    return {"id": "batch_1", "status": status, "request_counts": counts, "output_file_id": "f", "error_file_id": None}


class ScriptedGateway:
    """Gives its answers in turn. `seen`: method, path and Idempotency-Key of each request. A body of bytes is sent
    without its last byte."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.seen: list[tuple[str, str, str | None]] = []
        script = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                script.seen.append((self.command, self.path, self.headers.get("idempotency-key")))
                status, body, retry_after = script.answers.pop(0)
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                if retry_after is not None:
                    self.send_header("retry-after", retry_after)
                self.end_headers()
                self.wfile.write(content[:-1] if isinstance(body, bytes) else content)

            do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedGateway]:
    monkeypatch.setattr(batch_client, "POLL_S", 0.0)
    made = ScriptedGateway()
    yield made
    made.stop()


@pytest.fixture
def client(gateway: ScriptedGateway) -> Iterator[BatchClient]:
    with BatchClient(gateway.url, "lw_live_x") as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "in.jsonl"
    made.write_text("{}\n")
    return made


def test_rate_limits_and_failures_are_retried(gateway: ScriptedGateway, client: BatchClient, file: Path) -> None:
    gateway.answers = [BUSY, (200, FILE, None), FAILED, BUSY, (200, batch("validating"), None)]
    created = client.create_batch(file, CHAT, "24h")
    assert created.status == "validating"
    creations = [key for method, path, key in gateway.seen if path == "/v1/batches"]
    assert creations == ["submit-file_1"] * 3, "a retry does not create a second batch"
    gateway.answers = [BUSY, (200, batch("in_progress"), None), FAILED, (200, batch("completed"), None)]
    assert [one.status for one in client.follow_batch(created)] == ["validating", "in_progress", "completed"]
    assert gateway.answers == []


def test_a_quota_that_is_used_up_is_not_retried(gateway: ScriptedGateway, client: BatchClient, file: Path) -> None:
    gateway.answers = [SPENT, (200, FILE, None)]
    with pytest.raises(BatchFailed, match=r"The quota is used up\."):
        client.create_batch(file, CHAT, "24h")
    assert len(gateway.answers) == 1


def test_a_failure_that_lasts_ends_the_wait(
    gateway: ScriptedGateway, client: BatchClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_client, "RETRIES_MAX", 2)
    gateway.answers = [FAILED] * 4
    started = SubmittedBatch("batch_1", "in_progress", SubmittedCounts(1, 0, 0), None, None)
    with pytest.raises(BatchFailed, match=r"No engine\. The batch batch_1 may still run\."):
        list(client.follow_batch(started))
    assert len(gateway.answers) == 1


def test_a_download_that_ends_early_leaves_no_file(
    gateway: ScriptedGateway, client: BatchClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_client, "RETRIES_MAX", 0)
    gateway.answers = [(200, b"half of it", None)]
    to = tmp_path / "out.jsonl"
    with pytest.raises(BatchFailed, match="The download of file_1 failed"):
        client.download("file_1", to)
    assert not to.exists()
    gateway.answers = [(200, {"whole": True}, None)]
    client.download("file_1", to)
    assert [one.name for one in tmp_path.iterdir()] == ["out.jsonl"]
