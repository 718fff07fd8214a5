"""`laneway batches` and `laneway files`, on a running gateway: as operators, and as a client with a key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.access import audit_log
from gateway.access.audit_log import AuditFilter
from gateway.cli import main
from support.gateway.batch_client import CHAT, BatchClient, chat_lines
from support.gateway.command_line import Laneway
from support.stack import Stack


@pytest.fixture
def laneway(stack: Stack, tmp_path: Path) -> Laneway:
    return Laneway(tmp_path, f'[gateway]\ndatabase_url = "{stack.database_url}"\n')


def submit(stack: Stack, *arguments: str, secret: str = "") -> Result:
    environ = {"LANEWAY_URL": stack.url, "LANEWAY_KEY": secret or stack.keys["acme"]}
    return CliRunner().invoke(main, ["batches", "submit", *arguments], env=environ)


def test_a_client_submits_a_file_and_waits_for_its_outputs(stack: Stack, laneway: Laneway, tmp_path: Path) -> None:
    lines = chat_lines(12)
    file = tmp_path / "in.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    done = submit(stack, str(file), "--wait", "--json")
    assert done.exit_code == 0, done.output
    batch = json.loads(done.stdout)
    assert (batch["status"], batch["request_counts"]) == ("completed", {"total": 12, "completed": 12, "failed": 0})
    found = [json.loads(line) for line in (tmp_path / "in.output.jsonl").read_text().splitlines()]
    assert [line["custom_id"] for line in found] == [line["custom_id"] for line in lines]
    assert not (tmp_path / "in.errors.jsonl").exists()
    lines[0]["body"]["nonsense"] = 1
    file.write_text("\n".join(map(json.dumps, lines)))
    failed = submit(stack, str(file), "--wait", "--errors", str(tmp_path / "e.jsonl"), "--endpoint", CHAT)
    assert failed.exit_code == 1, failed.output
    assert dict(line.split() for line in failed.stdout.splitlines() if " " in line)["succeeded"] == "11"
    assert "unknown_parameter" in (tmp_path / "e.jsonl").read_text()
    refused = submit(stack, str(file), secret="lw_live_wrong")
    assert refused.exit_code == 2
    assert "Error: " in refused.stderr
    shown = laneway.json("batches", "show", batch["id"])
    assert (shown["status"], shown["succeeded"]) == ("completed", 12)
    assert batch["id"] in [row["id"] for row in laneway.json("batches", "list", "--tenant", "acme")]
    assert laneway.text("batches", "list", "--status", "completed").splitlines()[0].split()[:3] == [
        *("CREATED_AT", "TENANT", "STATUS"),
    ]
    assert "cost " in laneway.text("batches", "show", batch["id"])
    assert {row["batch_id"] for row in laneway.json("requests", "--batch", batch["id"])} == {batch["id"]}
    assert laneway.refusal("batches", "cancel", batch["id"], "--yes").endswith("its lines have ended")
    assert laneway.refusal("batches", "show", "batch_none") == "there is no batch 'batch_none'"


def test_an_operator_cancels_a_batch_and_deletes_a_file(stack: Stack, laneway: Laneway) -> None:
    with BatchClient(stack, stack.keys["acme"]) as client:
        batch_id = client.create(chat_lines(600, max_tokens=64))
        client.until(batch_id, completed=1)
        unasked = laneway("batches", "cancel", batch_id)
        assert (unasked.exit_code, "nothing was changed" in unasked.stderr) == (2, True)
        assert laneway.json("batches", "cancel", batch_id, "--yes")["status"] == "cancelling"
        batch = client.finish(batch_id)
        assert batch["status"] == "cancelled"
        file_id = batch["input_file_id"]
        assert file_id in [row["id"] for row in laneway.json("files", "list", "--purpose", "batch")]
        assert laneway.json("files", "show", file_id)["filename"] == "input.jsonl"
        assert laneway.text("files", "list").splitlines()[0].split()[:3] == ["CREATED_AT", "TENANT", "PURPOSE"]
        laneway.text("files", "delete", file_id, "--yes")
        assert client.http.get(f"/files/{file_id}").status_code == 404
    for object_id, action in ((batch_id, "batch.cancel"), (file_id, "file.delete")):
        found = stack.read(lambda c, one=object_id: audit_log.list_audit_lines(c, AuditFilter(object_id=one)))
        assert [(line.actor, line.action) for line in found] == [(audit_log.host_actor(), action)]


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"\n\n", "has no line"), (b"[1]\n", "has no endpoint"), (b"\xff\xfe{", "has no endpoint")],
)
def test_a_file_without_an_endpoint_is_refused_before_the_upload(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(content)
    done = CliRunner().invoke(main, ["batches", "submit", str(file), "--url", "http://127.0.0.1:9", "--key", "k"])
    assert (done.exit_code, reason in done.stderr) == (2, True), done.output


def test_a_gateway_that_does_not_answer_is_named(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text("{}")
    arguments = ["batches", "submit", str(file), "--endpoint", CHAT, "--url", "http://127.0.0.1:9", "--key", "k"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert "The gateway at http://127.0.0.1:9/v1/ does not answer" in done.stderr
