"""The console's routes, read from where they are: src/routes.ts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from support.paths import REPO

ROUTES = REPO / "admin_ui" / "src" / "routes.ts"
_LINE = re.compile(r'\{ path: "(?P<path>[^"]+)", title: "(?P<title>[^"]+)"(?P<rest>[^}]*?)load:')


@dataclass(frozen=True)
class Route:
    path: str
    title: str
    in_navigation: bool
    needs: str | None

    @property
    def parameter(self) -> str | None:
        found = re.search(r"\$(\w+)", self.path)
        return None if found is None else found.group(1)

    def at(self, value: str | None) -> str:
        """The route's address below /admin, with its parameter."""
        return "/admin" + re.sub(r"\$\w+", value or "", self.path)


def routes() -> list[Route]:
    text = ROUTES.read_text()
    found = []
    for match in _LINE.finditer(text):
        needs = re.search(r'needs: "([^"]+)"', match["rest"])
        group = re.search(r"group:", match["rest"]) is not None
        found.append(Route(match["path"], match["title"], group, needs.group(1) if needs else None))
    assert len(found) == text.count("load: () => import("), "a page of routes.ts is written otherwise than the others"
    return found
