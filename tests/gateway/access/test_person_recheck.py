"""A session's role follows the provider, here PyPI's oidc-provider-mock: a group removed while signed in, tokens
revoked, and a provider that is away."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from billing.clock import SECOND
from gateway.access import keys
from gateway.access.person_sessions import CLAIM_S
from gateway.tables import audit_log, people, person_sessions
from support.gateway.session_client import sign_in
from support.people.people_stack import start_people_stack
from support.people.providers import MockProvider, Visitor
from support.services import fresh_postgres
from support.stack import Stack
from support.waiting import eventually


class Place:
    def __init__(self, stack: Stack, provider: MockProvider) -> None:
        self.stack, self.provider = stack, provider

    def signed_in(self, sub: str, *groups: str) -> Visitor:
        self.provider.set_person(sub, list(groups))
        visitor = Visitor(self.stack.url)
        assert visitor.sign_in(sub).status_code == 303
        return visitor

    def let_pass(self, sub: str, seconds: float) -> None:
        """As if the last check of this person's sessions were longer ago by these seconds."""
        mine = sa.select(people.c.id).where(people.c.subject == sub).scalar_subquery()
        past = round(seconds * SECOND)
        values = {
            "checked_at": person_sessions.c.checked_at - past,
            "claimed_until": person_sessions.c.claimed_until - past,
        }
        update = sa.update(person_sessions).where(person_sessions.c.person_id == mine).values(values)
        self.stack.write(lambda c: c.execute(update))

    def actions(self, sub: str) -> list[tuple[str, Any]]:
        """What the audit log has of this person: actions, and the role afterwards."""
        mine = sa.select(people.c.id).where(people.c.subject == sub).scalar_subquery()
        query = sa.select(audit_log).where(audit_log.c.actor == mine).order_by(audit_log.c.id)
        rows = self.stack.read(lambda c: list(c.execute(query)))
        return [(row.action, None if row.after is None else row.after["role"]) for row in rows]

    @property
    def due_s(self) -> float:
        return self.stack.config.oidc.recheck_s

    @property
    def overdue_s(self) -> float:
        return self.due_s + self.stack.config.oidc.unreachable_s


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, model_dir: Path, postgres_template: str) -> Iterator[Place]:
    with fresh_postgres(postgres_template) as url:
        stack = Stack(tmp_path_factory.mktemp("rechecks"), url, model_dir)
        made = Place(stack, MockProvider())
        try:
            start_people_stack(stack, made.provider)
            yield made
        finally:
            stack.stop()
            made.provider.stop()


def test_a_group_removed_while_signed_in_ends_every_session(place: Place) -> None:
    with place.signed_in("ada", "gpu-owners") as one, place.signed_in("ada", "gpu-owners") as two:
        place.provider.set_person("ada", ["chess-club"])
        assert one.session().status_code == 200, "not due yet"
        place.let_pass("ada", place.due_s)
        assert one.get("/v1/admin/tenants").status_code == 401
        assert two.session().status_code == 401
    assert place.actions("ada")[-3:] == [("person.update", None), ("session.end", None), ("session.end", None)]


def test_another_group_changes_the_role_in_place(place: Place) -> None:
    with place.signed_in("grace", "gpu-owners") as visitor:
        token = visitor.session().json()["csrf_token"]
        place.provider.set_person("grace", ["viewers"], name="Grace H.")
        place.let_pass("grace", place.due_s)
        body = visitor.session().json()
        assert (body["role"], body["person"]["name"], body["csrf_token"]) == ("read_only", "Grace H.", token)
        write = visitor.client.post(
            f"{place.stack.url}/v1/admin/keys", json={"tenant": "acme"}, headers={"x-csrf-token": token}
        )
        assert write.status_code == 403
        # The refresh gave new tokens, with which the next check works too.
        place.provider.set_person("grace", ["money"])
        place.let_pass("grace", place.due_s)
        assert visitor.session().json()["role"] == "finance"


def test_many_requests_at_once_check_once(place: Place) -> None:
    with place.signed_in("mary", "viewers") as visitor, ThreadPoolExecutor(8) as pool:
        place.let_pass("mary", place.due_s)
        answers = list(pool.map(lambda _: visitor.session().status_code, range(16)))
    assert answers == [200] * 16


def test_revoked_tokens_end_the_session(place: Place) -> None:
    with place.signed_in("joan", "viewers") as visitor:
        place.provider.revoke_tokens("joan")
        place.let_pass("joan", place.due_s)
        assert visitor.session().status_code == 401
    assert place.actions("joan")[-1] == ("session.end", None)


def test_a_provider_that_is_away(place: Place) -> None:
    """Sessions continue for `unreachable_s`, a sign-in names the provider, and keys sign in."""
    admin = place.stack.write(lambda c: keys.create_key(c, tenant_id=None, name="emergency", kind="admin"))
    with place.signed_in("hedy", "viewers") as visitor:
        place.provider.stop()
        try:
            assert visitor.session().status_code == 200
            place.let_pass("hedy", place.due_s)
            assert visitor.session().status_code == 200, "it could not be asked"
            assert visitor.session().status_code == 200, "and is not asked again at once"
            eventually(lambda: visitor.get("/v1/admin/session/provider").status_code == 503)
            page = visitor.get("/v1/admin/session/provider").text
            assert f"Example SSO ({place.provider.issuer}) cannot be used" in page
            assert "Admin keys sign in without the provider." in page
            assert sign_in(place.stack, admin).get("/v1/admin/keys").status_code == 200
            place.let_pass("hedy", place.overdue_s + CLAIM_S)
            assert visitor.session().status_code == 401
        finally:
            place.provider.start(place.stack.url)
        eventually(lambda: visitor.get("/v1/admin/session/provider").status_code == 303)  # its absence is remembered
    [line, *_] = [line for line in place.stack.log_lines("oidc.unreachable") if "session" in line]
    assert place.provider.issuer in line["reason"]


def test_a_session_ends_with_its_length(place: Place) -> None:
    with place.signed_in("lynn", "viewers") as visitor:
        assert visitor.session().status_code == 200
        ended = sa.update(person_sessions).values(expires_at=person_sessions.c.created_at)
        place.stack.write(lambda c: c.execute(ended))
        assert visitor.session().status_code == 401
