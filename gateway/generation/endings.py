"""How a request or a text may end. The values are written into the database, the logs and the metrics."""

from __future__ import annotations

import enum
from typing import Literal

from billing.ledger.messages import GATEWAY_DEAD
from gateway.engines.engine import RefusalReason

Outcome = Literal["served", "refused", "failed"]


class EndingKind(enum.Enum):
    """Consequences of an ending for the request."""

    COMPLETED = enum.auto()  # the text is whole
    CALLER = enum.auto()  # the caller left, or may no longer read
    REFUSED = enum.auto()  # no engine ran it, and it made no token
    LOST = enum.auto()  # the engine failed or was lost while it ran
    GATEWAY = enum.auto()  # this gateway stopped or failed


class EndingCode(enum.Enum):
    """The ending of a request or a text: each has exactly one. They are in order of rank: of a request's texts without
    an error, the ending of the highest rank names the request's."""

    ENGINE_UNAVAILABLE = "engine_unavailable", EndingKind.REFUSED, True
    REFUSED_QUEUE_FULL = "engine_refused_queue_full", EndingKind.REFUSED, True
    REFUSED_MODEL_UNKNOWN = "engine_refused_model_unknown", EndingKind.REFUSED, True
    REFUSED_ADAPTER_UNKNOWN = "engine_refused_adapter_unknown", EndingKind.REFUSED
    REFUSED_TIER_UNKNOWN = "engine_refused_tier_unknown", EndingKind.REFUSED
    REFUSED_TOO_LONG = "engine_refused_too_long", EndingKind.REFUSED
    REFUSED_BAD_REQUEST = "engine_refused_bad_request", EndingKind.REFUSED
    REFUSED_STALE_EPOCH = "engine_refused_stale_epoch", EndingKind.REFUSED
    REFUSED_SHUTTING_DOWN = "engine_refused_shutting_down", EndingKind.REFUSED
    ENGINE_FAILED = "engine_failed", EndingKind.LOST
    ENGINE_LOST = "engine_lost", EndingKind.LOST
    INTERNAL_ERROR = "internal_error", EndingKind.GATEWAY
    LEDGER_UNAVAILABLE = "ledger_unavailable", EndingKind.GATEWAY
    SHUTDOWN = "shutdown", EndingKind.GATEWAY
    REVOKED = "revoked", EndingKind.CALLER
    CANCELLED = "cancelled", EndingKind.CALLER
    CLIENT_LEFT = "client_left", EndingKind.CALLER
    LENGTH = "length", EndingKind.COMPLETED
    STOP = "stop", EndingKind.COMPLETED

    kind: EndingKind
    may_fall_back: bool
    rank: int

    def __new__(cls, value: str, kind: EndingKind, may_fall_back: bool = False) -> EndingCode:
        """`may_fall_back`: the model is full or unavailable, so that another one may serve the request."""
        member = object.__new__(cls)
        member._value_ = value
        member.kind = kind
        member.may_fall_back = may_fall_back
        member.rank = len(cls.__members__)
        return member

    @property
    def refused(self) -> bool:
        return self.kind is EndingKind.REFUSED


REFUSAL_ENDINGS = {
    RefusalReason.QUEUE_FULL: EndingCode.REFUSED_QUEUE_FULL,
    RefusalReason.MODEL_UNKNOWN: EndingCode.REFUSED_MODEL_UNKNOWN,
    RefusalReason.ADAPTER_UNKNOWN: EndingCode.REFUSED_ADAPTER_UNKNOWN,
    RefusalReason.TIER_UNKNOWN: EndingCode.REFUSED_TIER_UNKNOWN,
    RefusalReason.TOO_LONG: EndingCode.REFUSED_TOO_LONG,
    RefusalReason.BAD_REQUEST: EndingCode.REFUSED_BAD_REQUEST,
    RefusalReason.STALE_EPOCH: EndingCode.REFUSED_STALE_EPOCH,
    RefusalReason.SHUTTING_DOWN: EndingCode.REFUSED_SHUTTING_DOWN,
}

# The endings of requests with a hold that count as refused: the caller could have avoided them.
REFUSED_ENDINGS: tuple[str, ...] = tuple(
    ending.value for ending in (EndingCode.REFUSED_TOO_LONG, EndingCode.REFUSED_BAD_REQUEST, EndingCode.REVOKED)
)
# The endings of requests with a hold that count as failed: an engine or a gateway could not serve them.
FAILED_ENDINGS: tuple[str, ...] = (
    *(
        ending.value
        for ending in EndingCode
        if ending.kind in (EndingKind.REFUSED, EndingKind.LOST, EndingKind.GATEWAY)
        and ending.value not in REFUSED_ENDINGS
    ),
    GATEWAY_DEAD,
)


def outcome_of(ending: str) -> Outcome:
    """The outcome of a request with a hold, by the hold's ending."""
    if ending in FAILED_ENDINGS:
        return "failed"
    return "refused" if ending in REFUSED_ENDINGS else "served"
