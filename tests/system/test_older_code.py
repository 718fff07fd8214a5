"""Two versions on one database: the code before the newest migration serves on today's schema, and then today's code
serves on what it left.

The older code is in git's history. A checkout without it has tests/billing/test_schema_rule.py, which compares the
stored columns of older code with the schema.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from billing import tables
from billing.proofs.ledger_audit import audit_ledger
from support.paths import REPO
from support.stack import Stack, body
from support.waiting import PATIENCE_S

PACKAGES = ("adapters", "billing", "engine", "gateway", "kernels", "migrations")


def git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(REPO), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def older_commit() -> str:
    """The newest commit without the newest migration; "" if this checkout does not have it."""
    newest = max((REPO / "migrations/versions").glob("0*.py"))
    added = git("log", "--diff-filter=A", "--format=%H", "--", str(newest.relative_to(REPO))).splitlines()
    return git("rev-parse", "--verify", "--quiet", f"{added[-1]}^" if added else "HEAD")


@pytest.fixture
def older_code(tmp_path: Path) -> Path:
    commit = older_commit()
    if not commit:
        pytest.skip("!!! NO GIT HISTORY HERE: OLDER CODE DID NOT RUN; test_schema_rule compared its stored columns")
    folder = tmp_path / "older"
    folder.mkdir()
    archive = subprocess.run(["git", "-C", str(REPO), "archive", commit, *PACKAGES], capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


def ask(stack: Stack) -> None:
    """An answer, a stream, and a replay."""
    assert stack.chat(max_tokens=4).status_code == 200
    assert stack.chat("globex", model="globex-style", max_tokens=4).status_code == 200
    asked = body(stream=True, max_tokens=6)
    streamed = httpx.post(f"{stack.url}/v1/chat/completions", headers=stack.headers(), json=asked, timeout=60)
    assert streamed.text.endswith("data: [DONE]\n\n")
    headers = {**stack.headers(), "Idempotency-Key": f"once-{stack.holds()}"}
    twice = [httpx.post(f"{stack.url}/v1/chat/completions", headers=headers, json=body(), timeout=60) for _ in range(2)]
    assert twice[0].text == twice[1].text


def end(stack: Stack) -> None:
    for process in (stack.gateway, stack.engine):
        assert process is not None
        process.terminate()
        process.wait(PATIENCE_S)


def books(stack: Stack) -> tuple[int, int]:
    """The usage rows, and the open holds; the audit finds nothing."""
    assert stack.read(audit_ledger).sound
    rows = stack.read(lambda c: int(c.execute(sa.select(sa.func.count()).select_from(tables.usage)).scalar_one()))
    return rows, stack.open_holds()


@pytest.mark.slow
def test_older_code_serves_on_todays_schema_and_today_serves_on_what_it_left(
    tmp_path: Path, model_dir: Path, postgres_url: str, older_code: Path
) -> None:
    stack = Stack(tmp_path / "stack", postgres_url, model_dir, code=older_code)
    try:
        stack.start()
        ask(stack)
        end(stack)
        assert books(stack) == (4, 0)
        stack.code = None
        stack.start_engine()
        stack.start_gateway()
        stack.wait_ready()
        ask(stack)
        end(stack)
        assert books(stack) == (8, 0)
    finally:
        stack.stop()
