"""One admitted request: the state that its owner and the renderer of its answer share, and the engine's request of each
of its texts."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from billing.ledger.messages import LineOutput
from engine.protocol.frames import Pooling, Sampling
from gateway.access.callers import Caller
from gateway.api.generation_request import GenerationRequest, LargeBody
from gateway.api.sampling import TextRules
from gateway.catalog.registry import ModelTarget
from gateway.catalog.served_models import ServedModel
from gateway.engines.engine import EngineRequest
from gateway.generation.answer import Answer
from gateway.generation.guiding import PLAIN, AnswerPlan
from gateway.generation.prompts import CountedPrompt
from gateway.generation.replays import FirstCall
from gateway.limits.limiter import Admission
from gateway.log import RequestLine
from gateway.tools.sealed_reasoning import ReasoningKeys

if TYPE_CHECKING:
    from gateway.generation.text_runs import TextRun, TextRuns


class RequestPlan(msgspec.Struct, frozen=True):
    """A request as one model would serve it."""

    target: ModelTarget
    model: ServedModel
    digest: str  # of the base model
    prompts: list[CountedPrompt]
    texts: int
    max_tokens: int  # of each text, as requested; the hold may grant fewer
    stop_ids: list[int]
    answer: AnswerPlan = PLAIN
    pooling: Pooling | None = None  # set if a vector of each prompt is made
    dimensions: int = 0  # of each vector that the answer shows; 0: it shows none

    @property
    def prompt_tokens(self) -> int:
        """The prompts' tokens; a prompt counts once, however many texts are generated from it."""
        return sum([len(prompt.ids) for prompt in self.prompts])

    @property
    def ignored(self) -> tuple[str, ...]:
        """Fields of the request that this model cannot follow."""
        return (*self.answer.ignored, *self.prompts[0].ignored)

    @property
    def tokens_max(self) -> int:
        return self.prompt_tokens + self.texts * self.max_tokens


class LineRun(msgspec.Struct):
    """One attempt of a line of a batch. `target`: the model, or version of an adapter, that the line's name stood for
    when the batch was validated. `seal`: makes the encrypted output of the answer's body."""

    batch_id: str
    line: int
    epoch: int  # of the worker's lease
    target: str
    seal: Callable[[bytes], Awaitable[bytes]]
    is_recorded: bool = False  # output and charge are committed

    async def output_of(self, body: bytes) -> LineOutput:
        return LineOutput(self.batch_id, self.line, self.epoch, await self.seal(body))


class InFlight(msgspec.Struct):
    """One request that was admitted under the limits, and the answer that its owner writes. Until it has a token, a
    fallback may replace its `plan` by the plan of another model."""

    request_id: str
    caller: Caller
    asked: GenerationRequest
    plan: RequestPlan
    fallbacks: list[ModelTarget]
    tier: str
    service_tier: str
    admission: Admission
    line: RequestLine
    answer: Answer
    first: FirstCall | None  # set if it has an Idempotency-Key
    line_run: LineRun | None = None  # set if it is a line of a batch
    stores: bool = False  # the response is stored
    reasoning_keys: ReasoningKeys | None = None  # set if the answer has its reasoning encrypted
    runs: TextRuns | None = None  # of the model that serves it; None until it is submitted

    @property
    def keeps_body(self) -> bool:
        """Whether the bytes of the request's body are kept: a fallback may have to count its prompts again."""
        return isinstance(self.asked.prompts, LargeBody) and bool(self.asked.prompts.body)

    @property
    def target(self) -> ModelTarget:
        return self.plan.target

    @property
    def model(self) -> ServedModel:
        return self.plan.model

    @property
    def fingerprint(self) -> str:
        return f"fp_{self.plan.digest[:12]}"

    @property
    def prompts(self) -> list[CountedPrompt]:
        return self.plan.prompts

    @property
    def max_tokens(self) -> int:
        return self.plan.max_tokens

    @property
    def stop_ids(self) -> list[int]:
        return self.plan.stop_ids

    @property
    def texts(self) -> int:
        return self.plan.texts

    @property
    def prompt_tokens(self) -> int:
        return self.plan.prompt_tokens

    @property
    def n(self) -> int:
        """Texts of each prompt."""
        return self.asked.n

    @property
    def sampling(self) -> Sampling:
        return self.asked.sampling

    @property
    def rules(self) -> TextRules:
        return self.asked.rules

    @property
    def in_pieces(self) -> bool:
        """The caller receives the answer in pieces, and has already received the pieces of an answer that fails."""
        return self.asked.stream or self.asked.background

    @property
    def echo(self) -> bool:
        return self.asked.echo

    @property
    def prompt_alone(self) -> bool:
        """No token is made: the answer is about the prompts."""
        return self.max_tokens == 0


def engine_request_of(request: InFlight, run: TextRun, secret: bytes) -> EngineRequest:
    """One text of the request, as an engine receives it. The engine learns no tenant: the namespace of the prefix cache
    and the share are hashes of the tenant's id under the server's `secret`."""
    tenant = (request.caller.tenant_id or "").encode()
    sampling = request.sampling
    if run.number or sampling.min_tokens > run.max_tokens:
        changes = {"choice": run.number, "min_tokens": min(sampling.min_tokens, run.max_tokens)}
        if run.number:  # the first text of the prompt has them
            changes["prompt_logprobs"] = -1
        sampling = msgspec.structs.replace(sampling, **changes)
    adapter, prompts = request.target.adapter, request.asked.prompts
    return EngineRequest(
        request_id=request.request_id,
        model=request.target.model,
        adapter=None if adapter is None else adapter.digest,
        namespace=hmac.digest(secret, b"namespace:" + tenant, "sha256").hex(),
        tier=request.tier,
        share=hmac.digest(secret, b"share:" + tenant, "sha256").hex()[:16],
        weight=request.caller.share_weight,
        prompt_ids=request.prompts[run.prompt].ids,
        prompt=None if isinstance(prompts, LargeBody) else prompts[run.prompt],
        max_tokens=run.max_tokens,
        sampling=sampling,
        stop_ids=request.stop_ids,
        stops=request.rules.stops,
        guide=request.plan.answer.guide,
        pooling=request.plan.pooling,
    )
