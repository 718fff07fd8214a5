"""What a request would be if one model served it: its ids, its bound, its stop ids. Nothing is taken yet.

It asks whether the engine serves the model now. It must never know limits, budgets or which model is to be tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from billing.requests import REQUEST_TOKENS_MAX
from engine import protocol
from engine.client import EngineClient
from gateway import errors
from gateway.asked import Asked, Prompt
from gateway.callers import Caller
from gateway.inflight import Plan, ServedModel
from gateway.prompts import Counted, PromptCounter
from gateway.registry import Registry, Target
from gateway.sampling import check_ids

# Of one request, what its prompts are, by a model's encoding and the number of its ids.
Known = dict[tuple[str, int], list[Counted]]


class Planner:
    """Of one gateway process."""

    def __init__(self, models: Mapping[str, ServedModel], registry: Registry, engine: EngineClient) -> None:
        self._models = models
        self._registry = registry
        self._engine = engine
        self._counter = PromptCounter()

    def served(self) -> frozenset[str]:
        """Names of the base models that could be served now."""
        if not self._engine.ready:
            return frozenset()
        known = self._models.keys() & self._engine.models.keys()
        return frozenset([name for name in known if not self._registry.is_refused(name)])

    def one_vocabulary(self, targets: Sequence[Target]) -> bool:
        """Whether an id is the same word to all of them. Of one whose files could not be read nobody knows."""
        found = [self._models.get(target.model) for target in targets]
        vocabularies = {None if model is None else model.vocabulary for model in found}
        return len(targets) == 1 or (len(vocabularies) == 1 and None not in vocabularies)

    async def plan(self, caller: Caller, asked: Asked, target: Target, known: Known | None = None) -> Plan:
        """Counted with the model's own tokenizer, or as one of the same encoding did, and bound by its context. Raises
        ApiError: ModelUnavailable or EngineAway when it is not there now, InvalidRequest and ContextLengthExceeded when
        it cannot do what is asked."""
        model, info = self._served(target)
        check_ids(asked.rules, asked.sampling, info.vocab_size)
        known, encoding = {} if known is None else known, (model.encoding, info.vocab_size)
        if encoding not in known:
            known[encoding] = await self._counter.count(model.tokenizer, info, asked.prompts, asked.param)
        prompts = known[encoding]
        return Plan(
            target=target,
            model=model,
            fingerprint=f"fp_{info.digest[:12]}",
            prompts=prompts,
            texts=len(prompts) * asked.n,
            max_tokens=_bound(caller, model, info, asked, prompts),
            stop_ids=asked.rules.all_stop_ids(model.tokenizer.eos_ids),
        )

    async def count(self, target: Target, prompt: Prompt, param: str) -> int:
        """The tokens of one prompt. Raises ApiError."""
        model, info = self._served(target)
        [counted] = await self._counter.count(model.tokenizer, info, [prompt], param)
        return len(counted.ids)

    def check(self, target: Target) -> None:
        """Raises ModelUnavailable, EngineAway."""
        self._served(target)

    def close(self) -> None:
        self._counter.close()

    def _served(self, target: Target) -> tuple[ServedModel, protocol.ModelInfo]:
        """Raises ModelUnavailable, EngineAway."""
        model, info = self._models.get(target.model), self._engine.models.get(target.model)
        if self._registry.is_refused(target.model):
            raise errors.ModelUnavailable(target.name)
        if not self._engine.ready or model is None or info is None:
            raise errors.EngineAway("The engine that serves this model is away. Try again in a moment.")
        return model, info


def _bound(caller: Caller, model: ServedModel, info: protocol.ModelInfo, request: Asked, prompts: list[Counted]) -> int:
    """The most tokens that each text may have. What was asked must fit the window; a default is cut to fit.
    Raises ContextLengthExceeded, InvalidRequest."""
    asked = request.max_tokens
    longest = max([len(prompt.ids) for prompt in prompts])
    room = info.context_tokens - longest
    if room < (asked or 1):
        raise errors.ContextLengthExceeded(
            f"This model's context is {info.context_tokens} tokens; {request.param!r} takes {longest} and the answer "
            f"may take {asked or 1}. Send less, or ask for less.",
            param=request.param if room < 1 else "max_tokens",
        )
    bound = asked or min(room, caller.default_max_tokens or model.default_max_tokens)
    if request.rules.min_tokens > bound:
        message = f"'min_tokens' is {request.rules.min_tokens}, and the answer may have {bound} tokens at most."
        raise errors.InvalidRequest(message, param="min_tokens")
    total = sum([len(prompt.ids) for prompt in prompts]) + bound * len(prompts) * request.n
    if total > REQUEST_TOKENS_MAX:
        param = "n" if request.n > 1 else request.param
        message = f"With this {param!r} the request may take {total} tokens; the limit is {REQUEST_TOKENS_MAX}."
        raise errors.InvalidRequest(message, param=param)
    return bound
