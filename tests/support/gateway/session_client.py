"""The part of a browser that the console's sessions need: it stores the cookie, and sends the CSRF token beside it."""

from __future__ import annotations

import ssl
from http.cookies import SimpleCookie
from typing import Any

import httpx

from gateway.access.keys import MadeKey
from support.stack import Stack

SESSION = "/v1/admin/session"
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # to read the host's certificates takes longer than the request


def cookie_name(url: str) -> str:
    """The name of the session cookie at this address."""
    return f"laneway_session_{httpx.URL(url).port}"


class Browser:
    """Each request has its own connection, so that no connection remains to close."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.cookies: dict[str, str] = {}
        self.headers: dict[str, str] = {}

    def request(self, method: str, path: str, *, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
        sent = self.headers | {"Cookie": self.cookie()} | (headers or {})
        answer = httpx.request(method, self.url + path, headers=sent, timeout=30, verify=NO_TLS, **more)
        for name, morsel in SimpleCookie(answer.headers.get("set-cookie", "")).items():
            if morsel["max-age"] == "0":
                self.cookies.pop(name, None)
            else:
                self.cookies[name] = morsel.value
        return answer

    def take_session(self, other: Browser) -> None:
        """Take over a session, as if both gateways were behind one address and used one cookie name."""
        self.cookies = {cookie_name(self.url): other.cookies[cookie_name(other.url)]}

    def cookie(self) -> str:
        """The cookie as a header's value."""
        return "; ".join(f"{name}={value}" for name, value in self.cookies.items())

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.request("GET", path, **more)

    def post(self, path: str, **more: Any) -> httpx.Response:
        return self.request("POST", path, **more)

    def delete(self, path: str, **more: Any) -> httpx.Response:
        return self.request("DELETE", path, **more)


def sign_in(stack: Stack, key: MadeKey, url: str = "") -> Browser:
    """A client that has signed in."""
    browser = Browser(url or stack.url)
    answer = browser.post(SESSION, json={"key": key.secret})
    assert answer.status_code == 200, answer.text
    browser.headers["x-csrf-token"] = answer.json()["csrf_token"]
    return browser
