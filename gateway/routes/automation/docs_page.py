"""The API's description as one page of HTML: no script, nothing from another host. Long parts are folded, and the
browser's own search opens them.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterator
from html import escape
from itertools import groupby
from typing import Any

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:0 auto;padding:1rem;color:#1c1f24;background:#fff}"
    "a{color:#0b57d0}code,pre{font:13px/1.5 ui-monospace,monospace}pre{overflow:auto;padding:.6rem;background:#f3f4f6}"
    "summary{cursor:pointer;padding:.25rem 0}table{border-collapse:collapse;width:100%}"
    "th,td{text-align:left;vertical-align:top;padding:.2rem .8rem .2rem 0;border-bottom:1px solid #d5d8dd}"
    "td{overflow-wrap:anywhere}b.m{display:inline-block;min-width:4.2rem}section{margin:0 0 1rem 1rem}"
    "@media(prefers-color-scheme:dark){body{color:#e6e8eb;background:#16181c}a{color:#8ab4f8}pre{background:#23262c}"
    "th,td{border-color:#3a3f47}}"
)
_HASH = b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
SECURITY = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
METHODS = ("get", "post", "put", "patch", "delete")
_REFERENCE, _EXAMPLE = "#/components/schemas/", "#/components/examples/"
_TENANT = "/t/{tenant}"


def docs_page(description: dict[str, Any]) -> str:
    """The page of an OpenAPI description."""
    return "".join(_page(description))


def _page(description: dict[str, Any]) -> Iterator[str]:
    title = escape(description["info"]["title"])
    yield (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title} API</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body><main>'
        f"<h1>{title} API</h1><p>The same as a file for programs: "
        '<a href="/schema/openapi.json">openapi.json</a>. '
        f"A path of a tenant's key is served below <code>{_TENANT}</code> too.</p>"
    )
    paths = sorted(path for path in description["paths"] if not path.startswith(_TENANT))
    groups = [(group, list(found)) for group, found in groupby(paths, _group)]
    yield "<nav><p>" + " · ".join(f'<a href="#{escape(group)}">{escape(group)}</a>' for group, _ in groups)
    yield ' · <a href="#schemas">schemas</a></p></nav>'
    for group, found in groups:
        yield f'<h2 id="{escape(group)}">{escape(group)}</h2>'
        for path in found:
            for method in METHODS:
                if (operation := description["paths"][path].get(method)) is not None:
                    yield from _operation(description, path, method, operation)
    yield '<h2 id="schemas">Schemas</h2>'
    for name, schema in sorted(description["components"]["schemas"].items()):
        yield f'<details id="schema-{escape(name)}"><summary><code>{escape(name)}</code></summary><section>'
        yield from _schema(schema)
        yield "</section></details>"
    yield "</main></body></html>"


def _group(path: str) -> str:
    """`admin/keys` of /v1/admin/keys/{key_id}."""
    words = [word for word in path.split("/") if word and not word.startswith("{") and word != "v1"]
    return "/".join(words[: 2 if words[:1] in (["admin"], ["organization"]) else 1]) or "/"


def _operation(description: dict[str, Any], path: str, method: str, operation: dict[str, Any]) -> Iterator[str]:
    said = operation.get("description", "")
    first = said.partition(". ")[0].rstrip(".")
    yield f'<details id="{escape(operation["operationId"])}"><summary><b class="m">{method.upper()}</b> '
    yield f"<code>{escape(path)}</code> {escape(first)}</summary><section><p>{escape(said)}</p>"
    if parameters := operation.get("parameters"):
        yield "<table><thead><tr><th>parameter</th><th>in</th><th>type</th><th>what it is</th></tr></thead><tbody>"
        for parameter in parameters:
            needed = " (required)" if parameter.get("required") else ""
            yield f"<tr><td><code>{escape(parameter['name'])}</code>{needed}</td><td>{parameter['in']}</td>"
            yield f"<td>{_type(parameter.get('schema', {}))}</td><td>{escape(_words(parameter))}</td></tr>"
        yield "</tbody></table>"
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"<p>Body, <code>{escape(kind)}</code>: {_type(content['schema'])}</p>"
        name = content["schema"].get("$ref", "").removeprefix(_REFERENCE)
        for example in description["components"]["schemas"].get(name, {}).get("examples", []):
            yield _example(example)
    for status, answer in operation["responses"].items():
        kinds = ", ".join(_type(content["schema"]) for content in answer.get("content", {}).values())
        yield f"<p>{escape(status)}: {escape(answer.get('description', ''))} {kinds}</p>"
        for content in answer.get("content", {}).values():
            for reference in content.get("examples", {}).values():
                name = reference["$ref"].removeprefix(_EXAMPLE)
                yield _example(description["components"]["examples"][name]["value"])
    yield "</section></details>"


def _example(value: Any) -> str:
    return f"<pre>{escape(json.dumps(value, indent=2, ensure_ascii=False))}</pre>"


def _schema(schema: dict[str, Any]) -> Iterator[str]:
    if said := schema.get("description"):
        yield f"<p>{escape(said)}</p>"
    properties = schema.get("properties")
    if not properties:
        yield f"<p>{_type(schema)}</p>"
        return
    yield "<table><thead><tr><th>field</th><th>type</th><th>what it is</th></tr></thead><tbody>"
    for name, field in properties.items():
        needed = " (required)" if name in schema.get("required", ()) else ""
        yield f"<tr><td><code>{escape(name)}</code>{needed}</td><td>{_type(field)}</td>"
        yield f"<td>{escape(_words(field))}</td></tr>"
    yield "</tbody></table>"


def _words(part: dict[str, Any]) -> str:
    schema = part.get("schema", part)
    said = part.get("description") or schema.get("description") or ""
    bounds = [f"{word} {schema[name]}" for name, word in _BOUNDS.items() if name in schema]
    if schema.get("default") is not None:
        bounds.append(f"default {json.dumps(schema['default'], ensure_ascii=False)}")
    return "; ".join([*([said] if said else []), *bounds])


_BOUNDS = {
    "minimum": "at least", "exclusiveMinimum": "over", "maximum": "at most", "minLength": "characters at least",
    "maxLength": "characters at most", "minItems": "items at least", "maxItems": "items at most",
}  # fmt: skip


def _type(schema: dict[str, Any]) -> str:
    """A schema in a few words, as HTML."""
    if (reference := schema.get("$ref")) is not None:
        name = escape(reference.removeprefix(_REFERENCE))
        return f'<a href="#schema-{name}">{name}</a>'
    for choice in ("oneOf", "anyOf"):
        if choice in schema:
            return " or ".join(dict.fromkeys(_type(one) for one in schema[choice]))
    if "enum" in schema:
        return " or ".join(f"<code>{escape(json.dumps(value))}</code>" for value in schema["enum"])
    if "const" in schema:
        return f"<code>{escape(json.dumps(schema['const']))}</code>"
    kind = schema.get("type", "any")
    if kind == "array":
        return f"array of {_type(schema['items'])}" if schema.get("items") else "array"
    return escape(kind if isinstance(kind, str) else " or ".join(kind))
