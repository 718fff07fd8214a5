"""Two OpenID Connect providers by other authors, in separate processes: npm's oidc-provider and PyPI's
oidc-provider-mock.

They differ where providers do: the first names groups at its userinfo endpoint alone and gives no refresh token; the
second has groups in the ID token and gives refresh tokens.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx

from support.gateway.session_client import NO_TLS
from support.ports import free_port
from support.services import missing_service
from support.waiting import PATIENCE_S, eventually

FOLDER = Path(__file__).parent
CLIENT_ID = "laneway"
CLIENT_SECRET = "canary-client-secret-5d1c"  # tests look for it in logs


@dataclass
class ProviderProcess:
    """Start it once the gateway's URL is known. `stop` and `start` again: the same issuer."""

    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.port = self.port or free_port()

    @property
    def issuer(self) -> str:
        raise NotImplementedError

    def argv(self, public_url: str) -> list[str]:
        raise NotImplementedError

    def start(self, public_url: str) -> None:
        self.process = subprocess.Popen(
            self.argv(public_url), cwd=FOLDER, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        eventually(self._answers)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(PATIENCE_S)
            self.process = None

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "the provider ended"
        try:
            url = f"{self.issuer}/.well-known/openid-configuration"
            return httpx.get(url, timeout=5, verify=NO_TLS).status_code == 200
        except httpx.TransportError:
            return False


class NodeProvider(ProviderProcess):
    @property
    def issuer(self) -> str:
        return f"http://localhost:{self.port}"  # another site than the gateway's 127.0.0.1, as in production

    def argv(self, public_url: str) -> list[str]:
        node = shutil.which("node")
        if node is None or not (FOLDER / "node_modules").exists():
            missing_service("npm's oidc-provider", "it is not installed; `make client-packages` does that")
        return [node, "provider.mjs", str(self.port), CLIENT_ID, CLIENT_SECRET, public_url]

    def ask(self, word: str, **body: Any) -> Any:
        answer = httpx.post(f"{self.issuer}/test/{word}", json=body, timeout=30, verify=NO_TLS)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def set_person(self, sub: str, groups: list[str], **claims: Any) -> None:
        self.ask("person", sub=sub, groups=groups, name=claims.get("name", sub.title()), email=f"{sub}@example.com")


class MockProvider(ProviderProcess):
    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def argv(self, public_url: str) -> list[str]:
        return [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(self.port)]

    def set_person(self, sub: str, groups: list[str], **claims: Any) -> None:
        body = {"groups": groups, "name": claims.get("name", sub.title()), "email": f"{sub}@example.com"}
        answer = httpx.put(f"{self.issuer}/users/{sub}", json=body, timeout=30, verify=NO_TLS)
        assert answer.status_code == 204, answer.text

    def revoke_tokens(self, sub: str) -> None:
        assert httpx.post(f"{self.issuer}/users/{sub}/revoke-tokens", timeout=30, verify=NO_TLS).status_code == 204


_ADDRESSES = itertools.count(1)  # each visitor has its own address, because refused sign-ins are counted by address


class Visitor:
    """A browser without scripts: it has one jar of cookies for gateway and provider, and fills in a login form."""

    def __init__(self, gateway: str) -> None:
        self.gateway = gateway
        high, low = divmod(next(_ADDRESSES), 250)
        self.transport = httpx.HTTPTransport(local_address=f"127.1.{high}.{low + 1}", verify=NO_TLS)
        self.client = httpx.Client(timeout=30, transport=self.transport)

    def __enter__(self) -> Visitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.client.get(self.gateway + path, **more)

    def authorize(self, sub: str, *, return_to: str = "") -> str:
        """Sign in at the provider as `sub`. Returns the URL of the gateway's callback, which is not requested."""
        parameters = {"return_to": return_to} if return_to else {}
        answer = self.get("/v1/admin/session/provider", params=parameters)
        assert answer.status_code == 303, answer.text
        return self.follow(answer.headers["location"], sub)

    def follow(self, url: str, sub: str) -> str:
        """Follow the sign-in from the provider's page to the URL of the gateway's callback."""
        for _ in range(12):
            answer = self.client.get(url)
            if not answer.has_redirect_location:
                assert answer.status_code == 200, answer.text
                action = re.search(r'<form[^>]*action="([^"]+)"', answer.text)
                url = urljoin(str(answer.url), unescape(action[1])) if action else str(answer.url)
                answer = self.client.post(url, data={"prompt": "login", "login": sub, "password": "any", "sub": sub})
            url = urljoin(str(answer.url), answer.headers["location"])
            if url.startswith(self.gateway):
                return url
        raise AssertionError("the provider did not send the browser back")

    def sign_in(self, sub: str, *, return_to: str = "") -> httpx.Response:
        """The answer of the callback."""
        return self.client.get(self.authorize(sub, return_to=return_to))

    def session(self) -> httpx.Response:
        return self.get("/v1/admin/session")

    @property
    def started(self) -> dict[str, str]:
        """The cookie of a sign-in that was started."""
        return {name: value for name, value in self.client.cookies.items() if name.startswith("laneway_sign_in")}
