"""The list of engines: the interface of every driver, and the choice of the configured driver.

A roster says which engines exist and where they listen. It is never on a token's path: while its source does not
answer, the last list remains in force and requests are served.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from gateway.config.file import Config

# The name of the engine of [engine], where laneway.toml has no [[engines]].
LOCAL_ENGINE = "local"


class EngineAddress(msgspec.Struct, frozen=True):
    """One engine. The name identifies it while it exists; a new process of the engine may listen elsewhere."""

    name: str
    address: str  # "unix:/path" or "tls://host:port"
    server_name: str = ""  # which the engine's certificate must have; "": the host of `address`

    @property
    def is_remote(self) -> bool:
        """Whether the engine may be on another host, which has other directories."""
        return not self.address.startswith("unix:")

    @property
    def shown_address(self) -> str:
        """The address without the directories of this host, which are no business of every role."""
        return self.address if self.is_remote else f"unix:{Path(self.address).name}"


OnEngines = Callable[[Sequence[EngineAddress]], None]


class Roster(Protocol):
    """The engines of a fleet, followed for as long as a gateway runs."""

    @property
    def stale_since(self) -> float | None:
        """Since when (time.monotonic) the source of the list has not answered. None: the list is up to date."""
        ...

    async def follow_engines(self, on_engines: OnEngines) -> None:
        """Call `on_engines` with the whole list: the first list as soon as it is known, then each list that differs.
        Runs until it is cancelled, and does not raise for a source that fails: the last list remains in force.

        An engine that leaves the list should get no new text; the texts that it is making can end there."""
        ...


def build_roster(config: Config, file: Path | None = None) -> Roster:
    """The roster of `[fleet] driver`. `file`: the laneway.toml that `config` was read from, whose [[engines]] the
    static driver follows; None: they are not followed.

    The modules of the drivers are loaded here, so that a gateway loads only the configured driver."""
    if config.fleet.driver == "kubernetes":
        from gateway.fleet.kubernetes_roster import build_kubernetes_roster

        return build_kubernetes_roster(config)
    if config.fleet.driver == "ray":
        from gateway.fleet.ray_roster import build_ray_roster

        return build_ray_roster(config)
    from gateway.fleet.static_roster import StaticRoster

    return StaticRoster(config, file)


def configured_engines(config: Config) -> tuple[EngineAddress, ...]:
    """The engines of [[engines]]; without any, the engine of [engine] on this host's Unix socket."""
    if not config.engines:
        return (EngineAddress(LOCAL_ENGINE, f"unix:{config.socket_path}"),)
    return tuple(EngineAddress(engine.name, engine.address, engine.server_name) for engine in config.engines)
