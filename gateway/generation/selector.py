"""Chooses the model that serves a request, and its fallbacks: the route's first model that can, or the cheapest.

It combines the routes of a name with each model's plan of the request. It changes nothing: no limit, no budget, nothing
in an engine.
"""

from __future__ import annotations

import asyncio

from gateway import errors
from gateway.access.callers import Caller
from gateway.api.generation_request import GenerationRequest
from gateway.catalog.pooling import check_one_model
from gateway.catalog.registry import ModelTarget
from gateway.catalog.router import Route, Router
from gateway.generation.inflight import RequestPlan
from gateway.generation.planning import CountedPrompts, RequestPlanner
from gateway.log import RequestLine
from gateway.metrics import Metrics


class Selector:
    """One per gateway process."""

    def __init__(self, router: Router, planner: RequestPlanner, metrics: Metrics) -> None:
        self._planner = planner
        self._router = router
        self._metrics = metrics

    def route(self, caller: Caller, asked: GenerationRequest, line: RequestLine, target: str | None = None) -> Route:
        """`target`: the only model that may serve the request; None: any model for which the name stands. Raises
        ModelNotFound, and InvalidRequest for ids that mean different tokens to the models of the name, or for
        embeddings of several models."""
        if target is not None:
            if asked.embedding is not None:
                check_one_model(asked.model, self._router.models_of(caller, asked.model))
            return self._router.pinned(caller, asked.model, target)
        route = self._router.route(caller, asked.model, asked.sticky or line.record.request_id)
        if (field := asked.ids_in) is not None and not self._planner.one_vocabulary(route.among):
            raise errors.InvalidRequest(
                f"{field!r} has token ids, and {asked.model!r} stands for models with different vocabularies, to which "
                f"they are different words. Name one of them as 'model': {', '.join(one.name for one in route.among)}.",
                param=field,
            )
        if asked.embedding is not None:
            check_one_model(asked.model, route.among)
        return route

    def tokenizing(self, caller: Caller, asked: GenerationRequest) -> ModelTarget:
        """The model whose ids are requested, or given. Raises as `counting`; InvalidRequest for the name of several
        models that decode the same ids differently."""
        among = self._router.route(caller, asked.model, "").among
        if not self._planner.one_vocabulary(among):
            raise errors.InvalidRequest(
                f"{asked.model!r} stands for models with different vocabularies, to which the same token ids are "
                f"different words. Name one of them as 'model': {', '.join(one.name for one in among)}.",
                param="model",
            )
        return self.counting(caller, asked.model)

    def counting(self, caller: Caller, name: str) -> ModelTarget:
        """The model whose tokenizer counts for this name. Raises ModelNotFound, ModelUnavailable, EngineDown."""
        target = self._router.route(caller, name, "").candidates[0]
        self._planner.check_served(target)
        return target

    async def first(
        self, caller: Caller, asked: GenerationRequest, route: Route, tier: str, line: RequestLine
    ) -> tuple[RequestPlan, list[ModelTarget]]:
        """The plan of the model that serves the request, and its fallbacks. If the route's first model is unavailable,
        a fallback takes its place. Raises the first model's ApiError."""
        if len(route.candidates) > 1 and (plan := await self._cheapest(caller, asked, route, tier)) is not None:
            log_selection(line, asked, plan)
            return plan, self._fallbacks(caller, asked, route, plan.target)
        first = route.candidates[0]
        _log_target(line, asked, first)
        fallbacks = self._fallbacks(caller, asked, route, first)
        try:
            plan = await self._planner.plan(caller, asked, first)
        except (errors.EngineDown, errors.ModelUnavailable) as error:
            found = await self.following(caller, asked, first, fallbacks, line)
            if found is None:
                raise error from None
            plan = found
        log_selection(line, asked, plan)
        return plan, fallbacks

    def _fallbacks(
        self, caller: Caller, asked: GenerationRequest, route: Route, first: ModelTarget
    ) -> list[ModelTarget]:
        """A request with token ids has no fallbacks: the ids belong to one vocabulary. Embeddings have no fallbacks
        either: vectors of two models cannot be compared."""
        one_model = asked.ids_in is not None or asked.embedding is not None
        return [] if one_model else self._router.fallbacks(caller, route, first)

    async def following(
        self,
        caller: Caller,
        asked: GenerationRequest,
        before: ModelTarget,
        fallbacks: list[ModelTarget],
        line: RequestLine,
    ) -> RequestPlan | None:
        """Removes models from `fallbacks` up to the first that can serve the request now, and returns its plan; None if
        no model can."""
        while fallbacks:
            target = fallbacks.pop(0)
            line.record.fallbacks = [*line.record.fallbacks, target.name]
            try:
                plan = await self._planner.plan(caller, asked, target)
            except errors.ApiError:
                continue
            self._metrics.fallbacks.labels(before.model, target.model).inc()
            return plan
        return None

    async def _cheapest(self, caller: Caller, asked: GenerationRequest, route: Route, tier: str) -> RequestPlan | None:
        """The plan with the lowest cost at `max_tokens`, among the models that can serve the request now and have a
        price; the first of several. None if there is no such model."""
        best: tuple[int, RequestPlan] | None = None
        known: CountedPrompts = {}
        for target in route.candidates:
            prices = self._router.unit_prices(target.model, caller.currency, tier)
            if prices is None:
                continue
            await asyncio.sleep(0)  # each plan may count the prompt again: let other tasks run
            try:
                plan = await self._planner.plan(caller, asked, target, known)
            except errors.Overloaded:  # this process is overloaded, not the model
                raise
            except errors.ApiError:
                continue
            most = prices.most(plan.prompt_tokens, plan.texts * plan.max_tokens)
            if best is None or most < best[0]:
                best = most, plan
        return None if best is None else best[1]


def log_selection(line: RequestLine, asked: GenerationRequest, plan: RequestPlan) -> None:
    """Write the serving model into the log line."""
    _log_target(line, asked, plan.target)
    line.record.prompt_tokens = plan.prompt_tokens
    line.record.ignored = tuple(dict.fromkeys([*line.record.ignored, *plan.ignored]))


def _log_target(line: RequestLine, asked: GenerationRequest, target: ModelTarget) -> None:
    line.record.model = target.model
    line.record.adapter = target.adapter.id if target.adapter else None
    line.record.asked = asked.model if asked.model != target.name else None
