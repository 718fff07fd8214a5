"""GET /v1/admin/people: the people who have signed in at the provider of [oidc]."""

from __future__ import annotations

from typing import Literal

import msgspec
from litestar import get

from billing.clock import SECOND
from billing.errors import RowNotFound
from gateway.access import people
from gateway.access.people import Person
from gateway.routes.admin.paging import PAGE_DEFAULT, After, Limit, Search, list_page, list_query
from gateway.services import Services
from gateway.views.accounts import Page

PersonSort = Literal[
    "signed_in_at", "-signed_in_at", "created_at", "-created_at", "name", "-name", "email", "-email", "role", "-role"
]


class PersonView(Person, frozen=True, kw_only=True):
    """A person. `role` null: at the last check none of the groups had a role. `signed_in_at`: the last sign-in;
    moments in Unix seconds."""

    @classmethod
    def of(cls, person: Person) -> PersonView:
        moments = {name: getattr(person, name) // SECOND for name in ("created_at", "signed_in_at")}
        return cls(**msgspec.structs.asdict(person) | moments)


@get("/people", opt={"route": "/v1/admin/people", "area": "keys", "everyones": True})
async def list_people(
    services: Services,
    search: Search = None,
    sort: PersonSort = "-signed_in_at",
    limit: Limit = PAGE_DEFAULT,
    after: After = None,
) -> Page[PersonView]:
    """The people who have signed in, those without a role too."""
    wanted = list_query(sort, search, after, limit)
    return list_page(await services.database.read(lambda c: people.query_people(c, wanted)), PersonView.of)


@get("/people/{person_id:str}", opt={"route": "/v1/admin/people/{person_id}", "area": "keys", "everyones": True})
async def get_person(services: Services, person_id: str) -> PersonView:
    """One person, by id."""
    found = await services.database.read(lambda c: people.get_person(c, person_id))
    if found is None:
        raise RowNotFound(f"there is no person {person_id!r}", "person_id")
    return PersonView.of(found)
