"""Plans a request for one model: its prompt ids, its bound of tokens, its stop ids. Nothing is reserved.

A plan needs a model that the engine serves now. Limits, budgets and the choice of the model are decided elsewhere.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec

from billing.accounts.prices import REQUEST_TOKENS_MAX
from engine.protocol.frames import ModelInfo
from engine.text.tokenizer import Tokenizer
from gateway import errors
from gateway.access.callers import Caller
from gateway.api.bodies import (
    CHECK_IN_LOOP_BYTES_MAX,
    PARSE_IN_LOOP_BYTES_MAX,
    ParsedBody,
    check_body,
    has_few_values,
    read_request,
)
from gateway.api.generation_request import GenerationRequest, LargeBody
from gateway.api.sampling import MAX_TOKENS_MAX, check_ids
from gateway.catalog.capabilities import EmbeddingProperties
from gateway.catalog.pooling import (
    LINE_PART,
    check_embedded_tokens,
    check_pooling,
    check_replayable,
    check_shown_numbers,
    embedding_properties,
    shown_dimensions,
)
from gateway.catalog.registry import ModelTarget, Registry
from gateway.catalog.served_models import ServedModel
from gateway.config.file import Config
from gateway.config.server_secrets import ServerSecrets
from gateway.engines.engine import Engine
from gateway.generation.guiding import AnswerPlan, check_tools, grammar_parts, plan_answer
from gateway.generation.inflight import RequestPlan
from gateway.generation.prompts import CountedPrompt, PromptCounter
from gateway.generation.replays import ANSWER_BYTES_MAX
from gateway.large_work.jobs import (
    ContextLimits,
    GrammarJob,
    GrammarResult,
    ItemsJob,
    ReadJob,
    ReadResult,
    check_window,
)
from gateway.large_work.pool import LargeWork
from gateway.limits.turn_pace import RequestPace
from gateway.tools.definitions import Tooling
from gateway.tools.sealed_reasoning import PURPOSE, ReasoningKeys, ReasoningReader

# Most log probabilities of one answer: per token of a completion 1 + `top_logprobs`, and likewise of a prompt. Each
# takes 12 bytes in memory and about 90 bytes on the wire.
ALTERNATIVES_MAX = 2**17
# Grammars that this process has checked. Each takes about 200 bytes.
GRAMMARS_KNOWN_MAX = 4096
TEXTS_PIECE_IDS = 4096  # looked up in one turn of the event loop: about a millisecond
# The counted prompts of one request, by the model's encoding and vocabulary size.
CountedPrompts = dict[tuple[str, int], list[CountedPrompt]]


class TokenizedPrompt(msgspec.Struct, frozen=True):
    """The ids of a prompt, and their properties for the model that reads them."""

    ids: list[int]
    context_tokens: int
    tokenizer: Tokenizer

    async def token_texts(self) -> list[str]:
        """Each id as the vocabulary spells it. Between pieces of a long prompt the event loop runs other tasks."""
        texts: list[str] = []
        for start in range(0, len(self.ids), TEXTS_PIECE_IDS):
            texts += self.tokenizer.token_texts(self.ids[start : start + TEXTS_PIECE_IDS])
            await asyncio.sleep(0)
        return texts


class RequestPlanner:
    """One per gateway process."""

    def __init__(
        self,
        config: Config,
        models: Mapping[str, ServedModel],
        registry: Registry,
        engine: Engine,
        large_work: LargeWork,
        secrets: ServerSecrets,
    ) -> None:
        self._secrets = secrets
        self._models = models
        self._registry = registry
        self._engine = engine
        self._large_work = large_work
        self._ignore_unknown = config.gateway.unknown_fields == "ignore"
        self._embedding_tokens_max = config.gateway.embedding_tokens_max
        self._embedding_numbers_max = config.gateway.embedding_numbers_max
        self._whitespace_max = config.gateway.json_whitespace_max
        self._counter = PromptCounter(large_work)
        # By digest of a checked grammar: the tools whose schemas it cannot follow; empty: the grammar is served.
        self._grammars: OrderedDict[bytes, frozenset[str]] = OrderedDict()
        self._text_pace = RequestPace(
            at_once=1
        )  # one large text per turn of the event loop; further ones go to processes

    def served(self) -> frozenset[str]:
        """Names of the base models that could be served now."""
        if not self._engine.ready:
            return frozenset()
        known = self._models.keys() & self._engine.models.keys()
        return frozenset([name for name in known if not self._registry.is_refused(name)])

    def context_tokens(self, model: str) -> int | None:
        """The longest context of a base model; None while the engine does not have the model."""
        info = self._engine.models.get(model)
        return None if info is None else info.context_tokens

    def embedding(self, model: str) -> EmbeddingProperties | None:
        """The properties of a base model's embeddings; None: the model makes no embeddings, or no engine has it."""
        return embedding_properties(self._models.get(model), self._engine.models.get(model))

    def one_vocabulary(self, targets: Sequence[ModelTarget]) -> bool:
        """Whether an id means the same token to all of them. False if the files of one could not be read."""
        found = [self._models.get(target.model) for target in targets]
        vocabularies = {None if model is None else model.vocabulary for model in found}
        return len(targets) == 1 or (len(vocabularies) == 1 and None not in vocabularies)

    async def read(self, caller: Caller, kind: str, body: bytes) -> ParsedBody:
        """Parse a body; `kind` is that of `bodies.read_request`. Unless it has few values, a large body is parsed by a
        process, and its prompts stay in the body (LargeBody). Raises InvalidRequest, ContextLengthExceeded,
        RateLimited, Overloaded."""
        small = len(body) <= PARSE_IN_LOOP_BYTES_MAX
        if small or (has_few_values(body) and self._text_pace.try_turn()):
            return read_request(kind, body, ignore_unknown=self._ignore_unknown)
        longest = max([info.context_tokens for info in self._engine.models.values()], default=None)
        if longest is not None and len(body) <= CHECK_IN_LOOP_BYTES_MAX:
            check_body(kind, body, longest)
            longest = None
        reply = await self._large_work.do(_tenant(caller), ReadJob(kind, body, self._ignore_unknown, longest))
        assert isinstance(reply, ReadResult)
        asked = reply.read.asked
        assert isinstance(asked.prompts, LargeBody)
        prompts = msgspec.structs.replace(asked.prompts, body=body)
        return msgspec.structs.replace(reply.read, asked=msgspec.structs.replace(asked, prompts=prompts))

    async def check_items(self, caller: Caller, body: bytes) -> None:
        """Check that the `input` of a body has at most as many items as a request may have: the event loop reads each
        item of a response that is stored. A process counts the items of a large body. Raises InvalidRequest,
        RateLimited, Overloaded."""
        if len(body) > PARSE_IN_LOOP_BYTES_MAX and not has_few_values(body):
            await self._large_work.do(_tenant(caller), ItemsJob(body))

    async def plan(
        self, caller: Caller, asked: GenerationRequest, target: ModelTarget, known: CountedPrompts | None = None
    ) -> RequestPlan:
        """Count the prompts with the model's tokenizer (`known`: counts by tokenizers of the same encoding) and bound
        the answer by the model's context. Raises ApiError: ModelUnavailable or EngineDown if the model is not served
        now, InvalidRequest and ContextLengthExceeded for a request that the model cannot serve."""
        model, info = self._served(target)
        self._check_prompt_logprobs(asked)
        _check_alternatives(asked, asked.answer_tokens_min, 0)
        check_ids(asked.rules, asked.sampling, info.vocab_size)
        check_tools(model, asked.tooling)
        pooling = None if asked.embedding is None else check_pooling(model, info, asked.embedding)
        dimensions = shown_dimensions(asked.embedding, info)
        check_shown_numbers(asked, dimensions, self._embedding_numbers_max, "a request")
        known, encoding = {} if known is None else known, (model.encoding, info.vocab_size)
        if asked.has_sealed:  # opened for one model
            encoding = (f"{model.encoding} {info.digest}", info.vocab_size)
        if encoding not in known:
            known[encoding] = await self._count_prompts(caller, model, info, asked)
        prompts = known[encoding]
        prompt_tokens = sum([len(prompt.ids) for prompt in prompts])
        if pooling is not None:
            check_embedded_tokens(asked, prompt_tokens, self._embedding_tokens_max)
        _check_alternatives(asked, asked.answer_tokens_min, prompt_tokens)
        answer = await self._plan_answer(caller, model, info, asked.tooling, prompts[0].ids)
        return RequestPlan(
            target=target,
            model=model,
            digest=info.digest,
            prompts=prompts,
            texts=asked.texts,
            max_tokens=_bound(caller, model, info, asked, prompts),
            stop_ids=asked.rules.all_stop_ids(model.tokenizer.eos_ids),
            answer=answer,
            pooling=pooling,
            dimensions=dimensions,
        )

    def check_stored_answer(self, asked: GenerationRequest, plan: RequestPlan, *, is_line: bool) -> None:
        """Check that the embeddings are few enough to be stored: as the output of a batch's line, or for the replays of
        a call. Raises InvalidRequest."""
        if is_line:
            most = self._embedding_numbers_max // LINE_PART
            check_shown_numbers(asked, plan.dimensions, most, "a line of a batch")
        elif plan.dimensions:
            check_replayable(asked, plan.dimensions, ANSWER_BYTES_MAX)

    async def _plan_answer(
        self, caller: Caller, model: ServedModel, info: ModelInfo, tooling: Tooling | None, prompt_ids: Sequence[int]
    ) -> AnswerPlan:
        """Plan the answer with a grammar that every engine can serve. Raises InvalidRequest, RateLimited,
        Overloaded."""
        refused: frozenset[str] = frozenset()
        while True:
            answer = plan_answer(model, tooling, prompt_ids, self._whitespace_max, refused)
            if answer.guide is None or answer.guide.grammar is None:
                return answer
            found = await self._check_grammar(caller, model, info, tooling, answer, answer.guide.grammar)
            if not found:
                return answer
            refused |= found

    async def _check_grammar(
        self,
        caller: Caller,
        model: ServedModel,
        info: ModelInfo,
        tooling: Tooling | None,
        answer: AnswerPlan,
        grammar: str,
    ) -> frozenset[str]:
        """Check the grammar before the hold. The tools that are not strict and whose schema keeps the grammar from
        being served; empty: it is served. Raises InvalidRequest for another grammar that no engine can serve,
        RateLimited and Overloaded."""
        key = hashlib.sha256(f"{model.vocabulary} {info.vocab_size} {grammar}".encode()).digest()
        if key in self._grammars:
            self._grammars.move_to_end(key)
            return self._grammars[key]
        parts = grammar_parts(tooling, self._whitespace_max, answer.loose)
        directory = str(model.tokenizer.directory)
        job = GrammarJob(directory, info.vocab_size, grammar, answer.param, parts)
        try:
            reply = await self._large_work.do(_tenant(caller), job)
            assert isinstance(reply, GrammarResult)
            refused = frozenset(reply.refused)
        except errors.InvalidRequest:
            # The refusal does not name the part that took too long, so all tools that are not strict count as refused.
            refused = frozenset([part.loose_tool for part in parts if part.loose_tool])
            if not refused:
                raise
        self._grammars[key] = refused
        while len(self._grammars) > GRAMMARS_KNOWN_MAX:
            self._grammars.popitem(last=False)
        return refused

    async def count(self, caller: Caller, target: ModelTarget, asked: GenerationRequest) -> int:
        """The tokens of one prompt. Raises ApiError."""
        model, info = self._served(target)
        [counted] = await self._count_prompts(caller, model, info, asked, least=0)
        return len(counted.ids)

    async def tokenize(self, caller: Caller, target: ModelTarget, asked: GenerationRequest) -> TokenizedPrompt:
        """The ids of one prompt. Raises ApiError."""
        model, info = self._served(target)
        check_tools(model, asked.tooling)
        [counted] = await self._count_prompts(caller, model, info, asked, least=0)
        return TokenizedPrompt(counted.ids, info.context_tokens, model.tokenizer)

    async def detokenize(self, caller: Caller, target: ModelTarget, asked: GenerationRequest) -> str:
        """The text of one prompt of ids. Raises ApiError."""
        model, info = self._served(target)
        window = ContextLimits(info.context_tokens, info.vocab_size, 0, asked.param)
        return await self._counter.decode(
            model.tokenizer, model.encoding, window, asked.prompts, tenant=_tenant(caller)
        )

    async def _count_prompts(
        self,
        caller: Caller,
        model: ServedModel,
        info: ModelInfo,
        asked: GenerationRequest,
        least: int | None = None,
    ) -> list[CountedPrompt]:
        """`least`: tokens that the answer needs; None: `max_tokens` of the request, or 1. Raises ApiError."""
        least = asked.answer_tokens_min if least is None else least
        window = ContextLimits(info.context_tokens, info.vocab_size, least, asked.param)
        return await self._counter.count(
            model.tokenizer,
            model.encoding,
            window,
            asked.prompts,
            tenant=_tenant(caller),
            echo=asked.echo or (asked.embedding is not None and asked.embedding.shows_texts),
            dialect=model.dialect,
            tools=model.tools,
            reader=ReasoningReader(self.reasoning_keys(caller), info.digest) if asked.has_sealed else None,
            in_thread=asked.is_line,
        )

    def reasoning_keys(self, caller: Caller) -> ReasoningKeys:
        """The keys of the reasoning that the caller's tenant holds."""
        tenant = _tenant(caller)
        return ReasoningKeys(tenant, self._secrets.derive_keys(PURPOSE + tenant.encode()))

    def _check_prompt_logprobs(self, asked: GenerationRequest) -> None:
        """Raises UnsupportedValue if the engine does not report what the request needs."""
        if asked.sampling.prompt_logprobs < 0 or self._engine.reports_prompts:
            return
        message = "The engine of this model reports no log probabilities of prompts."
        raise errors.UnsupportedValue(message, param="echo" if asked.prompt_logprobs is None else "prompt_logprobs")

    def check_served(self, target: ModelTarget) -> None:
        """Raises ModelUnavailable, EngineDown."""
        self._served(target)

    def _served(self, target: ModelTarget) -> tuple[ServedModel, ModelInfo]:
        """Raises ModelUnavailable, EngineDown."""
        model, info = self._models.get(target.model), self._engine.models.get(target.model)
        if self._registry.is_refused(target.model):
            raise errors.ModelUnavailable(target.name)
        if not self._engine.ready or model is None or info is None:
            raise errors.EngineDown("The engine that serves this model is unavailable. Try again in a moment.")
        return model, info


def _check_alternatives(asked: GenerationRequest, max_tokens: int, prompt_tokens: int) -> None:
    """Raises InvalidRequest when the answer could have more than ALTERNATIVES_MAX log probabilities. `prompt_tokens`:
    the tokens of all prompts, each prompt counted once."""
    of_prompts = _prompt_alternatives(asked, prompt_tokens)
    if of_prompts > ALTERNATIVES_MAX:
        field = "logprobs" if asked.prompt_logprobs is None else "prompt_logprobs"
        message = (
            f"{field!r} asks for {of_prompts} log probabilities of prompt tokens; the limit is {ALTERNATIVES_MAX}."
        )
        raise errors.InvalidRequest(message, param=field)
    if max_tokens > (room := _alternatives_room(asked, prompt_tokens)):
        field = "top_logprobs" if asked.param == "messages" else "logprobs"
        beside = f", beside {of_prompts} of prompt tokens" if of_prompts else ""
        raise errors.InvalidRequest(
            f"{field!r} asks for {1 + asked.sampling.logprobs} log probabilities a token, of {asked.texts} texts of up "
            f"to {max_tokens} tokens{beside}; the limit is {ALTERNATIVES_MAX} a request, here {room} tokens a text.",
            param=field,
        )


def _prompt_alternatives(asked: GenerationRequest, prompt_tokens: int) -> int:
    """The log probabilities of prompt tokens in the answer: every text repeats the values of its prompt."""
    echoed = 1 + asked.sampling.logprobs if asked.echo else 0
    listed = 0 if asked.prompt_logprobs is None else 1 + asked.prompt_logprobs
    return (echoed + listed) * prompt_tokens * asked.n


def _alternatives_room(asked: GenerationRequest, prompt_tokens: int) -> int:
    """The most tokens that each text may have with the requested log probabilities."""
    if asked.sampling.logprobs < 0:
        return MAX_TOKENS_MAX
    left = ALTERNATIVES_MAX - _prompt_alternatives(asked, prompt_tokens)
    return left // (asked.texts * (1 + asked.sampling.logprobs))


def _tenant(caller: Caller) -> str:
    """The name under which large work is queued: the tenant, or an operator's key."""
    return caller.tenant_id or caller.key_id


def _bound(
    caller: Caller, model: ServedModel, info: ModelInfo, request: GenerationRequest, prompts: list[CountedPrompt]
) -> int:
    """The most tokens that each text may have. A requested `max_tokens` must fit the context; a default is reduced to
    fit.
    Raises ContextLengthExceeded, InvalidRequest."""
    asked = request.max_tokens
    longest = max([len(prompt.ids) for prompt in prompts])
    # Checked again: the count may stem from another model with the same encoding and another context.
    check_window(longest, ContextLimits(info.context_tokens, info.vocab_size, request.answer_tokens_min, request.param))
    room = info.context_tokens - longest
    default = caller.default_max_tokens or request.max_tokens_default or model.default_max_tokens
    prompt_tokens = sum([len(prompt.ids) for prompt in prompts])
    # A text has a token, unless `max_tokens` is 0: the alternatives were checked for it.
    bound = min(room, default, _alternatives_room(request, prompt_tokens)) if asked is None else asked
    if request.rules.min_tokens > bound:
        message = f"'min_tokens' is {request.rules.min_tokens}, and the answer may have {bound} tokens at most."
        raise errors.InvalidRequest(message, param="min_tokens")
    total = prompt_tokens + bound * len(prompts) * request.n
    if total > REQUEST_TOKENS_MAX:
        param = "n" if request.n > 1 else request.param
        message = f"With this {param!r} the request may take {total} tokens; the limit is {REQUEST_TOKENS_MAX}."
        raise errors.InvalidRequest(message, param=param)
    return bound
