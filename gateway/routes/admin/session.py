"""/v1/admin/session: signing in to the console with an admin key, and signing out. `gateway/routes/sign_in` has the
sign-in at a provider.

It needs no permission: every admin key and every session may read its own permissions.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import msgspec
import sqlalchemy as sa
from litestar import Controller, Request, Response, delete, get, post
from litestar.datastructures import Cookie
from msgspec import Meta

from billing.accounts import tenants
from billing.clock import SECOND
from gateway.access import keys, people, roles
from gateway.access.callers import Caller
from gateway.access.person_sessions import PersonSession
from gateway.access.roles import Role
from gateway.access.sessions import REFUSED_S, SESSION_S_MAX, AnySession, Attempt, Session, csrf_token
from gateway.access.totp import CODE_CHARS_MAX
from gateway.errors import AddressNotAllowed, InvalidApiKey, RateLimited, SessionExpired, TotpInvalid, TotpRequired
from gateway.http.client_address import client_address
from gateway.http.exchange import line_of
from gateway.routes.guard import (
    admit_session,
    check_address,
    check_fresh,
    check_own_page,
    cookie_name,
    is_secure,
    session_cookie,
)
from gateway.routes.sign_in.totp import check_code
from gateway.services import Services

WRONG_KEY = "This is not a valid admin key: it is unknown, revoked or expired, or it is a key for requests."
OWN = {"route": "/v1/admin/session", "area": None}  # for every session


class SignIn(msgspec.Struct, forbid_unknown_fields=True):
    """`key`: an admin key's secret. `code`: of the key's authenticator app, or a recovery code, for a key that has
    one."""

    key: Annotated[str, Meta(max_length=200)]
    code: Annotated[str, Meta(max_length=CODE_CHARS_MAX)] | None = None


class SessionTenant(msgspec.Struct, frozen=True):
    id: str
    slug: str
    name: str


class SessionKey(msgspec.Struct, frozen=True):
    id: str
    name: str
    last_four: str


class SessionPerson(msgspec.Struct, frozen=True):
    """Who signed in at the provider. `name`: the person's name, else the email address, else the provider's id."""

    id: str
    name: str
    email: str | None


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """The session's role and its permissions, `area:read` and `area:write`. `tenant`: the only tenant that it sees;
    null: all. Either `key` or `person` signed in; the other is null. Writes carry `csrf_token` as x-csrf-token. The
    session ends at `expires_at` (Unix seconds), or after an hour without use."""

    role: Role
    tenant: SessionTenant | None
    key: SessionKey | None
    person: SessionPerson | None
    permissions: list[str]
    csrf_token: str
    expires_at: int


class SessionController(Controller):
    path = "/admin/session"

    @post("/", opt=OWN, status_code=200)
    async def sign_in(self, request: Request[Any, Any, Any], services: Services, data: SignIn) -> Response[SessionView]:
        """Begin a session with an admin key, and end the session of the request's cookie. The answer sets the
        cookie."""
        await check_fresh(services)
        check_own_page(request)
        address = str(client_address(request.scope, services.config.gateway.trusted_proxies) or "")
        request_id, replaced = line_of(request).record.request_id, session_cookie(request)
        began = time.monotonic()
        refused = services.sign_ins.refused
        caller = None
        with services.sign_ins.attempt(address) as attempt:
            try:
                caller = await services.callers.identify(f"Bearer {data.key}", is_use=False)
                check_address(services, request, caller)
                await _take_write(services, caller, attempt)
                await _check_code(services, caller, data.code, request_id, attempt)
                cookie, session = await services.sessions.sign_in(caller, request_id, replaced=replaced)
            except InvalidApiKey as error:
                await refused.note(services.database, address, str(error.code), request_id, caller)
                if attempt.refusal is not None:
                    raise attempt.refusal from None
                await asyncio.sleep(began + REFUSED_S - time.monotonic())
                raise InvalidApiKey(WRONG_KEY) from None
            except (AddressNotAllowed, RateLimited, TotpInvalid) as error:
                await refused.note(services.database, address, str(error.code), request_id, caller)
                raise
            attempt.succeeded()
        services.callers.note_used(caller)
        await services.break_glass.note_use(caller, request_id)
        record = line_of(request).record
        record.tenant, record.key = caller.tenant_id, caller.key_id
        view = await services.database.read(lambda c: _view(c, caller, session, cookie))
        return Response(view, cookies=[_cookie(request, cookie, SESSION_S_MAX)])

    @get("/", opt=OWN)
    async def get_session(self, request: Request[Any, Any, Any], services: Services) -> SessionView:
        """The session of the cookie."""
        caller, session = await admit_session(services, request, cookie := _sent(request))
        return await services.database.read(lambda c: _view(c, caller, session, cookie))

    @delete("/", opt=OWN)
    async def sign_out(self, request: Request[Any, Any, Any], services: Services) -> Response[None]:
        """End the session and delete its cookie."""
        caller, session = await admit_session(services, request, _sent(request))
        await services.sessions.sign_out(caller, session, line_of(request).record.request_id)
        return Response(None, status_code=204, cookies=[_cookie(request, "", 0)])


async def _take_write(services: Services, caller: Caller, attempt: Attempt) -> None:
    """A sign-in counts as a write of its key. A refusal here does not count as a wrong key. Raises RateLimited."""
    try:
        await services.write_limits.count_write(caller)
    except RateLimited:
        attempt.succeeded()
        raise


async def _check_code(services: Services, caller: Caller, code: str | None, request_id: str, attempt: Attempt) -> None:
    """The first step of a sign-in with a code does not count as a wrong key. Raises as `check_code`."""
    try:
        await check_code(services, caller, code, request_id)
    except TotpRequired:
        attempt.succeeded()
        raise


def _sent(request: Request[Any, Any, Any]) -> str:
    cookie = session_cookie(request)
    if cookie is None:
        raise SessionExpired()
    return cookie


def _view(connection: sa.Connection, caller: Caller, session: AnySession, cookie: str) -> SessionView:
    key = keys.get_key(connection, caller.key_id) if isinstance(session, Session) else None
    person = people.get_person(connection, session.person_id) if isinstance(session, PersonSession) else None
    tenant = None if caller.tenant_id is None else tenants.get_tenant(connection, caller.tenant_id)
    assert caller.role is not None
    return SessionView(
        role=caller.role,
        tenant=None if tenant is None else SessionTenant(tenant.id, tenant.slug, tenant.name),
        key=None if key is None else SessionKey(key.id, key.name, key.last4),
        person=None if person is None else SessionPerson(person.id, person.shown_name, person.email),
        permissions=roles.permissions(caller.role),
        csrf_token=csrf_token(cookie),
        expires_at=session.expires_at // SECOND,
    )


def _cookie(request: Request[Any, Any, Any], value: str, age_s: int) -> Cookie:
    """The session cookie, which scripts cannot read and other sites do not send."""
    return Cookie(
        key=cookie_name(request),
        value=value,
        max_age=age_s,
        path="/",
        httponly=True,
        samesite="strict",
        secure=is_secure(request),
    )
