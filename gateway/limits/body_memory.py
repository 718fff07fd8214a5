"""Bounds the bytes of request bodies in this process's memory, of each tenant and in all.

A body counts from before it is read until it has been parsed and its prompts counted; with fallbacks, until the request
ends. It must never know a body's contents.
"""

from __future__ import annotations

from gateway.errors import Overloaded, RateLimited, ReachedLimit

RETRY_S = 1.0


class BodyMemory:
    """One per gateway process. `total_max`, `tenant_max`: bytes."""

    def __init__(self, total_max: int, tenant_max: int) -> None:
        self._total_max = total_max
        self._tenant_max = tenant_max
        self._by_tenant: dict[str, int] = {}
        self.total = 0

    def body_of(self, tenant: str) -> HeldBody:
        """A body of which nothing counts yet."""
        return HeldBody(self, tenant)

    def add_bytes(self, tenant: str, size: int) -> None:
        """Raises RateLimited for a tenant over `tenant_max`; Overloaded over `total_max`."""
        held = self._by_tenant.get(tenant, 0)
        if held + size > self._tenant_max:
            raise RateLimited(
                f"Rate limit reached for the tenant's request bodies in memory: limit {self._tenant_max} bytes, used "
                f"{held}, requested {size}.",
                retry_after_s=RETRY_S,
                limit=ReachedLimit("tenant_bodies_bytes", self._tenant_max),
            )
        if self.total + size > self._total_max:
            raise Overloaded(
                f"Request bodies in memory would exceed {self._total_max} bytes. Try again in a moment.",
                retry_after_s=RETRY_S,
            )
        self._by_tenant[tenant] = held + size
        self.total += size

    def remove_bytes(self, tenant: str, size: int) -> None:
        self.total -= size
        self._by_tenant[tenant] -= size
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]


class HeldBody:
    """The counted bytes of one body. `release` may be called several times."""

    __slots__ = ("_memory", "_size", "_tenant")

    def __init__(self, memory: BodyMemory, tenant: str) -> None:
        self._memory = memory
        self._tenant = tenant
        self._size = 0

    def grow_to(self, size: int) -> None:
        """Count `size` bytes in all. Raises as `BodyMemory.add_bytes`; nothing more counts then."""
        if size > self._size:
            self._memory.add_bytes(self._tenant, size - self._size)
            self._size = size

    def release(self) -> None:
        if self._size:
            self._memory.remove_bytes(self._tenant, self._size)
            self._size = 0
