"""A stack that has every part with a metric: two workers, an engine over TLS, PostgreSQL, a listener for Prometheus."""

from __future__ import annotations

import collections
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from support.engine.certificates import ENGINE, GATEWAY, files_of, listen_flags, make_fleet
from support.engine.process import EngineProcess
from support.ports import free_port
from support.stack import MODEL, Stack

# By sample name: the label sets of its series and their values. A family without series has an empty dict.
Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


class MonitoredStack(Stack):
    """`start()` it. Its `page` is what Prometheus reads."""

    def __init__(self, directory: Path, postgres_url: str, model_dir: Path, certificate_days: int = 300) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.certificates = make_fleet(directory / "tls", certificate_days)
        self.engine_port, self.metrics_port = free_port(), free_port()
        files = files_of(self.certificates, GATEWAY)
        toml = (
            f'[[engines]]\nname = "{ENGINE}"\naddress = "tls://127.0.0.1:{self.engine_port}"\n'
            f'[fleet]\ncertificate_file = "{files.certificate}"\nkey_file = "{files.key}"\n'
            f'authority_file = "{files.authority}"\nresume_wait_s = 0\n'
        )
        listener = f'metrics_address = "127.0.0.1:{self.metrics_port}"\n'
        super().__init__(directory, postgres_url, model_dir, gateway_toml=listener, toml=toml, workers=2)

    def start_engine(self) -> None:
        config = {
            "models": [{"name": MODEL, "path": str(self.model_dir)}],
            "fake": {"step_ms": 2.0, "prefill_ms_per_1k_tokens": 1.0},
        }
        flags = listen_flags(files_of(self.certificates, ENGINE), f"127.0.0.1:{self.engine_port}")
        self.engine_process = EngineProcess(self.directory / "engine.sock", config, "--fake", *flags)

    def stop(self) -> None:
        super().stop()
        self.engine_process.stop()

    def page(self) -> str:
        """GET /metrics of the listener that needs no key."""
        answer = httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.text


def samples(page: str) -> Samples:
    """The series of a page of /metrics by the names that PromQL has for them."""
    found: Samples = collections.defaultdict(dict)
    for family in text_string_to_metric_families(page):
        if not family.samples:
            found[family.name + ("_total" if family.type == "counter" else "")] = {}
        for sample in family.samples:
            found[sample.name][tuple(sorted(sample.labels.items()))] = sample.value
    return found
