"""People sign in at npm's oidc-provider: the role of their groups, and what an attacker or a wrong provider sends."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec
import pytest
import sqlalchemy as sa

from gateway.access.oidc_provider import KEYS_AGAIN_S, OidcProvider
from gateway.access.person_sign_ins import safe_return
from gateway.access.provider_answers import SignInRefused
from gateway.access.refused_sign_ins import PERSON_ACTION
from gateway.access.sessions import WRONG_SIGN_INS_MAX
from gateway.tables import audit_log, people, person_sessions
from support.gateway.admin_client import Operator
from support.people.people_stack import CALLBACK, OF_ACME, start_people_stack
from support.people.providers import CLIENT_SECRET, NodeProvider, Visitor
from support.stack import Stack

LOGOUT = "/v1/admin/session/backchannel_logout"


class Place:
    """The gateway and its provider; `visit` opens a browser that is closed at the end."""

    def __init__(self, stack: Stack, provider: NodeProvider) -> None:
        self.stack, self.provider = stack, provider
        self.visitors: list[Visitor] = []

    def visit(self) -> Visitor:
        self.visitors.append(Visitor(self.stack.url))
        return self.visitors[-1]

    def signed_in(self, sub: str, *groups: str) -> Visitor:
        self.provider.set_person(sub, list(groups))
        visitor = self.visit()
        answer = visitor.sign_in(sub)
        assert answer.status_code == 303, answer.text
        return visitor

    def row(self, sub: str) -> Any:
        return self.stack.read(lambda c: c.execute(sa.select(people).where(people.c.subject == sub)).one_or_none())

    def sessions(self, sub: str) -> list[Any]:
        query = sa.select(person_sessions).join(people).where(people.c.subject == sub)
        return self.stack.read(lambda c: list(c.execute(query.order_by(person_sessions.c.created_at))))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("people")
    place = Place(Stack(directory, f"sqlite:///{directory}/laneway.db", model_dir), NodeProvider())
    try:
        start_people_stack(place.stack, place.provider)
        yield place
    finally:
        place.stack.stop()
        place.provider.stop()


@pytest.fixture
def place(shared: Place) -> Iterator[Place]:
    yield shared
    shared.provider.ask("wrong")
    for visitor in shared.visitors:
        visitor.client.close()
    shared.visitors.clear()


def refusal(answer: httpx.Response, status: int = 403) -> str:
    """The text of the page that a person sees."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    return unescape(re.sub(r"<[^>]+>", " ", answer.text.partition("<main>")[2]))


def test_a_person_has_the_role_of_the_group(place: Place) -> None:
    visitor = place.signed_in("ada", "gpu-operators", "some-other-group")
    body = visitor.session().json()
    row = place.row("ada")
    assert (body["role"], body["tenant"], body["key"]) == ("operator", None, None)
    assert body["person"] == {"id": row.id, "name": "Ada", "email": "ada@example.com"}
    assert (row.issuer, row.role) == (place.provider.issuer, "operator")
    assert visitor.get("/v1/admin/tenants").status_code == 200
    prices = visitor.client.post(
        f"{place.stack.url}/v1/admin/prices", json={}, headers={"x-csrf-token": body["csrf_token"]}
    )
    assert (prices.status_code, prices.json()["error"]["code"]) == (403, "insufficient_role")


def test_the_audit_log_names_the_person(place: Place) -> None:
    visitor = place.signed_in("grace", "gpu-owners")
    token = visitor.session().json()["csrf_token"]
    made = visitor.client.post(
        f"{place.stack.url}/v1/admin/keys", json={"tenant": "acme", "name": "hers"}, headers={"x-csrf-token": token}
    )
    assert made.status_code == 201, made.text
    visitor.client.delete(f"{place.stack.url}/v1/admin/session", headers={"x-csrf-token": token})
    assert visitor.session().status_code == 401
    row = place.row("grace")
    lines = Operator(place.stack).ok("GET", "audit_log", actor=row.id, sort="at")["data"]
    assert [line["action"] for line in lines] == ["person.create", "session.begin", "key.create", "session.end"]
    assert {line["actor_name"] for line in lines} == {"Grace"}
    assert lines[2]["object_id"] == made.json()["id"]
    query = sa.select(sa.func.count()).where(audit_log.c.after.cast(sa.Text).contains("grace@example.com"))
    assert place.stack.read(lambda c: c.execute(query).scalar_one()) == 0, "the log cannot be erased"


def test_the_strongest_of_several_groups_counts(place: Place) -> None:
    assert place.signed_in("mary", "viewers", "money", "gpu-owners").session().json()["role"] == "owner"
    assert place.signed_in("joan", "viewers", "money").session().json()["role"] == "finance"


def test_a_group_of_a_tenant_sees_this_tenant_alone(place: Place) -> None:
    visitor = place.signed_in("hedy", OF_ACME, "viewers")
    body = visitor.session().json()
    assert (body["role"], body["tenant"]["slug"]) == ("tenant_admin", "acme")
    assert {row["slug"] for row in visitor.get("/v1/admin/tenants").json()["data"]} == {"acme"}
    assert visitor.get("/v1/admin/people").status_code == 403


def test_a_person_without_a_mapped_group_is_refused(place: Place) -> None:
    place.provider.set_person("eve", ["chess-club"])
    text = refusal(place.visit().sign_in("eve"))
    assert "none of your groups has a role in Laneway" in text
    assert "Example SSO" in text
    assert place.row("eve") is None


def refused_lines(place: Place, request_id: str) -> list[Any]:
    own = (audit_log.c.action == PERSON_ACTION, audit_log.c.request_id == request_id)
    return place.stack.read(lambda c: list(c.execute(sa.select(audit_log).where(*own)).all()))


def refused_count(place: Place, reason: str) -> float:
    wanted = f'laneway_person_sign_ins_refused_total{{reason="{reason}"'
    return sum(float(line.split()[-1]) for line in place.stack.metrics().splitlines() if line.startswith(wanted))


def test_a_refusal_after_a_signed_token_is_in_the_audit_log(place: Place) -> None:
    """Of a person who signed in before: the bounds of a person without a row may be used up by other tests."""
    place.signed_in("frank", "gpu-operators")
    known = place.row("frank")
    place.provider.set_person("frank", [])
    before = refused_count(place, "no_role")
    answer = place.visit().sign_in("frank")
    refusal(answer)
    [line] = refused_lines(place, answer.headers["x-request-id"])
    assert (line.actor, line.after["reason"]) == (known.id, "no_role")
    assert ipaddress.ip_address(line.object_id).is_loopback, "the address of the client"
    assert "frank" not in str(line.after)
    assert refused_count(place, "no_role") == before + 1
    again = place.visit().sign_in("frank")
    refusal(again)
    assert refused_lines(place, again.headers["x-request-id"]) == [], "one line a minute of a person"


def test_an_answer_that_no_provider_has_signed_is_only_counted(place: Place) -> None:
    before = refused_count(place, "not_signed")
    url = place.visit().authorize("ada")
    answer = place.visit().client.get(url)
    refusal(answer)
    assert refused_lines(place, answer.headers["x-request-id"]) == []
    assert refused_count(place, "not_signed") == before + 1


def test_who_lost_every_group_loses_the_other_sessions_at_the_next_sign_in(place: Place) -> None:
    first = place.signed_in("lynn", "viewers")
    place.provider.set_person("lynn", [])
    refusal(place.visit().sign_in("lynn"))
    assert first.session().status_code == 401
    assert (place.row("lynn").role, place.sessions("lynn")) == (None, [])


def test_people_are_listed(place: Place) -> None:
    place.signed_in("sophie", "money")
    [row] = Operator(place.stack).ok("GET", "people", search="sophie@")["data"]
    assert (row["name"], row["email"], row["role"]) == ("Sophie", "sophie@example.com", "finance")
    assert row["subject"] == "sophie"
    assert row["signed_in_at"] > 1_700_000_000


# ---- attacks on the sign-in


def test_a_state_is_used_once(place: Place) -> None:
    place.provider.set_person("ada", ["gpu-operators"])
    visitor = place.visit()
    url = visitor.authorize("ada")
    started = visitor.started
    assert visitor.client.get(url).status_code == 303
    assert visitor.started == {}, "the browser forgets it"
    for name, value in started.items():
        visitor.client.cookies.set(name, value)
    assert "was used already (state)" in refusal(visitor.client.get(url))


def test_an_answer_needs_the_browser_that_started_it(place: Place) -> None:
    """Otherwise an attacker could sign a victim in as somebody else."""
    place.provider.set_person("ada", ["gpu-operators"])
    url = place.visit().authorize("ada")
    assert "has not started a sign-in" in refusal(place.visit().client.get(url))
    other = place.visit()
    other.get("/v1/admin/session/provider")
    assert "belongs to another sign-in (state)" in refusal(other.client.get(url))
    forger = place.visit()
    for name in other.started:
        forger.client.cookies.set(name, "AAAA" * 20)
    assert "cookie is not valid" in refusal(forger.client.get(url))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"claims": {"iss": "https://evil.example"}}, "another provider (iss)"),
        ({"claims": {"aud": "another-client"}}, "another client (aud)"),
        ({"claims": {"nonce": "another"}}, "another sign-in (nonce)"),
        ({"claims": {"exp": 1_700_000_000}}, "has expired (exp)"),
        ({"claims": {"iat": 4_000_000_000, "exp": 4_000_000_900}}, "dated in the future (iat)"),
        ({"claims": {"at_hash": "AAAAAAAAAAAAAAAAAAAAAA"}}, "another access token (at_hash)"),
        ({"claims": {"sub": "somebody-else"}}, "names another person (sub)"),
        ({"claims": {"sid": "s" * 256}}, "(sid) is not at most 255 printable characters"),
        ({"claims": {"sid": "s\0s"}}, "(sid) is not at most 255 printable characters"),
        ({"header": {"alg": "none"}}, "signed with 'none'"),
        ({"stranger": True}, "not signed with a key of the provider"),
        ({"stranger": True, "header": {"kid": "key-1"}}, "not signed with a key of the provider"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_id_token_is_refused(place: Place, wrong: dict[str, Any], says: str) -> None:
    place.provider.set_person("ada", ["gpu-operators"])
    visitor = place.visit()
    url = visitor.authorize("ada")
    place.provider.ask("wrong", **wrong)
    before = len(place.sessions("ada"))
    assert says in refusal(visitor.client.get(url))
    assert len(place.sessions("ada")) == before


def test_a_token_answer_that_is_no_object_is_named(place: Place) -> None:
    visitor = place.visit()
    url = visitor.authorize("ada")
    place.provider.ask("wrong", token=5)
    assert "cannot be used for a sign-in now: the request failed" in refusal(visitor.client.get(url), 503)


def test_an_answer_of_another_issuer_is_refused(place: Place) -> None:
    """RFC 9207: the mix-up of two providers."""
    visitor = place.visit()
    url = httpx.URL(visitor.authorize("ada"))
    assert url.params["iss"] == place.provider.issuer
    wrong = visitor.client.get(url.copy_merge_params({"iss": "https://evil.example"}))
    assert "from another provider (iss)" in refusal(wrong)
    assert "does not name its issuer (iss)" in refusal(visitor.client.get(url.copy_remove_param("iss")))


def test_what_the_provider_refuses_is_said(place: Place) -> None:
    visitor = place.visit()
    location = visitor.get("/v1/admin/session/provider").headers["location"]
    state = parse_qs(urlsplit(location).query)["state"][0]
    answer = visitor.get(CALLBACK, params={"state": state, "error": "access_denied<script>", "iss": "x"})
    assert "did not sign you in: access_deniedscript." in refusal(answer)


def test_the_request_has_pkce_state_and_nonce(place: Place) -> None:
    query = parse_qs(urlsplit(place.visit().get("/v1/admin/session/provider").headers["location"]).query)
    assert query["code_challenge_method"] == ["S256"]
    assert query["response_type"] == ["code"]
    assert all(len(query[name][0]) >= 43 for name in ("state", "nonce", "code_challenge"))
    assert query["redirect_uri"] == [place.stack.url + CALLBACK]


@pytest.mark.parametrize(
    "path",
    [
        "https://evil.example", "//evil.example", "/admin//evil.example", "/\\evil.example", "/admin/\\evil.example",
        "/v1/admin/keys", "javascript:alert(1)", "/admin/../v1/admin/session", "/admin/\r\nset-cookie:a=b", "",
        "admin/", "/admin/é", "/admin/" + "a" * 1000,
    ],
)  # fmt: skip
def test_no_link_leads_to_another_site(path: str) -> None:
    assert safe_return(path) == "/admin/"


def test_a_page_of_the_console_is_returned_to(place: Place) -> None:
    place.provider.set_person("ada", ["gpu-operators"])
    assert (
        place.visit().sign_in("ada", return_to="/admin/keys?kind=live").headers["location"] == "/admin/keys?kind=live"
    )
    away = place.visit().sign_in("ada", return_to="https://evil.example/admin/")
    assert away.headers["location"] == "/admin/"


def test_failed_answers_of_an_address_are_limited(place: Place) -> None:
    """A good one is accepted all the same: everybody behind a proxy has its address."""
    place.provider.set_person("ada", ["gpu-operators"])
    visitor = place.visit()
    answers = [visitor.get(CALLBACK).status_code for _ in range(WRONG_SIGN_INS_MAX + 1)]
    assert answers == [403] * WRONG_SIGN_INS_MAX + [429]
    assert visitor.sign_in("ada").status_code == 303


# ---- the provider's keys


@pytest.fixture
def rotating(shared: Place) -> Iterator[NodeProvider]:
    """A provider of the test's own. The gateway reads an unknown key at most once in KEYS_AGAIN_S, so it would refuse
    the sign-ins of the tests after a rotation of the shared provider's key."""
    provider = NodeProvider()
    try:
        provider.start(shared.stack.url)
        yield provider
    finally:
        provider.stop()


async def test_a_rotated_key_is_read_once(place: Place, rotating: NodeProvider) -> None:
    """And a flood of tokens with unknown keys causes no flood of reads."""
    now = [1000.0]
    section = msgspec.structs.replace(place.stack.config.oidc, issuer=rotating.issuer)
    provider = OidcProvider(section, clock=lambda: now[0])

    def keys_read() -> int:
        return int(rotating.ask("seen")["counts"]["jwks"])

    async def sign_in() -> str:
        url = await provider.authorization_url("state", "nonce", "verifier" * 6)
        answer = httpx.URL(place.visit().follow(url, "ada"))
        code, issuer = answer.params["code"], answer.params["iss"]
        identity, _ = await provider.exchange_code(code, verifier="verifier" * 6, nonce="nonce", issuer=issuer)
        return identity.subject

    rotating.set_person("ada", ["gpu-operators"])
    assert await sign_in() == "ada"
    read = keys_read()
    rotating.ask("rotate")
    assert await sign_in() == "ada"
    assert keys_read() == read + 1
    rotating.ask("wrong", stranger=True)
    for _ in range(3):
        with pytest.raises(SignInRefused, match="not signed with a key"):
            await sign_in()
    assert keys_read() == read + 1
    now[0] += KEYS_AGAIN_S
    with pytest.raises(SignInRefused, match="not signed with a key"):
        await sign_in()
    assert keys_read() > read + 1


# ---- back-channel logout


def test_the_provider_ends_sessions(place: Place) -> None:
    one, two = place.signed_in("alan", "viewers"), place.signed_in("alan", "viewers")
    other = place.signed_in("kurt", "viewers")
    first = place.sessions("alan")[0]
    place.provider.ask("logout", sub="alan", sid=first.provider_sid)
    assert one.session().status_code == 401
    assert two.session().status_code == other.session().status_code == 200
    form = place.provider.ask("seen")["lastLogout"]
    again = post_logout(place, form)
    assert (again.status_code, again.json()["error"]["param"]) == (400, "logout_token")
    assert "used already (jti)" in again.text


def test_only_a_logout_token_ends_sessions(place: Place) -> None:
    visitor = place.signed_in("alan", "viewers")
    id_token = place.provider.ask("seen")["lastTokens"]["id_token"]
    for form in (f"logout_token={id_token}", "logout_token=abc", "", "logout_token=" + "a" * 66_000):
        answer = post_logout(place, form)
        assert answer.status_code in (400, 413), answer.text
    assert visitor.session().status_code == 200


def post_logout(place: Place, form: str) -> httpx.Response:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    return httpx.post(place.stack.url + LOGOUT, content=form, headers=headers, timeout=30)


# ---- secrets


def test_no_secret_is_in_the_log_or_the_database(place: Place) -> None:
    """Of every sign-in of this file."""
    visitor = place.visit()
    place.provider.set_person("ada", ["gpu-operators"])
    url = visitor.authorize("ada")
    cookies = list(visitor.started.values())
    visitor.client.get(url)
    cookies += [cookie.value or "" for cookie in visitor.client.cookies.jar]
    tokens = place.provider.ask("seen")["lastTokens"]
    code = parse_qs(urlsplit(url).query)["code"][0]
    secrets = [CLIENT_SECRET, code, tokens["access_token"], tokens["id_token"].split(".")[2], "eyJ"]
    secrets += [value for value in cookies if len(value) > 20]
    assert len(secrets) >= 7
    log = place.stack.log_file.read_text()
    assert '"event":"oidc.sign_in_refused"' in log
    assert [secret for secret in secrets if secret in log] == []
    files = [file.read_bytes() for file in place.stack.directory.rglob("laneway.db*")]
    stored = [secret for secret in secrets if any(secret.encode() in data for data in files)]
    assert stored == []
