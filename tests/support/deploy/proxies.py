"""The four proxies of deploy/proxies, run with the shipped files, in which only names, ports and paths are replaced."""

from __future__ import annotations

import os
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from gateway.host.fleet_certificates import MemberNames, make_certificates
from support.deploy.tools import find_tool
from support.paths import REPO
from support.ports import free_port

SHIPPED = REPO / "deploy" / "proxies"
NAME = "laneway.example.com"
UPSTREAMS = ("10.0.0.11:8080", "10.0.0.12:8080")
START_S_MAX = 60.0
NGINX_MAIN = (
    "daemon off; master_process off; pid {0}/nginx.pid; events {{}} http {{ access_log off; include {0}/nginx.conf; }}"
)
CADDY_GLOBAL = "{\n\tadmin off\n\tauto_https disable_redirects\n\tskip_install_trust\n}\n"
FILES = {
    "nginx": ("nginx.conf",),
    "haproxy": ("haproxy.cfg",),
    "caddy": ("Caddyfile",),
    "traefik": ("traefik.yaml", "traefik-laneway.yaml"),
}


@dataclass(frozen=True)
class RunningProxy:
    name: str
    url: str
    authority: Path  # that signed its certificate
    log: Path


def _replaced(text: str, replacements: dict[str, str]) -> str:
    for old, new in replacements.items():
        text = text.replace(old, new)
    return text


def _write_files(name: str, directory: Path, port: int, gateways: tuple[str, str]) -> None:
    names = {f"{NAME} {{": f"https://localhost:{port} {{", NAME: "localhost"}
    ports = {"listen 443": f"listen {port}", "bind :443": f"bind :{port}", '":443"': f'":{port}"'}
    paths = {"/etc/laneway/proxy": str(directory), "/etc/traefik/laneway.yaml": f"{directory}/traefik-laneway.yaml"}
    upstreams = dict(zip(UPSTREAMS, gateways, strict=True))
    for file in FILES[name]:
        text = (SHIPPED / file).read_text()
        (directory / file).write_text(_replaced(text, names | ports | paths | upstreams))
    if name == "nginx":
        (directory / "main.conf").write_text(NGINX_MAIN.format(directory))
    if name == "caddy":
        (directory / "Caddyfile").write_text(CADDY_GLOBAL + (directory / "Caddyfile").read_text())


def _make_certificate(directory: Path) -> Path:
    """tls.crt, tls.key and tls.pem for localhost; the authority."""
    make_certificates(directory, [MemberNames("tls", ("localhost",), is_engine=True)], 1)
    certificate, key = (directory / "tls.pem").read_text(), (directory / "tls.key").read_text()
    (directory / "tls.crt").write_text(certificate)
    (directory / "tls.pem").write_text(certificate + key)
    return directory / "authority.pem"


def _command(name: str, directory: Path) -> list[str]:
    program = find_tool(name)
    return {
        "nginx": [program, "-e", "stderr", "-p", str(directory), "-c", str(directory / "main.conf")],
        "haproxy": [program, "-db", "-f", str(directory / "haproxy.cfg")],
        "caddy": [program, "run", "--adapter", "caddyfile", "--config", str(directory / "Caddyfile")],
        "traefik": [program, f"--configFile={directory / 'traefik.yaml'}"],
    }[name]


@contextmanager
def running_proxy(name: str, directory: Path, gateways: tuple[str, str]) -> Iterator[RunningProxy]:
    """One of FILES in front of two gateways, each as HOST:PORT, of which one may be down."""
    command, port, log = _command(name, directory), free_port(), directory / "proxy.log"
    authority = _make_certificate(directory)
    _write_files(name, directory, port, gateways)
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "HOME": str(directory)})
    proxy = RunningProxy(name, f"https://localhost:{port}", authority, log)
    try:
        _wait_until_ready(proxy, process)
        yield proxy
    finally:
        process.terminate()
        process.wait()


def _wait_until_ready(proxy: RunningProxy, process: subprocess.Popen[bytes]) -> None:
    context = ssl.create_default_context(cafile=str(proxy.authority))
    deadline = time.monotonic() + START_S_MAX
    with httpx.Client(verify=context) as client:
        while time.monotonic() < deadline:
            assert process.poll() is None, proxy.log.read_text()
            try:
                if client.get(f"{proxy.url}/health/ready").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
    raise AssertionError(f"{proxy.name} is not ready:\n{proxy.log.read_text()}")
