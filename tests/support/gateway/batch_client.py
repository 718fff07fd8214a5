"""Batches as a client uses them, and what the books have of their lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx
import sqlalchemy as sa

from billing import tables
from billing.output_tables import line_outputs, output_leases
from billing.proofs.ledger_audit import audit_ledger
from gateway.batch_tables import batch_lines, batches
from support.stack import MODEL, Stack
from support.waiting import eventually

CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def chat_line(number: int, endpoint: str = CHAT, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": f"Say {number}."}], "max_tokens": 4} | fields
    return {"custom_id": f"line-{number}", "method": "POST", "url": endpoint, "body": body}


def chat_lines(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [chat_line(number, **fields) for number in range(1, count + 1)]


class BatchClient:
    """Sends requests for batches and files with one key to one gateway of a stack."""

    def __init__(self, stack: Stack, secret: str, url: str = "") -> None:
        self.stack = stack
        headers = {"Authorization": f"Bearer {secret}"}
        self.http = httpx.Client(base_url=f"{url or stack.url}/v1", headers=headers, timeout=60)

    def __enter__(self) -> BatchClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def upload(self, lines: Sequence[dict[str, Any]] | bytes) -> str:
        data = lines if isinstance(lines, bytes) else "\n".join(map(json.dumps, lines)).encode()
        answer = self.http.post("/files", data={"purpose": "batch"}, files={"file": ("input.jsonl", data)})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def post(self, file_id: str, endpoint: str = CHAT, headers: dict[str, str] | None = None, **fields: Any) -> Any:
        body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h"} | fields
        return self.http.post("/batches", json=body, headers=headers)

    def create(self, lines: Sequence[dict[str, Any]] | bytes, endpoint: str = CHAT, **fields: Any) -> str:
        answer = self.post(self.upload(lines), endpoint, **fields)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def get(self, batch_id: str) -> Any:
        answer = self.http.get(f"/batches/{batch_id}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def cancel(self, batch_id: str) -> httpx.Response:
        return self.http.post(f"/batches/{batch_id}/cancel")

    def until(self, batch_id: str, *, completed: int = 0, timeout_s: float = 60.0) -> Any:
        """Wait until `completed` lines are completed (0: no limit) or the batch has ended. Returns the batch."""
        found: list[Any] = []

        def look() -> bool:
            found[:] = [self.get(batch_id)]
            return found[0]["status"] in ENDED or 0 < completed <= found[0]["request_counts"]["completed"]

        eventually(look, timeout_s)
        return found[0]

    def finish(self, batch_id: str, timeout_s: float = 60.0) -> Any:
        return self.until(batch_id, timeout_s=timeout_s)

    def lines_of(self, file_id: str | None) -> dict[str, Any]:
        """The lines of an output file by custom_id; each occurs once."""
        if file_id is None:
            return {}
        answer = self.http.get(f"/files/{file_id}/content")
        assert answer.status_code == 200, answer.text
        found = [json.loads(line) for line in answer.text.splitlines()]
        by_id = {line["custom_id"]: line for line in found}
        assert len(by_id) == len(found), "a line has two outputs"
        return by_id

    def outputs(self, batch: Any) -> dict[str, Any]:
        return self.lines_of(batch["output_file_id"])

    def errors(self, batch: Any) -> dict[str, Any]:
        return self.lines_of(batch["error_file_id"])


def set_deadline(stack: Stack, batch_id: str, seconds: float) -> None:
    """Move the end of the batch's completion window to `seconds` after its creation."""
    moved = batches.c.created_at + round(seconds * 1e6)
    stack.write(lambda c: c.execute(sa.update(batches).where(batches.c.id == batch_id).values(deadline_at=moved)))


def usage_of(stack: Stack, batch_id: str) -> list[sa.Row[Any]]:
    query = sa.select(tables.usage).where(tables.usage.c.batch_id == batch_id)
    return stack.read(lambda c: list(c.execute(query).all()))


def check_charges(stack: Stack, batch_id: str, outputs: dict[str, Any]) -> None:
    """Each answered line is charged once, for the tokens in its output; nothing else is charged; the books are sound
    once no hold is open."""
    charged = {row.request_id: row for row in usage_of(stack, batch_id) if row.cost_picos}
    answered = {line["response"]["request_id"]: line["response"]["body"]["usage"] for line in outputs.values()}
    assert charged.keys() == answered.keys()
    for request_id, usage in answered.items():
        made = usage.get("completion_tokens", usage.get("output_tokens", 0))  # embeddings have none
        assert charged[request_id].completion_tokens == made
    eventually(lambda: stack.open_holds() == 0)
    findings = stack.read(audit_ledger)
    assert findings.sound, findings
    assert findings.overshot == []


def rows_left(stack: Stack, batch_id: str) -> int:
    """The number of rows of the batch's lines, of their outputs and of its worker lease."""

    def count(connection: sa.Connection) -> int:
        counts = [
            sa.select(sa.func.count()).select_from(table).where(table.c.batch_id == batch_id)
            for table in (batch_lines, line_outputs, output_leases)
        ]
        return sum(connection.execute(query).scalar_one() for query in counts)

    return stack.read(count)
