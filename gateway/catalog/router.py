"""Finds the models that may serve a request from its `model` field: a base model, an adapter or an alias.

An alias stands for one of its models, chosen by weight; all requests of one conversation get the same model. Aliases
are in memory and reloaded when the revision has changed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
import sqlalchemy as sa

from billing.accounts import prices
from billing.accounts.prices import PriceVersion, UnitPrices
from billing.clock import SECOND
from billing.database import Database
from gateway.access.callers import Caller
from gateway.catalog import aliases as alias_rows
from gateway.catalog.aliases import Alias
from gateway.catalog.capabilities import EmbeddingProperties, ModelCapabilities, common_capabilities
from gateway.catalog.registry import OWNER, ModelCard, ModelTarget, Registry
from gateway.config.file import Config
from gateway.config.settings import TargetSection, split_version
from gateway.errors import ModelNotFound

PARTS = 2**52  # a double represents n + 0.5 exactly for every n below it


class Route(msgspec.Struct, frozen=True):
    """The targets that may serve a request. `candidates`: one target; for a cheapest alias all of its targets in order,
    of which the caller must choose the cheapest that can serve the request. `among`: all targets that the name stands
    for; other requests may get another of them. `Router.fallbacks` has the targets to try after a candidate.
    `is_pinned`: no other target may serve the request."""

    candidates: tuple[ModelTarget, ...]
    among: tuple[ModelTarget, ...]
    alias: Alias | None = None
    is_pinned: bool = False


class EngineModels(Protocol):
    """The engines' reports of the base models."""

    def served(self) -> frozenset[str]:
        """Names of the base models that could be served now."""
        ...

    def context_tokens(self, model: str) -> int | None:
        """The longest context of a base model; None before an engine has reported it."""
        ...

    def embedding(self, model: str) -> EmbeddingProperties | None:
        """The properties of a base model's embeddings; None: the model makes no embeddings, or no engine has it."""
        ...


class Router:
    """One per gateway process."""

    def __init__(
        self,
        config: Config,
        database: Database,
        registry: Registry,
        now_s: Callable[[], float],
        engine_models: EngineModels,
        capabilities: Callable[[str], ModelCapabilities | None],
    ) -> None:
        """`now_s`: the database's clock. `capabilities`: returns a base model's capabilities; None while it is not
        served."""
        self._config = config
        self._database = database
        self._registry = registry
        self._now_s = now_s
        self._engine_models = engine_models
        self._capabilities = capabilities
        self._aliases: Mapping[str, Alias] = alias_rows.configured_aliases(config)
        self._prices: Mapping[str, Sequence[PriceVersion]] = {}  # of the models in cheapest aliases, latest first

    async def reload(self) -> None:
        """Raises DatabaseUnavailable."""
        self._aliases, self._prices = await self._database.read(self._read)

    def _read(self, connection: sa.Connection) -> tuple[dict[str, Alias], dict[str, list[PriceVersion]]]:
        aliases = alias_rows.in_force(connection, self._config)
        models = {target.model for alias in aliases.values() if alias.cheapest for target in alias.models}
        return aliases, {
            model: prices.list_price_versions(connection, subject_kind="model", subject=model)
            for model in sorted(models)
        }

    # ---- targets of a name

    def route(self, caller: Caller, name: str, sticky: str) -> Route:
        """The route of a name: a base model or an adapter that the tenant may call, else an alias. Requests with the
        same `sticky` value get the same model of an alias. Raises ModelNotFound, with the same message for a name that
        is not in the key's list, for another tenant's name and for an unknown name."""
        if not caller.may_call(name):
            raise ModelNotFound(name)
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
        served = self._engine_models.served()
        # If no model is served, one is still chosen, so that the caller gets its refusal.
        parts = [(part, target) for part, target in parts if target.model in served] or parts
        chosen = choose(alias.name, caller.tenant_id or "", sticky, [part for part, _ in parts])
        return Route((next(target for target in among if target.name == chosen),), among, alias)

    def pinned(self, caller: Caller, name: str, target: str) -> Route:
        """The route of a line of a batch, whose `name` stood for `target` when the batch was validated. Raises
        ModelNotFound if the key may not call the name any more, or the tenant not the target."""
        found = self._model(caller, target) if caller.may_call(name) else None
        if found is None:
            raise ModelNotFound(name)
        return Route((found,), (found,), is_pinned=True)

    def models_of(self, caller: Caller, name: str) -> tuple[ModelTarget, ...]:
        """All targets that the name stands for now; empty if the caller may call no such name."""
        try:
            return self.route(caller, name, "").among
        except ModelNotFound:
            return ()

    def fallbacks(self, caller: Caller, route: Route, first: ModelTarget) -> list[ModelTarget]:
        """The targets to try, in order, when `first` is saturated or unavailable. An adapter has no fallbacks: no other
        base model can serve it. A model's own fallbacks must be in the key's list; an alias covers its models and
        fallbacks."""
        if first.adapter is not None or route.is_pinned:
            return []
        names = route.alias.fallbacks if route.alias is not None else ()
        if not names:
            base = self._registry.base(first.model)
            names = () if base is None else tuple(name for name in base.fallbacks if caller.may_call(name))
        found = [self._model(caller, name) for name in names if name != first.model]
        return [target for target in found if target is not None]

    def _alias(self, caller: Caller, name: str) -> Alias | None:
        alias = self._aliases.get(name)
        return alias if alias is not None and alias.is_for(caller.tenant_id, caller.tenant_slug) else None

    def _parts(self, caller: Caller, alias: Alias) -> list[tuple[TargetSection, ModelTarget]]:
        """The alias's models that this tenant may call, in order, without models of weight 0."""
        found = [(part, self._model(caller, part.model)) for part in alias.models if part.weight]
        return [(part, target) for part, target in found if target is not None]

    def _model(self, caller: Caller, name: str) -> ModelTarget | None:
        """The base model of that name, even if the tenant has an adapter of the same name, or the version of an
        adapter. None: the tenant may not call it."""
        if split_version(name)[1] is not None:
            return self._target(caller, name)
        base = self._registry.base(name)
        return ModelTarget(name, name, None) if base is not None and base.allows(caller.tenant_id) else None

    def _target(self, caller: Caller, name: str) -> ModelTarget | None:
        """A base model or an adapter that the tenant may call, even if it cannot be loaded now."""
        try:
            return self._registry.find(caller.tenant_id, name)
        except ModelNotFound:
            return None

    # ---- prices

    def unit_prices(self, model: str, currency: str, tier: str) -> UnitPrices | None:
        """The prices in force now, of a model of a cheapest alias; None: the model has no price in that currency and
        tier."""
        now = round(self._now_s() * SECOND)
        version = prices.in_force(self._prices.get(model, ()), currency, now)
        return None if version is None else version.tiers.get(tier)

    # ---- a tenant's list of models

    def visible(self, caller: Caller) -> list[ModelCard]:
        """Cards of base models and adapters in the registry's order, then of aliases by name; of all that the key may
        call."""
        cards = [self._with_model(card) for card in self._registry.visible(caller.tenant_id)]
        aliases = [name for name in self._aliases if self._target(caller, name) is None]
        found = [self._alias_card(caller, name) for name in sorted(aliases)]
        return [card for card in (*cards, *found) if card is not None and caller.may_call(card.id)]

    def card(self, caller: Caller, name: str) -> ModelCard:
        """Raises ModelNotFound, ModelUnavailable."""
        if not caller.may_call(name):
            raise ModelNotFound(name)
        if self._target(caller, name) is not None:
            return self._with_model(self._registry.card(caller.tenant_id, name))
        card = self._alias_card(caller, name)
        if card is None:
            raise ModelNotFound(name)
        return card

    def _alias_card(self, caller: Caller, name: str) -> ModelCard | None:
        """The card of an alias; None if no model can serve it. An alias has no `parent`: each answer names the model
        that served it."""
        alias = self._alias(caller, name)
        parts = [] if alias is None else self._parts(caller, alias)
        models = [target.model for _, target in parts if not self._registry.is_refused(target.model)]
        if alias is None or not models:
            return None
        created = alias.created_at
        if created is None:  # an alias of laneway.toml has no date: use its first model's
            created = self._registry.created(models[0])
        known = [context for model in models if (context := self._engine_models.context_tokens(model)) is not None]
        can = common_capabilities([one for model in models if (one := self._capabilities(model)) is not None])
        if len(models) > 1:  # embeddings of several models cannot be compared: such a request is refused
            can = msgspec.structs.replace(can, embeddings=False)
        return ModelCard(
            id=name,
            created=created,
            owned_by=OWNER,
            capabilities=can,
            max_model_len=min(known, default=None),
            embedding=self._engine_models.embedding(models[0]) if len(models) == 1 else None,
        )

    def _with_model(self, card: ModelCard) -> ModelCard:
        """The card with the capabilities and the context length of its base model."""
        model = card.parent or card.id
        return msgspec.structs.replace(
            card,
            max_model_len=self._engine_models.context_tokens(model),
            capabilities=self._capabilities(model),
            embedding=self._engine_models.embedding(model),
        )


def choose(alias: str, tenant: str, sticky: str, parts: Sequence[TargetSection]) -> str:
    """Choose a model by weight (each above 0), the same for the same arguments: weighted rendezvous hashing. Each model
    gets a score from its own hash and weight, and the highest score wins. When a model is added, removed or gets
    another weight, only requests that this model gains or loses change their model."""

    def score(part: TargetSection) -> float:
        hashed = "\0".join((alias, tenant, sticky, part.model)).encode()
        number = int.from_bytes(hashlib.sha256(hashed).digest()[:8]) >> 12
        return -part.weight / math.log((number + 0.5) / PARTS)

    return max(parts, key=score).model
