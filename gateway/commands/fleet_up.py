"""`laneway fleet up` and `laneway fleet down`: the engines of a fleet on a Ray cluster."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import click
import msgspec

from gateway.commands.console import Console, fail, pass_console
from gateway.commands.run import engine_file
from gateway.config import file as configuration
from gateway.config.file import Config
from gateway.fleet.placement.supervised_engine import EngineReport, EngineSpec

ENGINES_MAX = 1024
GPUS_MAX = 16
POLL_S = 1.0
FOLLOW_S = 5.0

driver_option = click.option(
    "--driver", type=click.Choice(["ray"]), default="ray", show_default=True, help="What places the engines."
)
address_option = click.option("--address", help="Of the Ray cluster. Default: fleet.ray.address, which is auto.")


@click.command("up")
@driver_option
@address_option
@click.option("--engines", type=click.IntRange(1, ENGINES_MAX), help="Default: as many as the cluster's GPUs carry.")
@click.option("--gpus-per-engine", type=click.IntRange(1, GPUS_MAX), default=1, show_default=True)
@click.option("--wait-s", type=click.FloatRange(0, 3600), default=600.0, show_default=True, help="For ready engines.")
@click.option(
    "--follow", is_flag=True, help="Stay, and start actors again that the cluster forgot. For a service manager."
)
@click.option("--fake", is_flag=True, help="Engines without a model, for tests.")
@pass_console
def up_command(
    console: Console,
    driver: str,
    address: str | None,
    engines: int | None,
    gpus_per_engine: int,
    wait_s: float,
    follow: bool,
    fake: bool,
) -> None:
    """Start engines on a Ray cluster, each under an actor that restarts it when it ends. Existing engines are not
    changed; an engine that a host still runs is adopted. Needs the extra `ray` and this configuration's models on every
    host."""
    ray_cluster = load_ray_cluster()
    config = console.config
    spec = engine_spec_of(config, fake=fake)
    with connect(ray_cluster, config, address):
        number = engines or ray_cluster.count_gpus() // gpus_per_engine
        if not number:
            fail("no node of the cluster has a GPU; say how many engines to start with --engines")
        started = ray_cluster.start_actors(spec, number, gpus_per_engine)
        click.echo(f"{len(started)} of {number} actors are new")
        reports = wait_for_engines(ray_cluster, wait_s)
        for name, report in reports.items():
            click.echo(describe_report(name, report, spec.fingerprint))
        if follow:
            follow_cluster(ray_cluster, spec, number, gpus_per_engine)


@click.command("down")
@driver_option
@address_option
@click.option("--wait-s", type=click.FloatRange(0, 7200), default=60.0, show_default=True, help="For their requests.")
@click.argument("actors", nargs=-1)
@pass_console
def down_command(console: Console, driver: str, address: str | None, wait_s: float, actors: tuple[str, ...]) -> None:
    """Stop the engines of ACTORS, which `laneway fleet up` names; without any, all engines of the fleet."""
    ray_cluster = load_ray_cluster()
    with connect(ray_cluster, console.config, address):
        known = ray_cluster.list_actors()
        if unknown := [name for name in actors if name not in known]:
            fail(f"there is no actor {unknown[0]}; the actors are {', '.join(known) or 'none'}")
        ended = ray_cluster.stop_actors(actors or known, wait_s)
        for name in sorted(ended):
            click.echo(f"{name}  {'stopped' if ended[name] else 'its engine still runs'}")
    if not all(ended.values()):
        fail(f"not every engine ended within {wait_s:g} s; run the command again")


def load_ray_cluster() -> Any:
    """The module that loads Ray."""
    try:
        from gateway.fleet.placement import ray_cluster
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        fail("Ray is not installed here: pip install 'laneway[ray]'")
    return ray_cluster


@contextlib.contextmanager
def connect(ray_cluster: Any, config: Config, address: str | None) -> Iterator[None]:
    section = config.fleet.ray
    try:
        with ray_cluster.connected(address or section.address, section.namespace):
            yield
    except ConnectionError as error:
        fail(str(error).splitlines()[0])


def follow_cluster(ray_cluster: Any, spec: EngineSpec, engines: int, gpus_per_engine: int) -> NoReturn:
    """Ray's library ends the process when the head is lost for long; whatever starts it again finds the next head."""
    while True:
        time.sleep(FOLLOW_S)
        if started := ray_cluster.start_actors(spec, engines, gpus_per_engine):
            click.echo(f"started again: {', '.join(started)}")


def engine_spec_of(config: Config, *, fake: bool) -> EngineSpec:
    """The settings with which every host starts engines: this configuration's engine, models and certificates."""
    section = config.fleet.ray
    if section.port and config.certificates is None:
        fail("fleet.ray.port needs fleet.certificate_file, key_file and authority_file; of one host alone, set it to 0")
    # Each engine gets its own address after these, and a later --listen overrides an earlier one.
    engine = msgspec.structs.replace(config.engine, listen=f"0.0.0.0:{section.port}" if section.port else "")
    arguments = configuration.engine_arguments(msgspec.structs.replace(config, engine=engine))
    return EngineSpec(
        engine_config=engine_file(config).read_text(),
        host_dir=section.host_dir,
        port=section.port,
        arguments=tuple([*arguments, "--fake"] if fake else arguments),
        server_name=section.server_name,
    )


def wait_for_engines(ray_cluster: Any, wait_s: float) -> dict[str, EngineReport | None]:
    """The report of each actor, once all engines are ready or `wait_s` have passed; None: it is not placed yet."""
    collector = ray_cluster.ActorReports()
    until = time.monotonic() + wait_s
    reports: dict[str, EngineReport | None] = {}
    while True:
        names = ray_cluster.list_actors()
        found = collector.collect(names, POLL_S)
        reports = {name: found.get(name, reports.get(name)) for name in names}
        if all(report is not None and report.state == "ready" for report in reports.values()):
            return reports
        if time.monotonic() > until:
            return reports
        time.sleep(POLL_S)


def describe_report(name: str, report: EngineReport | None, fingerprint: str) -> str:
    if report is None:
        return f"{name}  waits for a node with free GPUs"
    if report.state == "ready":
        older = "" if report.spec == fingerprint else "  with an earlier configuration"
        how = "adopted" if report.adopted else "started"
        return f"{name}  {report.name} at {report.address}  {how}, process {report.pid}{older}"
    return f"{name}  {report.state.replace('_', ' ')}  {report.reason}".rstrip()
