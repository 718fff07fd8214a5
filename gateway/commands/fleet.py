"""`laneway fleet`: the certificates of a fleet's engines and gateways; up and down are in `fleet_up`."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.commands.console import fail
from gateway.commands.fleet_status import status_command
from gateway.commands.fleet_up import down_command, up_command
from gateway.host.fleet_certificates import AUTHORITY, CertificateRefused, MemberNames, make_certificates

DAYS_MAX = 3650


@click.group("fleet")
def fleet_group() -> None:
    """Several engines and gateways as one service."""


for command in (up_command, down_command, status_command):
    fleet_group.add_command(command)


@fleet_group.command("certificates")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--engine",
    "engines",
    multiple=True,
    metavar="NAME[,HOST…]",
    help="An engine, and the names and addresses by which gateways reach it. Several: repeat it.",
)
@click.option("--gateway", "gateways", multiple=True, metavar="NAME", help="A gateway's host. Several: repeat it.")
@click.option(
    "--days", type=click.IntRange(1, DAYS_MAX), default=365, show_default=True, help="Validity, except the authority's."
)
def certificates_command(directory: Path, engines: tuple[str, ...], gateways: tuple[str, ...], days: int) -> None:
    """Make an authority in DIRECTORY, unless it has one, and a certificate with its key for each NAME. A certificate of
    that name is replaced, which is how it is renewed. A NAME in both options gets one certificate for both."""
    members = []
    for engine in engines:
        name, *hosts = engine.split(",")
        members.append(MemberNames(name, tuple(hosts), is_engine=True))
    members += [MemberNames(name, is_gateway=True) for name in gateways]
    if not members:
        fail("nothing was given to make; name engines with --engine and gateways with --gateway")
    try:
        made = make_certificates(directory, members, days)
    except (CertificateRefused, OSError) as error:
        fail(str(error))
    for path in made:
        click.echo(f"{path} and {path.with_suffix('.key').name} are made; copy them to {path.stem}")
    click.echo(f"Copy {directory / f'{AUTHORITY}.pem'} to every host, and keep {AUTHORITY}.key off them all.")
