"""/v1/admin/session/totp: one-time passwords of the admin key of a session, and their check at a sign-in."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, post
from msgspec import Meta

from gateway.access.callers import Caller
from gateway.access.sessions import Session
from gateway.access.totp import CODE_CHARS_MAX, REFUSED_S, CodeResult
from gateway.errors import InvalidRequest, RateLimited, SessionExpired, TotpInvalid, TotpRequired
from gateway.http.exchange import line_of
from gateway.routes.guard import admit_session, session_cookie
from gateway.services import Services

ROUTE = "/v1/admin/session/totp"


class TotpCode(msgspec.Struct, forbid_unknown_fields=True):
    """`code`: six digits of the app, or a recovery code."""

    code: Annotated[str, Meta(min_length=1, max_length=CODE_CHARS_MAX)]


class TotpSecret(msgspec.Struct, frozen=True):
    """`secret` in base32, and the same as a URI for an authenticator app. Neither is shown again."""

    secret: str
    uri: str


class RecoveryCodes(msgspec.Struct, frozen=True):
    """Each replaces a code once. They are not shown again."""

    recovery_codes: list[str]


class TotpController(Controller):
    path = "/admin/session/totp"

    @post("/", opt={"route": ROUTE, "area": None}, status_code=200)
    async def enrol(self, request: Request[Any, Any, Any], services: Services) -> TotpSecret:
        """Make a secret for the session's key. Sign-ins need no code before it is confirmed."""
        caller, request_id = await _of_key(request, services)
        made = await services.database.administer(lambda c: services.totp.enrol(c, caller, request_id))
        return TotpSecret(*made)

    @post("/confirm", opt={"route": f"{ROUTE}/confirm", "area": None}, status_code=200)
    async def confirm(self, request: Request[Any, Any, Any], services: Services, data: TotpCode) -> RecoveryCodes:
        """Show that the app has the secret. From then on sign-ins with the key need a code."""
        caller, request_id = await _of_key(request, services)
        result, codes = await services.database.administer(
            lambda c: services.totp.confirm(c, caller, data.code, request_id)
        )
        raise_refusal(result)
        return RecoveryCodes(codes)

    @post("/remove", opt={"route": f"{ROUTE}/remove", "area": None}, status_code=204)
    async def remove(self, request: Request[Any, Any, Any], services: Services, data: TotpCode) -> None:
        """Remove the secret: sign-ins with the key need no code any more."""
        caller, request_id = await _of_key(request, services)
        raise_refusal(
            await services.database.administer(lambda c: services.totp.remove(c, caller, data.code, request_id))
        )


async def check_code(services: Services, caller: Caller, code: str | None, request_id: str) -> None:
    """Check the code of a sign-in with a key, if the key needs one. Raises TotpRequired, TotpInvalid, RateLimited."""
    if not await services.database.read(lambda c: services.totp.is_required(c, caller)):
        return
    if not code:
        raise TotpRequired("This key needs a code of its authenticator app, too.")
    raise_refusal(
        await services.database.write_in_background(lambda c: services.totp.check(c, caller, code, request_id))
    )


def raise_refusal(result: CodeResult) -> None:
    """Raises TotpInvalid, RateLimited."""
    if result == "wrong":
        raise TotpInvalid(
            "The code is wrong, or was used already. Enter the next one that the app shows.", param="code"
        )
    if result == "refused":
        raise RateLimited("Too many wrong codes were sent for this key.", retry_after_s=REFUSED_S)


async def _of_key(request: Request[Any, Any, Any], services: Services) -> tuple[Caller, str]:
    """The caller of a session that a key began, and the request id. A change counts as a write of the key. Raises
    SessionExpired, InvalidRequest, RateLimited."""
    cookie = session_cookie(request)
    if cookie is None:
        raise SessionExpired()
    caller, session = await admit_session(services, request, cookie)
    if not isinstance(session, Session):
        raise InvalidRequest("A person's second factor is the provider's: one-time passwords are for admin keys.")
    await services.write_limits.count_write(caller)
    return caller, line_of(request).record.request_id
