"""Rate limits of administrative writes: for each admin key, and for all admin keys of a tenant together.

Every write locks the one revision row and makes every gateway reload something, so a tenant that writes in a loop would
slow down others. The limiter of inference requests counts the writes too, so gateways share the counts through Redis.
"""

from __future__ import annotations

from gateway.access.callers import Caller
from gateway.config.allowance import Allowance
from gateway.config.settings import AdministrationSection
from gateway.errors import RateLimited
from gateway.limits.client_pace import ClientPace
from gateway.limits.limiter import Limiter
from gateway.limits.rates import Scope, Subject

# One admin key gets 1/KEY_SHARE of its tenant's limit, so that another key can still revoke it.
KEY_SHARE = 2
TENANT_WRITES_PER_S, TENANT_WRITES_BURST_S = 50.0, 0.06
CONCURRENCY = 1_000_000  # in effect no limit: the request slot is freed before the write runs


class WriteLimits:
    """Call `count_write` for each administrative write, before the request's body is read."""

    def __init__(self, limiter: Limiter, section: AdministrationSection) -> None:
        self._limiter = limiter
        self._section = section
        self._pace = ClientPace(TENANT_WRITES_PER_S, TENANT_WRITES_BURST_S)

    async def count_write(self, caller: Caller) -> None:
        """Count one write. Raises RateLimited, with the seconds until another write fits."""
        try:
            admission = await self._limiter.admit(self._subjects(caller), 0)
        except RateLimited as error:
            refused = RateLimited(
                error.reason.replace("requests per minute", "administrative writes per minute"),
                retry_after_s=error.retry_after_s or 0.0,
            )
            raise refused from None
        await admission.finish_request(0)
        if caller.tenant_id is not None:  # the revision's row serialises all writes: one tenant must not fill the queue
            await self._pace.wait(caller.tenant_id)

    def _subjects(self, caller: Caller) -> list[Subject]:
        if caller.tenant_id is None:
            return [_subject("key", caller.key_id, caller.key_id, self._section.operator_writes_per_minute)]
        of_tenant = self._section.tenant_writes_per_minute
        return [
            _subject("key", caller.key_id, caller.tenant_id, max(1, of_tenant // KEY_SHARE)),
            _subject("tenant", caller.tenant_id, caller.tenant_id, of_tenant),
        ]


def _subject(scope: Scope, id_: str, family: str, per_minute: int) -> Subject:
    """A subject apart from the key's or tenant's, so that writes do not count against the limits of inference."""
    return Subject(scope, f"{id_}:writes", family, Allowance(per_minute, 1, CONCURRENCY))
