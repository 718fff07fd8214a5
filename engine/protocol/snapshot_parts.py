"""The parts of a Snapshot frame: owners of pages, tiers, requests, preemptions, and where adapters and models are. And
of a Heartbeat: the age of a model's last token, and what a new request would wait for."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

# Of an adapter's content. Answers repeat it, so its length is limited.
Digest = Annotated[str, msgspec.Meta(max_length=128)]


class PageOwner(msgspec.Struct, frozen=True, array_like=True):
    """The owner of `pages` pages of the arena. A page that several requests use counts for the highest of their tiers.
    "cached": in the prefix cache and used by no request. "adapter" without a digest: the page of an evicted adapter
    that other adapters' tiles still use, or of an adapter beyond the limit of the list."""

    kind: Literal["free", "kv", "cached", "adapter"]
    tier: str | None
    model: str | None
    adapter: str | None  # content digest
    pages: int


class TierState(msgspec.Struct, frozen=True, array_like=True):
    name: str
    waiting: int
    running: int
    preempted: int  # preemptions of its requests since the process started
    floor_pages: int
    held_pages: int  # distinct pages that its running requests hold, their adapters' among them


class RequestState(msgspec.Struct, frozen=True, array_like=True):
    """A request in flight. `number` counts arrivals; several texts of one HTTP request share its `request_id`."""

    number: int
    request_id: str
    tier: str
    model: str
    adapter: str | None  # content digest
    state: Literal["waiting", "preempted", "prefill", "decode"]
    prompt_tokens: int
    completion_tokens: int
    age_s: float


class Preemption(msgspec.Struct, frozen=True, array_like=True):
    """One preemption, counted from 1. `kind`: whether its KV is recomputed or swapped."""

    number: int
    age_s: float
    request_id: str
    tier: str
    caused_by: str  # tier
    kind: Literal["recompute", "swap"]


class AdapterPlace(msgspec.Struct, frozen=True, array_like=True):
    digest: str
    where: Literal["device", "host", "disk"]
    bytes: int


class ModelPlace(msgspec.Struct, frozen=True, array_like=True):
    """A base model, and where its weights are. `wait_s`: predicted seconds until its weights are resident for a
    request that arrives now; 0 if they are."""

    name: str
    where: Literal["device", "host", "disk"]
    coming: bool  # towards the device
    leaving: bool  # it drains: it is being removed, or evicted for another model
    pinned: bool
    weights_bytes: int
    tokens_per_page: int
    page_waste_bytes: int
    running: int
    waiting: int
    wait_s: float
    loads: int  # since the process started
    token_age_s: float | None = None  # as in TokenAge; None: the weights are not resident


class TokenAge(msgspec.Struct, frozen=True, array_like=True):
    """Seconds since a model's last token, or since its weights became resident if that was later. `silent`: it owes a
    token to a probe or a step for longer than `probe_after_s`; `error`: of its last probe, then."""

    age_s: float
    silent: bool = False
    error: str = ""


class EngineLoad(msgspec.Struct, frozen=True, array_like=True):
    """The predicted wait of a new request, from the engine's measured speed."""

    waits: dict[str, float]  # by tier: seconds until a new request's first chunk begins
    queued: dict[str, int] = {}  # by tier: waiting requests
    prefill_token_s: dict[str, float] = {}  # by model: seconds of one more prompt token
    models: dict[str, float] = {}  # seconds until the model's weights are resident, of models that are not
    adapters: list[Digest] = []  # resident
    adapter_load_s: float = 0.0  # of an adapter that is not resident
    tokens_per_s: float = 0.0  # made in the last second
    queries: int = 0  # prompt tokens looked up in the prefix cache since the start
    hits: int = 0  # of these, found
