"""Random JSON Schemas with a shortest instance each, of the keywords that grammars support."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

WORDS = ["city", "name", "count", "tags", "ok", "unit", "when", "score", "kind", "note"]


@dataclass(frozen=True)
class Made:
    schema: Any
    shortest: Any  # an instance that no other is much shorter than


class SchemaMaker:
    """Schemas of one seed. Strings and arrays are bounded, so that an answer ends."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._definitions: dict[str, Made] = {}

    def make_schema(self) -> Made:
        self._definitions = {}
        made = self._value(self._rng.randint(1, 3)) if self._rng.random() < 0.3 else self._object(2)
        if not self._definitions:
            return made
        definitions = {name: own.schema for name, own in self._definitions.items()}
        return Made({**made.schema, "$defs": definitions}, made.shortest)

    def _value(self, depth: int) -> Made:
        rng = self._rng
        leaves = [self._integer, self._number, self._string, self._pattern, self._enum, self._plain, self._format]
        if depth <= 0 or rng.random() < 0.55:
            return rng.choice(leaves)()
        return rng.choice([self._array, self._object, self._any_of, self._all_of, self._reference])(depth - 1)

    def _integer(self) -> Made:
        low = self._rng.randint(-50, 50)
        high = low + self._rng.randint(0, 1000)
        if self._rng.random() < 0.3:
            step = self._rng.choice([2, 5, 7])
            return Made({"type": "integer", "minimum": 0, "maximum": 100 * step, "multipleOf": step}, 0)
        bounds = self._rng.choice([{}, {"minimum": low}, {"minimum": low, "maximum": high}, {"exclusiveMaximum": high}])
        shortest = min(range(low, low + 10), key=lambda n: len(str(n))) if "maximum" not in bounds else low
        return Made({"type": "integer", **bounds}, shortest if "exclusiveMaximum" not in bounds else low - 1)

    def _number(self) -> Made:
        return Made({"type": "number", "minimum": 0, "maximum": self._rng.choice([1, 10.5, 99])}, 0)

    def _string(self) -> Made:
        least = self._rng.randint(0, 3)
        return Made({"type": "string", "minLength": least, "maxLength": least + self._rng.randint(0, 12)}, "a" * least)

    def _pattern(self) -> Made:
        return Made(
            *self._rng.choice([
                ({"type": "string", "pattern": "^[a-z]{2,6}$"}, "aa"),
                ({"type": "string", "pattern": r"^[A-Z]{2}-\d{3}$"}, "AA-000"),
                ({"type": "string", "pattern": "^(north|south)(east|west)?$"}, "north"),
            ])
        )  # fmt: skip

    def _format(self) -> Made:
        return Made(
            *self._rng.choice([
                ({"type": "string", "format": "date"}, "2026-01-01"),
                ({"type": "string", "format": "time"}, "00:00:00Z"),
                ({"type": "string", "format": "ipv4"}, "1.1.1.1"),
                ({"type": "string", "format": "uuid"}, "00000000-0000-0000-0000-000000000000"),
                ({"type": "string", "format": "date-time"}, "2026-01-01T00:00:00Z"),
                ({"type": "string", "format": "email", "maxLength": 20}, "a@b"),
                ({"type": "string", "format": "hostname", "maxLength": 12}, "a"),
                ({"type": "string", "format": "duration"}, "P1D"),
                ({"type": "string", "format": "date", "pattern": "^20"}, "2026-01-01"),
            ])
        )  # fmt: skip

    def _enum(self) -> Made:
        values: list[Any] = ["red", "été", 'a"b\\', 3, -1.5, True, None, ["x", 1], {"k": "v"}]
        chosen = self._rng.sample(values, self._rng.randint(1, 4))
        shortest = min(chosen, key=lambda value: len(json.dumps(value)))
        return Made({"const": chosen[0]}, chosen[0]) if len(chosen) == 1 else Made({"enum": chosen}, shortest)

    def _plain(self) -> Made:
        return Made(*self._rng.choice([({"type": "boolean"}, True), ({"type": "null"}, None)]))

    def _array(self, depth: int) -> Made:
        item = self._value(depth)
        least = self._rng.randint(0, 2)
        schema = {"type": "array", "items": item.schema, "minItems": least, "maxItems": least + self._rng.randint(0, 2)}
        if self._rng.random() < 0.2:
            first = self._value(0)
            return Made({**schema, "prefixItems": [first.schema], "minItems": 1, "maxItems": 2}, [first.shortest])
        return Made(schema, [item.shortest] * least)

    def _object(self, depth: int) -> Made:
        names = self._rng.sample(WORDS, self._rng.randint(1, 4))
        members = {name: self._value(depth - 1) for name in names}
        required = self._rng.sample(names, self._rng.randint(min(1, len(names)), len(names)))
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {name: made.schema for name, made in members.items()},
            "required": required,
            "additionalProperties": False,
        }
        if self._rng.random() < 0.1:
            schema["additionalProperties"] = {"type": "boolean"}
            schema["maxProperties"] = len(names) + 1
            schema["required"] = required = names
        return Made(schema, {name: members[name].shortest for name in names if name in required})

    def _any_of(self, depth: int) -> Made:
        options = [self._value(depth) for _ in range(self._rng.randint(2, 3))]
        shortest = min((option.shortest for option in options), key=lambda value: len(json.dumps(value)))
        return Made({"anyOf": [option.schema for option in options]}, shortest)

    def _all_of(self, depth: int) -> Made:
        made = self._string()
        return Made({"allOf": [made.schema, {"type": ["string", "null"], "maxLength": 20}]}, made.shortest)

    def _reference(self, depth: int) -> Made:
        name = f"d{len(self._definitions)}"
        self._definitions[name] = Made(True, None)  # its number is taken
        made = self._definitions[name] = self._value(depth)
        return Made({"$ref": f"#/$defs/{name}"}, made.shortest)
