"""A client of the admin API with an operator's key."""

from __future__ import annotations

from typing import Any

import httpx
import sqlalchemy as sa

from gateway.access import keys
from gateway.tables import audit_log
from support.stack import Stack

ERROR_KEYS = {"message", "type", "param", "code"}


class Operator:
    """Speaks to /v1/admin with an operator's key."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.key = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="operator", kind="admin"))

    def __call__(self, method: str, path: str, body: Any = None, **parameters: Any) -> httpx.Response:
        return httpx.request(
            method,
            f"{self.stack.url}/v1/admin/{path}",
            json=body,
            params=parameters,
            headers={"Authorization": f"Bearer {self.key.secret}"},
            timeout=30,
        )

    def ok(self, method: str, path: str, body: Any = None, **parameters: Any) -> Any:
        answer = self(method, path, body, **parameters)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    def refused(self, status: int, method: str, path: str, body: Any = None, **parameters: Any) -> dict[str, Any]:
        answer = self(method, path, body, **parameters)
        assert answer.status_code == status, answer.text
        assert "x-request-id" in answer.headers
        error = answer.json()["error"]
        assert set(error) - {"errors"} == ERROR_KEYS
        return dict(error)

    def log(self) -> list[sa.Row[Any]]:
        """The audit lines of this operator, oldest first."""
        query = sa.select(audit_log).where(audit_log.c.actor == self.key.key.id).order_by(audit_log.c.id)
        return self.stack.read(lambda c: list(c.execute(query)))
