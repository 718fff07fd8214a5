"""Traffic of a simulated fleet: conversations of tenants, whose prompts grow by each answer.

All draws come from the seed and a conversation's number, so that the same conversations reach every fleet, however
fast it answers. A conversation's next turn begins some time after the answer to the last one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.simulate.devices import BadInput
from engine.simulate.trace import REQUESTS_MAX
from engine.simulate.traffic import Dealer, SimulatedRequest, Traffic, arrivals

# The id that simulated engines make. Ids of prompts: a tenant's system prompt, then ids of one conversation's own.
MADE_ID = 1
IDS_EACH = 1 << 24
FIRST_CONVERSATION_ID = 1 << 48
# Standard deviation of the logarithm of lengths.
SPREAD = 0.6


@dataclass(slots=True, frozen=True)
class ConversationRate:
    """Conversations that begin at a mean rate in one tier. The numbers of turns, of tokens and of seconds are means: of
    a geometric, lognormal and exponential distribution."""

    tier: str
    per_s: float
    turns: float
    prompt_tokens: int  # new prompt tokens of each turn, beside the last answer
    new_tokens: int
    think_s: float  # from an answer's end until the next turn


@dataclass(slots=True, eq=False)
class FleetText:
    """One request and its answer, on whichever engines make it. Times are seconds of the virtual clock."""

    conversation: int
    number: int  # of all texts, in order of submission
    at_s: float
    tier: str
    tenant: str
    adapter: str | None
    model: str
    ids: list[int]  # of the prompt
    new_tokens: int
    made: int = 0
    attempt: int = 0
    cached_tokens: int | None = None  # found in the prefix cache when the first attempt began
    first_at: float | None = None
    last_at: float = 0.0  # time of the latest token
    gap_s: float = 0.0  # the longest pause between two tokens
    ended_at: float | None = None
    refused: str | None = None
    recomputed: int = 0  # tokens that a further attempt computed again

    def key(self) -> str:
        """Equal for all requests of the conversation."""
        return str(self.conversation)

    def all_ids(self) -> list[int]:
        """The ids of the prompt and of the answer so far."""
        return self.ids + [MADE_ID] * self.made


@dataclass(slots=True, eq=False)
class _Conversation:
    rate: ConversationRate
    tenant: str
    adapter: str | None
    model: str
    draws: random.Random
    turns: int  # turns that are not yet sent
    ids: list[int] = field(default_factory=list)
    own: int = 0  # ids made for it alone so far


class Conversations:
    """All texts of a simulated fleet: the first ones by time, the further ones by the ends of answers."""

    def __init__(
        self,
        traffic: Traffic,
        rates: tuple[ConversationRate, ...],
        *,
        system_tokens: int,
        context_tokens: int,
        seed: int,
    ) -> None:
        """`traffic`: single requests beside the conversations, without floods. Raises BadInput."""
        if traffic.floods or traffic.abort_rate:
            raise BadInput("--engines: --flood and --abort-rate are not simulated with several engines")
        self.tenants: dict[str, int] = {}
        self._traffic = traffic
        self._system_tokens = system_tokens
        self._context_tokens = context_tokens
        self._seed = seed
        self._talks: list[_Conversation | None] = []
        self._count = 0
        singles: Iterator[tuple[float, SimulatedRequest | _Conversation]] = (
            (request.at_s, request) for request in arrivals(traffic, seed)
        )
        talks = (start for index, rate in enumerate(rates) for start in self._conversations(rate, index))
        self._starts: list[tuple[float, SimulatedRequest | _Conversation]] = sorted(
            [*singles, *talks], key=lambda start: start[0]
        )
        if len(self._starts) > REQUESTS_MAX:
            raise BadInput(f"{len(self._starts)} conversations would begin; the limit is {REQUESTS_MAX}")

    def first_texts(self) -> Iterator[FleetText]:
        """The first texts, in order of time."""
        for at_s, start in self._starts:
            number = len(self._talks)
            if isinstance(start, SimulatedRequest):
                self._talks.append(None)
                yield self._single(number, start)
            else:
                self._talks.append(start)
                yield self._next_text(number, start, at_s)

    def next_text(self, text: FleetText, now: float) -> FleetText | None:
        """The turn after `text`, whose answer ended now; None: the conversation is over, or the traffic is."""
        talk = self._talks[text.conversation]
        if talk is None:
            return None
        talk.ids = text.all_ids()
        at_s = now + talk.draws.expovariate(1 / max(1e-9, talk.rate.think_s))
        talk.turns -= 1
        if talk.turns < 1 or at_s >= self._traffic.duration_s:
            self._talks[text.conversation] = None
            return None
        following = self._next_text(text.conversation, talk, at_s)
        if len(following.ids) + following.new_tokens > self._context_tokens:
            self._talks[text.conversation] = None
            return None
        return following

    def _conversations(self, rate: ConversationRate, index: int) -> Iterator[tuple[float, _Conversation]]:
        expected = rate.per_s * self._traffic.duration_s
        if expected > REQUESTS_MAX:
            raise BadInput(f"--conversations: {expected:.0f} of tier {rate.tier}; the limit is {REQUESTS_MAX}")
        dealer = Dealer(self._traffic.population, self._seed, f"conversations/{index}")
        gaps = random.Random(f"{self._seed}/conversations/{index}/gaps")
        at_s, number = gaps.expovariate(rate.per_s), 0
        while at_s < self._traffic.duration_s:
            tenant, model = dealer.tenant(rate.tier), dealer.model()
            adapter = dealer.adapter(tenant)
            draws = random.Random(f"{self._seed}/conversations/{index}/{number}")
            turns = 1 + int(math.log(1 - draws.random()) / math.log(1 - 1 / rate.turns)) if rate.turns > 1 else 1
            own = _Conversation(rate, tenant, adapter and f"{adapter}/{model}", model, draws, turns)
            yield at_s, own
            at_s += gaps.expovariate(rate.per_s)
            number += 1

    def _next_text(self, number: int, talk: _Conversation, at_s: float) -> FleetText:
        rate = talk.rate
        prompt, new = _length(talk.draws, rate.prompt_tokens), _length(talk.draws, rate.new_tokens)
        if not talk.ids:
            talk.ids = self._system_ids(talk.tenant, self._system_tokens)
        first = FIRST_CONVERSATION_ID + number * IDS_EACH + talk.own
        talk.own += prompt
        ids = [*talk.ids, *range(first, first + prompt)]
        self._count += 1
        return FleetText(number, self._count, at_s, rate.tier, talk.tenant, talk.adapter, talk.model, ids, new)

    def _single(self, number: int, request: SimulatedRequest) -> FleetText:
        ids = self._system_ids(request.tenant, min(self._system_tokens, request.prompt_tokens - 1))
        first = FIRST_CONVERSATION_ID + number * IDS_EACH
        ids += range(first, first + request.prompt_tokens - len(ids))
        self._count += 1
        return FleetText(
            number,
            self._count,
            request.at_s,
            request.tier,
            request.tenant,
            request.adapter,
            request.model,
            ids,
            request.new_tokens,
        )

    def _system_ids(self, tenant: str, count: int) -> list[int]:
        first = self.tenants.setdefault(tenant, len(self.tenants)) * IDS_EACH
        return list(range(first, first + count))


def _length(draws: random.Random, mean: float) -> int:
    """A lognormal length, at least 1."""
    return 1 + int(draws.lognormvariate(math.log(max(1.0, mean)) - SPREAD**2 / 2, SPREAD))
