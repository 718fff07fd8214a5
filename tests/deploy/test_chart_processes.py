"""What the chart's pods run, as processes of this host: their arguments, environment, files and probes.

Only paths, ports and the roster's driver are replaced. The driver's own test is
tests/gateway/fleet/test_kubernetes_roster.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from gateway.host.fleet_certificates import MemberNames, make_certificates
from support.deploy.helm import running_helm
from support.paths import REPO
from support.ports import free_port
from support.stack import MODEL
from support.waiting import PATIENCE_S, eventually

Object = dict[str, Any]
NAMESPACE = "models"
SERVER_NAME = f"laneway-engines.{NAMESPACE}.svc"
CONFIG = {
    "gateway": {"linger_s": 0.2, "shutdown_grace_s": 2},
    "engine": {"device": "cpu", "arena_bytes": 2**26},
    "models": [{"name": MODEL, "path": f"/models/{MODEL}"}],
}


class Pod:
    """One container, in a directory of its own instead of a root file system."""

    def __init__(self, spec: Object, root: Path, names: dict[str, str]) -> None:
        [self.container] = spec["containers"]
        self._names = {"/etc/laneway": f"{root}/etc", "/var/lib/laneway": f"{root}/data", **names}
        self._environ = {each["name"]: self.local(each["value"]) for each in self.container["env"]}
        self.root = root
        (root / "data").mkdir(parents=True)

    def local(self, text: str) -> str:
        for old, new in self._names.items():
            text = text.replace(old, new)
        return text

    def write(self, mount: str, path: str, text: str) -> None:
        file = Path(self.local(mount)) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def mount(self, volumes: list[Object], secrets: dict[str, dict[str, str]], config: str) -> None:
        """The files of its projected and secret volumes, at their mount paths."""
        mounts = {mount["name"]: mount["mountPath"] for mount in self.container["volumeMounts"]}
        for volume in volumes:
            sources = volume.get("projected", {}).get("sources", [])
            if "secret" in volume:
                sources = [{"secret": {"name": volume["secret"]["secretName"], "items": volume["secret"]["items"]}}]
            for source in sources:
                if "configMap" in source:
                    self.write(mounts[volume["name"]], "laneway.toml", self.local(config))
                for item in source.get("secret", {}).get("items", []):
                    text = secrets[source["secret"]["name"]][item["key"]]
                    self.write(mounts[volume["name"]], item["path"], text)

    @property
    def environ(self) -> dict[str, str]:
        file = self.root / "etc" / "laneway.toml"
        own = {"PYTHONPATH": str(REPO), **({"LANEWAY_CONFIG": str(file)} if file.exists() else {})}
        return {**os.environ, **own, **self._environ}

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`laneway`'s words, as a Job or a hook of the container runs them."""
        argv = [sys.executable, "-m", "gateway.cli", *words]
        return subprocess.run(argv, env=self.environ, cwd=self.root, capture_output=True, text=True, timeout=PATIENCE_S)

    @property
    def log(self) -> str:
        return (self.root / "log").read_text()

    @contextmanager
    def running(self, *more: str) -> Iterator[subprocess.Popen[bytes]]:
        argv = [sys.executable, "-m", "gateway.cli", *self.container["args"], *more]
        with (self.root / "log").open("wb") as log:
            process = subprocess.Popen(argv, env=self.environ, cwd=self.root, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def make_secrets(directory: Path) -> dict[str, dict[str, str]]:
    """As docs/operators/kubernetes.md makes them."""
    engines = MemberNames("engines", (SERVER_NAME,), is_engine=True)
    make_certificates(directory, [engines, MemberNames("gateways", is_gateway=True)], 1)

    def tls(name: str) -> dict[str, str]:
        files = {"tls.crt": f"{name}.pem", "tls.key": f"{name}.key", "ca.crt": "authority.pem"}
        return {key: (directory / file).read_text() for key, file in files.items()}

    main = {"database-url": f"sqlite:///{directory}/laneway.db\n", "server.secret": "ab" * 32 + "\n"}
    return {"laneway": main, "laneway-gateway-tls": tls("gateways"), "laneway-engine-tls": tls("engines")}


def test_the_pods_processes_serve_and_drain(tmp_path: Path, model_dir: Path) -> None:
    with running_helm(tmp_path / "helm") as helm:
        objects = helm.render({"config": CONFIG}, namespace=NAMESPACE)
    specs = {
        spec["template"]["metadata"]["labels"]["app.kubernetes.io/component"]: spec["template"]["spec"]
        for spec in (each["spec"] for each in objects if "template" in each.get("spec", {}))
    }
    [config] = [each["data"]["laneway.toml"] for each in objects if each["kind"] == "ConfigMap"]
    port, frames, metrics = free_port(), free_port(), free_port()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / MODEL).symlink_to(model_dir)
    names = {
        '"/models': f'"{tmp_path}/models', "0.0.0.0:7801": f"127.0.0.1:{frames}", "port = 8080": f"port = {port}",
        "0.0.0.0:9464": f"127.0.0.1:{metrics}", 'driver = "kubernetes"': 'driver = "static"',
    }  # fmt: skip
    engine_line = f'address = "tls://127.0.0.1:{frames}", name = "laneway-engines-0", server_name = "{SERVER_NAME}"'
    secrets = make_secrets(tmp_path / "tls")
    pods = {part: Pod(spec, tmp_path / part, names) for part, spec in specs.items()}
    for part, pod in pods.items():
        pod.mount(specs[part]["volumes"], secrets, f"engines = [{{ {engine_line} }}]\n{config}")

    migrated = pods["migrate"].command(*pods["migrate"].container["args"])
    assert migrated.returncode == 0, migrated.stderr
    with ExitStack() as running:
        running.enter_context(pods["engine"].running("--fake"))
        process = running.enter_context(pods["gateway"].running())
        probe = pods["engine"].container["readinessProbe"]["exec"]["command"]
        probe = [
            sys.executable,
            *(word.replace("/usr/share/laneway", f"{REPO}/deploy/containers") for word in probe[1:]),
        ]
        eventually(lambda: subprocess.run(probe, env=pods["engine"].environ, capture_output=True).returncode == 0)
        path = pods["gateway"].container["readinessProbe"]["httpGet"]["path"]

        def is_ready() -> bool:
            assert process.poll() is None, pods["gateway"].log
            try:
                return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=10).status_code == 200
            except httpx.TransportError:
                return False

        eventually(is_ready)
        assert "vllm:request_queue_time_seconds" in httpx.get(f"http://127.0.0.1:{metrics}/metrics", timeout=10).text
        hook = pods["gateway"].container["lifecycle"]["preStop"]["exec"]["command"]
        drained = pods["gateway"].command(*hook[1:])
        assert (drained.returncode, "drained after" in drained.stdout) == (0, True), drained
        process.send_signal(signal.SIGTERM)
        assert process.wait(specs["gateway"]["terminationGracePeriodSeconds"]) == 0, pods["gateway"].log
