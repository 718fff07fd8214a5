"""No row of another tenant in any tenant-scoped answer: every route, asked as one tenant and for one tenant, while
another one has something of everything. A route that is not listed here fails the test."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from pyarrow import parquet

from billing import tables
from billing.accounts import budgets, tenants, webhooks
from billing.books import connectors, corrections, documents, invoices, periods, rollups, sla
from billing.books.documents import BillingProfile
from billing.exports import jobs
from billing.exports.export import ExportSpec
from billing.finance_tables import connector_hours, payments
from billing.tables import metadata
from gateway.access import audit_log, keys, people
from gateway.access.people import Grant, Identity
from gateway.error_tables import request_error_counts
from gateway.limits import overrides
from gateway.limits.overrides import LimitsChange
from support.gateway.admin_routes import served_routes
from support.stack import MODEL, Stack, body
from support.waiting import eventually

THEIRS, OURS = "acme", "globex"  # the tenant whose rows must not be seen, and the one that looks
CHAT = body(max_tokens=3)
START = int(time.time()) - 3600
# Of a tenant's own key: what is sent. All of them are below /t/{tenant:str} too, where another tenant's are not found.
OWN: dict[tuple[str, str], Any] = {
    ("POST", "/v1/chat/completions"): CHAT,
    ("POST", "/v1/completions"): {"model": MODEL, "prompt": "hi", "max_tokens": 3},
    ("POST", "/v1/embeddings"): {"model": MODEL, "input": "hi"},
    ("POST", "/v1/rerank"): {"model": MODEL, "query": "hi", "documents": ["ho"]},
    ("POST", "/v1/score"): {"model": MODEL, "text_1": "hi", "text_2": "ho"},
    ("POST", "/v1/messages"): {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
    ("POST", "/v1/messages/count_tokens"): {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]},
    ("POST", "/v1/responses"): {"model": MODEL, "input": "hi", "max_output_tokens": 16},
    ("POST", "/v1/responses/input_tokens"): {"model": MODEL, "input": "hi"},
    ("POST", "/v1/responses/compact"): {"model": MODEL, "input": "hi"},
    ("POST", "/v1/conversations"): {"items": [{"role": "user", "content": "hi"}]},
    ("POST", "/v1/tokenize"): {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]},
    ("POST", "/v1/detokenize"): {"model": MODEL, "tokens": [1, 2]},
    ("GET", "/v1/models"): None,
    ("GET", "/v1/models/{model:path}"): None,
    ("GET", "/v1/files"): None,
    ("GET", "/v1/batches"): None,
    ("GET", "/v1/messages/batches"): None,
    ("GET", "/v1/usage"): None,
    ("GET", "/v1/budget"): None,
}
# Of a stored response, conversation, file or batch, below /t/{tenant:str} too: test_stored_responses,
# test_conversations, test_files_api and test_batches have them.
STORED = {
    (method, prefix + path)
    for prefix in ("", "/t/{tenant:str}")
    for method, path in (
        ("GET", "/v1/responses/{response:str}"),
        ("DELETE", "/v1/responses/{response:str}"),
        ("POST", "/v1/responses/{response:str}/cancel"),
        ("GET", "/v1/responses/{response:str}/input_items"),
        ("GET", "/v1/conversations/{conversation:str}"),
        ("POST", "/v1/conversations/{conversation:str}"),
        ("DELETE", "/v1/conversations/{conversation:str}"),
        ("GET", "/v1/conversations/{conversation:str}/items"),
        ("POST", "/v1/conversations/{conversation:str}/items"),
        ("GET", "/v1/conversations/{conversation:str}/items/{item:str}"),
        ("DELETE", "/v1/conversations/{conversation:str}/items/{item:str}"),
        ("POST", "/v1/files"),
        ("GET", "/v1/files/{file:str}"),
        ("DELETE", "/v1/files/{file:str}"),
        ("GET", "/v1/files/{file:str}/content"),
        # test_message_batches has these.
        ("POST", "/v1/messages/batches"),
        ("GET", "/v1/messages/batches/{batch:str}"),
        ("POST", "/v1/messages/batches/{batch:str}/cancel"),
        ("GET", "/v1/messages/batches/{batch:str}/results"),
        ("DELETE", "/v1/messages/batches/{batch:str}"),
        ("POST", "/v1/batches"),
        ("GET", "/v1/batches/{batch:str}"),
        ("POST", "/v1/batches/{batch:str}/cancel"),
    )
}
# The console's files, the same for everybody: test_console_files has them.
CONSOLE = {(method, path) for method in ("GET", "HEAD") for path in ("/admin", "/admin/{path:path}")}
# Nobody's, for everybody.
HEALTH = ("/health", "/health/live", "/health/ready")
PUBLIC = {("GET", path) for path in (*HEALTH, "", "/version", "/docs", "/schema", "/schema/openapi.json")}
# The operator's, of one tenant: the query that names it. What it shows must be of that tenant.
OF_A_TENANT: dict[str, dict[str, Any]] = {
    "/v1/admin/projects": {"tenant": OURS},
    "/v1/admin/keys": {"tenant": OURS},
    "/v1/admin/budgets": {"tenant": OURS},
    "/v1/admin/limits": {"tenant": OURS},
    "/v1/admin/webhooks": {"tenant": OURS},
    "/v1/admin/alerts": {"tenant": OURS},
    "/v1/admin/usage": {"tenant": OURS},
    "/v1/admin/usage/requests": {"tenant": OURS},
    "/v1/admin/sla": {"tenant": OURS},
    "/v1/admin/sla/export": {"tenant": OURS},
    "/v1/admin/audit_log": {"tenant": OURS},
    "/v1/admin/requests": {"tenant": OURS},
    "/v1/admin/error_rates": {"tenant": OURS},
    "/v1/admin/periods": {"tenant": OURS},
    "/v1/admin/invoices": {"tenant": OURS},
    "/v1/admin/corrections": {"tenant": OURS},
    "/v1/admin/margins": {"tenant": OURS},
    "/v1/admin/exports": {"tenant": OURS},
    "/v1/admin/batches": {"tenant": OURS},
    "/v1/admin/files": {"tenant": OURS},
    "/v1/admin/adapters": {"tenant": OURS},
    "/v1/admin/search": {"tenant": OURS, "q": "-style"},
    "/v1/organization/usage/completions": {
        "tenants": OURS,
        "start_time": START,
        "bucket_width": "1d",
        "group_by": ["tenant_id", "project_id", "api_key_id", "adapter"],
    },
    "/v1/organization/costs": {
        "tenants": OURS,
        "start_time": START,
        "group_by": ["tenant_id", "project_id", "api_key_id", "adapter"],
    },
}
# Sums alone, or slugs.
SAYS_NO_ID = {
    "/v1/admin/usage", "/v1/admin/margins", "/v1/admin/sla", "/v1/admin/sla/export", "/v1/admin/error_rates",
}  # fmt: skip
# Of a tenant for somebody who has one, and of all for everybody else: test_overview asks it.
OF_WHO_ASKS = {("GET", "/v1/admin/overview")}
# The operator's, of all tenants or of what they name in the path or the body: never a tenant's.
OPERATORS = {
    ("GET", "/v1/admin/tenants"), ("POST", "/v1/admin/tenants"), ("GET", "/v1/admin/tenants/{tenant_id:str}"),
    ("PATCH", "/v1/admin/tenants/{tenant_id:str}"), ("POST", "/v1/admin/projects"),
    ("PATCH", "/v1/admin/projects/{project_id:str}"), ("POST", "/v1/admin/keys"),
    ("GET", "/v1/admin/keys/{key_id:str}"), ("PATCH", "/v1/admin/keys/{key_id:str}"),
    ("POST", "/v1/admin/keys/{key_id:str}/rotate"), ("POST", "/v1/admin/keys/{key_id:str}/revoke"),
    ("GET", "/v1/admin/prices"), ("POST", "/v1/admin/prices"), ("POST", "/v1/admin/prices/preview"),
    ("POST", "/v1/admin/budgets"), ("DELETE", "/v1/admin/budgets/{budget_id:str}"), ("POST", "/v1/admin/limits"),
    ("GET", "/v1/admin/budgets/{budget_id:str}/end_users"),
    ("DELETE", "/v1/admin/limits/{limits_id:str}"), ("POST", "/v1/admin/webhooks"),
    ("DELETE", "/v1/admin/webhooks/{webhook_id:str}"), ("GET", "/v1/admin/audit"), ("GET", "/v1/admin/engine"),
    ("GET", "/v1/admin/engine/live"), ("GET", "/v1/admin/tiers"), ("GET", "/v1/admin/models"),
    ("POST", "/v1/admin/models"), ("POST", "/v1/admin/models/{model:path}"), ("GET", "/v1/admin/models/{model:path}"),
    ("PATCH", "/v1/admin/models/{model:path}"), ("DELETE", "/v1/admin/models/{model:path}"),
    ("GET", "/v1/admin/aliases"), ("GET", "/v1/admin/aliases/{alias:path}"),
    ("PUT", "/v1/admin/aliases/{alias:path}"), ("DELETE", "/v1/admin/aliases/{alias:path}"),
    ("GET", "/v1/admin/health"), ("GET", "/metrics"), ("GET", "/v1/admin/people"),
    ("GET", "/v1/admin/engines"), ("POST", "/v1/admin/engines/{name:str}/drain"),
    ("GET", "/v1/admin/requests/{request_id:str}"),
    ("POST", "/v1/admin/periods/close"), ("GET", "/v1/admin/invoices/{invoice_id:str}"),
    ("POST", "/v1/admin/corrections"), ("GET", "/v1/admin/corrections/{correction_id:str}"),
    ("POST", "/v1/admin/credits"), ("POST", "/v1/admin/invoices/{invoice_id:str}/payments"),
    ("GET", "/v1/admin/tenants/{tenant_id:str}/billing_profile"),
    ("PUT", "/v1/admin/tenants/{tenant_id:str}/billing_profile"),
    ("GET", "/v1/admin/billing_profiles"), ("GET", "/v1/admin/issuer"),
    ("GET", "/v1/admin/periods/closable"), ("POST", "/v1/admin/periods/close_all"),
    ("GET", "/v1/admin/connectors"), ("POST", "/v1/admin/connectors/{name:str}/release"),
    # One of each by its id; test_automation asks them as another tenant.
    *(
        ("GET", f"/v1/admin/{path}:str}}")
        for path in (
            "projects/{project_id", "budgets/{budget_id", "limits/{limits_id", "webhooks/{webhook_id",
            "prices/{price_id", "periods/{period_id", "alerts/{alert_id",
            "people/{person_id", "tiers/{name", "engines/{name", "connectors/{name",
            "adapters/{adapter:str}/versions/{version",
        )
    ),
    ("DELETE", "/v1/admin/tenants/{tenant_id:str}"), ("POST", "/v1/admin/tenants/{tenant_id:str}/restore"),
    ("DELETE", "/v1/admin/projects/{project_id:str}"), ("POST", "/v1/admin/projects/{project_id:str}/restore"),
    ("PATCH", "/v1/admin/webhooks/{webhook_id:str}"), ("POST", "/v1/admin/webhooks/{webhook_id:str}/test"),
    ("POST", "/v1/admin/webhooks/{webhook_id:str}/rotate_secret"),
    ("GET", "/v1/admin/reconciliations"), ("POST", "/v1/admin/reconciliations"),
    ("GET", "/v1/admin/reconciliations/standing"), ("GET", "/v1/admin/reconciliations/{number:str}"),
    ("GET", "/v1/admin/audit_log/{line_id:str}"), ("GET", "/v1/admin/limits/defaults"),
    ("POST", "/v1/admin/exports"), ("GET", "/v1/admin/exports/{export_id:str}"),
    ("DELETE", "/v1/admin/exports/{export_id:str}"), ("GET", "/v1/admin/exports/{export_id:str}/file"),
    ("GET", "/v1/admin/exports/{export_id:str}/manifest"),
    ("GET", "/v1/admin/batches/{batch_id:str}"), ("POST", "/v1/admin/batches/{batch_id:str}/cancel"),
    ("GET", "/v1/admin/files/{file_id:str}"), ("DELETE", "/v1/admin/files/{file_id:str}"),
    ("GET", "/v1/admin/files/{file_id:str}/content"),
    ("POST", "/v1/admin/adapters"), ("POST", "/v1/admin/adapters/check"), ("GET", "/v1/admin/adapters/uploads"),
    ("GET", "/v1/admin/adapters/{adapter:str}"), ("PATCH", "/v1/admin/adapters/{adapter:str}"),
    ("DELETE", "/v1/admin/adapters/{adapter:str}"), ("GET", "/v1/admin/adapters/{adapter:str}/versions"),
    ("DELETE", "/v1/admin/adapters/{adapter:str}/versions/{version:str}"),
    ("GET", "/v1/admin/adapters/{adapter:str}/use"), ("GET", "/v1/admin/alias_use/{alias:path}"),
    ("POST", "/v1/admin/adapters/{adapter:str}/promote"), ("POST", "/v1/admin/adapters/{adapter:str}/rollback"),
}  # fmt: skip
# Of whoever signs in with an admin key: test_sessions has them.
OF_A_SESSION = {(method, "/v1/admin/session") for method in ("POST", "GET", "DELETE")}
# Of whoever signs in at a provider, and of the provider: test_person_sign_in has them.
OF_A_SIGN_IN = {
    ("GET", "/v1/admin/session/options"), ("GET", "/v1/admin/session/provider"), ("GET", "/v1/admin/session/callback"),
    ("POST", "/v1/admin/session/backchannel_logout"),
    # test_totp has these.
    ("POST", "/v1/admin/session/totp"), ("POST", "/v1/admin/session/totp/confirm"),
    ("POST", "/v1/admin/session/totp/remove"),
}  # fmt: skip
BELOW_TENANT = "/t/{tenant:str}"
FILES = (("focus", "csv"), ("focus", "jsonl"), ("focus", "parquet"), ("events", "jsonl"))


def routes() -> set[tuple[str, str]]:
    """Method and path of everything that is served."""
    return {(route.method, route.path) for route in served_routes()} | {
        ("GET", "/schema"), ("GET", "/schema/openapi.json"),
    }  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, model_dir: Any) -> Iterator[Stack]:
    """Two tenants that have one of everything."""
    directory = tmp_path_factory.mktemp("isolation")
    stack = Stack(directory, f"sqlite:///{directory}/laneway.db", model_dir)
    try:
        stack.start()
        for slug in (THEIRS, OURS):
            stack.write(lambda c, slug=slug: fill(c, stack, slug))
            assert stack.chat(slug, model=f"{slug}-style", max_tokens=5).status_code == 200
            stack.known()  # its responses are stored
            answer = ask(stack, stack.keys[slug], "POST", "/v1/responses", OWN["POST", "/v1/responses"])
            assert answer.json()["store"] is True
            made = ask(stack, stack.keys[slug], "POST", "/v1/conversations", OWN["POST", "/v1/conversations"])
            assert made.json()["object"] == "conversation"
            form: Any = {"data": {"purpose": "batch"}, "files": {"file": (f"{slug}.jsonl", b"{}")}}
            file = httpx.post(f"{stack.url}/v1/files", headers=stack.headers(slug), **form).json()["id"]
            batch = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "1h"}
            assert ask(stack, stack.keys[slug], "POST", "/v1/batches", batch).status_code == 200
            assert stack.chat(slug, model="absent").status_code == 404
            files = FILES if slug == OURS else FILES[:1]
            stack.write(lambda c, slug=slug, files=files: bill(c, stack.tenants[slug], files))
        errors = sa.select(sa.func.count(request_error_counts.c.tenant_id.distinct()))
        eventually(lambda: stack.read(lambda c: c.execute(errors).scalar_one()) == len((THEIRS, OURS)))
        yield stack
    finally:
        stack.stop()


def fill(connection: sa.Connection, stack: Stack, slug: str) -> None:
    tenant_id, key_id = stack.tenants[slug], stack.key_ids[slug]
    audit_log.add_audit_line(connection, actor="test", action="tenant.update", object_id=tenant_id, tenant_id=tenant_id)
    tenants.update_tenant(connection, tenant_id, store_responses_s=3600)
    keys.update_key(connection, key_id, tags={"team": f"team of {slug}"})
    webhooks.create_webhook(connection, url=f"https://{slug}.example.org/hook", tenant_id=tenant_id)
    for scope, scope_id in (("tenant", tenant_id), ("key", key_id)):
        budgets.create_budget(
            connection,
            tenant_id=tenant_id,
            scope=scope,  # type: ignore[arg-type]
            scope_id=scope_id,
            unit="tokens",
            period="month",
            limit_amount=10,
            kind="soft",
            thresholds=(1,),
        )
    budgets.create_budget(
        connection,
        tenant_id=tenant_id,
        scope="tenant",
        scope_id=tenant_id,
        unit="tokens",
        period="total",
        limit_amount=10**6,
        per_end_user=True,
    )
    person = Identity(issuer="https://sso", subject=slug, name=slug, email=None, groups=())
    people.sign_in(connection, person, Grant("tenant_admin", tenant_id), "req_0")
    overrides.change_own_limits(
        connection, scope="tenant", subject_id=tenant_id, tenant_id=tenant_id, change=LimitsChange(concurrency=9)
    )


def bill(connection: sa.Connection, tenant_id: str, files: tuple[tuple[str, str], ...]) -> None:
    """The month is over for this tenant: a correction and a closed period."""
    corrections.correct_tenant(connection, tenant_id, picos=-5, reason=f"credit of {tenant_id}", actor="test")
    rollups.fold_all(connection)
    sla.fold_sla(connection)
    first = periods.first_open(connection, tenant_id)
    assert first is not None
    made = invoices.close(connection, tenant_id, first.month, actor="test", clock=lambda _connection: first.end_at)
    documents.set_profile(connection, BillingProfile(tenant_id=tenant_id, legal_name=f"{tenant_id} AG"))
    paid = {"id": f"pay_of_{tenant_id}", "invoice_id": made.id, "tenant_id": tenant_id, "minor": 1, "paid_at": 1}
    connection.execute(sa.insert(payments).values(**paid, reference="r", actor="test", created_at=1))
    connectors.take_lease(connection, "stripe", "gw_test", 0)
    pushed = {"connector": "stripe", "tenant_id": tenant_id, "meter": "input", "hour": 0, "recorded": 1, "sent": 1}
    connection.execute(sa.insert(connector_hours).values(**pushed, part=1, attempts=0, next_attempt_at=0))
    for kind, format_ in files:
        spec = ExportSpec(kind=kind, format=format_, month=first.month, tenant_id=tenant_id)  # type: ignore[arg-type]
        jobs.queue_export(connection, spec, actor="test")


@pytest.fixture(scope="module")
def marks(served: Stack) -> dict[str, set[str]]:
    """What must be seen of a tenant by nobody else: every id of every row that is its own."""
    found: dict[str, set[str]] = {}
    for slug in (THEIRS, OURS):
        tenant_id = served.tenants[slug]
        found[slug] = {tenant_id, f"{slug}-style", f"{slug}.example.org", served.keys[slug][-8:], f"team of {slug}"}
        for table in metadata.tables.values():
            if "tenant_id" not in table.c:
                continue
            rows = served.read(lambda c, t=table, i=tenant_id: c.execute(sa.select(t).where(t.c.tenant_id == i)).all())
            for row in rows:
                named = {name: value for name, value in row._mapping.items() if name == "id" or name.endswith("_id")}
                found[slug] |= {value for value in named.values() if isinstance(value, str) and len(value) > 8}
    shared = found[THEIRS] & found[OURS]
    assert all(mark.startswith(("prv_", "gw_")) for mark in shared), shared
    return {slug: ids - shared for slug, ids in found.items()}


def ask(stack: Stack, secret: str, method: str, path: str, body: Any = None, **query: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    return httpx.request(method, stack.url + path, headers=headers, json=body, params=query, timeout=30)


def seen(answer: httpx.Response, marks: set[str]) -> set[str]:
    return {mark for mark in marks if mark in answer.text or mark in json.dumps(dict(answer.headers))}


def test_every_route_is_listed() -> None:
    below = {(method, BELOW_TENANT + path) for method, path in OWN}
    of_a_tenant = {("GET", path) for path in OF_A_TENANT}
    of_tenants = {*OWN, *below, *STORED, *of_a_tenant}
    assert routes() == {*of_tenants, *PUBLIC, *OPERATORS, *OF_A_SESSION, *OF_A_SIGN_IN, *CONSOLE, *OF_WHO_ASKS}


def test_a_tenants_key_sees_its_own(served: Stack, marks: dict[str, set[str]]) -> None:
    secret = served.keys[OURS]
    for (method, path), sent in OWN.items():
        for model in (f"{OURS}-style", f"{THEIRS}-style"):
            asked = path.replace("{model:path}", model)
            answer = ask(served, secret, method, asked, sent)
            assert answer.status_code == (404 if model in asked and model != f"{OURS}-style" else 200), answer.text
            # The path's own words come back in a refusal.
            assert seen(answer, marks[THEIRS] - {model}) == set(), (method, asked)
        theirs = ask(served, secret, method, f"/t/{THEIRS}{path}".replace("{model:path}", MODEL), sent)
        assert theirs.status_code == 404, (method, path)
        assert seen(theirs, marks[THEIRS]) == set()
    assert OURS in "".join(ask(served, secret, "GET", "/v1/models").text)


def test_a_tenants_key_is_no_operators(served: Stack, marks: dict[str, set[str]]) -> None:
    for method, path in {*OPERATORS, *(("GET", path) for path in OF_A_TENANT)}:
        asked = re.sub(r"\{[^}]+\}", served.key_ids[THEIRS], path)
        for secret, status in ((served.keys[OURS], 403), ("", 401)):
            answer = ask(served, secret, method, asked, {}, **OF_A_TENANT.get(path, {}))
            assert answer.status_code == status, (method, path, answer.text)
            assert seen(answer, marks[THEIRS]) == set(), (method, path)


def test_what_is_everybodys_names_nobody(served: Stack, marks: dict[str, set[str]]) -> None:
    for method, path in PUBLIC:
        answer = ask(served, "", method, path)
        assert answer.status_code == 200, path
        assert seen(answer, marks[THEIRS] | marks[OURS]) == set(), path


def test_what_an_operator_asks_of_one_tenant_is_of_that_one(served: Stack, marks: dict[str, set[str]]) -> None:
    operator = served.write(lambda c: keys.create_key(c, tenant_id=None, name="operator", kind="admin")).secret
    for path, query in OF_A_TENANT.items():
        answer = ask(served, operator, "GET", path, **query)
        assert answer.status_code == 200, (path, answer.text)
        assert seen(answer, marks[THEIRS]) == set(), path
        assert seen(answer, marks[OURS]) or path in SAYS_NO_ID, (path, answer.text)
        everybodys = {name: value for name, value in query.items() if name not in ("tenant", "tenants")}
        if path not in SAYS_NO_ID:
            assert seen(ask(served, operator, "GET", path, **everybodys), marks[THEIRS]), f"{path}: nothing to hide"
    sums = {slug: ask(served, operator, "GET", "/v1/admin/usage", tenant=slug).json() for slug in (THEIRS, OURS)}
    both = ask(served, operator, "GET", "/v1/admin/usage").json()
    assert both["requests"] == sums[THEIRS]["requests"] + sums[OURS]["requests"]


# What of the other tenant is in the place of each parameter of a path.
# What is about all tenants, or none: a tenant's admin is refused it whatever it names.
OF_NOBODY = {"alias", "model", "name", "price_id", "person_id", "number"}  # `name`: of an engine, a tier, …
NAMED = {
    "tenant_id": "tenants", "project_id": "projects", "key_id": "keys", "budget_id": "budgets",
    "limits_id": "rate_limits", "webhook_id": "webhooks", "invoice_id": "invoices", "export_id": "exports",
    "adapter": "adapters", "request_id": "holds", "period_id": "billing_periods", "correction_id": "corrections",
    "alert_id": "alerts", "line_id": "audit_log", "batch_id": "batches", "file_id": "files",
}  # fmt: skip
# Writes that no tenant's admin may make, so that the answer never depends on what they name.
NEVER_A_TENANTS = {
    ("POST", "/v1/admin/invoices/{invoice_id:str}/payments"),
    ("PUT", "/v1/admin/tenants/{tenant_id:str}/billing_profile"),
}
BODIES: dict[str, Any] = {"promote": {"version": 1}, "rotate": {"overlap_s": 0}}
# What names a tenant in its body.
NAMES_A_TENANT: dict[str, dict[str, Any]] = {
    "keys": {"name": "theirs"},
    "projects": {"name": "theirs"},
    "budgets": {"unit": "tokens", "period": "day", "limit_amount": 1, "project": "default"},
    "limits": {"concurrency": 1},
    "webhooks": {"url": "https://example.org/hook"},
    "exports": {"month": "2026-01"},
}
ABSENT = "absent_0123456789"
UNREAD = ("recompute_hours", "adapters", "adapter_shares", "erasures", "write_replays")


@pytest.fixture(scope="module")
def admin(served: Stack) -> str:
    """The key of an admin of the tenant that looks."""
    tenant_id = served.tenants[OURS]
    return served.write(
        lambda c: keys.create_key(c, tenant_id=tenant_id, name="admin", kind="admin", role="tenant_admin")
    ).secret


def test_a_tenants_admin_sees_its_own(served: Stack, marks: dict[str, set[str]], admin: str) -> None:
    for path, query in OF_A_TENANT.items():
        everyones = path == "/v1/admin/margins"
        unnamed = {name: value for name, value in query.items() if name not in ("tenant", "tenants")}
        for asked in (query, unnamed):
            answer = ask(served, admin, "GET", path, **asked)
            assert answer.status_code == (403 if everyones else 200), (path, answer.text)
            assert seen(answer, marks[THEIRS]) == set(), path
            assert seen(answer, marks[OURS]) or path in SAYS_NO_ID, (path, answer.text)
        named = "tenants" if "tenants" in query else "tenant"
        theirs, absent = (ask(served, admin, "GET", path, **query | {named: one}) for one in (THEIRS, ABSENT))
        assert theirs.status_code == (403 if everyones else 404), (path, theirs.text)
        assert theirs.text.replace(THEIRS, ABSENT) == absent.text
    for _, path in OF_WHO_ASKS:
        assert seen(ask(served, admin, "GET", path), marks[THEIRS]) == set()
    for mark in sorted(marks[THEIRS]):  # by any id or name of theirs
        assert ask(served, admin, "GET", "/v1/admin/search", q=mark).json() == {"data": []}, mark
    assert [one["slug"] for one in ask(served, admin, "GET", "/v1/admin/tenants").json()["data"]] == [OURS]


def naming(path: str, one: str) -> str:
    """With `one` in the place of the first parameter, and a number in the others'."""
    return re.sub(r"\{[a-z_]+:str\}", "1", re.sub(r"\{[a-z_]+:str\}", one, path, count=1))


def test_what_is_anothers_is_absent_for_a_tenants_admin(served: Stack, admin: str) -> None:
    """By every route that names something: the answer is the one for what there is not."""
    found: set[str] = set()
    for method, path in OPERATORS:
        parameters = re.findall(r"\{([a-z_]+):", path)
        if not parameters:
            continue
        name = parameters[0]
        if name in OF_NOBODY or (method, path) in NEVER_A_TENANTS:
            continue
        table = metadata.tables[NAMED[name]]
        own = table.c.id if name == "tenant_id" else table.c.tenant_id
        rows = served.read(lambda c, t=table, o=own: c.execute(sa.select(t).where(o == served.tenants[THEIRS])).all())
        assert rows, name
        sent = None if method == "GET" else BODIES.get(path.rsplit("/", 1)[-1], {})
        for one in (str(row.request_id if name == "request_id" else row.id) for row in rows):
            theirs, absent = (ask(served, admin, method, naming(path, asked), sent) for asked in (one, ABSENT))
            assert theirs.status_code == 404, (method, path, theirs.text)
            assert theirs.text.replace(one, ABSENT) == absent.text, (method, path)
        found.add(name)
    assert found == set(NAMED)


def test_a_tenants_admin_writes_nothing_of_anothers(served: Stack, admin: str) -> None:
    before = served.read(
        lambda c: audit_log.list_audit_lines(c, audit_log.AuditFilter(tenant_id=served.tenants[THEIRS]))
    )
    for path, sent in NAMES_A_TENANT.items():
        theirs, absent = (
            ask(served, admin, "POST", f"/v1/admin/{path}", sent | {"tenant": one}) for one in (THEIRS, ABSENT)
        )
        assert theirs.status_code == 404, (path, theirs.text)
        assert theirs.text.replace(THEIRS, ABSENT) == absent.text, path
    for path, what in (("budgets", NAMES_A_TENANT["budgets"] | {"project": None}), ("limits", {"concurrency": 1})):
        foreign, absent = (
            ask(served, admin, "POST", f"/v1/admin/{path}", what | {"tenant": OURS, "key_id": one})
            for one in (served.key_ids[THEIRS], ABSENT)
        )
        assert (foreign.status_code, absent.status_code) == (404, 404), path
        assert foreign.text.replace(served.key_ids[THEIRS], ABSENT) == absent.text
    ours = served.adapters[f"{OURS}-style"]
    shared = [ask(served, admin, "PATCH", f"/v1/admin/adapters/{ours}", {"shared": [one]}) for one in (THEIRS, ABSENT)]
    assert [answer.status_code for answer in shared] == [404, 404]
    assert shared[0].text.replace(THEIRS, ABSENT) == shared[1].text
    assert (
        served.read(lambda c: audit_log.list_audit_lines(c, audit_log.AuditFilter(tenant_id=served.tenants[THEIRS])))
        == before
    )


def test_a_tenants_files_hold_nothing_of_another(served: Stack, marks: dict[str, set[str]]) -> None:
    operator = served.write(lambda c: keys.create_key(c, tenant_id=None, name="files", kind="admin")).secret

    def listed() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = ask(served, operator, "GET", "/v1/admin/exports", tenant=OURS).json()["data"]
        return found

    eventually(lambda: all(job["state"] == "done" for job in listed()), 60.0)
    assert {(job["kind"], job["format"]) for job in listed()} == set(FILES)
    for job in listed():
        for what in ("file", "manifest"):
            answer = ask(served, operator, "GET", f"/v1/admin/exports/{job['id']}/{what}")
            text = answer.text
            if job["format"] == "parquet" and what == "file":
                text = str(parquet.read_table(io.BytesIO(answer.content)).to_pylist())
            assert {mark for mark in marks[THEIRS] if mark in text} == set(), job
            assert served.tenants[OURS] in text


def test_each_table_with_a_tenant_has_rows_of_both(served: Stack) -> None:
    """Or the matrix would prove nothing about it."""
    empty = []
    for table in metadata.tables.values():
        if "tenant_id" not in table.c or table.name in UNREAD:
            # Nothing was preempted; adapters are looked for by name; what is shared, in test_foreign_names. An erased
            # tenant has no key that asks, and no route reads erasures. Stored answers are their caller's alone.
            continue
        for slug in (THEIRS, OURS):
            which = table.c.tenant_id == served.tenants[slug]
            query = sa.select(sa.func.count()).select_from(table).where(which)
            if not served.read(lambda c, q=query: c.execute(q).scalar_one()):
                empty.append(f"{table.name} of {slug}")
    assert empty == []
    assert tables.usage.name in metadata.tables
