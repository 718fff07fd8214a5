"""The audit log has a line for every administrative write, through either door: who, what, before, after; no secret.

The lists of writes here are held against what there is: a new write without a line fails.
"""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
import sqlalchemy as sa

from adapters.files.facts import Facts
from adapters.files.generate import Recipe, write_random
from adapters.files.spec import BaseShape
from billing.accounts import budgets, prices, tenants
from billing.accounts.prices import PriceBook
from billing.accounts.webhooks import Webhook
from billing.books import connectors, documents, periods
from billing.books.documents import DEFAULT_ISSUER
from billing.clock import DAY, database_now
from billing.database import Database
from billing.errors import InvalidValue
from billing.exports.export import ExportSpec
from billing.ledger.messages import HoldRequest, Settlement
from billing.ledger.transaction import LedgerTransaction
from billing.tables import billing_periods, invoices
from gateway import tables
from gateway.access import audit_log, keys
from gateway.admin.administration import Administration
from gateway.admin.models import NewModel
from gateway.admin.refusals import ActorKeyEnded
from gateway.admin.writes import Actor, Writes
from gateway.catalog.adapters import Registration
from gateway.catalog.base_models import ModelChange
from gateway.config.file import parse_gateway_config
from gateway.fleet.roster import LOCAL_ENGINE
from gateway.limits.overrides import LimitsChange
from support.gateway.adapter_uploads import files_of
from support.stack import MODEL, Stack

ACTOR = Actor("cli:operator", "req_1")
READ_ONLY = {
    "prices.preview",
    "periods.margins",
    "models.check_addable",
    "models.check_restorable",
    "models.is_served",
    "adapters.bytes_left",
}
# test_aliases, test_fleet_pages, test_tenant_files, test_automation and test_admin_batches
WITH_OWN_TESTS = {
    *("aliases.set", "aliases.remove", "engines.note_drain", "tenants.erase", "tenants.replay_erasure"),
    *("webhooks.rotate_secret", "webhooks.note_test", "batches.cancel", "files.delete"),
}
Made = dict[str, Any]
Write = Callable[[Administration, sa.Connection, Made], Any]


def registered(administration: Administration, connection: sa.Connection, tenant: str, digest: str) -> Any:
    wanted = Registration(name="style", tenant_id=tenant, base_model=MODEL)
    return administration.adapters.register(connection, wanted, Facts(digest * 32), lambda: None)[0]


# In an order in which each finds what it needs; `made` has what the writes before answered, by their names.
WRITES: dict[str, Write] = {
    "tenants.create": lambda a, c, made: a.tenants.create(c, slug="acme", tier="premium"),
    "tenants.update": lambda a, c, made: a.tenants.update(
        c, made["tenants.create"].id, status="suspended", tier="batch", time_zone="Asia/Tokyo"
    ),
    "projects.create": lambda a, c, made: a.projects.create(c, tenant_id=made["tenants.create"].id, name="search"),
    "projects.update": lambda a, c, made: a.projects.update(c, made["projects.create"].id, default_max_tokens=9),
    "projects.archive": lambda a, c, made: a.projects.archive(c, made["projects.create"].id),
    "projects.restore": lambda a, c, made: a.projects.restore(c, made["projects.create"].id),
    "tenants.archive": lambda a, c, made: a.tenants.archive(c, made["tenants.create"].id),
    "tenants.restore": lambda a, c, made: a.tenants.restore(c, made["tenants.create"].id),
    "keys.create": lambda a, c, made: a.keys.create(c, tenant_id=made["tenants.create"].id, name="k", project="search"),
    "keys.update": lambda a, c, made: a.keys.update(
        c, made["keys.create"].key.id, project="default", default_max_tokens=7, models=["m"], tags={"team": "a"}
    ),
    "keys.rotate": lambda a, c, made: a.keys.rotate(c, made["keys.create"].key.id, overlap_s=60),
    "keys.revoke": lambda a, c, made: a.keys.revoke(c, made["keys.create"].key.id),
    "prices.publish": lambda a, c, made: a.prices.publish(
        c, subject=MODEL, input=2, cached_input=2, output=2, multipliers={}
    ),
    "budgets.set": lambda a, c, made: a.budgets.set(
        c, tenant_id=made["tenants.create"].id, unit="tokens", period="month", limit_amount=5, project="search"
    ),
    "budgets.remove": lambda a, c, made: a.budgets.remove(c, made["budgets.set"].id),
    "limits.set": lambda a, c, made: a.limits.set(
        c, tenant_id=made["tenants.create"].id, key_id=None, change=LimitsChange(concurrency=5)
    ),
    "limits.remove": lambda a, c, made: a.limits.remove(c, made["limits.set"].id),
    "webhooks.create": lambda a, c, made: a.webhooks.create(
        c, url="https://example.org/services/T0/kept-secret?token=kept-secret", tenant_id=made["tenants.create"].id
    ),
    "webhooks.change_webhook": lambda a, c, made: a.webhooks.change_webhook(
        c, made["webhooks.create"].webhook.id, active=False
    ),
    "webhooks.remove": lambda a, c, made: a.webhooks.remove(c, made["webhooks.create"].webhook.id),
    "adapters.register": lambda a, c, made: registered(a, c, made["tenants.create"].id, "ab"),
    "adapters.update": lambda a, c, made: a.adapters.update(c, made["adapters.register"].id, shared=["*"], notes="n"),
    "adapters.promote": lambda a, c, made: a.adapters.promote(
        c, registered(a, c, made["tenants.create"].id, "cd").id, "cd" * 32
    ),
    "adapters.roll_back": lambda a, c, made: a.adapters.roll_back(c, made["adapters.register"].id),
    "adapters.remove_version": lambda a, c, made: a.adapters.remove_version(c, made["adapters.register"].id, 2),
    "adapters.remove": lambda a, c, made: a.adapters.remove(c, made["adapters.register"].id),
    "periods.close": lambda a, c, made: a.periods.close(
        c, tenant="acme", month=past_month(c, made["tenants.create"].id)
    ),
    "exports.create": lambda a, c, made: a.exports.create(
        c, ExportSpec(kind="focus", format="csv", month="2020-01", tenant_id=made["tenants.create"].id)
    ),
    "exports.end": lambda a, c, made: a.exports.end(c, made["exports.create"].id),
    "models.add_model": lambda a, c, made: priced(a, c, "second").models.add_model(
        c, NewModel(name="second", path="second")
    ),
    "models.update": lambda a, c, made: a.models.update(c, "second", ModelChange(tenants=["acme"], fallbacks=[MODEL])),
    "models.remove": lambda a, c, made: a.models.remove(c, "second"),
    "models.restore": lambda a, c, made: a.models.restore(c, "second"),
    "documents.set_profile": lambda a, c, made: a.documents.set_profile(c, tenant="acme", legal_name="Acme Inc."),
    "documents.record_payment": lambda a, c, made: a.documents.record_payment(
        c, invoice_id=charged_invoice(c, made["tenants.create"].id), amount_minor=100, reference="a transfer"
    ),
    "documents.release_connector": lambda a, c, made: a.documents.release_connector(c, name=ran_connector(c)),
    "corrections.correct_tenant": lambda a, c, made: a.corrections.correct_tenant(
        c, tenant="acme", picos=-5, reason="goodwill"
    ),
    "corrections.correct_request": lambda a, c, made: a.corrections.correct_request(
        c, request_id=settled_request(c, made), meter="output", tokens=-1, reason="garbled"
    ),
}
IN_2031 = 1_925_000_000_000_000  # in January, a month to export
OPERATORS_OWN = {
    "prices.publish",
    "documents.release_connector",
    "models.add_model",
    "models.update",
    "models.remove",
    "models.restore",
}


def priced(administration: Administration, connection: sa.Connection, model: str) -> Administration:
    """Nobody may add a model that has no price; of this one nobody made any by name of an administrator."""
    prices.publish(connection, subject=model, input=1, cached_input=1, output=1, multipliers={"premium": 1})
    return administration


def past_month(connection: sa.Connection, tenant_id: str) -> str:
    """A period that has ended."""
    now = database_now(connection)
    values = {"id": "per_1", "tenant_id": tenant_id, "month": "2020-01", "time_zone": "UTC", "state": "open"}
    moments = {"start_at": now - DAY, "end_at": now - 1, "opened_at": now, "late_after": 0}
    connection.execute(sa.insert(billing_periods).values(values | moments))
    return "2020-01"


def charged_invoice(connection: sa.Connection, tenant_id: str) -> str:
    """An invoice with something to pay."""
    period = periods.first_open(connection, tenant_id)
    assert period is not None
    amounts = {"usage_picos": 10**12, "correction_picos": 0, "total_picos": 10**12}
    own = {"id": "inv_1", "tenant_id": tenant_id, "currency": "USD"}
    connection.execute(sa.insert(invoices).values(**own, **amounts, period_id=period.id, issued_at=1))
    documents.issue(
        connection, DEFAULT_ISSUER, kind="invoice", tenant_id=tenant_id, currency="USD", exact_picos=10**12, now=1,
        invoice_id="inv_1",
    )  # fmt: skip
    return "inv_1"


def ran_connector(connection: sa.Connection) -> str:
    connectors.take_lease(connection, "stripe", "gw_1", 1.0)
    return "stripe"


def settled_request(connection: sa.Connection, made: Made) -> str:
    """One of three tokens, as the ledger writes it."""
    now, tenant_id = database_now(connection), made["tenants.create"].id
    group = LedgerTransaction("gw_1", 1e9, lambda _connection: now, PriceBook())
    group.run(connection, [HoldRequest("req_1", tenant_id, "key_1", MODEL, None, "batch", 0, 3)], [])
    ending = Settlement(
        request_id="req_1", prompt_tokens=0, cached_tokens=0, completion_tokens=3, made_tokens=3, ending="stop"
    )
    LedgerTransaction("gw_1", 1e9, lambda _connection: now, PriceBook()).run(connection, [], [ending])
    return "req_1"


def thing(answer: Any) -> Any:
    """What was made or changed, without what is shown once beside it, and as the log may have it."""
    found = next((getattr(answer, name) for name in ("key", "webhook") if hasattr(answer, name)), answer)
    return found.redacted() if isinstance(found, Webhook) else found


@pytest.fixture
def administration(tmp_path: Any) -> Administration:
    toml = f'[[models]]\nname = "{MODEL}"\npath = "model"\n'
    return Administration(parse_gateway_config(toml.encode(), tmp_path, "test", {}), ACTOR)


@pytest.mark.parametrize("end", ["revoked", "expired"])
def test_a_key_that_is_no_longer_usable_changes_nothing(
    database: Database, administration: Administration, end: str
) -> None:
    """However long its request took to arrive: it was let in when the key still was."""
    own = database.write_sync(lambda c: administration.keys.create(c, tenant_id=None, name="thief", kind="admin")).key
    by_key = Administration(administration.writes.config, Actor(own.id, "req_2"))
    database.write_sync(lambda c: by_key.tenants.create(c, slug="acme", tier="premium"))
    if end == "revoked":
        database.write_sync(lambda c: administration.keys.revoke(c, own.id))
    else:
        database.write_sync(lambda c: c.execute(sa.update(tables.keys).values(expires_at=1)))
    before = lines(database)
    with pytest.raises(ActorKeyEnded):
        database.write_sync(lambda c: by_key.keys.create(c, tenant_id=None, name="again", kind="admin"))
    assert lines(database) == before
    assert database.read_sync(lambda c: c.execute(sa.select(tables.keys.c.name)).scalars().all()) == ["thief"]


def test_a_rotated_keys_budgets_are_the_new_keys(database: Database, administration: Administration) -> None:
    def write(c: sa.Connection) -> tuple[str, str]:
        tenant = administration.tenants.create(c, slug="acme", tier="premium")
        made = administration.keys.create(c, tenant_id=tenant.id, name="k")
        administration.budgets.set(
            c, tenant_id=tenant.id, key_id=made.key.id, unit="tokens", period="total", limit_amount=100
        )
        return tenant.id, made.key.id

    tenant_id, old = database.write_sync(write)
    made = database.write_sync(lambda c: administration.keys.rotate(c, old, overlap_s=60))
    [budget] = database.read_sync(lambda c: budgets.list_budgets(c, tenant_id=tenant_id))
    assert (budget.scope_id, budget.limit_amount) == (made.key.id, 100)
    [line] = [line for line in lines(database) if line.action == "budget.move"]
    assert (line.before["scope_id"], line.after["scope_id"]) == (old, made.key.id)


def lines(database: Database, **which: Any) -> list[audit_log.AuditLine]:
    """Oldest first."""
    return database.read_sync(lambda c: audit_log.list_audit_lines(c, audit_log.AuditFilter(**which), limit=500))[::-1]


def test_every_administrative_write_has_its_line(database: Database, administration: Administration) -> None:
    there = {
        f"{part}.{name}"
        for part, writes in vars(administration).items()
        if not isinstance(writes, Writes)
        for name, _ in inspect.getmembers(writes, inspect.ismethod)
        if not name.startswith("_")
    }
    assert there == set(WRITES) | READ_ONLY | WITH_OWN_TESTS
    (administration.writes.config.models_dir / "second").mkdir(parents=True)
    made: Made = {}
    latest: dict[str, Any] = {}  # what the log last said of each object
    for name, write in WRITES.items():
        count = len(lines(database))
        made[name] = database.write_sync(lambda c, write=write: write(administration, c, made))
        new = lines(database)[count:]
        assert new, name
        shown = msgspec.json.decode(msgspec.json.encode(thing(made[name])))
        assert shown in [line.after for line in new], name
        for line in new:
            assert (line.actor, line.request_id) == (ACTOR.id, ACTOR.request_id)
            assert line.before == latest.get(line.object_id), f"{name}: before is what it was"
            assert line.before != line.after
            assert line.action.partition(".")[0] in name
            assert line.tenant_id == (None if name in OPERATORS_OWN else made["tenants.create"].id)
            latest[line.object_id] = line.after
    said = json.dumps([msgspec.to_builtins(line) for line in lines(database)])
    for name in ("keys.create", "keys.rotate", "webhooks.create"):
        assert made[name].secret not in said
        assert keys.hash_secret(made[name].secret) not in said
    assert made["webhooks.create"].webhook.url.endswith("kept-secret")
    assert "kept-secret" not in said
    assert '"url": "https://example.org/\\u2026"' in said
    rotated = lines(database, object_id=made["keys.create"].key.id)[2]
    assert (rotated.action, rotated.after["rotated_to"]) == ("key.rotate", made["keys.rotate"].key.id)


def test_a_write_that_fails_leaves_no_line(database: Database, administration: Administration) -> None:
    def write(connection: sa.Connection) -> None:
        administration.tenants.create(connection, slug="acme", tier="premium")
        raise InvalidValue("something after it")

    with pytest.raises(InvalidValue):
        database.write_sync(write)
    assert lines(database) == []


def test_filters(database: Database, administration: Administration) -> None:
    made: Made = {}
    for name in ("tenants.create", "projects.create", "prices.publish"):
        made[name] = database.write_sync(lambda c, name=name: WRITES[name](administration, c, made))
    [first, second, third] = lines(database)
    assert lines(database, tenant_id=made["tenants.create"].id) == [first, second]
    assert lines(database, action="price.publish") == [third]
    assert lines(database, object_id=made["projects.create"].id) == [second]
    assert lines(database, actor="key_other") == []
    assert lines(database, start=second.at) == [second, third]
    assert lines(database, end=second.at) == [first]


@pytest.mark.parametrize("statement", ["UPDATE audit_log SET actor = 'me'", "DELETE FROM audit_log"])
def test_nobody_changes_a_line(database: Database, administration: Administration, statement: str) -> None:
    database.write_sync(lambda c: administration.tenants.create(c, slug="acme", tier="premium"))
    with pytest.raises(sa.exc.DBAPIError, match="append-only"):
        database.write_sync(lambda c: c.exec_driver_sql(statement))


# ---- over HTTP

# Method, path, body; {name} is the id that the write of that name answered.
HTTP_WRITES: dict[str, tuple[str, str, Any]] = {
    "tenant": ("POST", "tenants", {"slug": "audited", "tier": "batch"}),
    "tenant changed": ("PATCH", "tenants/{tenant}", {"name": "Audited"}),
    "project": ("POST", "projects", {"tenant": "audited", "name": "p"}),
    "project changed": ("PATCH", "projects/{project}", {"name": "q"}),
    "key": ("POST", "keys", {"tenant": "audited"}),
    "key changed": ("PATCH", "keys/{key}", {"default_max_tokens": 5}),
    "key rotated": ("POST", "keys/{key}/rotate", {}),
    "key revoked": ("POST", "keys/{key}/revoke", None),
    "price": ("POST", "prices", {"subject": MODEL, "input": 7, "output": 9, "currency": "XTS"}),
    "budget": ("POST", "budgets", {"tenant": "audited", "unit": "money", "period": "day", "limit_amount": 1}),
    "budget removed": ("DELETE", "budgets/{budget}", None),
    "limits": ("POST", "limits", {"tenant": "audited", "concurrency": 5}),
    "limits removed": ("DELETE", "limits/{limits}", None),
    "webhook": ("POST", "webhooks", {"url": "https://example.org/hook"}),
    "webhook changed": ("PATCH", "webhooks/{webhook}", {"active": False}),
    "webhook secret rotated": ("POST", "webhooks/{webhook}/rotate_secret", None),
    "webhook tested": ("POST", "webhooks/{webhook}/test", None),
    "webhook removed": ("DELETE", "webhooks/{webhook}", None),
    "export": ("POST", "exports", {"month": "2031-01"}),
    "export ended": ("DELETE", "exports/{export}", None),
    "its price": ("POST", "prices", {"subject": "audited", "input": 7, "output": 9, "ahead": True}),
    "model": ("POST", "models", {"name": "audited"}),
    "model changed": ("PATCH", "models/audited", {"pinned": True}),
    "model removed": ("DELETE", "models/audited", None),
    "model restored": ("POST", "models/audited/restore", None),
    "model removed again": ("DELETE", "models/audited", None),
    "alias": ("PUT", "aliases/of-audited", {"models": [{"model": MODEL}]}),
    "alias removed": ("DELETE", "aliases/of-audited", None),
    "adapter": ("POST", "adapters", 1),  # a form, with an adapter of this seed
    "another version": ("POST", "adapters", 2),
    "adapter promoted": ("POST", "adapters/{adapter}/promote", {"version": 2}),
    "adapter rolled back": ("POST", "adapters/{adapter}/rollback", None),
    "adapter changed": ("PATCH", "adapters/{adapter}", {"pinned": True}),
    "version removed": ("DELETE", "adapters/{adapter}/versions/2", None),
    "adapter removed": ("DELETE", "adapters/{adapter}", None),
    "correction": ("POST", "corrections", {"tenant": "audited", "picos": -5, "reason": "goodwill"}),
    "profile": ("PUT", "tenants/audited/billing_profile", {"legal_name": "Audited Inc."}),
    "credit": ("POST", "credits", {"tenant": "audited", "picos": 5, "reason": "goodwill"}),
    "empty project": ("POST", "projects", {"tenant": "audited", "name": "empty"}),
    "project archived": ("DELETE", "projects/{empty project}", None),
    "project restored": ("POST", "projects/{empty project}/restore", None),
    "tenant archived": ("DELETE", "tenants/{tenant}", None),
    "tenant restored": ("POST", "tenants/{tenant}/restore", None),
    "engine": ("POST", f"engines/{LOCAL_ENGINE}/drain", {"draining": False}),
}
# A month cannot be closed before it ends: `test_every_administrative_write_has_its_line` does. The others change
# nothing of an operator's.
NOT_WRITTEN_HERE = {
    ("POST", "session"),
    ("DELETE", "session"),
    ("POST", "session/backchannel_logout"),
    *(("POST", "batches/{}/cancel"), ("DELETE", "files/{}")),  # test_admin_batches has them
    *(("POST", "session/totp"), ("POST", "session/totp/confirm"), ("POST", "session/totp/remove")),
    *(("POST", "periods/close_all"), ("POST", "invoices/{}/payments"), ("POST", "connectors/{}/release")),
    *(("POST", "periods/close"), ("POST", "prices/preview"), ("POST", "reconciliations"), ("POST", "adapters/check")),
}


def test_every_write_over_http_has_its_line(stack: Stack) -> None:
    operator = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="audited", kind="admin"))
    headers = {"Authorization": f"Bearer {operator.secret}"}
    # Of a tenant that nobody else's test counts with: what it uses from now on is of that month.
    later = stack.write(lambda c: tenants.create_tenant(c, slug="of-2031", name="Of 2031", tier="batch")).id
    stack.write(lambda c: periods.ensure(c, {later: (IN_2031, IN_2031)}, IN_2031))
    ignored = shutil.ignore_patterns("*.safetensors")
    shutil.copytree(stack.model_dir, stack.config.models_dir / "audited", ignore=ignored)
    with httpx.Client(base_url=f"{stack.url}/v1/admin/", headers=headers, timeout=30) as client:
        check_http(stack, client, operator.key.id)


def form_of(stack: Stack, seed: int) -> dict[str, Any]:
    base = BaseShape.from_config(json.loads((stack.model_dir / "config.json").read_bytes()))
    directory = write_random(stack.directory / f"audited{seed}", base, Recipe(seed, 1, ("k_proj",)))
    return {"files": files_of(directory), "data": {"name": "audited", "tenant": "audited"}}


def is_name(part: str) -> bool:
    return part.isdigit() or "audited" in part or part == LOCAL_ENGINE


def check_http(stack: Stack, client: httpx.Client, operator: str) -> None:
    paths = httpx.get(f"{stack.url}/schema/openapi.json", timeout=60).json()["paths"]
    there = {
        (method.upper(), "/".join("{}" if part.startswith("{") else part for part in path.split("/")[3:]))
        for path, operations in paths.items()
        if path.startswith("/v1/admin/")
        for method in operations
        if method != "get"
    }
    asked = {
        (method, "/".join("{}" if part.startswith("{") or is_name(part) else part for part in path.split("/")))
        for method, path, _body in HTTP_WRITES.values()
    }
    assert asked | NOT_WRITTEN_HERE == there
    made: dict[str, str] = {}
    for name, (method, path, body) in HTTP_WRITES.items():
        sent = form_of(stack, body) if isinstance(body, int) else {"json": body}
        answer = client.request(method, path.format(**made), **sent)
        assert answer.is_success, f"{name}: {answer.text}"
        if answer.content:
            made[name] = answer.json().get("id")
        log = client.get("audit_log", params={"actor": operator}).json()["data"]
        assert log[0]["request_id"] == answer.headers["x-request-id"], name
    whole = client.get("audit_log", params={"actor": operator, "limit": 500}).json()
    assert (whole["object"], whole["has_more"]) == ("page", False)
    assert [line["id"] for line in whole["data"]] == sorted((line["id"] for line in whole["data"]), reverse=True)
    paged: list[Any] = []
    page: dict[str, str] = {}
    while True:
        part = client.get("audit_log", params={"actor": operator, "limit": 5, **page}).json()
        paged += part["data"]
        if not part["has_more"]:
            break
        page = {"page": part["next_page"]}
    assert paged == whole["data"]
    of_tenant = client.get("audit_log", params={"tenant": "audited", "limit": 500}).json()["data"]
    assert {line["tenant_id"] for line in of_tenant} == {made["tenant"]}
    assert client.get("audit_log", params={"tenant": "nobody"}).status_code == 404
    assert client.get("audit_log", params={"page": "x"}).json()["error"]["param"] == "page"
    assert httpx.get(f"{stack.url}/v1/admin/audit_log", headers=stack.headers()).status_code == 403
