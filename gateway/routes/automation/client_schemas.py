"""The description in forms that generators of clients read (openapi-python-client, openapi-typescript), with an example
of each body and of each answer. The meaning of every schema is unchanged.
"""

from __future__ import annotations

from typing import Any

from gateway.access.write_replays import HEADER
from gateway.routes.automation.answer_examples import with_answer_examples

_MODEL = "my-model"
_MESSAGES = [{"role": "user", "content": "Name three rivers."}]
_ITEMS = [{"type": "message"} | _MESSAGES[0]]
# A body by the name of its component.
EXAMPLES: dict[str, dict[str, Any]] = {
    "ChatRequest": {"model": _MODEL, "messages": _MESSAGES, "max_completion_tokens": 64},
    "CompletionRequest": {"model": _MODEL, "prompt": "Three rivers are", "max_tokens": 16},
    "EmbeddingsRequest": {"model": _MODEL, "input": ["Three rivers", "Two lakes"]},
    "RerankRequest": {"model": _MODEL, "query": "rivers", "documents": ["The Rhine", "A dog"], "top_n": 1},
    "ScoreRequest": {"model": _MODEL, "text_1": "rivers", "text_2": ["The Rhine", "A dog"]},
    "MessagesRequest": {"model": _MODEL, "messages": _MESSAGES, "max_tokens": 64},
    "CountRequest": {"model": _MODEL, "messages": _MESSAGES},
    "ResponsesRequest": {"model": _MODEL, "input": "Name three rivers.", "max_output_tokens": 64},
    "CompactRequest": {"model": _MODEL, "input": "Name three rivers."},
    "TokenizeRequest": {"model": _MODEL, "prompt": "Three rivers are"},
    "DetokenizeRequest": {"model": _MODEL, "tokens": [1, 2, 3]},
    "NewConversation": {"items": _ITEMS, "metadata": {"topic": "rivers"}},
    "ConversationChange": {"metadata": {"topic": "lakes"}},
    "NewItems": {"items": _ITEMS},
    "BatchRequest": {
        "input_file_id": "file-0123456789abcdef0123456789abcdef",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    },
    "MessageBatchRequest": {
        "requests": [{"custom_id": "1", "params": {"model": _MODEL, "messages": _MESSAGES, "max_tokens": 64}}],
    },
    "NewTenant": {
        "slug": "northwind",
        "name": "Northwind",
        "tier": "standard",
        "currency": "EUR",
        "time_zone": "Europe/Berlin",
    },
    "TenantChange": {"tier": "premium", "allowed_ips": ["192.0.2.0/24"]},
    "NewProject": {"tenant": "northwind", "name": "search"},
    "ProjectChange": {"default_max_tokens": 512},
    "NewKey": {
        "tenant": "northwind",
        "project": "search",
        "name": "ci",
        "models": [_MODEL],
        "tags": {"team": "search"},
    },
    "KeyChange": {"allowed_ips": ["192.0.2.0/24"]},
    "Rotation": {"overlap_s": 86_400},
    "NewPrice": {"subject": _MODEL, "input": 300_000, "output": 1_200_000, "multipliers": {"premium": "3"}},
    "PricePreview": {"subject": _MODEL, "input": 300_000, "output": 1_200_000, "month": "2026-01"},
    "BudgetSetting": {"tenant": "northwind", "unit": "money", "period": "month", "limit_amount": 50_000_000_000_000},
    "LimitsSetting": {"tenant": "northwind", "requests_per_minute": 600},
    "NewWebhook": {"url": "https://example.org/laneway", "tenant": "northwind"},
    "WebhookChange": {"active": False},
    "AliasSetting": {"models": [{"model": _MODEL, "weight": 95}, {"model": "laneway-tiny", "weight": 5}]},
    "AddedModel": {"name": "laneway-tiny"},
    "ChangedModel": {"pinned": True},
    "AdapterChange": {"shared": ["northwind"]},
    "Promotion": {"version": 2},
    "EngineDrain": {"draining": True},
    "NewExport": {"month": "2026-01", "tenant": "northwind"},
    "NewCorrection": {"tenant": "northwind", "picos": -25_000_000_000_000, "reason": "goodwill"},
    "NewCredit": {"tenant": "northwind", "picos": 25_000_000_000_000, "reason": "goodwill"},
    "NewPayment": {"amount_minor": 11_900, "reference": "bank 4711"},
    "NewProfile": {"legal_name": "Northwind GmbH", "address": ["Berlin"], "taxes": [{"name": "VAT", "rate": "19"}]},
    "PeriodClosing": {"tenant": "northwind", "month": "2026-01"},
    "MonthClosing": {"month": "2026-01"},
    "SignIn": {"key": "lw_admin_…"},
    "TotpCode": {"code": "123456"},
}
_BYTES = "application/octet-stream"
_KEYED = ("post", "put", "patch", "delete")
# A sign-in is no administrative write, and a check writes nothing.
_NOT_KEYED = ("/v1/admin/session", "/v1/admin/adapters/check")
_IDEMPOTENCY_KEY = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "description": "A write repeated with it within 24 hours gets the first answer again, with the header "
    "`idempotent-replayed: true`.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[\x21-\x7e]+$"},
}


def for_clients(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy of the whole description."""
    found: dict[str, Any] = _readable(schema)
    components = found["components"]["schemas"]
    for name, example in EXAMPLES.items():
        components[name] = components[name] | {"examples": [example]}
    for path, operations in found["paths"].items():
        if not path.startswith("/v1/admin/") or path.startswith(_NOT_KEYED):
            continue
        for method in _KEYED:
            if method in operations:
                operation = operations[method]
                operation["parameters"] = [*operation.get("parameters", []), _IDEMPOTENCY_KEY]
    return with_answer_examples(found)


def _readable(part: Any) -> Any:
    if isinstance(part, list):
        return [_readable(one) for one in part]
    if not isinstance(part, dict):
        return part
    if part.keys() == {""}:  # the framework's content type of a file
        return {_BYTES: _readable(part[""])}
    found = {name: _readable(value) for name, value in part.items()}
    if found.get("items") is False:  # after `prefixItems`, whose number `maxItems` says
        del found["items"]
    if found.get("type") == "array" and "items" not in found and "prefixItems" not in found:
        found["items"] = {}
    values = found.get("enum")
    if isinstance(values, list) and not all(value is None or isinstance(value, str) for value in values):
        del found["enum"]
        found["anyOf"] = [_only(value) for value in values]
    return found


def _only(value: Any) -> dict[str, Any]:
    """The schema of one value: generators know an `enum` of texts and integers only."""
    if value is None:
        return {"type": "null"}
    if isinstance(value, bool):
        return {"type": "boolean", "const": value}
    if isinstance(value, dict):
        assert not value
        return {"type": "object", "maxProperties": 0}
    if isinstance(value, list):
        items = {"type": "string", "enum": value} if value else {}
        return {"type": "array", "items": items, "minItems": len(value), "maxItems": len(value)}
    return {"const": value}
