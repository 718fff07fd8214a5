"""A small HTTPS server that answers for EndpointSlices as a Kubernetes API server does: lists, watches with bookmarks,
410 for versions that it has forgotten, 401 for a token that was replaced."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PATH = "/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices"
SELECTOR = "kubernetes.io/service-name=laneway-engines"


def endpoint(name: str, ip: str, *, ready: bool = True, serving: bool = True, terminating: bool = False) -> Any:
    return {
        "addresses": [ip],
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        "nodeName": "node-1",
        "targetRef": {"kind": "Pod", "name": name, "namespace": "llm", "uid": "5c1f7f6e-4f0e-4c43-9d6f-2a8f3a0b7f11"},
        "zone": "eu-central-1a",
    }


def endpoint_slice(name: str, endpoints: list[Any] | None, address_type: str = "IPv4", port: int = 7801) -> Any:
    """An EndpointSlice as `kubectl get endpointslice -o json` prints it."""
    return {
        "addressType": address_type,
        "apiVersion": "discovery.k8s.io/v1",
        "endpoints": endpoints,
        "kind": "EndpointSlice",
        "metadata": {
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-11-27T10:00:00Z"},
            "creationTimestamp": "2026-11-27T09:58:12Z",
            "generateName": "laneway-engines-",
            "generation": 4,
            "labels": {
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                "kubernetes.io/service-name": "laneway-engines",
            },
            "name": name,
            "namespace": "llm",
            "ownerReferences": [
                {"apiVersion": "v1", "controller": True, "kind": "Service", "name": "laneway-engines", "uid": "b7e1"}
            ],
            "uid": "0d6f2a55-6a0b-4f7e-8f1c-35a4c1f0f1a2",
        },
        "ports": [
            {"name": "metrics", "port": 9464, "protocol": "TCP"},
            {"name": "frames", "port": port, "protocol": "TCP"},
        ],
    }


class KubernetesApiServer:
    def __init__(self, directory: Path) -> None:
        """`directory`: gets the files of a service account."""
        self.directory = directory
        self.port = 0
        self.version = 100
        self.oldest = 100  # a watch from an earlier version gets 410
        self.slices: dict[str, Any] = {}
        self.token = "first"
        self.requests: list[str] = []  # "list" or "watch VERSION", or the status of a refusal; in order
        self._events: list[tuple[int, Any]] = []
        self._changed = asyncio.Condition()
        self._answers: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        make_account(directory)
        self.write_token(self.token)

    def write_token(self, token: str) -> None:
        (self.directory / "token").write_text(token + "\n")

    async def start(self) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.directory / "server.pem")
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", self.port, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop the server, and break the watches."""
        assert self._server is not None
        self._server.close()
        await self.break_connections()

    async def break_connections(self) -> None:
        for answer in list(self._answers):
            answer.cancel()
        await asyncio.gather(*self._answers, return_exceptions=True)

    async def put(self, found: Any) -> None:
        kind = "MODIFIED" if found["metadata"]["name"] in self.slices else "ADDED"
        self.slices[found["metadata"]["name"]] = found
        await self._note(kind, found)

    async def delete(self, name: str) -> None:
        await self._note("DELETED", self.slices.pop(name))

    async def bookmark(self) -> None:
        """Raise the version without a change of a slice, as changes of other objects do."""
        await self._note("BOOKMARK", {"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "metadata": {}})

    async def _note(self, kind: str, found: Any) -> None:
        async with self._changed:
            self.version += 1
            found["metadata"]["resourceVersion"] = str(self.version)
            self._events.append((self.version, json.loads(json.dumps({"type": kind, "object": found}))))
            self._changed.notify_all()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._answers.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            await self._respond(head, writer)
        except (asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._answers.discard(task)
            writer.transport.abort()

    async def _respond(self, head: str, writer: asyncio.StreamWriter) -> None:
        target = urlsplit(head.split(" ")[1])
        query = {name: values[0] for name, values in parse_qs(target.query).items()}
        assert (target.path, query["labelSelector"]) == (PATH, SELECTOR)
        if f"\r\nAuthorization: Bearer {self.token}\r\n" not in head:
            self.requests.append("401")
            return write_json(writer, "401 Unauthorized", {"kind": "Status", "code": 401})
        if "watch" not in query:
            self.requests.append("list")
            items = list(self.slices.values())
            metadata = {"resourceVersion": str(self.version)}
            return write_json(writer, "200 OK", {"kind": "EndpointSliceList", "metadata": metadata, "items": items})
        version = int(query["resourceVersion"])
        self.requests.append(f"watch {version}")
        assert query["allowWatchBookmarks"] == "true"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        if version < self.oldest:  # an API server answers 200, and an event
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            write_chunks(writer, {"type": "ERROR", "object": status})
            writer.write(b"0\r\n\r\n")
            return await writer.drain()
        while True:
            async with self._changed:
                for number, event in self._events:
                    if number > version:
                        version = number
                        write_chunks(writer, event)
                await self._changed.wait()


def write_json(writer: asyncio.StreamWriter, status: str, body: Any) -> None:
    text = json.dumps(body).encode()
    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
    writer.close()


def write_chunks(writer: asyncio.StreamWriter, event: Any) -> None:
    """Write in two chunks, because an event's line may arrive in parts."""
    line = json.dumps(event).encode() + b"\n"
    for part in (line[:20], line[20:]):
        writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")


def make_account(directory: Path) -> None:
    """ca.crt and namespace of a service account; server.pem for the server."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (directory / "ca.crt").write_bytes(pem)
    (directory / "server.pem").write_bytes(private + pem)
    (directory / "namespace").write_text("llm")


@contextlib.asynccontextmanager
async def serve_kubernetes_api(directory: Path) -> AsyncIterator[KubernetesApiServer]:
    server = KubernetesApiServer(directory)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
