"""What a program that administers Laneway depends on: idempotent writes, objects by id, refused misspellings,
archiving, and webhooks that change."""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from gateway.access import keys
from gateway.access.write_replays import KEEP_S, delete_old_writes
from gateway.tables import audit_log, write_replays
from gateway.upkeep.webhook_deliveries import signature
from support.gateway.adapter_uploads import files_of
from support.gateway.admin_client import Operator
from support.gateway.webhook_endpoint import Endpoint
from support.paths import EXAMPLES
from support.stack import Stack


@pytest.fixture(scope="module")
def automated(tmp_path_factory: pytest.TempPathFactory, model_dir: Any) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("automation")
    toml = "[webhooks]\nprivate_addresses = true\ntimeout_s = 2.0\n"
    stack = Stack(directory, f"sqlite:///{directory}/laneway.db", model_dir, toml=toml)
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


@pytest.fixture(scope="module")
def operator(automated: Stack) -> Operator:
    return Operator(automated)


def sent(operator: Operator, name: str, method: str, path: str, body: Any = None, secret: str = "") -> httpx.Response:
    """A request with the Idempotency-Key `name`."""
    headers = {"Authorization": f"Bearer {secret or operator.key.secret}", "Idempotency-Key": name}
    return httpx.request(method, f"{operator.stack.url}/v1/admin/{path}", json=body, headers=headers, timeout=30)


def signed(headers: dict[str, str], body: bytes, secret: str) -> str:
    return signature(secret, int(headers["x-laneway-timestamp"]), body)


def written(stack: Stack) -> int:
    return int(stack.read(lambda c: c.execute(sa.select(sa.func.count()).select_from(audit_log)).scalar_one()))


def test_a_repeated_write_runs_once(automated: Stack, operator: Operator) -> None:
    new_key = {"tenant": "acme", "name": "deployed"}
    first = sent(operator, "key-1", "POST", "keys", new_key)
    assert first.status_code == 201, first.text
    assert "idempotent-replayed" not in first.headers
    count = written(automated)
    again = sent(operator, "key-1", "POST", "keys", new_key)
    assert (again.status_code, again.content) == (201, first.content), "the secret too"
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["cache-control"] == "no-store"
    assert again.headers["content-type"] == first.headers["content-type"]
    assert written(automated) == count

    stored = automated.read(lambda c: c.execute(sa.select(write_replays)).all())
    assert [row.name for row in stored] == ["key-1"]
    assert first.json()["secret"].encode() not in stored[0].answer, "answers are encrypted"
    assert stored[0].tenant_id == automated.tenants["acme"]

    other = sent(operator, "key-1", "POST", "keys", new_key | {"name": "other"})
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_mismatch")
    assert sent(operator, "key-1", "POST", "projects", new_key).status_code == 422, "another path is another request"
    assert sent(operator, "no space", "POST", "keys", new_key).json()["error"]["param"] == "Idempotency-Key"
    # Of another actor, the name is its own.
    second = automated.write(lambda c: keys.create_key(c, tenant_id=None, name="second", kind="admin"))
    assert sent(operator, "key-1", "POST", "keys", new_key, second.secret).json()["id"] != first.json()["id"]


def test_a_refused_write_may_run_again_and_an_empty_answer_is_replayed(automated: Stack, operator: Operator) -> None:
    project = {"tenant": "globex", "name": "later"}
    assert sent(operator, "p-1", "POST", "projects", project | {"tenant": "absent"}).status_code == 404
    made = sent(operator, "p-1", "POST", "projects", project)
    assert made.status_code == 201, "nothing was written under this name before"
    path = f"projects/{made.json()['id']}"
    for replayed in (False, True):
        ended = sent(operator, "p-2", "DELETE", path)
        assert (ended.status_code, ended.content) == (204, b""), ended.text
        assert ("idempotent-replayed" in ended.headers) == replayed


def test_writes_at_the_same_time_run_once(automated: Stack, operator: Operator) -> None:
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        asked = [
            pool.submit(sent, operator, "race", "POST", "projects", {"tenant": "acme", "name": "raced"})
            for _ in range(6)
        ]
    answers = [future.result() for future in asked]
    assert {answer.status_code for answer in answers} <= {201, 409}
    made = [answer for answer in answers if answer.status_code == 201]
    assert len({answer.json()["id"] for answer in made}) == 1
    assert sum("idempotent-replayed" not in answer.headers for answer in made) == 1
    codes = {answer.json()["error"]["code"] for answer in answers if answer.status_code == 409}
    assert codes <= {"idempotency_in_flight"}
    assert len(operator.ok("GET", "projects", tenant="acme", search="raced")["data"]) == 1


def test_a_repeated_upload_registers_one_version(automated: Stack, operator: Operator) -> None:
    """Also with another boundary of the form, which a client chooses anew for each attempt."""
    files = files_of(EXAMPLES / "adapters" / "pirate")
    headers = {"Authorization": f"Bearer {operator.key.secret}", "Idempotency-Key": "upload-1"}

    def upload(**fields: str) -> httpx.Response:
        url = f"{automated.url}/v1/admin/adapters"
        return httpx.post(url, files=files, data={"name": "repeated"} | fields, headers=headers, timeout=60)

    first, again = upload(), upload()
    assert first.status_code == 201, first.text
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["idempotent-replayed"] == "true"
    versions = operator.ok("GET", f"adapters/{first.json()['id']}/versions")["data"]
    assert [version["number"] for version in versions] == [1]
    other = upload(notes="another request")
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_mismatch")


def test_rows_end_and_are_erased(automated: Stack, operator: Operator) -> None:
    body = {"slug": "short-lived", "tier": "batch"}
    assert sent(operator, "t-1", "POST", "tenants", body).status_code == 201
    past = sa.update(write_replays).where(write_replays.c.name == "t-1")
    automated.write(lambda c: c.execute(past.values(written_at=write_replays.c.written_at - (KEEP_S + 1) * 10**6)))
    taken = sent(operator, "t-1", "POST", "tenants", body)
    assert (taken.status_code, taken.json()["error"]["param"]) == (409, "slug"), "after a day it is another request"
    here = sa.select(write_replays.c.name)
    moment = automated.read(lambda c: c.execute(sa.select(sa.func.min(write_replays.c.written_at))).scalar_one()) + 1
    assert automated.write(lambda c: delete_old_writes(c, moment, 10)) == 1
    assert "t-1" not in automated.read(lambda c: c.execute(here).scalars().all())
    unanswered = sa.insert(write_replays).values(
        actor_id=operator.key.key.id, name="lost", fingerprint="", request_id="req_1", written_at=0
    )
    automated.write(lambda c: c.execute(unanswered))
    fingerprint = hashlib.sha256(b"POST\n/v1/admin/tenants\n\n" + b'{"slug":"lost","tier":"batch"}').hexdigest()
    values = {"fingerprint": fingerprint, "written_at": moment + KEEP_S * 10**5}
    automated.write(lambda c: c.execute(sa.update(write_replays).where(write_replays.c.name == "lost").values(values)))
    lost = sent(operator, "lost", "POST", "tenants", {"slug": "lost", "tier": "batch"})
    assert lost.status_code == 409, lost.text
    assert lost.json()["error"]["code"] in ("idempotency_not_kept", "idempotency_in_flight")


def test_a_misspelt_parameter_is_refused(operator: Operator) -> None:
    for path, wrong, meant in (("tenants", "serch", "search"), ("keys", "tenants", "tenant"), ("requests", "form", "")):
        error = operator.refused(400, "GET", path, **{wrong: "x"})
        assert (error["code"], error["param"]) == ("unknown_parameter", wrong)
        assert f"Did you mean {meant!r}?" in error["message"] if meant else "It has " in error["message"]
    assert operator.refused(400, "GET", "tenants/acme", tenant_id="x")["message"].endswith("It has none.")
    assert operator.refused(400, "POST", "projects", {}, dry_run="1")["param"] == "dry_run"
    url = operator.stack.url + "/v1/organization/costs?start_time=0&limit=1&models[]=x"
    assert httpx.get(url, headers={"Authorization": f"Bearer {operator.key.secret}"}).status_code == 200
    assert httpx.get(f"{url}&user_ids=x", headers={"Authorization": f"Bearer {operator.key.secret}"}).status_code == 400


def test_everything_is_found_by_its_id(automated: Stack, operator: Operator) -> None:
    tenant = automated.tenants["acme"]
    of_key = {
        "tenant": "acme",
        "unit": "tokens",
        "period": "total",
        "limit_amount": 9,
        "key_id": automated.key_ids["acme"],
    }
    made = {
        "projects": operator.ok("POST", "projects", {"tenant": "acme", "name": "by-id"}),
        "budgets": operator.ok("POST", "budgets", of_key),
        "limits": operator.ok("POST", "limits", {"tenant": "acme", "concurrency": 500}),
        "webhooks": operator.ok("POST", "webhooks", {"url": "https://example.org/hook", "tenant": "acme"}),
        "corrections": operator.ok("POST", "corrections", {"tenant": "acme", "picos": -5, "reason": "goodwill"}),
    }
    made["webhooks"].pop("secret")
    for path in ("periods", "alerts"):
        if found := operator.ok("GET", path, tenant="acme")["data"]:
            made[path] = found[0]
    assert "periods" in made
    theirs = automated.write(
        lambda c: keys.create_key(
            c, tenant_id=automated.tenants["globex"], name="theirs", kind="admin", role="tenant_admin"
        )
    )
    for path, one in made.items():
        found = operator.ok("GET", f"{path}/{one['id']}")
        assert found | one == found, path  # a correction has its document beside it
        assert operator.refused(404, "GET", f"{path}/absent")["message"].startswith("there "), path
        url = f"{automated.url}/v1/admin/{path}/{one['id']}"
        unseen = httpx.get(url, headers={"Authorization": f"Bearer {theirs.secret}"})
        assert (unseen.status_code, tenant in unseen.text) == (404, False), path
    line = next(one for one in operator.ok("GET", "audit_log", tenant="acme")["data"] if one["action"] == "budget.set")
    assert operator.ok("GET", f"audit_log/{line['id']}") == line
    assert (line["object_name"], line["actor_name"]) == (None, operator.key.key.name)
    named = operator.ok("GET", "audit_log", action="project.create", object_id=made["projects"]["id"])["data"]
    assert [one["object_name"] for one in named] == ["by-id"]
    url = f"{automated.url}/v1/admin/audit_log/"
    for secret, status in ((theirs.secret, 404), (operator.key.secret, 200)):
        seen = httpx.get(f"{url}{line['id']}", headers={"Authorization": f"Bearer {secret}"})
        assert seen.status_code == status
    ours = automated.write(
        lambda c: keys.create_key(c, tenant_id=tenant, name="ours", kind="admin", role="tenant_admin")
    )
    [own] = [
        one
        for one in httpx.get(url.rstrip("/"), headers={"Authorization": f"Bearer {ours.secret}"}).json()["data"]
        if one["id"] == line["id"]
    ]
    assert own["actor_name"] is None, "the name of an operator's key is the operator's"
    assert operator.refused(404, "GET", "audit_log/0")["param"] == "line_id"
    proved = operator.ok("POST", "reconciliations")
    assert operator.ok("GET", f"reconciliations/{proved['number']}") == proved
    assert operator.refused(404, "GET", "reconciliations/0")["param"] == "number"
    price = operator.ok("GET", "prices")["data"][0]
    assert operator.ok("GET", f"prices/{price['id']}") == price
    assert operator.refused(404, "GET", "prices/absent")
    assert operator.refused(404, "GET", "people/absent")


def test_configured_limits_and_slow_requests_are_listed(automated: Stack, operator: Operator) -> None:
    config = automated.config
    found = operator.ok("GET", "limits/defaults")
    assert found["key"]["requests_per_minute"] == config.limits.requests_per_minute
    assert found["tenant"]["concurrency"] == config.tenant_limits.concurrency
    assert found["quotas"] == {
        "files": config.files.tenant_files_max,
        "total_file_bytes": config.files.tenant_bytes_max,
        "batches": config.batches.tenant_batches_max,
        "enqueued_tokens": config.batches.tenant_enqueued_tokens_max,
    }
    assert automated.chat("globex", max_tokens=2).status_code == 200
    [newest, *_] = operator.ok("GET", "requests", min_ttft_s=0, tenant="globex")["data"]
    assert newest["status"] == "settled"
    slower = operator.ok("GET", "requests", min_ttft_s=newest["ttft_s"] + 60)["data"]
    assert slower == []
    assert operator.refused(400, "GET", "requests", min_ttft_s=-1)["param"] == "min_ttft_s"


def test_quotas_are_set_with_the_limits_of_a_tenant(automated: Stack, operator: Operator) -> None:
    quotas = {"files": 5, "total_file_bytes": 2**50, "batches": 3, "enqueued_tokens": 2**53}
    own = operator.ok("POST", "limits", {"tenant": "initech", **quotas})
    assert {name: own[name] for name in quotas} == quotas
    assert operator.ok("POST", "limits", {"tenant": "initech", "concurrency": 9}) == own | {"concurrency": 9}
    assert operator.ok("POST", "limits", {"tenant": "initech", "files": None})["files"] is None
    key = automated.key_ids["initech"]
    refused = operator.refused(400, "POST", "limits", {"tenant": "initech", "key_id": key, "batches": 3})
    assert (refused["param"], "a key has none" in refused["message"]) == ("batches", True)
    assert operator.ok("POST", "limits", {"tenant": "initech", "key_id": key, "batches": None})["scope"] == "key"
    assert operator.refused(400, "POST", "limits", {"tenant": "initech", "enqueued_tokens": 2**53 + 1})
    [line] = operator.ok("GET", "audit_log", action="limits.set", object_id=own["id"], limit=1)["data"]
    assert (line["before"]["files"], line["after"]["files"]) == (5, None)
    assert operator("DELETE", f"limits/{own['id']}").status_code == 204


def test_tenants_and_projects_are_archived(automated: Stack, operator: Operator) -> None:
    operator.ok("POST", "tenants", {"slug": "leaving", "tier": "batch"})
    project = operator.ok("POST", "projects", {"tenant": "leaving", "name": "old"})
    key = operator.ok("POST", "keys", {"tenant": "leaving", "project": "old"})
    refused = operator.refused(409, "DELETE", f"projects/{project['id']}")
    assert "1 usable keys" in refused["message"]
    operator.ok("POST", f"keys/{key['id']}/revoke")
    for _ in range(2):
        assert operator("DELETE", f"projects/{project['id']}").status_code == 204
    assert operator.ok("GET", f"projects/{project['id']}")["archived_at"] is not None
    listed = operator.ok("GET", "projects", tenant="leaving")["data"]
    assert [one["name"] for one in listed] == ["default"]
    archived = operator.ok("GET", "projects", tenant="leaving", archived="true")["data"]
    assert [one["name"] for one in archived] == ["old"]
    assert operator.refused(400, "POST", "keys", {"tenant": "leaving", "project": "old"})["param"] == "project"
    assert operator.ok("POST", f"projects/{project['id']}/restore")["archived_at"] is None
    default = next(one for one in listed if one["name"] == "default")
    assert operator.refused(400, "DELETE", f"projects/{default['id']}")["param"] == "project"

    used = operator.ok("POST", "keys", {"tenant": "leaving"})
    models = f"{automated.url}/v1/models"
    assert httpx.get(models, headers={"Authorization": f"Bearer {used['secret']}"}).status_code == 200
    assert operator("DELETE", "tenants/leaving").status_code == 204
    assert httpx.get(models, headers={"Authorization": f"Bearer {used['secret']}"}).status_code == 401
    assert operator.ok("GET", "tenants", search="leaving")["data"] == []
    assert [one["slug"] for one in operator.ok("GET", "tenants", archived="true")["data"]] == ["leaving"]
    assert operator.refused(400, "PATCH", "tenants/leaving", {"status": "active"})["param"] == "status"
    back = operator.ok("POST", "tenants/leaving/restore")
    assert (back["status"], back["archived_at"]) == ("active", None)
    assert httpx.get(models, headers={"Authorization": f"Bearer {used['secret']}"}).status_code == 200


def test_a_webhook_changes_and_is_tested(automated: Stack, operator: Operator) -> None:
    endpoint, elsewhere = Endpoint(), Endpoint()
    try:
        made = operator.ok("POST", "webhooks", {"url": endpoint.url})
        path = f"webhooks/{made['id']}"
        done = operator.ok("POST", f"{path}/test")
        assert (done["delivered"], done["status"], done["error"]) == (True, 200, None)
        headers, body = endpoint.got.pop()
        event = json.loads(body)
        assert (event["id"], event["type"]) == (done["event_id"], "webhook.test")
        assert headers["x-laneway-signature"] == signed(headers, body, made["secret"])

        endpoint.status = 503
        failed = operator.ok("POST", f"{path}/test")
        assert (failed["delivered"], failed["status"], failed["error"]) == (False, 503, "the server answered 503")

        changed = operator.ok("PATCH", path, {"url": elsewhere.url, "events": ["problems", "budgets"], "active": False})
        assert (changed["url"], changed["events"], changed["active"]) == (elsewhere.url, ["budgets", "problems"], False)
        assert operator.refused(400, "PATCH", path, {"url": "ftp://x"})["param"] == "url"
        pager = {"url": made["url"], "format": "pagerduty", "routing_key": "k" * 32, "events": ["problems"]}
        paged = operator.ok("POST", "webhooks", pager)
        assert operator.refused(400, "PATCH", f"webhooks/{paged['id']}", {"url": elsewhere.url})["param"] == "url"
        assert operator.refused(400, "PATCH", path, {"events": ["storms"]})["param"] == "events"
        rotated = operator.ok("POST", f"{path}/rotate_secret")
        assert rotated["secret"].startswith("whsec_")
        assert rotated["secret"] != made["secret"]
        assert operator.ok("POST", f"{path}/test")["delivered"], "a paused webhook too"
        headers, body = elsewhere.got.pop()
        assert headers["x-laneway-signature"] == signed(headers, body, rotated["secret"])

        limit = {"tenant": "initech", "unit": "tokens", "period": "day", "limit_amount": 1}
        budget = operator.ok("POST", "budgets", limit | {"kind": "soft", "thresholds": [1]})
        assert automated.chat("initech").status_code == 200
        alerts = operator.ok("GET", "alerts", tenant="initech")["data"]
        assert [alert["budget_id"] for alert in alerts] == [budget["id"]]
        assert made["id"] not in {delivery["webhook_id"] for delivery in alerts[0]["deliveries"]}, "it is paused"
        assert operator.ok("GET", f"alerts/{alerts[0]['id']}") == alerts[0]
        said = [line.action for line in operator.log() if line.object_id == made["id"]]
        assert said.count("webhook.test") == 3
        assert said[-2:] == ["webhook.rotate_secret", "webhook.test"]
        assert operator("DELETE", path).status_code == 204
        for method, below in (("GET", ""), ("PATCH", ""), ("POST", "/test"), ("POST", "/rotate_secret")):
            operator.refused(404, method, path + below, {} if method == "PATCH" else None)
    finally:
        endpoint.close()
        elsewhere.close()
