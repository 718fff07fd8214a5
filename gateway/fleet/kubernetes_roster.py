"""The endpoints of a Kubernetes Service: lists its EndpointSlices once, then follows their changes by a watch.

An endpoint is an engine while it is serving, also when its pod is terminating: such an engine drains, and reports that
itself. The pod needs get, list and watch on endpointslices of the namespace.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterable
from contextlib import aclosing
from pathlib import Path
from urllib.parse import urlencode

import msgspec

from gateway.config.file import Config
from gateway.fleet.kept_list import keep_list, read_kept_list
from gateway.fleet.kubernetes_api import ApiUnavailable, KubernetesApi, find_pod_account
from gateway.fleet.roster import EngineAddress, OnEngines

# The API server ends a watch after WATCH_S; the next continues at its version. A connection that is silent for longer
# is dead.
WATCH_S = 120
SILENCE_S = WATCH_S + 15.0
LIST_S = 30.0
BACKOFF_MIN_S = 0.5
BACKOFF_MAX_S = 15.0
GONE = 410  # the version is too old to continue a watch from

_log = logging.getLogger(__name__)


class _SliceConditions(msgspec.Struct, frozen=True):
    """None: not reported. An endpoint without any is ready."""

    ready: bool | None = None
    serving: bool | None = None


class _ObjectName(msgspec.Struct, frozen=True):
    name: str = ""


class _SliceEndpoint(msgspec.Struct, frozen=True, rename="camel"):
    addresses: tuple[str, ...] = ()
    conditions: _SliceConditions = _SliceConditions()
    target_ref: _ObjectName | None = None

    @property
    def is_serving(self) -> bool:
        if self.conditions.serving is not None:
            return self.conditions.serving
        return self.conditions.ready is not False


class _SlicePort(msgspec.Struct, frozen=True):
    name: str | None = None
    port: int | None = None


class _ObjectMetadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    resource_version: str = ""


class _EndpointSlice(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of discovery.k8s.io/v1 that are used; in an event also an error's code."""

    metadata: _ObjectMetadata = _ObjectMetadata()
    address_type: str = ""
    endpoints: tuple[_SliceEndpoint, ...] | None = None
    ports: tuple[_SlicePort, ...] | None = None
    code: int = 0
    message: str = ""


class _SliceList(msgspec.Struct, frozen=True):
    metadata: _ObjectMetadata
    items: tuple[_EndpointSlice, ...] | None = None


class _WatchEvent(msgspec.Struct, frozen=True):
    type: str
    object: _EndpointSlice


_decode_list = msgspec.json.Decoder(_SliceList).decode
_decode_event = msgspec.json.Decoder(_WatchEvent).decode


class KubernetesRoster:
    """Implements `Roster`."""

    def __init__(
        self, api: KubernetesApi, namespace: str, service: str, port: str, server_name: str, kept: Path
    ) -> None:
        """`kept`: the file of the last list."""
        query = urlencode({"labelSelector": f"kubernetes.io/service-name={service}"})
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?{query}"
        self._api = api
        self._port = port
        self._server_name = server_name or f"{service}.{namespace}.svc"
        self._kept = kept
        self._slices: dict[str, _EndpointSlice] = {}
        self._version = ""  # to continue a watch from; "": list first
        self._engines: tuple[EngineAddress, ...] | None = None
        self._stale_since: float | None = time.monotonic()

    @property
    def stale_since(self) -> float | None:
        return self._stale_since

    async def follow_engines(self, on_engines: OnEngines) -> None:
        if kept := read_kept_list(self._kept):
            self._engines = kept
            on_engines(kept)
        backoff_s = BACKOFF_MIN_S
        while True:
            try:
                if not self._version:
                    await self._list_slices(on_engines)
                await self._watch_slices(on_engines)
                backoff_s = BACKOFF_MIN_S
            except (ApiUnavailable, msgspec.DecodeError) as error:
                self._note_failure(error)
                await asyncio.sleep(backoff_s * (0.5 + random.random()))
                backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)

    async def _list_slices(self, on_engines: OnEngines) -> None:
        text = b"".join([line async for line in self._api.read_lines(self._path, LIST_S, self._note_answer)])
        listed = _decode_list(text)
        self._slices = {found.metadata.name: found for found in listed.items or ()}
        self._report(on_engines)
        self._version = listed.metadata.resource_version

    async def _watch_slices(self, on_engines: OnEngines) -> None:
        """Watch until the API server ends the watch. Raises ApiUnavailable, DecodeError."""
        query = urlencode({
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": WATCH_S,
        })  # fmt: skip
        began = time.monotonic()
        async with aclosing(self._api.read_lines(f"{self._path}&{query}", SILENCE_S, self._note_answer)) as lines:
            async for line in lines:
                event = _decode_event(line)
                if event.type == "ERROR":
                    raise ApiUnavailable(event.object.message, event.object.code)
                self._apply_event(event)
                self._report(on_engines)
        if time.monotonic() - began < BACKOFF_MIN_S:  # pause between requests to a server that ends watches at once
            await asyncio.sleep(BACKOFF_MIN_S)

    def _apply_event(self, event: _WatchEvent) -> None:
        changed = event.object
        if event.type == "DELETED":
            self._slices.pop(changed.metadata.name, None)
        elif event.type in ("ADDED", "MODIFIED"):
            self._slices[changed.metadata.name] = changed
        self._version = changed.metadata.resource_version or self._version  # a BOOKMARK has nothing else

    def _report(self, on_engines: OnEngines) -> None:
        engines = engines_of(self._slices.values(), self._port, self._server_name)
        if engines == self._engines:
            return
        self._engines = engines
        _log.info("roster.changed", extra={"fields": {"engines": [engine.name for engine in engines]}})
        on_engines(engines)
        keep_list(self._kept, engines)

    def _note_answer(self) -> None:
        self._stale_since = None

    def _note_failure(self, error: ApiUnavailable | msgspec.DecodeError) -> None:
        if isinstance(error, msgspec.DecodeError) or error.status == GONE:
            self._version = ""
        if isinstance(error, ApiUnavailable) and error.status == GONE:
            _log.info("roster.listed_again")
            return
        if self._stale_since is None:
            self._stale_since = time.monotonic()
        _log.warning("roster.source_unavailable", extra={"fields": {"reason": str(error)}})


def engines_of(slices: Iterable[_EndpointSlice], port: str, server_name: str) -> tuple[EngineAddress, ...]:
    """The serving endpoints of the slices, by pod. A pod with two addresses is listed with its IPv4 address."""
    engines: dict[str, EngineAddress] = {}
    for found in sorted(slices, key=lambda found: (found.address_type, found.metadata.name)):  # IPv4 before IPv6
        number = next((entry.port for entry in found.ports or () if (entry.name or "") == port), None)
        if number is None or found.address_type not in ("IPv4", "IPv6"):
            continue
        for endpoint in found.endpoints or ():
            if not endpoint.is_serving or not endpoint.addresses:
                continue
            ip = endpoint.addresses[0]
            name = endpoint.target_ref.name if endpoint.target_ref else ip
            location = f"[{ip}]" if ":" in ip else ip
            engines.setdefault(name, EngineAddress(name, f"tls://{location}:{number}", server_name))
    return tuple(engines[name] for name in sorted(engines))


def build_kubernetes_roster(config: Config) -> KubernetesRoster:
    """Raises ConfigError outside a pod."""
    section = config.fleet.kubernetes
    account = find_pod_account()
    return KubernetesRoster(
        KubernetesApi(account),
        section.namespace or account.namespace,
        section.service,
        section.port,
        section.server_name,
        config.data_dir / "engines-of-kubernetes.json",
    )
