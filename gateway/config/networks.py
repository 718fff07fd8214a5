"""Lists of IP networks: their form in settings and rows, and whether an address is in one.

An IPv4 address that is written as IPv6 (::ffff:192.0.2.1) is the IPv4 address, in lists and in connections alike.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Iterable, Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

NETWORKS_MAX = 100  # of one list
NETWORK_CHARS_MAX = 49  # of an IPv6 address with its prefix length
MAPPED_BITS = 96  # of ::ffff:0:0/96, before the IPv4 address


def parse_network(text: str) -> Network:
    """The network of "192.0.2.0/24", "2001:db8::/32" or one address. Raises ValueError, whose message names the
    fault."""
    if len(text) > NETWORK_CHARS_MAX or "%" in text:
        raise ValueError(f"{text[:NETWORK_CHARS_MAX]!r} is no network, such as 192.0.2.0/24 or 2001:db8::/32")
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"{text!r} is no network, such as 192.0.2.0/24 or 2001:db8::/32") from None
    if network.network_address != ipaddress.ip_address(text.partition("/")[0]):
        raise ValueError(f"{text!r} has bits after its prefix: write {network}")
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is not None and network.prefixlen >= MAPPED_BITS:
        return ipaddress.IPv4Network((mapped, network.prefixlen - MAPPED_BITS))
    return network


@functools.lru_cache(maxsize=64)
def parse_networks(texts: tuple[str, ...]) -> tuple[Network, ...]:
    """Raises ValueError."""
    return tuple(parse_network(text) for text in texts)


def checked_networks(texts: Sequence[str]) -> list[str]:
    """The networks in one spelling each, in order and without repetitions. Raises ValueError."""
    if not 1 <= len(texts) <= NETWORKS_MAX:
        raise ValueError(f"a list of networks has 1 to {NETWORKS_MAX}, not {len(texts)}; null: every address")
    return list(dict.fromkeys(str(parse_network(text)) for text in texts))


def parse_address(text: str) -> Address | None:
    """The address, without the zone of a link-local address. None: `text` is no address."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_in(address: Address | None, networks: Iterable[Network]) -> bool:
    return address is not None and any(address in network for network in networks)
