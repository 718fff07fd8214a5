"""Which models may serve a request, and in which order: what its `model` stands for to this tenant.

An alias stands for one of its models by weight, the same one for the requests of one conversation. It answers from
memory, reloaded when the revision moved. It must never know what is in a prompt, or how tokens are made.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence

import msgspec
import sqlalchemy as sa

from billing.accounts import prices
from billing.accounts.prices import PriceVersion, UnitPrices
from billing.clock import SECOND
from billing.database import Database
from gateway.access.callers import Caller
from gateway.catalog import aliases as alias_rows
from gateway.catalog.aliases import Alias
from gateway.catalog.registry import OWNER, ModelCard, ModelTarget, Registry
from gateway.config.file import Config
from gateway.config.settings import TargetSection
from gateway.errors import ModelNotFound

PARTS = 2**52  # a double tells halves of them apart


class Route(msgspec.Struct, frozen=True):
    """What may serve a request. `candidates`: one, or of a cheapest alias all, in order, of which the cheapest capable
    one is to be chosen. `among`: all that the name stands for, of which another request may get another. `fallbacks` of
    each follow it, where it is saturated or not there."""

    candidates: tuple[ModelTarget, ...]
    among: tuple[ModelTarget, ...]
    alias: Alias | None = None


class Router:
    """Of one gateway process."""

    def __init__(
        self,
        config: Config,
        database: Database,
        registry: Registry,
        served: Callable[[], frozenset[str]],
        now_s: Callable[[], float],
        context_tokens: Callable[[str], int | None],
    ) -> None:
        """`served`: names of the base models that the engine serves at this moment. `now_s`: by the database.
        `context_tokens`: the longest context of a base model; None while no engine has told it."""
        self._config = config
        self._database = database
        self._registry = registry
        self._served = served
        self._now_s = now_s
        self._context_tokens = context_tokens
        self._aliases: Mapping[str, Alias] = alias_rows.configured(config)
        self._prices: Mapping[str, Sequence[PriceVersion]] = {}  # of models of cheapest aliases, latest first

    async def reload(self) -> None:
        """Raises DatabaseUnavailable."""
        self._aliases, self._prices = await self._database.read(self._read)

    def _read(self, connection: sa.Connection) -> tuple[dict[str, Alias], dict[str, list[PriceVersion]]]:
        aliases = alias_rows.in_force(connection, self._config)
        models = {target.model for alias in aliases.values() if alias.cheapest for target in alias.models}
        return aliases, {
            model: prices.listing(connection, subject_kind="model", subject=model) for model in sorted(models)
        }

    # ---- what a name stands for

    def route(self, caller: Caller, name: str, sticky: str) -> Route:
        """A base model or an adapter that the tenant sees, or else an alias. Requests with the same `sticky` value get
        the same model. Raises ModelNotFound, with the same message for another tenant's name and for an unknown one."""
        target = self._target(caller, name)
        if target is not None:
            return Route((target,), (target,))
        alias = self._alias(caller, name)
        if alias is None:
            raise ModelNotFound(name)
        parts = self._parts(caller, alias)
        if not parts:
            raise ModelNotFound(name)
        among = tuple([target for _, target in parts])
        if alias.cheapest and caller.cheapest:
            return Route(among, among, alias)
        served = self._served()
        # If none is served, the chosen one's refusal is the answer.
        parts = [(part, target) for part, target in parts if target.model in served] or parts
        chosen = choose(alias.name, caller.tenant_id or "", sticky, [part for part, _ in parts])
        return Route((next(target for target in among if target.model == chosen),), among, alias)

    def fallbacks(self, caller: Caller, route: Route, first: ModelTarget) -> list[ModelTarget]:
        """What to try when `first` is saturated or not there. An adapter's base is its model: nothing else has it."""
        if first.adapter is not None:
            return []
        names = route.alias.fallbacks if route.alias is not None else ()
        if not names:
            base = self._registry.base(first.model)
            names = () if base is None else base.fallbacks
        found = [self._model(caller, name) for name in names if name != first.model]
        return [target for target in found if target is not None]

    def _alias(self, caller: Caller, name: str) -> Alias | None:
        alias = self._aliases.get(name)
        return alias if alias is not None and alias.is_for(caller.tenant_id, caller.tenant_slug) else None

    def _parts(self, caller: Caller, alias: Alias) -> list[tuple[TargetSection, ModelTarget]]:
        """Its models that this tenant may call, in order; of weight 0 none."""
        found = [(part, self._model(caller, part.model)) for part in alias.models if part.weight]
        return [(part, target) for part, target in found if target is not None]

    def _model(self, caller: Caller, name: str) -> ModelTarget | None:
        """The base model of that name, whatever else the tenant calls so; None: it may not call it."""
        base = self._registry.base(name)
        return ModelTarget(name, name, None) if base is not None and base.allows(caller.tenant_id) else None

    def _target(self, caller: Caller, name: str) -> ModelTarget | None:
        """A base model or an adapter that the tenant may call, also where it cannot be loaded now."""
        try:
            return self._registry.find(caller.tenant_id, name)
        except ModelNotFound:
            return None

    # ---- what it costs

    def unit_prices(self, model: str, currency: str, tier: str) -> UnitPrices | None:
        """In force now, of a model of a cheapest alias; None: it has no price there."""
        now = round(self._now_s() * SECOND)
        version = prices.in_force(self._prices.get(model, ()), currency, now)
        return None if version is None else version.tiers.get(tier)

    # ---- what a tenant sees

    def visible(self, caller: Caller) -> list[ModelCard]:
        """Base models and adapters as the registry has them, then aliases by name."""
        cards = [self._with_context(card) for card in self._registry.visible(caller.tenant_id)]
        aliases = [name for name in self._aliases if self._target(caller, name) is None]
        found = [self._alias_card(caller, name) for name in sorted(aliases)]
        return [*cards, *(card for card in found if card is not None)]

    def card(self, caller: Caller, name: str) -> ModelCard:
        """Raises ModelNotFound, ModelUnavailable."""
        if self._target(caller, name) is not None:
            return self._with_context(self._registry.card(caller.tenant_id, name))
        card = self._alias_card(caller, name)
        if card is None:
            raise ModelNotFound(name)
        return card

    def _alias_card(self, caller: Caller, name: str) -> ModelCard | None:
        """An alias has no parent: which model serves is said by each answer. None while there is none for it."""
        alias = self._alias(caller, name)
        parts = [] if alias is None else self._parts(caller, alias)
        there = [target.model for _, target in parts if not self._registry.is_refused(target.model)]
        if alias is None or not there:
            return None
        created = alias.created_at
        if created is None:  # the configuration's, which has no date: its first model's
            created = self._registry.created(there[0])
        known = [context for model in there if (context := self._context_tokens(model)) is not None]
        return ModelCard(id=name, created=created, owned_by=OWNER, max_model_len=min(known, default=None))

    def _with_context(self, card: ModelCard) -> ModelCard:
        return msgspec.structs.replace(card, max_model_len=self._context_tokens(card.parent or card.id))


def choose(alias: str, tenant: str, sticky: str, parts: Sequence[TargetSection]) -> str:
    """One of these models, by weight (each over 0): always the same for the same words. Each model draws a number of
    its own, and the largest for its weight wins: where a model comes, goes or changes its weight, only requests that
    it gains or loses change theirs."""

    def drawn(part: TargetSection) -> float:
        words = "\0".join((alias, tenant, sticky, part.model)).encode()
        number = int.from_bytes(hashlib.sha256(words).digest()[:8]) >> 12
        return -part.weight / math.log((number + 0.5) / PARTS)

    return max(parts, key=drawn).model
