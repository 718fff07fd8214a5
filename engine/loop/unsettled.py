"""Finished requests whose gateway has not confirmed their settlement yet, by gateway."""

from __future__ import annotations

from collections.abc import Iterable

# Requests of one gateway. Above this the oldest count as recorded, so that a gateway which never confirms cannot fill
# the memory.
UNRECORDED_MAX = 65_536


class UnrecordedRequests:
    """For the loop's thread."""

    def __init__(self, limit: int = UNRECORDED_MAX) -> None:
        self._limit = limit
        self._gateways: dict[int, dict[int, tuple[str, int]]] = {}  # handle → request id, tokens

    def add_unrecorded(self, gateway: int, handle: int, request_id: str, tokens: int) -> None:
        if not tokens:
            return
        requests = self._gateways.setdefault(gateway, {})
        requests[handle] = request_id, tokens
        if len(requests) > self._limit:
            del requests[next(iter(requests))]

    def note_recorded(self, gateway: int, handles: Iterable[int]) -> None:
        requests = self._gateways.get(gateway, {})
        for handle in handles:
            requests.pop(handle, None)

    def take_unrecorded(self, gateway: int) -> list[tuple[str, int]]:
        """Request ids and tokens that a disconnected gateway did not record: they are lost."""
        return list(self._gateways.pop(gateway, {}).values())
