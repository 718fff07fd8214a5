"""Removes from the text of /metrics the names of models and adapters that only some tenants may see."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Collection, Mapping, Sequence

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from engine.protocol.frames import REMOVED_MODELS, StatusReport

# The label of all adapters that are not open to every tenant.
PRIVATE = "private"
# The largest number of names in one label of vllm:lora_requests_info; further names are left out.
NAMES_MAX = 64
_MODEL = re.compile(rb'([{,](?:model_name|model|gen_ai_request_model|from|to)=")((?:[^"\\]|\\.)*)"')


def without_restricted(text: bytes, open_models: Collection[str], secret: bytes) -> bytes:
    """`text` with a stable pseudonym in place of each base model's name that is not in `open_models`, the models that
    every tenant may call."""
    known = {name.encode() for name in (*open_models, REMOVED_MODELS)}

    def named(found: re.Match[bytes]) -> bytes:
        label, name = found.groups()
        if name in known:
            return found.group()
        digest = hashlib.blake2b(name, digest_size=6, key=secret, person=b"metrics").hexdigest()
        return b'%srestricted-%s"' % (label, digest.encode())

    return _MODEL.sub(named, text)


def adapters_in_use(report: StatusReport, names: Mapping[str, str]) -> bytes:
    """Prometheus text with the adapters that running and waiting requests use: their names in vLLM's metric, and their
    number. `names`: digest → name of adapters that every tenant may call; others are shown as PRIVATE."""
    registry = CollectorRegistry()
    info = Gauge(
        "vllm:lora_requests_info",
        f"Unix seconds of this state. Adapters that are not shared with all tenants are shown as {PRIVATE}.",
        ["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
        registry=registry,
    )
    running, waiting = (_listed(found, names) for found in (report.adapters_running, report.adapters_waiting))
    info.labels(str(report.adapters_step_max), running, waiting).set(time.time())
    text = "Adapters that requests use, by the state of the requests, and whether all tenants may call them."
    count = Gauge("laneway_adapters_in_use", text, ["state", "shared"], registry=registry)
    for state, digests in (("running", report.adapters_running), ("waiting", report.adapters_waiting)):
        shared = sum(digest in names for digest in digests)
        count.labels(state, "all").set(shared)
        count.labels(state, PRIVATE).set(len(digests) - shared)
    return generate_latest(registry)


def _listed(digests: Sequence[str], names: Mapping[str, str]) -> str:
    shown = sorted({names[digest] for digest in digests if digest in names})[:NAMES_MAX]
    return ",".join([*shown, PRIVATE] if any(digest not in names for digest in digests) else shown)
