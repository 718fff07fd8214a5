"""The facts of a checked adapter as plain data, for processes that list adapters and load none."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from adapters.files.check import CheckedAdapter

TRAINED_FOR_CHARS_MAX = 200


@dataclass(slots=True, frozen=True)
class Facts:
    """`bytes` of both files; `rank_max` of its modules; `targets` are its modules in the order of the forward;
    `trained_for` is the base that its configuration names; `warnings` are sentences."""

    digest: str
    bytes: int | None = None
    rank_max: int | None = None
    parameters: int | None = None
    targets: tuple[str, ...] = ()
    trained_for: str | None = None
    warnings: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Facts:
        """Parse the output of `to_json`."""
        found = json.loads(text)
        return cls(**found | {name: tuple(found[name]) for name in ("targets", "warnings")})


def facts_of(checked: CheckedAdapter, size: int, base_names: Iterable[str]) -> Facts:
    """`base_names`: the base's names, here and by its publisher."""
    named = checked.spec.base_model_name_or_path
    if named is not None:  # untrusted text: it is written into a database, logs and terminals
        named = "".join(char if char.isprintable() else "\ufffd" for char in named[:TRAINED_FOR_CHARS_MAX])
    return Facts(
        digest=checked.digest,
        bytes=size,
        rank_max=checked.spec.rank_max,
        parameters=checked.spec.parameters,
        targets=checked.spec.targets,
        trained_for=named,
        warnings=_warnings(named, [name for name in base_names if name]),
    )


def names_of_base(name: str, model_dir: Path) -> list[str]:
    """The names of a base model: the operator's, its directory's, and its publisher's. Raises OSError, ValueError."""
    saved = json.loads((model_dir / "config.json").read_bytes()).get("_name_or_path")
    return [name, model_dir.name, saved if isinstance(saved, str) else ""]


def _warnings(named: str | None, base_names: list[str]) -> tuple[str, ...]:
    if named is None or short_name(named) in {short_name(name) for name in base_names}:
        return ()
    return (
        f"base_model_name_or_path: it says {named!r}, the base is {base_names[0]!r}; "
        "the shapes fit, but the answers may be meaningless",
    )


def short_name(name: str) -> str:
    """A model's name without its publisher, in lower case."""
    return name.rstrip("/").rpartition("/")[2].lower()
