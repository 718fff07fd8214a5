"""Structured logs as JSON lines, one line for each request. Prompts, answers and secrets are never logged."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec

from engine.protocol.log_output import JsonFormatter, handlers

# Probes and scrapers request these routes all the time, so their lines have the level DEBUG.
QUIET_ROUTES = frozenset({"/health/live", "/health/ready", "/metrics"})

SELDOM_S = 5.0

_requests = logging.getLogger("gateway.request")


class RequestRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The fields of a request's log line. `ttft_s`: from its arrival to its first token here, and the tier's targets at
    that moment. `itl_s`: the mean time between the tokens of its slowest text, as they arrived here; `pause_s`: the
    longest time between two of them."""

    request_id: str
    trace_id: str | None = None  # if the caller sent a traceparent, or the request is recorded as a trace
    method: str
    route: str = ""
    status: int = 0
    tenant: str | None = None
    key: str | None = None
    asked: str | None = None  # the request's `model`, if it is an alias or a fallback served the request
    model: str | None = None
    fallbacks: list[str] = []  # models that were tried after the first, in order
    adapter: str | None = None
    tier: str | None = None
    stream: bool = False
    guided: bool = False
    ignored: tuple[str, ...] = ()  # paths of the body's unknown fields
    texts: int = 1
    prompt_tokens: int = 0
    cached_tokens: int = 0
    shared_tokens: int = 0  # prompt tokens that further texts of the request found in the prefix cache
    completion_tokens: int = 0
    discarded_tokens: int = 0
    cost_picos: int = 0
    ttft_s: float | None = None
    ttft_target_s: float | None = None
    itl_s: float | None = None
    itl_target_s: float | None = None
    pause_s: float | None = None
    total_s: float | None = None
    ending: str | None = None
    replay_of: str | None = None  # the request whose answer was replayed
    code: str | None = None
    message: str | None = None


class TextTimes(msgspec.Struct, frozen=True):
    """One text at its engine. `submitted_s` and `ended_s`: seconds from the request's arrival. `queue_s` and `ttft_s`:
    the engine's own measure, from the text's arrival there until its first chunk and its first id; None: unknown, as of
    a text of several engines. `epochs`: of the engines that had it."""

    submitted_s: float
    ended_s: float
    queue_s: float | None = None
    ttft_s: float | None = None
    device_s: float = 0.0
    preemptions: int = 0
    recomputed_tokens: int = 0
    epochs: tuple[str, ...] = ()
    finish_reason: str | None = None


class RequestTimes(msgspec.Struct):
    """Moments of an admitted request, in seconds from its arrival; None: not reached."""

    hold_began_s: float | None = None
    hold_ended_s: float | None = None
    load_s: float | None = None  # the wait until an engine had the adapter; None: no adapter, or not reached
    # When an engine received the request, as predicted: until the weights are resident, 0 if they were; None: unknown.
    weights_s: float | None = None
    settle_began_s: float | None = None
    settle_ended_s: float | None = None
    operation: str = ""  # this and `texts`: of a request that ran and has a trace id
    texts: tuple[TextTimes, ...] = ()


class LineError(msgspec.Struct, frozen=True, kw_only=True):
    """The error that ended a request, as its caller got it. `message` and `param` None: they can quote the request.
    `limit_value`: in the unit that `limit_name` says."""

    status: int
    code: str
    message: str | None = None
    param: str | None = None
    limit_name: str | None = None
    limit_value: int | None = None
    retry_after_s: int | None = None


class LineCaller(msgspec.Struct, frozen=True):
    """Fields of the request's key that the row of a refused or failed request has and the log line has not."""

    project_id: str | None
    tier: str


class RequestLine:
    """A record, written when its last holder releases it: the HTTP exchange or, for an admitted request, its owner.
    `error`, `caller` and `model_asked` are not logged: they are stored of a request that was refused or failed."""

    __slots__ = ("_holders", "_on_end", "caller", "error", "model_asked", "record", "started", "times")

    def __init__(self, record: RequestRecord) -> None:
        self.record = record
        self.error: LineError | None = None
        self.caller: LineCaller | None = None
        self.model_asked: str | None = None
        self.started = time.monotonic()
        self.times = RequestTimes()
        self._holders = 1
        self._on_end: list[Callable[[], None]] = []

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call it when the last holder releases the record."""
        self._on_end.append(callback)

    def retain(self) -> None:
        self._holders += 1

    def release(self) -> None:
        self._holders -= 1
        assert self._holders >= 0, "released more often than held"
        if self._holders == 0:
            callbacks, self._on_end = self._on_end, []  # a callback may refer to the line: a reference cycle
            for callback in callbacks:
                callback()
            self.record.total_s = self.age_s()
            level = logging.DEBUG if self.record.route in QUIET_ROUTES else logging.INFO
            _requests.log(level, "request", extra={"fields": self.record})

    def age_s(self) -> float:
        return round(time.monotonic() - self.started, 6)


class ThrottledWarning:
    """A warning that may occur at every request. At most one line is written in `every_s`, with the number of warnings
    since the last line as `times`."""

    def __init__(
        self,
        logger: logging.Logger,
        event: str,
        *,
        every_s: float = SELDOM_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._event = event
        self._every_s = every_s
        self._clock = clock
        self._written_at: float | None = None
        self._count = 0

    def warn(self, **fields: object) -> None:
        self._count += 1
        now = self._clock()
        if self._written_at is None or now - self._written_at >= self._every_s:
            self._logger.warning(self._event, extra={"fields": {**fields, "times": self._count}})
            self._written_at, self._count = now, 0


def configure(level: int = logging.INFO) -> None:
    """Send every logger of this process to stderr, or to the file $LANEWAY_LOG_FILE. Called once, by `__main__`."""
    root = logging.getLogger()
    root.handlers[:] = handlers(JsonFormatter())
    root.setLevel(level)
    for name in ("uvicorn.error", "httpx2"):  # the second writes a line with the URL of each of its requests
        logging.getLogger(name).setLevel(logging.WARNING)
