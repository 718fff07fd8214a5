"""Builds the fleet of a gateway process from its configuration."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from engine.protocol.tls import CertificateFiles, CurrentContext, client_context
from gateway.config.file import Config
from gateway.engines.engine import Engine
from gateway.engines.local import LocalEngine
from gateway.fleet.choice import EngineChooser
from gateway.fleet.fleet import Fleet
from gateway.fleet.hedges import HedgeBudget
from gateway.fleet.member import Catalog, Member
from gateway.fleet.members import MemberGroup, OnRefused
from gateway.fleet.roster import EngineAddress, Roster
from gateway.host.fleet_certificates import check_expiry


def build_fleet(
    config: Config,
    roster: Roster,
    catalog: Catalog,
    gateway_id: str,
    on_refused: OnRefused,
    engine: Engine | None = None,
) -> Fleet:
    """`engine`: the fleet's only member; None: the engines of `roster`. Raises CertificatesUnusable."""
    files, section = config.certificates, config.fleet
    tls = None if files is None else _unexpired_context(files)
    # A single engine is not chosen by its pages, so it need not report them.
    with_pages = section.driver != "static" or len(config.engines) > 1

    def connect(address: EngineAddress) -> Engine:
        name = address.server_name or None
        return LocalEngine(address.address, tls=tls, server_name=name, gateway=gateway_id, with_pages=with_pages)

    def build_member(address: EngineAddress, fleet: MemberGroup) -> Member:
        return Member(
            address,
            engine or connect(address),
            catalog,
            fleet.confirmations,
            on_connect=fleet.note_connected,
            on_ready=fleet.note_ready,
            on_models=fleet.note_models,
            on_refused=fleet.note_refused,
        )

    return Fleet(
        roster,
        build_member,
        EngineChooser([tier.name for tier in config.tiers]),
        resume_wait_s=section.resume_wait_s,
        hedge_after_s={
            tier.name: section.hedge_after * tier.ttft_base_ms / 1000
            for tier in config.tiers
            if tier.name in section.hedge_tiers
        },
        hedges=HedgeBudget(section.hedge_part),
        on_refused=on_refused,
    )


def _unexpired_context(files: CertificateFiles) -> Callable[[], ssl.SSLContext]:
    """The context of each new connection; it raises CertificateExpired. Raises CertificatesUnusable."""
    context = CurrentContext(files, client_context)

    def current() -> ssl.SSLContext:
        check_expiry(files.certificate)
        return context.current()

    return current
