"""Reads `laneway.toml` into typed, checked values with absolute paths, and writes the engine's own configuration.

This module checks sections against each other; `settings` checks each section alone. Nothing here connects to the
database, the network or the engine.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

import gateway as package
from engine.protocol.config import ConfigSection as Section
from engine.protocol.tls import CertificateFiles
from gateway.config.batches_settings import BatchesSection
from gateway.config.billing_settings import BillingSection, ConnectorSection
from gateway.config.every_fault import find_faults
from gateway.config.files_settings import FilesSection
from gateway.config.private_files import close_file, make_private, write_private
from gateway.config.settings import (
    CERTIFICATE_SETTINGS,
    DEFAULT_MODELS,
    DEFAULT_TIERS,
    AdaptersSection,
    AdministrationSection,
    AliasSection,
    EngineSection,
    ExportsSection,
    FleetSection,
    GatewaySection,
    JournalSection,
    LeaseSection,
    LimitsSection,
    ListedEngineSection,
    ModelSection,
    RedisSection,
    ResponsesSection,
    RetentionSection,
    TelemetrySection,
    TenantLimitsSection,
    TierSection,
    WebhooksSection,
    is_tls_address,
    safe_url,
)
from gateway.config.sign_in import OidcSection

DEFAULT_FILE = "laneway.toml"
_PACKAGE = Path(package.__path__[0]).resolve()
# Settings of earlier versions, and what replaces each.
REMOVED_SETTINGS = {
    "lease.audit_s": "set lease.expire_s, webhooks.poll_s or adapters.upkeep_s instead",
}
# sockaddr_un.sun_path holds 108 bytes with the closing zero.
SOCKET_PATH_BYTES_MAX = 107
OIDC_FILES = ("client_secret_file", "authority_file")
# Settings of [engine] for the supervisor, or that the engine has as arguments.
NOT_OF_ENGINE_FILE = ("socket", "listen", "lease_s", "streams_max", "still_s_max")


class ConfigError(Exception):
    """The configuration is invalid. The message has one line for each fault, with the field and the limit."""


class Config(Section, frozen=True, kw_only=True):
    """The whole of laneway.toml. From `load_gateway_config` and `parse_gateway_config`, paths are absolute and
    defaults that depend on other settings are filled in."""

    gateway: GatewaySection = GatewaySection()
    engine: EngineSection = EngineSection()
    models: Annotated[tuple[ModelSection, ...], Meta(max_length=64)] = ()  # none: DEFAULT_MODELS
    aliases: Annotated[tuple[AliasSection, ...], Meta(max_length=256)] = ()
    tiers: Annotated[tuple[TierSection, ...], Meta(min_length=1, max_length=16)] = DEFAULT_TIERS
    limits: LimitsSection = LimitsSection()
    tenant_limits: TenantLimitsSection = TenantLimitsSection()
    administration: AdministrationSection = AdministrationSection()
    redis: RedisSection = RedisSection()
    lease: LeaseSection = LeaseSection()
    journal: JournalSection = JournalSection()
    exports: ExportsSection = ExportsSection()
    responses: ResponsesSection = ResponsesSection()
    files: FilesSection = FilesSection()
    batches: BatchesSection = BatchesSection()
    retention: RetentionSection = RetentionSection()
    webhooks: WebhooksSection = WebhooksSection()
    telemetry: TelemetrySection = TelemetrySection()
    billing: BillingSection = BillingSection()
    connectors: Annotated[tuple[ConnectorSection, ...], Meta(max_length=16)] = ()
    adapters: AdaptersSection = AdaptersSection()
    oidc: OidcSection = OidcSection()
    fleet: FleetSection = FleetSection()
    engines: Annotated[tuple[ListedEngineSection, ...], Meta(max_length=1024)] = ()  # none: the engine of [engine]

    def __post_init__(self) -> None:
        _unique("models.name", [model.name for model in self.models])
        _unique("connectors.name", [connector.name for connector in self.connectors])
        _unique("engines.name", [engine.name for engine in self.engines])
        _unique("engines.address", [engine.address for engine in self.engines])
        if self.engines and self.fleet.driver != "static":
            raise ValueError(f"engines: [fleet] driver is {self.fleet.driver!r}, which finds the engines itself")
        _unique("tiers.name", [tier.name for tier in self.tiers])
        _unique("tiers.service_tier", [tier.service_tier for tier in self.tiers])
        floors = sum(tier.floor for tier in self.tiers)
        if floors > 1:
            each = ", ".join(f"{tier.name} {tier.floor:g}" for tier in self.tiers)
            raise ValueError(f"tiers.floor: all floors add up to {floors:g} ({each}); the limit is 1, the whole arena")
        _check_targets(self.tiers)
        if self.batches.tier and self.tier(self.batches.tier) is None:
            tiers = ", ".join(tier.name for tier in self.tiers)
            raise ValueError(f"batches.tier: there is no tier {self.batches.tier!r}; the tiers are {tiers}")
        _check_names(self)
        if self.certificates is None:
            remote = [f"engines.address {engine.address}" for engine in self.engines if is_tls_address(engine.address)]
            if self.fleet.driver == "kubernetes":
                remote.append("fleet.driver kubernetes")
            if self.fleet.driver == "ray" and self.fleet.ray.port:
                remote.append(f"fleet.ray.port {self.fleet.ray.port}")
            if needed := [f"engine.listen {self.engine.listen}", *remote] if self.engine.listen else remote:
                raise ValueError(f"{needed[0]} needs fleet.{', fleet.'.join(CERTIFICATE_SETTINGS)}, for mutual TLS")

    @property
    def data_dir(self) -> Path:
        return Path(self.gateway.data_dir)

    @property
    def base_url(self) -> str:
        """The API's address for clients on this host; a wildcard address becomes the loopback address."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.gateway.host, self.gateway.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.gateway.port}/v1"

    @property
    def database_url(self) -> str:
        return self.gateway.database_url

    @property
    def socket_path(self) -> Path:
        return Path(self.engine.socket)

    @property
    def certificates(self) -> CertificateFiles | None:
        """The certificates with which engines and gateways of several hosts authenticate each other; None without."""
        fleet = self.fleet
        if not fleet.certificate_file:
            return None
        return CertificateFiles(Path(fleet.certificate_file), Path(fleet.key_file), Path(fleet.authority_file))

    @property
    def adapters_dir(self) -> Path:
        """Root of the adapter store, whose directories are named by SHA-256 digest."""
        return self.data_dir / "adapters"

    @property
    def slab_item_bytes(self) -> int:
        """Bytes per parameter in an adapter's slab file; 0 without. All models of an engine have one dtype."""
        if not self.adapters.slabs:
            return 0
        return 4 if any(model.dtype == "float32" for model in self.models) else 2

    @property
    def upload_free_min_bytes(self) -> int:
        """Free disk bytes below which uploads are refused: more than the minimum below which requests are refused."""
        return self.journal.disk_free_min_bytes + self.adapters.disk_free_min_bytes

    @property
    def models_dir(self) -> Path:
        """The folder of models that are added at run time."""
        return Path(self.gateway.models_dir)

    @property
    def journal_dir(self) -> Path:
        """Journal files of this host's gateways, including gateways that have ended."""
        return self.data_dir / "journal"

    @property
    def console_dir(self) -> Path:
        """The built files of the console; the directory may be missing."""
        return Path(self.gateway.console_dir)

    @property
    def batches_tier(self) -> str:
        """The name of the tier at which lines of batches run."""
        return self.batches.tier or self.tiers[-1].name

    @property
    def exports_dir(self) -> Path:
        return self.data_dir / "exports"

    @property
    def files_dir(self) -> Path:
        """Encrypted contents of files, unless `files.store` names another store."""
        return self.data_dir / "files"

    @property
    def audit_checkpoints_file(self) -> Path:
        """Signed checkpoints of the audit log that this host made, one JSON object a line, outside the database."""
        return self.data_dir / "audit-checkpoints.jsonl"

    @property
    def erasures_file(self) -> Path:
        """Erased tenants, one JSON object a line, outside the database."""
        return Path(self.retention.erasures_file)

    def model(self, name: str) -> ModelSection | None:
        return next((model for model in self.models if model.name == name), None)

    def tier(self, name: str) -> TierSection | None:
        return next((tier for tier in self.tiers if tier.name == name), None)


def _unique(field: str, values: list[str]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{field} must be unique; {value!r} occurs {values.count(value)} times")


def _check_targets(tiers: Sequence[TierSection]) -> None:
    """Check that the targets of first tokens and queues are not shorter than a step may take. A request waits for the
    step in flight, and a step may be as long as the strictest inter-token target. Raises ValueError."""
    strictest = min(tiers, key=lambda tier: tier.inter_token_ms)
    for index, tier in enumerate(tiers):
        for field in ("ttft_base_ms", "queue_target_ms"):
            target = getattr(tier, field)
            if target is not None and target < strictest.inter_token_ms:
                raise ValueError(
                    f"tiers[{index}].{field} is {target:g} ms; it must be at least {strictest.inter_token_ms:g} ms, "
                    f"the length of a step: the lowest inter_token_ms, of tier {strictest.name!r}"
                )


def _check_names(config: Config) -> None:
    """Check that no two models and aliases have the same name, and that aliases and fallbacks name existing models.
    Raises ValueError."""
    models = [model.name for model in config.models or DEFAULT_MODELS]
    taken = dict.fromkeys(models, "a model")
    names = [(f"models[{index}].aliases", name) for index, model in enumerate(config.models) for name in model.aliases]
    names += [(f"aliases[{index}].name", alias.name) for index, alias in enumerate(config.aliases)]
    for field, name in names:
        if name in taken:
            raise ValueError(f"{field}: {name!r} is already the name of {taken[name]}")
        taken[name] = "an alias"
    named: list[tuple[str, str]] = []
    for index, model in enumerate(config.models):
        field = f"models[{index}].fallbacks"
        _check_distinct(field, model.fallbacks)
        if model.name in model.fallbacks:
            raise ValueError(f"{field}: {model.name!r} cannot be a fallback of itself")
        named += [(field, name) for name in model.fallbacks]
    for index, alias in enumerate(config.aliases):
        field = f"aliases[{index}]"
        _check_distinct(f"{field}.models", [target.model for target in alias.models])
        _check_distinct(f"{field}.fallbacks", alias.fallbacks)
        if not any(target.weight for target in alias.models):
            raise ValueError(f"{field}.models: every weight is 0; {alias.name!r} needs a model with a weight over 0")
        named += [(f"{field}.models[{number}].model", target.model) for number, target in enumerate(alias.models)]
        named += [(f"{field}.fallbacks", name) for name in alias.fallbacks]
    for field, name in named:
        if name not in models:
            raise ValueError(f"{field}: there is no model {name!r}; the models are {', '.join(models)}")


def _check_distinct(field: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{field}: {name!r} occurs {names.count(name)} times")


def load_gateway_config(file: Path | None = None, environ: Mapping[str, str] = os.environ) -> Config:
    """The configuration of `file`, else of `$LANEWAY_CONFIG`, else of ./laneway.toml, else the defaults.

    LANEWAY_HOST, LANEWAY_PORT, LANEWAY_METRICS_ADDRESS, LANEWAY_DATABASE_URL and LANEWAY_REDIS_URL override the file;
    the last two also as LANEWAY_…_URL_FILE, the path of a file with the URL. Relative paths are taken from the file's
    folder. Raises ConfigError."""
    chosen = locate(file, environ)
    if chosen is None:
        return parse_gateway_config(b"", Path.cwd(), "the defaults", environ)
    try:
        data = chosen.read_bytes()
    except OSError as error:
        raise ConfigError(f"{chosen}: {error.strerror}") from error
    return parse_gateway_config(data, chosen.resolve().parent, str(chosen), environ)


def locate(file: Path | None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The file that `load_gateway_config` reads; None: no file, so the defaults are used."""
    if file is None and environ.get("LANEWAY_CONFIG"):
        return Path(environ["LANEWAY_CONFIG"])
    if file is None and Path(DEFAULT_FILE).exists():
        return Path(DEFAULT_FILE)
    return file


def parse_gateway_config(data: bytes, base: Path, source: str, environ: Mapping[str, str]) -> Config:
    """The configuration in the TOML `data`. Relative paths begin at `base`; `source` names the file in messages.
    Raises ConfigError."""
    try:
        settings = tomllib.loads(data.decode())
        _check_removed(settings, source)
        config = msgspec.convert(settings, Config)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source}: not TOML: {error}") from error
    except msgspec.ValidationError as error:
        faults = find_faults(Config, settings)
        raise ConfigError("\n".join(f"{source}: {fault}" for fault in faults)) from error
    return _resolved(_overridden(config, environ), base.absolute())


def _check_removed(settings: Mapping[str, Any], source: str) -> None:
    for path, advice in REMOVED_SETTINGS.items():
        section, _, name = path.partition(".")
        if isinstance(found := settings.get(section), dict) and name in found:
            raise ConfigError(f"{source}: {path} was removed; {advice}")


def _overridden(config: Config, environ: Mapping[str, str]) -> Config:
    gateway = config.gateway
    if host := environ.get("LANEWAY_HOST"):
        gateway = msgspec.structs.replace(gateway, host=host)
    if port := environ.get("LANEWAY_PORT"):
        if not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
            raise ConfigError(f"LANEWAY_PORT is {port!r}; it must be an integer from 1 to 65535")
        gateway = msgspec.structs.replace(gateway, port=int(port))
    if url := _secret_of(environ, "LANEWAY_DATABASE_URL"):
        gateway = msgspec.structs.replace(gateway, database_url=url)
    if address := environ.get("LANEWAY_METRICS_ADDRESS"):
        try:
            gateway = msgspec.structs.replace(gateway, metrics_address=address)
        except ValueError as error:
            raise ConfigError(f"LANEWAY_METRICS_ADDRESS: {error}") from error
    redis = config.redis
    if url := _secret_of(environ, "LANEWAY_REDIS_URL"):
        try:
            redis = RedisSection(url=url)
        except ValueError as error:
            raise ConfigError(f"LANEWAY_REDIS_URL: {error}") from error
    return msgspec.structs.replace(config, gateway=gateway, redis=redis)


def _secret_of(environ: Mapping[str, str], name: str) -> str:
    """The value of a variable, else the text of the file that `<name>_FILE` names; "" without either. The variable has
    priority, because child processes receive it. Raises ConfigError when the file cannot be read."""
    file = environ.get(f"{name}_FILE")
    if environ.get(name) or not file:
        return environ.get(name, "")
    try:
        return Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}_FILE: {file}: {getattr(error, 'strerror', None) or error}") from error


def _resolved(config: Config, base: Path) -> Config:
    """Make paths absolute and fill in settings that are empty. Raises ConfigError."""
    gateway, engine = config.gateway, config.engine
    data_dir = (base / gateway.data_dir).absolute()
    socket = str(base / engine.socket if engine.socket else data_dir / "engine.sock")
    if len(os.fsencode(socket)) > SOCKET_PATH_BYTES_MAX:
        raise ConfigError(
            f"engine.socket: the path {socket} has {len(os.fsencode(socket))} bytes; "
            f"the system's limit for a Unix socket is {SOCKET_PATH_BYTES_MAX}"
        )
    models = config.models or DEFAULT_MODELS
    return msgspec.structs.replace(
        config,
        gateway=msgspec.structs.replace(
            gateway,
            data_dir=str(data_dir),
            database_url=_database_url(gateway.database_url, base, data_dir),
            console_dir=str(base / gateway.console_dir if gateway.console_dir else default_console_directory()),
            secret_file=str(base / gateway.secret_file if gateway.secret_file else data_dir / "server.secret"),
            models_dir=str(base / gateway.models_dir if gateway.models_dir else data_dir / "models"),
        ),
        engine=msgspec.structs.replace(engine, socket=socket),
        retention=msgspec.structs.replace(
            config.retention,
            erasures_file=str(
                base / config.retention.erasures_file if config.retention.erasures_file else data_dir / "erasures.jsonl"
            ),
        ),
        fleet=msgspec.structs.replace(
            config.fleet,
            **{name: str(base / file) for name in CERTIFICATE_SETTINGS if (file := getattr(config.fleet, name))},
        ),
        telemetry=msgspec.structs.replace(
            config.telemetry,
            headers_file=str(base / file) if (file := config.telemetry.headers_file) else "",
        ),
        connectors=tuple(
            msgspec.structs.replace(connector, key_file=str(base / connector.key_file))
            for connector in config.connectors
        ),
        oidc=msgspec.structs.replace(
            config.oidc, **{name: str(base / file) for name in OIDC_FILES if (file := getattr(config.oidc, name))}
        ),
        models=tuple(
            msgspec.structs.replace(
                model, path=str(base / model.path if model.path else data_dir / "models" / model.name)
            )
            for model in models
        ),
    )


def default_console_directory() -> Path:
    """The console's built files: in the installed package, else where a checkout builds them."""
    inside = _PACKAGE / "admin_ui"
    return inside if inside.is_dir() else _PACKAGE.parent / "admin_ui" / "dist"


def _database_url(url: str, base: Path, data_dir: Path) -> str:
    """Make SQLite's file absolute, and name PostgreSQL's installed driver. Raises ConfigError."""
    if not url:
        return f"sqlite:///{data_dir / 'laneway.db'}"
    kind, colon, rest = url.partition("://")
    if kind == "sqlite" and colon:
        if rest in ("", "/", "/:memory:"):
            raise ConfigError("gateway.database_url: SQLite needs a file; usage and invoices in memory would be lost")
        return f"sqlite:///{(base / rest.removeprefix('/')).absolute()}"
    if kind in ("postgresql", "postgres", "postgresql+psycopg") and colon:
        return f"postgresql+psycopg://{rest}"
    raise ConfigError(f"gateway.database_url: the scheme {kind!r} is not supported; use sqlite:/// or postgresql://")


def as_dict(config: Config) -> dict[str, Any]:
    """The configuration as plain data, without passwords."""
    data: dict[str, Any] = msgspec.to_builtins(config)
    data["gateway"]["database_url"] = safe_url(config.database_url)
    data["redis"]["url"] = safe_url(config.redis.url)
    return data


class EngineModel(Protocol):
    """The fields of a base model that are written into the engine's configuration."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def quantize(self) -> str: ...
    @property
    def kv_dtype(self) -> str: ...
    @property
    def context_tokens(self) -> int | None: ...
    @property
    def pinned(self) -> bool: ...


def write_engine_file(config: Config, models: Sequence[EngineModel] | None = None) -> Path:
    """Write the engine's configuration (`engine.protocol.config.EngineConfig`) to <data_dir>/engine.json. `models`
    replace the models of `config`. Returns the path."""
    engine: dict[str, Any] = msgspec.to_builtins(config.engine)
    for name in NOT_OF_ENGINE_FILE:
        del engine[name]
    fields = ("name", "path", "dtype", "quantize", "kv_dtype", "context_tokens", "pinned")
    served: Sequence[EngineModel] = config.models if models is None else models
    engine["models"] = [{field: getattr(model, field) for field in fields} for model in served]
    engine["tiers"] = msgspec.to_builtins(config.tiers)
    make_private(config.data_dir)
    path = config.data_dir / "engine.json"
    write_private(path, msgspec.json.format(msgspec.json.encode(engine)).decode(), replace=True)
    if config.certificates is not None:
        close_file(config.certificates.key)
    return path


def engine_arguments(config: Config) -> list[str]:
    """The arguments of `python -m engine` that say where it listens beside its socket, and for whom."""
    engine = config.engine
    arguments = ["--lease-s", f"{engine.lease_s:g}", "--streams-max", str(engine.streams_max)]
    if engine.listen:
        files = config.certificates
        assert files is not None, "the configuration was not checked"
        arguments += ["--listen", engine.listen, "--certificate", str(files.certificate)]
        arguments += ["--key", str(files.key), "--authority", str(files.authority)]
    return arguments
