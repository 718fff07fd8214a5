"""A base model as the database has it, without a database."""

from __future__ import annotations

from gateway.catalog.base_models import BaseModel


def model(name: str, *tenants: str) -> BaseModel:
    return BaseModel(
        id=None, name=name, origin="config", path="", directory="", dtype="float32", quantize="none",
        kv_dtype="auto", context_tokens=None, pinned=False, tenants=tenants or None,
        fallbacks=(), max_tokens_default=None, active=True, created_at=None, changed_at=None,
    )  # fmt: skip
