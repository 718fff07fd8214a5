"""The model that is to serve a request, and the one after it: of a route the first that can, or the cheapest.

It brings together what a name stands for and what each model would make of the request. It must never take anything:
no limit, no budget, no place in the engine.
"""

from __future__ import annotations

import asyncio

from gateway import errors
from gateway.access.callers import Caller
from gateway.api.generation_request import GenerationRequest
from gateway.catalog.registry import ModelTarget
from gateway.catalog.router import Route, Router
from gateway.generation.inflight import RequestPlan
from gateway.generation.planning import CountedPrompts, RequestPlanner
from gateway.log import RequestLine
from gateway.metrics import Metrics


class Selector:
    """Of one gateway process."""

    def __init__(self, router: Router, planner: RequestPlanner, metrics: Metrics) -> None:
        self.planner = planner
        self._router = router
        self._metrics = metrics

    def route(self, caller: Caller, asked: GenerationRequest, line: RequestLine) -> Route:
        """Raises ModelNotFound, and InvalidRequest for ids that would be other words to another model of the name."""
        route = self._router.route(caller, asked.model, asked.sticky or line.record.request_id)
        if (field := asked.ids_in) is not None and not self.planner.one_vocabulary(route.among):
            raise errors.InvalidRequest(
                f"{field!r} has token ids, and {asked.model!r} stands for models with different vocabularies, to which "
                f"they are different words. Name one of them as 'model': {', '.join(one.name for one in route.among)}.",
                param=field,
            )
        return route

    def counting(self, caller: Caller, name: str) -> ModelTarget:
        """Whose tokenizer counts for this name. Raises ModelNotFound, ModelUnavailable, EngineAway."""
        target = self._router.route(caller, name, "").candidates[0]
        self.planner.check_served(target)
        return target

    async def first(
        self, caller: Caller, asked: GenerationRequest, route: Route, tier: str, line: RequestLine
    ) -> tuple[RequestPlan, list[ModelTarget]]:
        """The model that is to serve it, and what to try after it. One that is not there now is passed over, if
        another may serve in its place. Raises the first one's ApiError."""
        if len(route.candidates) > 1 and (plan := await self._cheapest(caller, asked, route, tier)) is not None:
            log_selection(line, asked, plan)
            return plan, self._fallbacks(caller, asked, route, plan.target)
        first = route.candidates[0]
        _log_target(line, asked, first)
        fallbacks = self._fallbacks(caller, asked, route, first)
        try:
            plan = await self.planner.plan(caller, asked, first)
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
        """Whoever writes ids means one vocabulary's: to another model they are other words, so none has its place."""
        return [] if asked.ids_in is not None else self._router.fallbacks(caller, route, first)

    async def following(
        self,
        caller: Caller,
        asked: GenerationRequest,
        before: ModelTarget,
        fallbacks: list[ModelTarget],
        line: RequestLine,
    ) -> RequestPlan | None:
        """The first of `fallbacks`, which it takes from them, that can serve the request now; None: none can."""
        while fallbacks:
            target = fallbacks.pop(0)
            line.record.fallbacks = [*line.record.fallbacks, target.name]
            try:
                plan = await self.planner.plan(caller, asked, target)
            except errors.ApiError:
                continue
            self._metrics.fallbacks.labels(before.model, target.model).inc()
            return plan
        return None

    async def _cheapest(self, caller: Caller, asked: GenerationRequest, route: Route, tier: str) -> RequestPlan | None:
        """Of those that can serve the request now, and have a price, the one that it costs least at most; of several
        the first. None: there is none."""
        best: tuple[int, RequestPlan] | None = None
        known: CountedPrompts = {}
        for target in route.candidates:
            prices = self._router.unit_prices(target.model, caller.currency, tier)
            if prices is None:
                continue
            await asyncio.sleep(0)  # each may count the prompt anew: others have their turn in between
            try:
                plan = await self.planner.plan(caller, asked, target, known)
            except errors.Overloaded:  # of this process, and says nothing of the model
                raise
            except errors.ApiError:
                continue
            most = prices.most(plan.prompt_tokens, plan.texts * plan.max_tokens)
            if best is None or most < best[0]:
                best = most, plan
        return None if best is None else best[1]


def log_selection(line: RequestLine, asked: GenerationRequest, plan: RequestPlan) -> None:
    """Who serves it, for the log."""
    _log_target(line, asked, plan.target)
    line.record.prompt_tokens = plan.prompt_tokens


def _log_target(line: RequestLine, asked: GenerationRequest, target: ModelTarget) -> None:
    line.record.model = target.model
    line.record.adapter = target.adapter.id if target.adapter else None
    line.record.asked = asked.model if asked.model != target.name else None
