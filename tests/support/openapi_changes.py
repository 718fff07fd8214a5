"""The incompatible changes from an older description of the API to a newer one: paths, methods, parameters, fields,
enum values, statuses and names of operations and schemas that have disappeared, and fields that a client must send now
and did not have to before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]
_CHOICES = ("oneOf", "anyOf", "allOf")


def breaking_changes(old: Schema, new: Schema) -> list[str]:
    """A line for each, by the place of the old description. Additions are none."""
    return sorted(set(_Comparison(old, new).changes()))


class _Comparison:
    def __init__(self, old: Schema, new: Schema) -> None:
        self._old, self._new = old, new
        self._compared: set[tuple[str, str, bool]] = set()  # references, which may refer to themselves

    def changes(self) -> Iterator[str]:
        for name in self._old["components"]["schemas"].keys() - self._new["components"]["schemas"].keys():
            yield f"the schema {name} has disappeared"
        for path, old_item in self._old["paths"].items():
            new_item = self._new["paths"].get(path)
            if new_item is None:
                yield f"{path} has disappeared"
                continue
            for method, operation in old_item.items():
                if method not in new_item:
                    yield f"{method.upper()} {path} has disappeared"
                elif isinstance(operation, dict):
                    yield from self._operation(f"{method.upper()} {path}", operation, new_item[method])

    def _operation(self, where: str, old: Schema, new: Schema) -> Iterator[str]:
        if old.get("operationId") != new.get("operationId"):
            yield f"{where}: the operation id {old.get('operationId')} has disappeared"
        before, now = _parameters(old), _parameters(new)
        for key, parameter in before.items():
            if key not in now:
                yield f"{where}: the parameter {key[1]} has disappeared"
            else:
                yield from self._schema(f"{where} {key[1]}", parameter["schema"], now[key]["schema"], sent=True)
        for key, parameter in now.items():
            if parameter.get("required") and not before.get(key, {}).get("required"):
                yield f"{where}: the parameter {key[1]} is required now"
        if "requestBody" in old:
            yield from self._content(where, old["requestBody"], new.get("requestBody", {}), sent=True)
        elif new.get("requestBody", {}).get("required"):
            yield f"{where}: a body is required now"
        for status, answer in old.get("responses", {}).items():
            if status not in new.get("responses", {}):
                yield f"{where}: the status {status} has disappeared"
            else:
                yield from self._content(f"{where} {status}", answer, new["responses"][status], sent=False)

    def _content(self, where: str, old: Schema, new: Schema, *, sent: bool) -> Iterator[str]:
        for media_type, content in old.get("content", {}).items():
            if media_type not in new.get("content", {}):
                yield f"{where}: {media_type} has disappeared"
            elif "schema" in content:
                yield from self._schema(
                    where, content["schema"], new["content"][media_type].get("schema", {}), sent=sent
                )

    def _schema(self, where: str, old: Schema, new: Schema, *, sent: bool) -> Iterator[str]:
        """`sent`: the client sends values of the schema; otherwise the server does."""
        pair = old.get("$ref", ""), new.get("$ref", ""), sent
        if pair[0]:
            if pair in self._compared:
                return
            self._compared.add(pair)
        old, new = _resolve(self._old, old), _resolve(self._new, new)
        gone = [value for value in old.get("enum", ()) if "enum" in new and value not in new["enum"]]
        for value in gone:
            yield f"{where}: the value {value!r} has disappeared"
        fields, now = old.get("properties", {}), new.get("properties", {})
        for name, field in fields.items():
            if name not in now:
                yield f"{where}: the field {name} has disappeared"
            else:
                yield from self._schema(f"{where}.{name}", field, now[name], sent=sent)
        if sent:
            for name in sorted(set(new.get("required", ())) - set(old.get("required", ()))):
                yield f"{where}: the field {name} is required now"
        for inner in ("items", "additionalProperties"):
            if isinstance(old.get(inner), dict) and isinstance(new.get(inner), dict):
                yield from self._schema(f"{where}[]", old[inner], new[inner], sent=sent)
        yield from self._choices(where, old, new, sent=sent)

    def _choices(self, where: str, old: Schema, new: Schema, *, sent: bool) -> Iterator[str]:
        """Each choice of the old schema has one of the same kind in the new one, which may be the new one itself."""
        now: dict[tuple[str, str], Schema] = {_kind(new): new}
        now |= {_kind(choice): choice for name in _CHOICES for choice in new.get(name, ())}
        for name in _CHOICES:
            for choice in old.get(name, ()):
                kind = _kind(choice)
                if kind not in now:
                    yield f"{where}: the choice {kind[0] or kind[1]} has disappeared"
                else:
                    yield from self._schema(where, choice, now[kind], sent=sent)


def _parameters(operation: Schema) -> dict[tuple[str, str], Schema]:
    return {(parameter["in"], parameter["name"]): parameter for parameter in operation.get("parameters", ())}


def _resolve(whole: Schema, schema: Schema) -> Schema:
    while "$ref" in schema:
        found: Any = whole
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    return schema


def _kind(schema: Schema) -> tuple[str, str]:
    """The part of a schema that distinguishes its choices."""
    return schema.get("$ref", "").rpartition("/")[2], str(schema.get("type", ""))
