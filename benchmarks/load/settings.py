"""The settings of one run of the load tool: server, rate, requests and duration, each with its limit.

Plain data, checked when made. It must never know how a request is sent, nor its outcome.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

CONCURRENCY_MAX = 4096
RATE_MAX = 20_000.0  # requests per second
SPEED_MAX = 100_000.0
REQUESTS_MAX = 1_000_000  # limit of one run, also of a run that is bounded by time
DURATION_S_MAX = 86_400.0
WARMUP_MAX = 10_000
PROMPT_TOKENS_MAX = 1_000_000
MAX_TOKENS_MAX = 1_000_000
MODELS_MAX = 10_000
TENANTS_MAX = 1_000
TIERS_MAX = 16
TIMEOUT_S_MAX = 3_600.0
OUTSTANDING_MAX = 20_000
SLO_MS_MAX = 3_600_000.0
ZIPF_MAX = 10.0
SCALE_MAX = 1_000.0
EXTRA_BYTES_MAX = 65_536
# Fields of a body that only the tool writes.
OWN_FIELDS = {"model", "messages", "prompt", "stream", "stream_options", "max_tokens", "temperature", "service_tier"}

Shape = Literal["distinct", "uniform", "zipf", "identical"]
Endpoint = Literal["chat", "completions"]


class BadSetting(ValueError):
    """A setting that cannot be used. `option`: its name on the command line."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(f"{option}: {message}")
        self.option = option
        self.message = message


class Popularity(msgspec.Struct, frozen=True):
    """How often each of n things is drawn: in turn, evenly, by a Zipf law of exponent `s`, or always the first."""

    shape: Shape
    s: float = 0.0

    def __str__(self) -> str:
        return f"zipf:{self.s:g}" if self.shape == "zipf" else self.shape

    @classmethod
    def parse(cls, text: str, option: str) -> Popularity:
        """`distinct`, `uniform`, `identical` or `zipf:S`. Raises BadSetting."""
        if text in ("distinct", "uniform", "identical"):
            return cls(text)  # type: ignore[arg-type]
        name, _, exponent = text.partition(":")
        try:
            s = float(exponent or "1")
        except ValueError:
            s = -1.0
        if name != "zipf" or not 0 < s <= ZIPF_MAX:
            raise BadSetting(
                option, f"{text!r} is none of distinct, uniform, identical, zipf:S with 0 < S <= {ZIPF_MAX:g}"
            )
        return cls("zipf", s)


class Tenant(msgspec.Struct, frozen=True):
    """A name for the report, and the tenant's key."""

    name: str
    key: str


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Exactly one of `concurrency` (closed loop), `rate` and `trace` (open loop) is set."""

    base_url: str
    tenants: tuple[Tenant, ...]
    models: tuple[str, ...] = ()  # empty: the models that /v1/models lists for each tenant
    endpoint: Endpoint = "chat"
    concurrency: Annotated[int, Meta(ge=1, le=CONCURRENCY_MAX)] | None = None
    rate: Annotated[float, Meta(gt=0, le=RATE_MAX)] | None = None  # requests per second, Poisson
    trace: Path | None = None
    speed: float = 1.0  # the trace's clock runs this many times faster
    requests: int | None = None  # number of measured requests
    duration_s: float | None = None
    warmup: int = 0  # requests before the measured ones
    seed: int = 0
    prompt_tokens: int = 200
    shared_prefix: int = 0  # tokens that begin every prompt
    max_tokens: int = 32
    prompt_scale: float = 1.0  # of the trace's lengths
    output_scale: float = 1.0
    prompt_cap: int = PROMPT_TOKENS_MAX  # of the trace's lengths, after the scale
    output_cap: int = MAX_TOKENS_MAX
    temperature: float = 0.0
    extra: dict[str, Any] = {}  # further fields of every body
    tiers: tuple[tuple[str, float], ...] = ()  # service_tier → weight; empty: the field is left out
    model_popularity: Popularity = Popularity("identical")
    tenant_popularity: Popularity = Popularity("distinct")
    timeout_s: float = 120.0
    outstanding_max: int = 4096  # open loop: over it an arrival is an error, never a delay
    slo_ttft_ms: float | None = None
    slo_itl_ms: float | None = None
    note: str = ""

    def check(self) -> None:
        """Raises BadSetting for combinations that no single option's range excludes."""
        modes = [self.concurrency is not None, self.rate is not None, self.trace is not None]
        if sum(modes) != 1:
            raise BadSetting("--concurrency / --rate / --trace", f"give exactly one of the three, not {sum(modes)}")
        if self.trace is None and self.requests is None and self.duration_s is None:
            raise BadSetting("--requests / --duration", "a run without an end is refused; give one of the two or both")
        lengths = (self.speed, self.prompt_scale, self.output_scale, self.prompt_cap, self.output_cap)
        if self.trace is None and lengths != (1.0, 1.0, 1.0, PROMPT_TOKENS_MAX, MAX_TOKENS_MAX):
            raise BadSetting("--speed / --*-scale / --*-cap", "mean something only with --trace")
        if not self.tenants:
            raise BadSetting("--api-key / --key / --demo", "at least one key is needed")
        if len(self.tenants) > TENANTS_MAX:
            raise BadSetting("--key", f"{len(self.tenants)} keys; the limit is {TENANTS_MAX}")
        for option, names in (("--key", [t.name for t in self.tenants]), ("--tier", [name for name, _ in self.tiers])):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise BadSetting(option, f"{twice[0]!r} is given twice")
        if len(self.tiers) > TIERS_MAX:
            raise BadSetting("--tier", f"{len(self.tiers)} tiers; the limit is {TIERS_MAX}")
        if len(self.models) > MODELS_MAX:
            raise BadSetting("--models", f"{len(self.models)} models; the limit is {MODELS_MAX}")
        own = sorted(OWN_FIELDS.intersection(self.extra))
        if own:
            raise BadSetting("--body", f"{own[0]!r} is written by the tool; use its own option")

    def described(self) -> dict[str, Any]:
        """The settings for the report, without the keys."""
        plain: dict[str, Any] = msgspec.to_builtins(self, enc_hook=str)
        plain["tenants"] = [tenant.name for tenant in self.tenants]
        plain["model_popularity"], plain["tenant_popularity"] = str(self.model_popularity), str(self.tenant_popularity)
        plain["tiers"] = dict(self.tiers)
        return plain
