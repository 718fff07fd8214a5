"""The address of the client behind a request, of which trusted proxies report a part.

Each proxy appends the address that it saw to X-Forwarded-For. Everything left of the first address that no trusted
proxy wrote can be forged, so the list is read from the right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.config.networks import Address, is_in, parse_address, parse_networks

FORWARDED_FOR = b"x-forwarded-for"


def client_address(scope: Mapping[str, Any], trusted_proxies: tuple[str, ...]) -> Address | None:
    """The peer of the connection. If it is in `trusted_proxies` (networks): the right-most address of X-Forwarded-For
    that is in none of them; the left-most address if all are. None: the address is unknown, as of a peer at a Unix
    socket or where a trusted proxy wrote no address."""
    client = scope.get("client")
    address = parse_address(client[0]) if client else None
    if not trusted_proxies or address is None:
        return address
    trusted = parse_networks(trusted_proxies)
    if not is_in(address, trusted):
        return address
    lists = [value.decode("latin-1") for name, value in scope["headers"] if name == FORWARDED_FOR]
    for text in reversed(",".join(lists).split(",")) if lists else ():
        address = parse_address(_without_port(text.strip()))
        if not is_in(address, trusted):  # also an entry that is no address: the addresses left of it cannot be trusted
            return address
    return address


def _without_port(text: str) -> str:
    """Some proxies write "192.0.2.1:4711" and "[2001:db8::1]:4711"."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    host, colon, _ = text.partition(":")
    return host if colon and text.count(":") == 1 else text
