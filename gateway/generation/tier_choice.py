"""The tier that serves a request: its key's own tier, or a lower one that it names; never a higher one."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.errors import InvalidRequest

AUTO = "auto"


class Tiers:
    """The configured tiers, from high to low, and the `service_tier` of each."""

    def __init__(self, tiers: Sequence[tuple[str, str]]) -> None:
        """`tiers`: (name, service_tier) from high to low."""
        self.names = [name for name, _ in tiers]
        self._service_tiers = dict(tiers)
        self._by_service_tier = {service_tier: name for name, service_tier in tiers}
        self._ranks = {name: rank for rank, name in enumerate(self.names)}

    def serve(self, own: str, asked: str | None) -> str:
        """The tier's name. `asked` is the request's service_tier. Raises InvalidRequest for an unknown one."""
        if asked is None or asked == AUTO:
            return own
        name = self._by_service_tier.get(asked)
        if name is None:
            allowed = ", ".join([AUTO, *self._by_service_tier])
            raise InvalidRequest(f"'service_tier' must be one of {allowed}.", param="service_tier")
        return max(own, name, key=self._ranks.__getitem__)

    def service_tier(self, name: str) -> str:
        return self._service_tiers[name]
