"""All faults of laneway.toml at once: msgspec stops at the first one."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from engine.protocol.allowed_words import WRONG_WORD, name_allowed_words


def find_faults(root: type[msgspec.Struct], settings: Mapping[str, Any]) -> list[str]:
    """Each fault of the settings of `root` as "path: fault", in the file's order. What a section checks between
    its settings is checked if each of them alone is valid. Empty: `settings` can be converted to `root`."""
    return _Faults(root).of(root, settings, "")


class _Faults:
    def __init__(self, root: type[msgspec.Struct]) -> None:
        self._root = root

    def of(self, kind: Any, value: Any, path: str) -> list[str]:
        """The faults of `value` as `kind`, a setting at `path`."""
        found: list[str] = []
        plain = _without_limits(kind)
        if _is_struct(plain) and isinstance(value, dict):
            types = {field.encode_name: field.type for field in msgspec.structs.fields(plain)}
            for name, one in value.items():
                if name in types:
                    found += self.of(types[name], one, f"{path}.{name}" if path else name)
                else:
                    found.append(_fault(path, f"Object contains unknown field `{name}`"))
        elif (item := _item_struct(plain)) is not None and isinstance(value, list):
            for index, one in enumerate(value):
                found += self.of(item, one, f"{path}[{index}]")
        return found or self._own_fault(kind, value, path)

    def _own_fault(self, kind: Any, value: Any, path: str) -> list[str]:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            message = str(error)
            text, at, inner = message.rpartition(" - at `$")
            if not at:
                text, inner = message, ""
            whole = (path + inner.rstrip("`")).lstrip(".").replace("[...]", "")
            if text.startswith(WRONG_WORD):
                text += name_allowed_words(self._root, whole)
            return [_fault(whole, text)]
        return []


def _fault(path: str, text: str) -> str:
    return f"{path}: {text}" if path else text


def _without_limits(kind: Any) -> Any:
    """The type inside `Annotated[type, Meta(…)]`."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _item_struct(kind: Any) -> Any:
    """The struct of a `tuple[Struct, ...]`; None for any other type."""
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is not tuple or not arguments:
        return None
    item = _without_limits(arguments[0])
    return item if _is_struct(item) else None
