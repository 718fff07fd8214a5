"""What a name means to each tenant, whoever else has one like it."""

from __future__ import annotations

from typing import cast

import pytest

from billing.database import Database
from gateway.catalog.adapters import EVERYONE, Adapter
from gateway.catalog.base_models import BaseModel
from gateway.catalog.registry import Registry, ServedName
from gateway.errors import ModelNotFound
from support.gateway.base_models import model

MINE, OTHERS = "ten_mine", "ten_others"


def adapter(name: str, owner: str | None, *shared: str, base: str = "base") -> Adapter:
    return Adapter(
        id=f"ada_{name}_{owner}", tenant_id=owner, name=name, base_model=base, digest="0" * 64, version=1, active=True,
        shared=shared, pinned=False, notes=None, created_at=0,
    )  # fmt: skip


def registry(models: list[BaseModel], adapters: list[Adapter]) -> Registry:
    made = Registry(cast(Database, None))
    made.serve([ServedName(one, 0) for one in models])
    made.replace(adapters)
    return made


def meaning(made: Registry, tenant: str, name: str) -> str | None:
    """Whose adapter, or "model"; None: there is nothing of that name."""
    try:
        found = made.find(tenant, name).adapter
    except ModelNotFound:
        return None
    return "model" if found is None else found.tenant_id or "operator"


def seen(made: Registry, tenant: str) -> list[tuple[str, str | None]]:
    return [(card.id, card.parent) for card in made.visible(tenant)]


def test_a_tenants_own_adapter_comes_before_a_model_of_its_name() -> None:
    """One that comes later, or comes back, takes nothing from a tenant; to all others it is the model."""
    made = registry([model("base"), model("style")], [adapter("style", MINE)])
    assert (meaning(made, MINE, "style"), meaning(made, OTHERS, "style")) == (MINE, "model")
    assert seen(made, MINE) == [("base", None), ("style", "base")]
    assert seen(made, OTHERS) == [("base", None), ("style", None)]


def test_what_an_operator_shares_comes_after_models() -> None:
    adapters = [adapter("style", OTHERS, MINE), adapter("base", None, EVERYONE), adapter("free", None, EVERYONE)]
    made = registry([model("base"), model("style")], adapters)
    assert [meaning(made, MINE, name) for name in ("style", "base", "free")] == ["model", "model", "operator"]
    assert seen(made, MINE) == [("base", None), ("style", None), ("free", "base")]


@pytest.mark.parametrize("adapters", [[], [adapter("secret", MINE)], [adapter("secret", None, EVERYONE)]])
def test_a_model_of_others_means_nothing(adapters: list[Adapter]) -> None:
    """Neither by its name being taken, nor by the order of what is listed."""
    there = registry([model("secret", OTHERS), model("base")], adapters)
    absent = registry([model("base")], adapters)
    assert meaning(there, MINE, "secret") == meaning(absent, MINE, "secret")
    assert seen(there, MINE) == seen(absent, MINE)
    assert meaning(there, OTHERS, "secret") == "model"


def test_an_adapter_of_a_model_that_the_tenant_may_not_call_is_not_there() -> None:
    made = registry(
        [model("base", OTHERS), model("style"), model("more")],
        [adapter("style", MINE), adapter("more", MINE, base="style"), adapter("lost", MINE)],
    )
    assert [meaning(made, MINE, name) for name in ("style", "more", "lost")] == ["model", MINE, None]
    assert seen(made, MINE) == [("more", "style"), ("style", None)]
