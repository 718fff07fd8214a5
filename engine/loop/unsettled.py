"""Finished requests whose gateway has not confirmed their settlement yet, by gateway.

It knows counts and ids, not why a request ended.
"""

from __future__ import annotations

from collections.abc import Iterable

# Of one gateway. Above it the oldest count as recorded: a gateway that never says so costs memory for no more.
UNRECORDED_MAX = 65_536


class UnrecordedRequests:
    """For the loop's thread."""

    def __init__(self, most: int = UNRECORDED_MAX) -> None:
        self._most = most
        self._gateways: dict[int, dict[int, tuple[str, int]]] = {}  # handle → request id, tokens

    def add_unrecorded(self, gateway: int, handle: int, request_id: str, tokens: int) -> None:
        if not tokens:
            return
        requests = self._gateways.setdefault(gateway, {})
        requests[handle] = request_id, tokens
        if len(requests) > self._most:
            del requests[next(iter(requests))]

    def recorded(self, gateway: int, handles: Iterable[int]) -> None:
        requests = self._gateways.get(gateway, {})
        for handle in handles:
            requests.pop(handle, None)

    def gone(self, gateway: int) -> list[tuple[str, int]]:
        """What it never recorded: request ids and tokens. They are lost."""
        return list(self._gateways.pop(gateway, {}).values())
