"""The ledger's requests and answers: plain immutable data. Moments in microseconds UTC, money in picos."""

from __future__ import annotations

from typing import Literal

import msgspec

from billing.accounts.prices import REQUEST_TOKENS_MAX, Operation

RefusalCode = Literal[
    "tenant_budget_exceeded",
    "project_budget_exceeded",
    "key_budget_exceeded",
    "end_user_budget_exceeded",
    "price_unknown",
]
Outcome = Literal["settled", "voided", "expired", "unknown", "journaled"]
GATEWAY_DEAD = "gateway_dead"  # the ending of a hold whose gateway died


class HoldRequest(msgspec.Struct, frozen=True):
    """A hold for one request. `adapter`: the adapter's id, unique over all tenants; None for the base model.
    `max_tokens` ≥ 1 is the request's limit over all its texts; the grant may be lower, but not below `min_tokens`.
    `first_key_id`, of a rotated key: the first key of its chain of rotations; None if the key replaced no other key.
    All keys of the chain share their budgets. `tag_set_id`: of the key's present tags, which the usage row copies.
    `end_user`: the digest of the end user that the request names, unique over all tenants; None: it names none.
    `operation`: the prompt of an embedding has a price of its own, and `max_tokens` is 0."""

    request_id: str
    tenant_id: str
    key_id: str
    model: str
    adapter: str | None
    tier: str
    prompt_tokens: int
    max_tokens: int
    project_id: str | None = None
    min_tokens: int = 1
    first_key_id: str | None = None
    tag_set_id: str | None = None
    end_user: str | None = None
    operation: Operation = "text"

    @property
    def scope_ids(self) -> tuple[str, ...]:
        """The ids of the scopes whose budgets are charged: the tenant, the project, and the key (`first_key_id` of a
        rotated key)."""
        project = () if self.project_id is None else (self.project_id,)
        return (self.tenant_id, *project, self.first_key_id or self.key_id)

    def check(self) -> None:
        assert self.prompt_tokens >= 0
        assert 0 <= self.min_tokens <= self.max_tokens
        assert self.prompt_tokens + self.max_tokens <= REQUEST_TOKENS_MAX


class HoldMove(msgspec.Struct, frozen=True):
    """Moves the open hold with the id of `request` to the model, adapter and size of `request`."""

    request: HoldRequest

    @property
    def request_id(self) -> str:
        return self.request.request_id


class Held(msgspec.Struct, frozen=True):
    """A committed hold. `max_tokens`: the grant; lower than the request's `max_tokens` if a budget does not cover
    it."""

    request_id: str
    max_tokens: int
    hold_picos: int
    price_version_id: str


class HoldRefused(msgspec.Struct, frozen=True):
    """The hold was refused. `resets_at`: the end of the budget's window; None if waiting does not help. `nothing_left`:
    the posted usage alone, without open holds, leaves too little for any request until then. `budget` and `limit`:
    scope, unit and period of the budget, for example tenant_money_month, and its limit in tokens or picos; "" and 0
    without a budget."""

    request_id: str
    code: RefusalCode
    message: str
    resets_at: int | None
    nothing_left: bool = False
    budget: str = ""
    limit: int = 0


class Recompute(msgspec.Struct, frozen=True):
    """The cost of one tier's preemptions of a request: the recomputed tokens and their part of the steps' seconds."""

    tokens: int
    device_s: float


ASKED_CHARS_MAX = 128


class LineOutput(msgspec.Struct, frozen=True):
    """The output of one line of a batch, encrypted. `epoch`: of the worker's lease under which the line ran; if the
    lease has another epoch by then, the output is not recorded. `is_error`: it belongs in the error file. `code`: of
    the error."""

    batch_id: str
    line: int
    epoch: int
    sealed: bytes
    is_error: bool = False
    code: str | None = None


class Settlement(msgspec.Struct, frozen=True, kw_only=True, tag="settlement"):
    """The usage of a held request. `prompt_tokens` includes `cached_tokens`; `completion_tokens` are billed, and made =
    billed + discarded. Tier, model and adapter are the hold's. `device_s` excludes the seconds in `recomputed`, whose
    keys are the tiers that caused them. `queue_device_s`: of `queue_s`, the seconds in which the device computed for
    other requests, by their tier. `age_s`: from the request's arrival at the gateway until this ending, by the
    gateway's own clock; `ttft_s` is measured from the arrival too. `age_s` None: unknown, for example because the
    gateway died. `before_hold_s`: seconds from the arrival until the hold was requested; only journals of an earlier
    version have it. `finished_at` None: the time of the settlement. `engines`: made_tokens by the epoch of the engine
    process that made them, the newest attempt's last; empty if they are unknown, as in a journal of an earlier version.
    `trace_id`: of the request's trace, hexadecimal; None without one. `ttft_target_s`, `itl_target_s`: the targets in
    force at the first token, for this prompt; None: no token arrived at the gateway, or a line of a batch. `itl_s`: the
    mean time between tokens of the slowest text, None without two tokens; `pause_s`: the longest time between two of
    its tokens. `submitted_s`: from the arrival until an engine received the request; `load_s`: of that, the wait until
    the engine had the adapter; `weights_s`: as predicted then, until the model's weights are resident; None: unknown.
    `asked`: the model that the request named, if an alias or a fallback replaced it, at most ASKED_CHARS_MAX.
    `adapter_version`: None without an adapter. `operation`: as the hold's; an embedding has no completion token, and no
    cached one: all its tokens have one price. `batch_id`: of a line of a batch. `output`: recorded in the settlement's
    transaction (`billing.ledger.outputs`); never in a journal."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    made_tokens: int
    ending: str  # stop, length, client_left, engine_failed, …
    discarded_tokens: int = 0
    discard_reason: str | None = None
    age_s: float | None = None
    before_hold_s: float = 0.0
    queue_s: float = 0.0
    queue_device_s: dict[str, float] = {}
    ttft_s: float = 0.0
    device_s: float = 0.0
    preemptions: int = 0
    recomputed_tokens: int = 0
    recomputed: dict[str, Recompute] = {}
    swapped_tokens: int = 0
    finished_at: int | None = None
    engines: dict[str, int] = {}
    trace_id: str | None = None
    ttft_target_s: float | None = None
    itl_target_s: float | None = None
    itl_s: float | None = None
    pause_s: float | None = None
    submitted_s: float | None = None
    load_s: float | None = None
    weights_s: float | None = None
    asked: str | None = None
    adapter_version: int | None = None
    operation: Operation = "text"
    batch_id: str | None = None
    output: LineOutput | None = None

    def check(self) -> None:
        assert self.output is None or self.output.batch_id == self.batch_id
        assert 0 <= self.cached_tokens <= self.prompt_tokens
        assert self.completion_tokens >= 0
        assert self.discarded_tokens >= 0
        assert self.made_tokens == self.completion_tokens + self.discarded_tokens
        assert self.operation == "text" or not (self.completion_tokens or self.cached_tokens)
        assert not self.engines or sum(self.engines.values()) == self.made_tokens
        assert all(tokens >= 0 for tokens in self.engines.values())
        assert (self.discarded_tokens > 0) <= (self.discard_reason is not None), "discarded tokens need a reason"


class Void(msgspec.Struct, frozen=True, tag="void"):
    """Ends the hold of a request that made no token and computed no prompt that is billed."""

    request_id: str
    reason: str


class Expire(msgspec.Struct, frozen=True):
    """Ends a hold of a dead gateway. Only the Auditor expires holds."""

    request_id: str


Ending = Settlement | Void | Expire


class HoldEnding(msgspec.Struct, frozen=True):
    """How the hold ended, by this call or an earlier one. "unknown": there is no such hold. "voided" and "expired"
    charge nothing; the tokens of a settlement after "expired" are recorded as lost. "journaled": the database is
    unavailable, the ending is in this host's journal, and its cost is not known yet."""

    request_id: str
    outcome: Outcome
    cost_picos: int = 0
