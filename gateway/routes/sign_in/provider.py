"""/v1/admin/session/…: the sign-in at the provider of [oidc], and the provider's back-channel logout.

These routes need no key and no session. A browser that the provider redirects here gets a page, not JSON.
"""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import parse_qs

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.datastructures import Cookie
from litestar.response import Redirect

from gateway import errors
from gateway.access.people import Person
from gateway.access.person_sign_ins import HOME, START_S_MAX, NoGroupHasARole
from gateway.access.provider_answers import (
    TOKEN_CHARS_MAX,
    ProviderUnreachable,
    SignedSignInRefused,
    SignInRefused,
)
from gateway.http.client_address import client_address
from gateway.http.exchange import line_of, read_body
from gateway.routes.guard import check_fresh, cookie_name, is_secure, session_cookie
from gateway.routes.sign_in.page import failure_page
from gateway.services import Services

SIGN_IN_COOKIE = "laneway_sign_in"
QUERY_CHARS_MAX = 16 * 1024
LOGOUT_BYTES_MAX = TOKEN_CHARS_MAX + 1024

_log = logging.getLogger(__name__)


class ProviderView(msgspec.Struct, frozen=True):
    """The provider's name on the button, and the path that begins a sign-in there."""

    name: str
    start: str


class SignInOptions(msgspec.Struct, frozen=True):
    """How a person can sign in to the console: with an admin key always; at `provider` if one is configured."""

    provider: ProviderView | None


class ProviderController(Controller):
    path = "/admin/session"

    @get("/options", opt={"route": "/v1/admin/session/options", "area": None})
    async def sign_in_options(self, services: Services) -> SignInOptions:
        """How a person can sign in. Needs no key."""
        section = services.config.oidc
        shown = ProviderView(section.name, "/v1/admin/session/provider") if section.issuer else None
        return SignInOptions(shown)

    @get("/provider", opt={"route": "/v1/admin/session/provider", "area": None}, include_in_schema=False)
    async def start(self, request: Request[Any, Any, Any], services: Services) -> Response[Any]:
        """Send the browser to the provider. The query's `return_to`: a page of the console to show afterwards."""
        return_to = request.query_params.get("return_to") or HOME
        try:
            url, cookie = await services.person_sign_ins.start(return_to)
        except (ProviderUnreachable, SignInRefused) as error:
            return _failed(request, error)
        answer = Redirect(url, status_code=303, headers={"referrer-policy": "no-referrer"})
        answer.set_cookie(_cookie(request, cookie, START_S_MAX))
        return answer

    @get("/callback", opt={"route": "/v1/admin/session/callback", "area": None}, include_in_schema=False)
    async def finish(self, request: Request[Any, Any, Any], services: Services) -> Response[Any]:
        """The provider redirected the browser here: begin a session, and redirect the browser to the console."""
        await check_fresh(services)
        address = client_address(request.scope, services.config.gateway.trusted_proxies)
        request_id, client = line_of(request).record.request_id, "" if address is None else str(address)
        person: Person | None = None
        with services.sign_ins.attempt(client) as attempt:
            try:
                if len(request.scope["query_string"]) > QUERY_CHARS_MAX:
                    raise SignInRefused(f"The provider's answer is over the limit of {QUERY_CHARS_MAX} characters.")
                started = request.cookies.get(_cookie_name(request))
                finished = await services.person_sign_ins.finish(dict(request.query_params), started)
                try:
                    value, session = await services.sessions.sign_in_person(
                        finished, request_id, replaced=session_cookie(request)
                    )
                except NoGroupHasARole:
                    lost = finished.identity
                    person = await services.database.write_in_background(
                        lambda c: services.person_sign_ins.end_sessions_without_role(c, lost, request_id)
                    )
                    raise
            except (ProviderUnreachable, SignInRefused) as error:
                if isinstance(error, SignInRefused):
                    services.metrics.person_sign_ins_refused.labels(error.reason).inc()
                if isinstance(error, SignedSignInRefused):
                    await services.sign_ins.refused_people.note_person(
                        services.database, client, error, request_id, person
                    )
                if not isinstance(error, SignInRefused) or isinstance(error, NoGroupHasARole):
                    attempt.succeeded()  # not a sign of an attack
                elif attempt.refusal is not None:
                    raise attempt.refusal from None
                return _failed(request, error)
            attempt.succeeded()
        line_of(request).record.key = session.person_id
        answer = Redirect(finished.return_to, status_code=303)
        answer.set_cookie(_cookie(request, "", 0))
        answer.set_cookie(
            Cookie(
                key=cookie_name(request),
                value=value,
                max_age=round(services.config.oidc.session_s),
                path="/",
                httponly=True,
                samesite="strict",
                secure=is_secure(request),
            )
        )
        return answer

    @post("/backchannel_logout", opt={"route": "/v1/admin/session/backchannel_logout", "area": None}, status_code=200)
    async def provider_logs_out(self, request: Request[Any, Any, Any], services: Services) -> None:
        """The provider ends the sessions that a logout token names (OpenID Connect Back-Channel Logout 1.0)."""
        body = await read_body(request, LOGOUT_BYTES_MAX)
        token = parse_qs(body.decode("ascii", "replace")).get("logout_token", [""])[0]
        try:
            ended = await services.person_sign_ins.log_out(token, line_of(request).record.request_id)
        except SignInRefused as error:
            raise errors.InvalidRequest(str(error), param="logout_token") from None
        except ProviderUnreachable as error:
            raise errors.Unavailable(str(error)) from None
        _log.info("oidc.logged_out", extra={"fields": {"sessions": ended}})


def _failed(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    record = line_of(request).record
    fields = {"reason": str(error), "request_id": record.request_id}
    if isinstance(error, ProviderUnreachable):
        _log.warning("oidc.unreachable", extra={"fields": fields})
        record.code = "provider_unreachable"
        message = f"{error} Try again in a moment. Admin keys sign in without the provider."
        return failure_page(503, "The sign-in's provider cannot be reached", message, record.request_id)
    _log.warning("oidc.sign_in_refused", extra={"fields": fields})
    record.code = "sign_in_refused"
    title = "You have no role in Laneway" if isinstance(error, NoGroupHasARole) else "You could not be signed in"
    return failure_page(403, title, str(error), record.request_id)


def _cookie_name(request: Request[Any, Any, Any]) -> str:
    """As that of the session, with another word: the port and the prefix are the same."""
    return cookie_name(request).replace("laneway_session", SIGN_IN_COOKIE)


def _cookie(request: Request[Any, Any, Any], value: str, age_s: int) -> Cookie:
    """Lax: at a redirect from the provider's site a browser sends no strict cookie."""
    return Cookie(
        key=_cookie_name(request),
        value=value,
        max_age=age_s,
        path="/",
        httponly=True,
        samesite="lax",
        secure=is_secure(request),
    )
