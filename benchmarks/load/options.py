"""The command line of the load tool: options with their ranges, and the settings made of them.

Bad arguments end here, in a sentence that names the option and the limit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click
import msgspec

from benchmarks.load import settings as limits
from benchmarks.load.settings import BadSetting, Popularity, Settings, Tenant

Command = TypeVar("Command", bound=Callable[..., Any])
FILE = click.Path(dir_okay=False, path_type=Path)
DEMO_BYTES_MAX = 1024 * 1024


class Number(click.FloatRange):
    """A range that excludes nan, although nan compares with nothing."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


OPTIONS = [
    # where
    click.option("--base-url", metavar="URL", help="An OpenAI-compatible server, e.g. http://127.0.0.1:8080/v1."),
    click.option("--demo", type=FILE, help="The server and the tenants of this file, which `make run` writes."),
    click.option("--api-key", metavar="KEY", envvar="LANEWAY_BENCH_API_KEY", show_envvar=True, help="One key for all."),
    click.option("--key", "keys", metavar="TENANT=KEY", multiple=True, help="One key of several; may be repeated."),
    click.option("--endpoint", type=click.Choice(["chat", "completions"]), default="chat", show_default=True),
    # how fast
    click.option(
        "--concurrency", type=click.IntRange(1, limits.CONCURRENCY_MAX), help="Closed loop: requests in flight."
    ),
    click.option(
        "--rate",
        type=Number(0, limits.RATE_MAX, min_open=True),
        help="Open loop: the rate of Poisson arrivals, a second.",
    ),
    click.option("--trace", type=FILE, help="Open loop: arrivals and lengths of a CSV (TIMESTAMP, ContextTokens, …)."),
    click.option(
        "--speed",
        type=Number(0, limits.SPEED_MAX, min_open=True),
        default=1.0,
        show_default=True,
        help="The factor by which the trace's clock runs faster.",
    ),
    # how long
    click.option("--requests", type=click.IntRange(1, limits.REQUESTS_MAX), help="Requests to send in all."),
    click.option(
        "--duration",
        "duration_s",
        metavar="SECONDS",
        type=Number(0, limits.DURATION_S_MAX, min_open=True),
        help="Send for this time, then let requests in flight finish.",
    ),
    click.option(
        "--warmup",
        type=click.IntRange(0, limits.WARMUP_MAX),
        default=0,
        show_default=True,
        help="Requests before the measured ones.",
    ),
    click.option(
        "--timeout",
        "timeout_s",
        metavar="SECONDS",
        type=Number(0, limits.TIMEOUT_S_MAX, min_open=True),
        default=120.0,
        show_default=True,
        help="Of one request.",
    ),
    click.option(
        "--max-outstanding",
        "outstanding_max",
        type=click.IntRange(1, limits.OUTSTANDING_MAX),
        default=4096,
        show_default=True,
        help="Open loop: over it an arrival is an error, never delayed.",
    ),
    # of what
    click.option("--seed", type=int, default=0, show_default=True, help="The same seed makes the same requests."),
    click.option(
        "--prompt-tokens",
        type=click.IntRange(1, limits.PROMPT_TOKENS_MAX),
        default=200,
        show_default=True,
        help="The approximate number, without the chat template's tokens.",
    ),
    click.option(
        "--shared-prefix",
        type=click.IntRange(0, limits.PROMPT_TOKENS_MAX),
        default=0,
        show_default=True,
        help="The number of further tokens before them, the same for all.",
    ),
    click.option("--max-tokens", type=click.IntRange(1, limits.MAX_TOKENS_MAX), default=32, show_default=True),
    click.option("--prompt-scale", type=Number(0, limits.SCALE_MAX, min_open=True), default=1.0, show_default=True),
    click.option(
        "--output-scale",
        type=Number(0, limits.SCALE_MAX, min_open=True),
        default=1.0,
        show_default=True,
        help="With --trace: its lengths times this …",
    ),
    click.option("--prompt-cap", type=click.IntRange(1, limits.PROMPT_TOKENS_MAX), default=limits.PROMPT_TOKENS_MAX),
    click.option(
        "--output-cap",
        type=click.IntRange(1, limits.MAX_TOKENS_MAX),
        default=limits.MAX_TOKENS_MAX,
        help="… and at most this.",
    ),
    click.option("--temperature", type=Number(0, 2), default=0.0, show_default=True),
    click.option("--body", metavar="JSON", help="Further fields of every body, e.g. '{\"ignore_eos\": true}'."),
    click.option(
        "--tier",
        "tiers",
        metavar="NAME[=WEIGHT]",
        multiple=True,
        help="A service_tier and its share; may be repeated. Without it the field is left out.",
    ),
    click.option("--models", metavar="A,B,…", help="Most popular first. Without it: what /models lists for each key."),
    click.option(
        "--popularity",
        default="identical",
        show_default=True,
        help="Of the models: identical (the first alone), distinct (in turn), uniform, zipf:S.",
    ),
    click.option("--tenant-popularity", default="distinct", show_default=True, help="Of the keys, likewise."),
    # against which target
    click.option("--slo-ttft-ms", type=Number(0, limits.SLO_MS_MAX, min_open=True), help="Goodput: TTFT at most this."),
    click.option(
        "--slo-itl-ms",
        type=Number(0, limits.SLO_MS_MAX, min_open=True),
        help="Goodput: a request's mean time per output token at most this.",
    ),
    click.option("--note", default="", help="Anything; it stands in the report."),
]


def run_options(command: Command) -> Command:
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def settings_of(given: dict[str, Any]) -> Settings:
    """The settings of the options' values. Raises BadSetting."""
    base_url, tenants = _where(given.pop("base_url"), given.pop("demo"), given.pop("api_key"), given.pop("keys"))
    settings = Settings(
        base_url=base_url,
        tenants=tenants,
        models=_models(given.pop("models")),
        tiers=tuple(_tier(text) for text in given.pop("tiers")),
        extra=_extra(given.pop("body")),
        model_popularity=Popularity.parse(given.pop("popularity"), "--popularity"),
        tenant_popularity=Popularity.parse(given.pop("tenant_popularity"), "--tenant-popularity"),
        **given,
    )
    settings.check()
    return settings


class _Demo(msgspec.Struct):
    """The fields of the demo's file that are read."""

    base_url: str
    keys: dict[str, str]


def _where(
    base_url: str | None, demo: Path | None, api_key: str | None, keys: tuple[str, ...]
) -> tuple[str, tuple[Tenant, ...]]:
    tenants = [_tenant(text) for text in keys]
    if api_key:
        tenants.append(Tenant("default", api_key))
    if demo is not None:
        described = _read_demo(demo)
        base_url = base_url or described.base_url
        tenants = tenants or [Tenant(name, key) for name, key in described.keys.items()]
    if base_url is None:
        raise BadSetting("--base-url", "say which server: --base-url URL, or --demo FILE of a running `make run`")
    return _base_url(base_url), tuple(tenants)


def _base_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise BadSetting("--base-url", f"{text!r} is not an http or https URL such as http://127.0.0.1:8080/v1")
    return text.rstrip("/") if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/v1"


def _read_demo(path: Path) -> _Demo:
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(DEMO_BYTES_MAX), type=_Demo)
    except OSError as error:
        raise BadSetting("--demo", f"{path}: {error.strerror}; it is there while `make run` runs") from error
    except msgspec.MsgspecError as error:
        raise BadSetting("--demo", f"{path} is not what `make run` writes: {error}") from error


def _tenant(text: str) -> Tenant:
    name, mark, key = text.partition("=")
    if not (name and mark and key):
        raise BadSetting("--key", "write TENANT=KEY, e.g. acme=lw_live_…")
    return Tenant(name, key)


def _tier(text: str) -> tuple[str, float]:
    name, _, weight_text = text.partition("=")
    try:
        weight = float(weight_text or "1")
    except ValueError:
        weight = 0.0
    if not name or not 0 < weight <= 1e6:
        raise BadSetting("--tier", f"{text!r} is not NAME or NAME=WEIGHT with 0 < WEIGHT <= 1000000")
    return name, weight


def _models(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise BadSetting("--models", f"{text!r} has an empty name")
    return names


def _extra(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    if len(text) > limits.EXTRA_BYTES_MAX:
        raise BadSetting("--body", f"{len(text)} characters; the limit is {limits.EXTRA_BYTES_MAX}")
    try:
        extra = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadSetting("--body", f"not JSON: {error}") from error
    if not isinstance(extra, dict):
        raise BadSetting("--body", "not a JSON object")
    return extra
