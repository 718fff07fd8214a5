"""`laneway fleet up` and `down` where they cannot work, and what they print. tests/programs/ray_faults.py runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.commands.fleet_up import describe_report, engine_spec_of
from gateway.config import file as configuration
from gateway.fleet.placement.supervised_engine import EngineReport
from support.paths import REPO
from support.ports import free_port

CERTIFICATES = "[fleet]\ncertificate_file = 'c'\nkey_file = 'k'\nauthority_file = 'a'\n"


@pytest.mark.parametrize("command", ["up", "down"])
def test_without_a_cluster_they_say_so_in_a_sentence(command: str, tmp_path: Path) -> None:
    (tmp_path / "laneway.toml").write_text("[fleet.ray]\nport = 0\n")
    argv = [sys.executable, "-m", "gateway.cli", "--config", str(tmp_path / "laneway.toml"), "fleet", command]
    port = free_port()
    done = subprocess.run([*argv, "--address", f"127.0.0.1:{port}"], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"Error: no Ray cluster answers at 127.0.0.1:{port}: " in done.stderr
    assert "Traceback" not in done.stderr


def test_every_host_starts_the_same_engine(tmp_path: Path) -> None:
    text = "[fleet.ray]\nport = 7000\nserver_name = 'engines'\n[[models]]\nname = 'm'\n"
    config = configuration.parse_gateway_config((CERTIFICATES + text).encode(), tmp_path, "", {})
    spec = engine_spec_of(config, fake=True)
    assert (spec.port, spec.server_name, spec.host_dir) == (7000, "engines", "/run/laneway")
    assert "--fake" in spec.arguments
    assert str(tmp_path / "k") in spec.arguments
    assert '"name": "m"' in spec.engine_config
    assert spec.fingerprint != engine_spec_of(config, fake=False).fingerprint


def test_what_they_print_of_an_actor() -> None:
    ready = EngineReport("ready", "gpu-1", "tls://10.0.0.1:7801", pid=7, spec="abc", adopted=True)
    assert describe_report("laneway-engine-0", None, "abc") == "laneway-engine-0  waits for a node with free GPUs"
    assert describe_report("x", ready, "abc") == "x  gpu-1 at tls://10.0.0.1:7801  adopted, process 7"
    assert describe_report("x", ready, "new").endswith("process 7  with an earlier configuration")
    waits = EngineReport("waits_for_gpu", reason="all GPUs of 10.0.0.1 are used")
    assert describe_report("x", waits, "abc") == "x  waits for gpu  all GPUs of 10.0.0.1 are used"
