"""What lists of the admin API have in common: their parameters, and where a page begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Protocol, TypeVar

from litestar.params import Parameter

from gateway.errors import InvalidRequest

PAGE_DEFAULT, PAGE_MAX = 100, 500
Limit = Annotated[int, Parameter(ge=1, le=PAGE_MAX)]
After = Annotated[str | None, Parameter(query="page", description="`next_page` of the page before")]
TenantFilter = Annotated[str | None, Parameter(query="tenant", description="an id or a slug")]
Moment = Annotated[int | None, Parameter(ge=0, le=2**40, description="Unix seconds")]
Name = Annotated[str | None, Parameter(max_length=256)]


class Identified(Protocol):
    @property
    def id(self) -> str: ...


Listed = TypeVar("Listed", bound=Identified)


def after_id(items: Sequence[Listed], after: str | None) -> Sequence[Listed]:
    """Those behind the one with the id `after`. Raises InvalidRequest when it is not among them."""
    if after is None:
        return items
    for index, item in enumerate(items):
        if item.id == after:
            return items[index + 1 :]
    raise InvalidRequest(f"'page' is {after!r}, which is not on this list.", param="page")


def sequence(after: str | None) -> int | None:
    """A page that is named by a row's number. Raises InvalidRequest."""
    if after is None:
        return None
    if not (after.isascii() and after.isdigit() and len(after) < 19):
        raise InvalidRequest(f"'page' is {after!r}, which is no page.", param="page")
    return int(after)
