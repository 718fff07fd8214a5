"""Exports over HTTP and by command: asked for, watched, downloaded, checked, ended; for operators alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from billing import tables
from billing.books import periods, rollups
from billing.focus.checker import check_focus_file
from gateway.access import keys
from gateway.cli import main
from support.stack import Stack
from support.waiting import eventually

DONE_S_MAX = 60.0


@pytest.fixture
def operator(stack: Stack) -> Iterator[httpx.Client]:
    key = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="exports", kind="admin"))
    headers = {"Authorization": f"Bearer {key.secret}"}
    with httpx.Client(base_url=f"{stack.url}/v1/admin/", headers=headers, timeout=30) as client:
        yield client


@pytest.fixture
def month(stack: Stack) -> str:
    """In which both tenants used something."""
    for tenant in ("acme", "globex"):
        assert stack.chat(tenant).status_code == 200
    stack.write(rollups.fold_all)
    last = sa.select(tables.billing_periods.c.month).join(tables.usage, periods.usage_in_period())
    months = [
        stack.read(lambda c, query=query: c.execute(query).scalars().first())
        for query in (
            last.where(tables.usage.c.tenant_id == stack.tenants[tenant]).order_by(tables.usage.c.sequence.desc())
            for tenant in ("acme", "globex")
        )
    ]
    assert months[0] == months[1]
    return str(months[0])


def made(operator: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = operator.post("exports", json=fields)
    assert answer.status_code == 201, answer.text
    job: dict[str, Any] = answer.json()

    def done() -> bool:
        job.update(operator.get(f"exports/{job['id']}").json())
        return job["state"] not in ("queued", "running")

    eventually(done, DONE_S_MAX)
    return job


def test_an_export_is_asked_for_watched_downloaded_and_given_up(
    stack: Stack, operator: httpx.Client, month: str, tmp_path: Path
) -> None:
    job = made(operator, month=month, tenant="acme")
    assert (job["state"], job["progress"], job["error"], job["file"]) == ("done", 1.0, None, f"focus-{month}-acme.csv")
    answer = operator.get(f"exports/{job['id']}/file")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/csv")
    assert job["file"] in answer.headers["content-disposition"]
    assert len(answer.content) == job["size_bytes"]
    assert (stack.config.exports_dir / job["id"] / job["file"]).read_bytes() == answer.content
    (tmp_path / job["file"]).write_bytes(answer.content)
    manifest = operator.get(f"exports/{job['id']}/manifest")
    (tmp_path / f"{job['file']}.manifest.json").write_bytes(manifest.content)
    report = check_focus_file(tmp_path / job["file"])
    assert (report.findings, report.manifest) == ([], f"{job['file']}.manifest.json")
    assert (report.rows, report.sha256) == (job["rows"], job["sha256"])
    assert stack.tenants["globex"] not in answer.text
    assert {line["id"] for line in operator.get("exports", params={"tenant": "acme"}).json()["data"]} >= {job["id"]}
    assert operator.get("exports", params={"limit": 1}).json()["has_more"] in (True, False)

    assert operator.delete(f"exports/{job['id']}").status_code == 204
    assert operator.get(f"exports/{job['id']}").json()["state"] == "removed"
    assert not (stack.config.exports_dir / job["id"]).exists()
    answer = operator.get(f"exports/{job['id']}/file")
    assert (answer.status_code, answer.json()["error"]["message"]) == (409, "The export is removed, so it has no file.")


def test_events_are_every_request_of_all_tenants(stack: Stack, operator: httpx.Client, month: str) -> None:
    job = made(operator, month=month, kind="events", format="jsonl")
    lines = [json.loads(line) for line in operator.get(f"exports/{job['id']}/file").text.splitlines()]
    manifest = operator.get(f"exports/{job['id']}/manifest").json()
    usage, months = tables.usage, tables.billing_periods
    query = sa.select(usage.c.request_id).join(months, periods.usage_in_period()).where(months.c.month == month)
    upto = usage.c.sequence <= manifest["ledger"]["usage_sequence_max"]
    there = stack.read(lambda c: set(c.execute(query.where(upto)).scalars()))
    assert {line["id"] for line in lines if line["type"] == "laneway.usage.settled"} == there
    assert {line["data"]["tenant_id"] for line in lines} >= {stack.tenants["acme"], stack.tenants["globex"]}


def test_what_cannot_be_exported_is_refused(stack: Stack, operator: httpx.Client, month: str) -> None:
    asked: list[tuple[dict[str, str], int, str | None]] = [
        ({"month": "2001-01"}, 404, "month"),
        ({"month": "January"}, 400, "month"),
        ({"month": month, "tenant": "nobody"}, 404, "tenant"),
        ({"month": month, "kind": "events", "format": "csv"}, 400, "format"),
        ({"month": month, "format": "xlsx"}, 400, "format"),
        ({"month": month, "directory": "/etc"}, 400, None),
    ]
    for body, status, param in asked:
        answer = operator.post("exports", json=body)
        assert answer.status_code == status, answer.text
        if param is not None:
            assert answer.json()["error"]["param"] == param
    for path in ("exports/exp_none", "exports/exp_none/file", "exports/exp_none/manifest"):
        assert operator.get(path).status_code == 404
    assert operator.delete("exports/exp_none").status_code == 404
    for method, path in (("POST", "exports"), ("GET", "exports"), ("GET", "exports/x/file"), ("DELETE", "exports/x")):
        answer = httpx.request(method, f"{stack.url}/v1/admin/{path}", headers=stack.headers(), json={"month": month})
        assert answer.status_code == 403, (method, path)


def test_the_command_writes_the_same_file(stack: Stack, month: str, tmp_path: Path) -> None:
    def run(*arguments: str) -> Any:
        command = ["--config", str(stack.config_file), "billing", *arguments]
        return CliRunner().invoke(main, command, catch_exceptions=False)

    (tmp_path / "again").mkdir()
    asked: tuple[str, ...] = ("export", "--month", month, "--tenant", "globex", "--json")
    done = run(*asked, "--directory", str(tmp_path))
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    assert shown["file"] == str(tmp_path / f"focus-{month}-globex.csv")
    assert (shown["provisional"], shown["usage_rows"] >= 1) == (True, True)
    assert run("check", shown["file"]).exit_code == 0
    assert json.loads(run(*asked, "--directory", str(tmp_path / "again")).stdout)["sha256"] == shown["sha256"]
    other = tmp_path / "other.toml"  # a month that is open says what the configuration says now
    other.write_text(stack.config_file.read_text() + '[exports]\nprovider_name = "Example Ltd"\n')
    asked = ("--config", str(other), "billing", *asked, "--directory", str(tmp_path))
    assert CliRunner().invoke(main, asked, catch_exceptions=False).exit_code == 0
    assert ",Example Ltd," in Path(shown["file"]).read_text()
    done = run("export", "--month", "2001-01", "--directory", str(tmp_path))
    assert (done.exit_code, "no tenant has a period 2001-01" in done.stderr) == (2, True)
    done = run("export", "--month", month, "--kind", "events", "--format", "csv", "--directory", str(tmp_path))
    assert (done.exit_code, "exported as jsonl" in done.stderr) == (2, True)
