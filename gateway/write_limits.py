"""Limits of administrative writes: of each admin key and, together, of a tenant's admin keys.

Every write takes the one revision row and makes every gateway read something anew, so a tenant that writes without end
slows the others. The arithmetic, and the sharing through Redis, are those of the inference limits. It knows no route.
"""

from __future__ import annotations

from gateway.callers import Caller
from gateway.errors import RateLimited
from gateway.limiter import Limiter
from gateway.limits import Allowance, Scope, Subject
from gateway.sections import AdministrationSection

# One key of a tenant cannot take what the tenant's other admin keys need, to revoke it for instance.
KEY_SHARE = 2
CONCURRENCY = 1_000_000  # not limited: a place is given back before the write runs


class WriteLimits:
    """`take` one for each administrative write, before anything of the request is read."""

    def __init__(self, limiter: Limiter, section: AdministrationSection) -> None:
        self._limiter = limiter
        self._section = section

    async def take(self, caller: Caller) -> None:
        """Raises RateLimited, with the time until another write fits."""
        try:
            admission = await self._limiter.admit(self._subjects(caller), 0)
        except RateLimited as error:
            refused = RateLimited(
                error.message.replace("requests per minute", "administrative writes per minute"),
                retry_after_s=error.retry_after_s,
            )
            raise refused from None
        await admission.finish(0)

    def _subjects(self, caller: Caller) -> list[Subject]:
        if caller.tenant_id is None:
            return [_subject("key", caller.key_id, caller.key_id, self._section.operator_writes_per_minute)]
        of_tenant = self._section.tenant_writes_per_minute
        return [
            _subject("key", caller.key_id, caller.tenant_id, max(1, of_tenant // KEY_SHARE)),
            _subject("tenant", caller.tenant_id, caller.tenant_id, of_tenant),
        ]


def _subject(scope: Scope, id_: str, family: str, per_minute: int) -> Subject:
    """Apart from what the same key or tenant takes of inference."""
    return Subject(scope, f"{id_}:writes", family, Allowance(per_minute, 1, CONCURRENCY))
