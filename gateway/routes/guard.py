"""Authorises requests: by a key, or for the console by a session cookie. Routes call it before they read a body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from litestar import Request

from gateway import errors
from gateway.access import roles
from gateway.access.callers import Caller
from gateway.access.keys import ADMIN, INFERENCE
from gateway.access.roles import Access
from gateway.access.sessions import AnySession, is_csrf_token
from gateway.admin.writes import Actor
from gateway.api.dialects import speaks_anthropic
from gateway.api.endpoints import not_found
from gateway.config.networks import is_in
from gateway.http.client_address import client_address
from gateway.http.exchange import line_of
from gateway.log import LineCaller
from gateway.services import Services

COOKIE = "laneway_session"  # plus the port that the browser sees; over https prefixed with HOST_PREFIX
HOST_PREFIX = "__Host-"  # browsers accept such a cookie only over https and only from the host itself
CSRF_HEADER = "x-csrf-token"
PORT_CHARS_MAX = 5
READING = ("GET", "HEAD")


async def admit(services: Services, request: Request[Any, Any, Any], scope: str = INFERENCE) -> Caller:
    """The caller of a key with the `scope`. Below /t/<tenant>/ the key must belong to that tenant, otherwise the path
    does not exist. Raises DatabaseDown while revocations cannot be read, InvalidApiKey, InsufficientScope, NotFound,
    AddressNotAllowed."""
    line = line_of(request)
    await check_fresh(services)
    caller = await services.callers.identify(_authorization(request))
    line.record.tenant, line.record.key = caller.tenant_id, caller.key_id
    line.caller = LineCaller(caller.project_id, caller.tier)
    tenant = request.path_params.get("tenant")
    if tenant is not None and (caller.tenant_id is None or tenant not in (caller.tenant_id, caller.tenant_slug)):
        raise not_found(request.url.path)
    check_address(services, request, caller)
    if scope not in caller.scopes or (scope == INFERENCE and caller.tenant_id is None):
        raise errors.InsufficientScope(f"This key lacks the scope {scope!r}.")
    return caller


def check_address(services: Services, request: Request[Any, Any, Any], caller: Caller) -> None:
    """Raises AddressNotAllowed if the client's address is not in the lists of the key and its tenant."""
    if caller.networks:
        address = client_address(request.scope, services.config.gateway.trusted_proxies)
        if not all(is_in(address, networks) for networks in caller.networks):
            raise errors.AddressNotAllowed(None if address is None else str(address))


def _authorization(request: Request[Any, Any, Any]) -> str | None:
    """The Authorization header. Without it, and always on Anthropic's paths, `x-api-key` as a bearer token."""
    authorization, api_key = request.headers.get("authorization"), request.headers.get("x-api-key")
    if api_key is not None and (
        authorization is None or speaks_anthropic(request.scope["path"], request.scope["headers"])
    ):
        return f"Bearer {api_key}"
    return authorization


async def admit_operator(services: Services, request: Request[Any, Any, Any], opt: Mapping[str, Any]) -> Actor:
    """The actor of an admin request: by its key, or without a key by its session cookie. `opt` of the route: its
    `area`, its `access` if the method does not imply it, and `everyones` if the route concerns all tenants. A write is
    counted in the write limits. Raises as `admit`; SessionExpired, CsrfTokenInvalid, InsufficientRole, RateLimited."""
    cookie = session_cookie(request)
    if cookie is None or _authorization(request) is not None:
        caller = await admit(services, request, ADMIN)
    else:
        caller, _ = await admit_session(services, request, cookie)
    if caller.role is None:
        raise errors.InsufficientScope("This key has no role: an admin key has one.")
    access = access_of(request, opt)
    if not roles.is_permitted(caller.role, opt["area"], access):
        raise errors.InsufficientRole(f"The role {caller.role} lacks the permission {opt['area']}:{access}.")
    if opt.get("everyones") and caller.tenant_id is not None:
        raise errors.InsufficientRole(f"The role {caller.role} may not do this: it concerns all tenants.")
    await services.break_glass.note_use(caller, line_of(request).record.request_id)
    if access == "write":
        await services.write_limits.count_write(caller)
    return Actor(caller.key_id, line_of(request).record.request_id, caller.role, caller.tenant_id)


def access_of(request: Request[Any, Any, Any], opt: Mapping[str, Any]) -> Access:
    """The access that a route needs; `opt` as in `admit_operator`."""
    access: Access = opt.get("access") or ("read" if request.method in READING else "write")
    return access


def session_cookie(request: Request[Any, Any, Any]) -> str | None:
    """The value of the session cookie in the request."""
    return request.cookies.get(cookie_name(request))


def cookie_name(request: Request[Any, Any, Any]) -> str:
    """The session cookie's name, with the port of the Host header. Browsers share a host's cookies among its ports, so
    two Laneways on one host would otherwise sign each other out. All gateways behind one address use one name."""
    _, colon, port = request.headers.get("host", "").rpartition(":")
    name = f"{COOKIE}_{port}" if colon and port.isascii() and port.isdigit() and len(port) <= PORT_CHARS_MAX else COOKIE
    return HOST_PREFIX + name if is_secure(request) else name


def is_secure(request: Request[Any, Any, Any]) -> bool:
    """Whether the browser uses https, by X-Forwarded-Proto of a proxy. A client that forges it affects only itself."""
    proto = request.headers.get("x-forwarded-proto", request.url.scheme)
    return proto.split(",")[0].strip() == "https"


async def admit_session(services: Services, request: Request[Any, Any, Any], cookie: str) -> tuple[Caller, AnySession]:
    """The caller and the session of a cookie. Browsers send cookies by themselves, so a write must come from our own
    page and carry the session's CSRF token. Raises DatabaseDown, SessionExpired, CsrfTokenInvalid,
    AddressNotAllowed."""
    await check_fresh(services)
    request.state.by_cookie = True
    record = line_of(request).record
    caller, session = await services.sessions.identify(cookie, record.request_id)
    record.tenant, record.key = caller.tenant_id, caller.key_id
    check_address(services, request, caller)
    if request.method not in READING:
        check_own_page(request)
        if not is_csrf_token(cookie, request.headers.get(CSRF_HEADER, "")):
            raise errors.CsrfTokenInvalid(f"A write by cookie needs the header {CSRF_HEADER} of its session.")
    return caller, session


def check_own_page(request: Request[Any, Any, Any]) -> None:
    """Refuse requests that a page of another site made. Raises CsrfTokenInvalid."""
    site = request.headers.get("sec-fetch-site", "none")
    origin = request.headers.get("origin")
    # Only the host is compared: a proxy that terminates TLS changes the scheme.
    foreign = origin is not None and _host(origin) != request.headers.get("host", "").lower()
    if foreign or site not in ("same-origin", "none"):
        raise errors.CsrfTokenInvalid("A page of another site may not do this.")


def _host(origin: str) -> str | None:
    """The host of an origin; None if it is not a URL."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


async def check_fresh(services: Services) -> None:
    """Wait until revocations are known here. Raises DatabaseDown when they cannot be read."""
    if not await services.watch.freshen():
        services.watch.note_refused()
        raise errors.DatabaseDown("Keys cannot be checked now. Try again in a moment.")
