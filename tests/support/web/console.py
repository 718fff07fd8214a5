"""The gateway whose console the tests look at, and sessions of every role in it."""

from __future__ import annotations

import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from gateway.access import keys
from gateway.access.roles import Role
from support.paths import EXAMPLES
from support.stack import MODEL, Stack
from support.web.traffic import History

# A device costs 0.6 millionths of a unit a second, so that margins are neither all nor nothing.
BILLING = "[billing]\nreconcile_s = 5.0\ndevice_second_picos = 600_000_000\n"
ROLES: tuple[Role, ...] = ("owner", "operator", "finance", "tenant_admin", "read_only")
TINY = EXAMPLES / "models" / "laneway-tiny"


@dataclass
class Console:
    stack: Stack
    secrets: dict[str, str]  # secrets of admin keys, by role
    cookies: dict[str, str] = field(default_factory=dict)

    @classmethod
    def started(
        cls,
        directory: Path,
        model_dir: Path,
        *,
        fake: dict[str, Any] | None = None,
        engine_json: dict[str, Any] | None = None,
        **history: Any,
    ) -> Console:
        """A console on SQLite: the tests of the API run the same reads on PostgreSQL. `fake` and `engine_json` override
        the engine's settings."""
        url = f"sqlite:///{directory}/laneway.db"
        settings = {"step_ms": 8.0, **(fake or {})}
        stack = Stack(directory, url, model_dir.absolute(), fake=settings, engine_json=engine_json or {}, toml=BILLING)
        return cls.over(stack, **history)

    @classmethod
    def over(cls, stack: Stack, **history: Any) -> Console:
        """Prepares and starts the stack, with a history."""
        stack.prepare()
        History(stack, **history).write()
        console = cls(stack, {})
        stack.write(console._admins)
        stack.start_engine()
        stack.start_gateway()
        stack.wait_ready()
        stack.urls.append(stack.url)
        return console

    def _admins(self, connection: Any) -> None:
        for role in ROLES:
            tenant_id = self.stack.tenants["hooli"] if role == "tenant_admin" else None
            made = keys.create_key(connection, tenant_id=tenant_id, name=f"the {role}", kind="admin", role=role)
            self.secrets[role] = made.secret

    def more_models(self, *names: str) -> None:
        """Further directories in the models' folder, each laneway-tiny's."""
        for name in names:
            shutil.copytree(TINY, self.stack.config.models_dir / name)

    @property
    def cookie_name(self) -> str:
        return f"laneway_session_{self.stack.port}"

    def cookie(self, role: str) -> Any:
        if role not in self.cookies:
            answer = httpx.post(f"{self.stack.url}/v1/admin/session", json={"key": self.secrets[role]})
            assert answer.status_code in (200, 201), answer.text
            self.cookies[role] = answer.cookies[self.cookie_name]
        return {
            "name": self.cookie_name,
            "value": self.cookies[role],
            "url": self.stack.url,
            "httpOnly": True,
            "sameSite": "Strict",
        }

    def api(self, method: str, path: str, **options: Any) -> httpx.Response:
        """A request of the owner, with a bearer key."""
        headers = {"Authorization": f"Bearer {self.secrets['owner']}"}
        return httpx.request(method, f"{self.stack.url}{path}", headers=headers, timeout=60, **options)


class Asked:
    """A stream of a tenant's request; `close` disconnects its client."""

    def __init__(self, console: Console, tenant: str, *, words: int, max_tokens: int, model: str = MODEL) -> None:
        self._leave = threading.Event()
        body = {
            "model": model,
            "max_tokens": max_tokens,
            "stream": True,
            "messages": [{"role": "user", "content": "word " * words}],
        }
        self._thread = threading.Thread(target=self._read, args=(console, tenant, body), daemon=True)
        self._thread.start()

    def _read(self, console: Console, tenant: str, body: Any) -> None:
        url = f"{console.stack.url}/v1/chat/completions"
        with httpx.stream("POST", url, headers=console.stack.headers(tenant), json=body, timeout=60) as answer:
            for _ in answer.iter_lines():
                if self._leave.is_set():
                    break

    def close(self) -> None:
        self._leave.set()
        self._thread.join(20)
