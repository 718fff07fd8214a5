"""What happens between the parts of one check of a session at the provider: an erasure, a new refresh token, a slow
provider."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from billing.accounts import tenants
from billing.clock import SECOND
from billing.database import Database
from gateway.access import people, person_sessions
from gateway.access.oidc_provider import OidcProvider, ProviderMetadata
from gateway.access.people import Identity
from gateway.access.person_sessions import PersonSession
from gateway.access.person_sign_ins import FinishedSignIn, PersonSignIns
from gateway.access.provider_answers import ProviderTokens, ProviderUnreachable
from gateway.admin import erasure
from gateway.config.server_secrets import ServerSecrets
from gateway.config.sign_in import GroupSection, OidcSection
from migrations.upgrade import upgrade

ISSUER = "https://sso.example"
ADA = Identity(issuer=ISSUER, subject="ada", name="Ada", email="ada@example.com", groups=("acme-admins",))


class RotatingProvider(OidcProvider):
    """Accepts each refresh token once. `userinfo` answers at its userinfo endpoint."""

    def __init__(self, section: OidcSection) -> None:
        super().__init__(section)
        self.valid = 1
        self.claims: dict[str, Any] | None = {"sub": "ada", "groups": ["acme-admins"], "name": "Ada L."}
        self.meanwhile: Callable[[], object] = lambda: None

    async def _read_metadata(self, age_s_max: float = 0) -> ProviderMetadata:
        return ProviderMetadata(ISSUER, ISSUER, ISSUER, ISSUER, userinfo_endpoint=ISSUER)

    async def _fetch(self, metadata: ProviderMetadata, **grant: Any) -> Mapping[str, Any]:
        assert grant["refresh_token"] == f"refresh-{self.valid}", "it was used before"
        self.valid += 1
        return {"access_token": "access", "refresh_token": f"refresh-{self.valid}"}

    async def _userinfo(self, *_: Any) -> Mapping[str, Any]:
        self.meanwhile()
        if self.claims is None:
            raise ProviderUnreachable("its userinfo endpoint answered 503")
        return self.claims


class Place:
    def __init__(self, url: str, **settings: Any) -> None:
        self.database = Database(url)
        self.tenant = self.database.write_sync(
            lambda c: tenants.create_tenant(c, slug="acme", name="Acme", tier="standard", currency="USD")
        )
        groups = (GroupSection(group="acme-admins", role="tenant_admin", tenant="acme"),)
        section = OidcSection(
            issuer=ISSUER, client_id="laneway", public_url="https://lw.example", groups=groups, **settings
        )
        self.sign_ins = PersonSignIns(self.database, section, ServerSecrets(bytes(32)))
        self.sign_ins.provider = self.provider = RotatingProvider(section)
        finished = FinishedSignIn(ADA, ProviderTokens("access", "refresh-1", 0.0), "state", "/admin/")
        self.person, self.session = self.database.write_sync(
            lambda c: self.sign_ins.begin_session(c, finished, "hash", "req_1")
        )

    def check(self) -> bool:
        now = self.session.checked_at + round(900 * SECOND)
        return asyncio.run(self.sign_ins.check_again(self.row(), now, "req_2"))

    def row(self) -> PersonSession:
        found = self.database.read_sync(lambda c: person_sessions.by_cookie(c, "hash"))
        assert found is not None
        return found


@pytest.fixture
def place(sqlite_url: str, tmp_path: Path) -> Iterator[Place]:
    upgrade(sqlite_url)
    made = Place(sqlite_url)
    yield made
    made.database.close()


def test_an_erasure_during_a_check_is_not_undone(place: Place) -> None:
    """The provider answers with the name, after the erasure has removed it."""
    erase = lambda c: erasure.erase(c, "era_1", place.tenant.id, 1)  # noqa: E731
    place.provider.meanwhile = lambda: place.database.write_sync(erase)
    assert not place.check()
    row = place.database.read_sync(lambda c: people.get_person(c, place.person.id))
    assert row is not None
    assert (row.subject, row.name, row.email, row.role) == (row.id, None, None, None)


def test_a_logout_during_a_check_ends_the_session(place: Place) -> None:
    place.provider.meanwhile = lambda: place.database.write_sync(
        lambda c: person_sessions.end_all(c, place.person, "req_3")
    )
    assert not place.check()


def test_a_new_refresh_token_survives_the_rest_of_its_check(place: Place) -> None:
    """The provider renewed the tokens and then failed: the next check must not use the refresh token before."""
    place.provider.claims, claims = None, place.provider.claims
    assert place.check(), "the provider is away for a moment"
    place.provider.claims = claims
    place.database.write_sync(lambda c: c.execute(sa.text("UPDATE person_sessions SET claimed_until = 0")))
    assert place.check()
    assert place.provider.valid == 3
    row = place.database.read_sync(lambda c: people.get_person(c, place.person.id))
    assert row is not None
    assert row.name == "Ada L."


def test_a_claim_lasts_longer_than_a_slow_check(sqlite_url: str) -> None:
    """Another gateway would use the same refresh token."""
    upgrade(sqlite_url)
    place = Place(sqlite_url, timeout_s=60.0)
    claimed: list[float] = []
    place.provider.meanwhile = lambda: claimed.append((place.row().claimed_until - place.session.checked_at) / SECOND)
    assert place.check()
    assert claimed[0] > 5 * 60
    place.database.close()


def test_an_https_provider_names_no_http_service_of_this_host() -> None:
    section = OidcSection(
        issuer=ISSUER,
        client_id="laneway",
        public_url="https://lw.example",
        groups=(GroupSection(group="owners", role="owner"),),
    )
    names = ("issuer", "authorization_endpoint", "token_endpoint", "jwks_uri")
    found: dict[str, Any] = dict.fromkeys(names, ISSUER)
    provider = OidcProvider(section)
    provider._checked_metadata(found)
    with pytest.raises(ProviderUnreachable, match="userinfo_endpoint is not https"):
        provider._checked_metadata(found | {"userinfo_endpoint": "http://127.0.0.1:9200/_search"})
