"""Request heads with repeated or missing fields, and encoded bodies."""

from __future__ import annotations

import gzip
import http.client
import itertools
import json
import socket
import time
from typing import Any

import httpx
import pytest

from gateway.access import keys
from support.stack import Stack, body, events
from support.waiting import PATIENCE_S


def ask(stack: Stack, *fields: str, version: str = "1.1", path: str = "/health/live") -> tuple[int, Any, str]:
    """Status, body and head of the answer to a request with exactly these header fields."""
    head = "\r\n".join([f"GET {path} HTTP/{version}", *fields, "connection: close", "", ""])
    with socket.create_connection(("127.0.0.1", stack.port), PATIENCE_S) as connection:
        connection.sendall(head.encode())
        text = b""
        while part := connection.recv(65536):
            text += part
    answer_head, _, content = text.partition(b"\r\n\r\n")
    return int(answer_head.split()[1]), json.loads(content), answer_head.decode()


HEADS: dict[str, tuple[list[str], str]] = {
    "no Host": ([], "no Host header"),
    "two Hosts": (["Host: a", "host: b"], "2 Host headers"),
    "the same Host twice": (["Host: a", "Host: a"], "2 Host headers"),
    "two Authorizations": (["Host: a", "Authorization: Bearer x", "authorization: Bearer y"], "2 Authorization"),
    "two keys": (["Host: a", "x-api-key: x", "X-API-Key: y"], "2 X-Api-Key headers"),
    "two content types": (["Host: a", "content-type: a/b", "content-type: a/c"], "2 Content-Type headers"),
    "two idempotency keys": (["Host: a", "Idempotency-Key: a", "Idempotency-Key: b"], "2 Idempotency-Key headers"),
}


@pytest.mark.parametrize("case", HEADS)
def test_a_head_that_is_ambiguous_is_refused(stack: Stack, case: str) -> None:
    fields, said = HEADS[case]
    status, content, head = ask(stack, *fields)
    assert status == 400
    assert content["error"]["type"] == "invalid_request_error"
    assert said in content["error"]["message"]
    assert "x-request-id: req_" in head


def test_heads_that_are_as_they_may_be(stack: Stack) -> None:
    assert ask(stack, version="1.0")[0] == 200, "HTTP/1.0 has no Host"
    assert ask(stack, "Host: x", version="1.0")[0] == 200
    assert ask(stack, "Host: x", "Accept: a/b", "Accept: a/c", "Cookie: a=b", "Cookie: c=d")[0] == 200
    assert ask(stack, "Host: x", "Host: y", version="1.0")[0] == 400


def test_a_stream_to_http_1_0_has_no_chunks(stack: Stack) -> None:
    """RFC 9112 6.1: a client of HTTP/1.0 knows none. The answer ends with the connection."""
    content = json.dumps(body(stream=True)).encode()
    head = f"POST /v1/chat/completions HTTP/1.0\r\nauthorization: Bearer {stack.keys['acme']}\r\n"
    with socket.create_connection(("127.0.0.1", stack.port), PATIENCE_S) as connection:
        connection.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        text = b""
        while part := connection.recv(65536):
            text += part
    answer_head, _, answer = text.partition(b"\r\n\r\n")
    assert b" 200 " in answer_head.splitlines()[0]
    assert b"transfer-encoding" not in answer_head.lower()
    assert events(answer.decode())[-1] == "[DONE]"
    whole, parsed, _ = ask(stack, f"authorization: Bearer {stack.keys['acme']}", version="1.0", path="/v1/models")
    assert (whole, parsed["object"]) == (200, "list")


NO_JSON = {
    "a UTF-8 byte order mark": (b"\xef\xbb\xbf{}", "byte order mark"),
    "UTF-16 with its mark": ("{}".encode("utf-16"), "byte order mark"),
    "UTF-16 without one": ("{}".encode("utf-16-le"), "looks like UTF-16"),
}


@pytest.mark.parametrize("case", NO_JSON)
def test_a_body_in_another_encoding_is_named(stack: Stack, case: str) -> None:
    content, said = NO_JSON[case]
    url = f"{stack.url}/v1/chat/completions"
    answer = httpx.post(url, content=content, headers=stack.headers(), timeout=PATIENCE_S)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


ENCODINGS = ("gzip", "br", "GZIP, identity", "nonsense")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_encoded_body_is_refused_by_name(stack: Stack, encoding: str) -> None:
    data = json.dumps(body()).encode()
    headers = stack.headers() | {"content-encoding": encoding, "content-type": "application/json"}
    holds = stack.holds()
    for content in (data, gzip.compress(data)):
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/messages"):
            answer = httpx.post(stack.url + path, content=content, headers=headers)
            assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity"), path
            assert repr(encoding) in answer.json()["error"]["message"]
    admin = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="me", kind="admin")).secret
    headers["Authorization"] = f"Bearer {admin}"
    for path in ("/v1/admin/projects", "/v1/admin/session", "/v1/admin/adapters/check"):
        answer = httpx.post(stack.url + path, content=data, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_content_encoding"), path
    assert stack.holds() == holds


def test_a_body_that_says_it_is_as_it_is_is_taken(stack: Stack) -> None:
    for encoding in ("identity", "Identity", ""):
        headers = stack.headers() | {"content-encoding": encoding}
        answer = httpx.post(f"{stack.url}/v1/chat/completions", json=body(), headers=headers)
        assert answer.status_code == 200


def test_a_top_p_of_0_is_the_likeliest_token_on_every_endpoint(stack: Stack) -> None:
    """As with OpenAI, and as the API's description says; vLLM refuses it."""
    for path, fields in (
        ("/v1/chat/completions", body()),
        ("/v1/messages", body()),
        ("/v1/completions", {"model": body()["model"], "prompt": "Say something.", "max_tokens": 8}),
    ):
        answers = [
            httpx.post(stack.url + path, json=fields | {"top_p": top_p}, headers=stack.headers())
            for top_p in (0, -0.01)
        ]
        assert [answer.status_code for answer in answers] == [200, 400], path
    schemas = httpx.get(f"{stack.url}/schema/openapi.json").json()["components"]["schemas"]
    for name in ("ChatRequest", "CompletionRequest", "MessagesRequest"):
        number = next(one for one in schemas[name]["properties"]["top_p"]["anyOf"] if one["type"] == "number")
        assert (number["minimum"], number["maximum"]) == (0, 1)
        assert "likeliest" in number["description"]


def test_no_browser_guesses_what_an_answer_is(stack: Stack) -> None:
    url = stack.url
    answers = [httpx.get(url + path) for path in ("/health/live", "/nowhere", "/v1/models", "/metrics", "/admin")]
    answers.append(httpx.post(f"{url}/v1/admin/session", json={"key": "x"}))
    answers.append(stack.chat())
    for answer in answers:
        assert answer.headers.get_list("x-content-type-options") == ["nosniff"], answer.url
    assert "x-content-type-options: nosniff" in ask(stack)[2]


H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"


@pytest.mark.parametrize("offer", [H2C, "connection: upgrade\r\nUPGRADE: websocket\r\n"])
@pytest.mark.parametrize("cuts", [[], [-1], [-2], ["body"], ["field"], ["name"], ["end"], ["body", "name"], "all"])
def test_an_offered_upgrade_is_ignored_and_the_body_read(stack: Stack, offer: str, cuts: Any) -> None:
    """JDK clients and `curl --http2` offer h2c; the parser would skip the body. The head may arrive in parts."""
    content = json.dumps(body(max_tokens=1)) + "\r\n"  # which could be the beginning of a field, too
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{offer}"
    key = stack.headers()["Authorization"]
    head += f"Authorization: {key}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    text = (head + content).encode()
    name = head.lower().index("\r\nupgrade:")
    places = {"body": len(head), "end": len(head) - 1, "name": name + 5, "field": name + 1}
    if cuts == "all":
        at = list(range(1, len(text)))
    else:
        at = sorted(places[cut] if isinstance(cut, str) else len(text) + cut for cut in cuts)
    with socket.create_connection(("127.0.0.1", stack.port), PATIENCE_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(2):  # the connection is kept
            for first, last in itertools.pairwise([0, *at, len(text)]):
                connection.sendall(text[first:last])
                time.sleep(0.02 if len(at) < 5 else 0.0002)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            assert (answer.status, json.loads(answer.read())["object"]) == (200, "chat.completion")
