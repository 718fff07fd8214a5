"""Names of the OpenAPI description's components: made of the types' own names, never of the modules they lie in.

So moving a type to another module changes nothing for clients that are generated from the description.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# The component names of types that were renamed: generated clients have these.
_PUBLISHED_NAMES = {"LedgerAudit": "Findings"}
REFERENCE = "#/components/schemas/{name}"
# The module path of a generic type's argument, as the framework has it in the component's name after the bracket's `_`.
_MODULE_PATH = re.compile(r"(?<=_)[a-z]+\.(?:[a-z0-9_]+\.)*")


def without_module_paths(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy of the description `schema` with its components renamed. Raises ValueError if two would be alike."""
    components = schema.get("components", {})
    names = {name: component_name(name) for name in components.get("schemas", {})}
    if len(set(names.values())) < len(names):
        raise ValueError(f"two components have the same name without their module paths: {sorted(names)}")
    references = {REFERENCE.format(name=old): REFERENCE.format(name=new) for old, new in names.items() if old != new}
    schemas = {names[name]: component for name, component in components.get("schemas", {}).items()}
    renamed: dict[str, Any] = _with_references(schema | {"components": components | {"schemas": schemas}}, references)
    return renamed


def component_name(name: str) -> str:
    """`Page_TenantView` for the framework's `Page_gateway.views.TenantView_`; other names are unchanged."""
    plain = _MODULE_PATH.sub("", name).rstrip("_")
    return _PUBLISHED_NAMES.get(plain, plain)


def join_schemas(schemas: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """`schemas` and `others`, which takes precedence where both describe a type. Raises ValueError if one name has
    different fields in them, which is two types."""
    for name in schemas.keys() & others.keys():
        if schemas[name].get("properties", {}).keys() != others[name].get("properties", {}).keys():
            raise ValueError(f"two types have the component name {name}")
    return {**schemas, **others}


def _with_references(part: Any, references: Mapping[str, str]) -> Any:
    if isinstance(part, dict):
        return {
            key: references.get(value, value) if key == "$ref" else _with_references(value, references)
            for key, value in part.items()
        }
    if isinstance(part, list):
        return [_with_references(value, references) for value in part]
    return part
