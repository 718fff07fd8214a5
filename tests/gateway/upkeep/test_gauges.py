"""The gauges that alerts need: problems, journal, disk, drain, certificates, and first tokens by target."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.protocol.tls import CertificateFiles
from gateway.host.fleet_certificates import first_expiry
from gateway.metrics import Metrics
from gateway.upkeep.health_checks import certificates_finding, disk_finding
from gateway.views.engines import measure_fleet
from support.engine.certificates import ENGINE, expire, files_of, make_fleet
from support.gateway.monitored_stack import MonitoredStack, samples
from support.gateway.small_fleet import small_fleet
from support.stack import Stack
from support.waiting import eventually

DAY_S = 86_400


def value(page: str, name: str, **labels: str) -> float:
    """The sum of a metric's series with these labels."""
    wanted = set(labels.items())
    found = [number for series, number in samples(page)[name].items() if wanted <= set(series)]
    assert found, f"{name} {labels}"
    return sum(found)


@pytest.fixture
def monitored(tmp_path: Path, postgres_url: str, model_dir: Path) -> Iterator[MonitoredStack]:
    made = MonitoredStack(tmp_path / "stack", postgres_url, model_dir, certificate_days=20)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_what_a_sound_gateway_reports(monitored: MonitoredStack) -> None:
    assert monitored.chat().status_code == 200
    parts = ("gateway", "engine", "database", "lease", "journal")
    workers = 2
    bytes_max = workers * monitored.config.journal.bytes_max
    eventually(lambda: value(monitored.page(), "laneway_journal_bytes_max") == bytes_max)  # both workers have reported
    eventually(lambda: not any(value(monitored.page(), "laneway_problem", part=part) for part in parts))
    page = monitored.page()
    assert value(page, "laneway_first_tokens_total", tier="premium", target="met") == 1
    assert value(page, "laneway_first_tokens_total", tier="batch") == 0, "each series exists before its first request"
    assert value(page, "laneway_drain_seconds") == value(page, "laneway_journal_age_seconds") == 0
    assert value(page, "laneway_roster_stale_seconds") == 0
    reserve = value(page, "laneway_disk_free_min_bytes")
    assert reserve == workers * monitored.config.journal.disk_free_min_bytes
    assert value(page, "laneway_disk_free_bytes") > 0
    for certificate, days in (("gateway", 20), ("engines", 20), ("authority", 3650)):
        series = samples(page)["laneway_certificate_expiry_timestamp_seconds"]
        for expiry in [at for labels, at in series.items() if ("certificate", certificate) in labels]:
            assert expiry == pytest.approx(time.time() + days * DAY_S, abs=DAY_S)


def test_a_missed_target_a_lost_engine_and_a_drain(make_stack: Callable[..., Stack]) -> None:
    tiers = "".join(
        f'[[tiers]]\nname = "{name}"\nservice_tier = "{service}"\nttft_base_ms = 20\ninter_token_ms = 20\n'
        for name, service in (("premium", "priority"), ("standard", "default"), ("batch", "flex"))
    )
    stack = make_stack(toml=tiers, fake={"step_ms": 60.0}, gateway_toml="linger_s = 60.0\n")
    assert stack.chat().status_code == 200
    assert value(stack.metrics(), "laneway_first_tokens_total", tier="premium", target="missed") == 1

    stack.kill_engine()
    eventually(lambda: value(stack.metrics(), "laneway_problem", part="engine") == 1)
    assert value(stack.metrics(), "laneway_problem", part="database") == 0
    assert stack.chat().status_code == 503
    page = stack.metrics()
    assert value(page, "laneway_first_tokens_total", tier="premium", target="refused") == 1
    assert value(page, "laneway_fleet_engines", state="ready") == 0

    assert stack.gateway is not None
    os.kill(stack.gateway.pid, signal.SIGTERM)
    eventually(lambda: value(stack.metrics(), "laneway_drain_seconds") > 0)
    assert value(stack.metrics(), "laneway_problem", part="gateway") == 1
    os.kill(stack.gateway.pid, signal.SIGINT)  # ends the linger


def test_the_first_expiry_of_a_file(tmp_path: Path) -> None:
    make_fleet(tmp_path, days=30)
    engine = tmp_path / f"{ENGINE}.pem"
    authority = tmp_path / "authority.pem"
    assert first_expiry(engine) == pytest.approx(time.time() + 30 * DAY_S, abs=60)
    both = tmp_path / "both.pem"
    both.write_bytes(authority.read_bytes() + engine.read_bytes())
    assert first_expiry(both) == first_expiry(engine) < first_expiry(authority)
    expire(tmp_path, ENGINE)
    assert first_expiry(engine) < time.time()
    engine.write_text("no certificate")
    assert first_expiry(engine) == first_expiry(tmp_path / "absent.pem") == 0


async def test_a_fleet_without_its_source_and_without_tls(tmp_path: Path) -> None:
    """The age of the roster's list; a Unix socket's engine has no certificate that could expire."""
    files: CertificateFiles = files_of(make_fleet(tmp_path / "tls"), ENGINE)
    async with small_fleet(tmp_path, 1) as fleet:
        metrics = Metrics()
        measure_fleet(metrics, fleet.fleet, files)
        assert value(metrics.text().decode(), "laneway_roster_stale_seconds") == 0
        fleet.roster.stale_since = time.monotonic() - 100
        page = metrics.text().decode()
        assert value(page, "laneway_roster_stale_seconds") >= 100
        assert value(page, "laneway_certificate_expiry_timestamp_seconds", certificate="engines") == math.inf


@pytest.mark.parametrize(("free", "status"), [(99, "down"), (100, "degraded"), (199, "degraded"), (200, "ok")])
def test_a_disk_that_fills_is_reported_before_requests_are_refused(free: int, status: str) -> None:
    assert disk_finding(free, 100)[0] == status


@pytest.mark.parametrize(
    ("days", "status", "says"),
    [(20, "ok", "of engines, expires in 20 days"), (13, "degraded", "13 days"), (-1, "down", "has expired")],
)
def test_the_first_certificate_that_expires_decides(days: int, status: str, says: str) -> None:
    now = 1_800_000_000.0
    found = certificates_finding({"gateway": now + 90 * DAY_S, "engines": now + days * DAY_S}, now)
    assert found[0] == status
    assert says in found[1]


def test_a_certificate_that_cannot_be_read_is_down() -> None:
    assert certificates_finding({"gateway": 0.0, "engines": math.inf}, 1.0) == (
        "down",
        "the certificate of gateway cannot be read",
    )
