"""An operator who uploads adapters, as curl would: for tests of the gateway and of the whole."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import httpx

from adapters.files.check import CONFIG_FILE, WEIGHTS_FILE

Files = list[tuple[str, tuple[str, bytes, str]]]


def files_of(directory: Path) -> Files:
    return [
        (name, (name, (directory / name).read_bytes(), "application/octet-stream"))
        for name in (CONFIG_FILE, WEIGHTS_FILE)
    ]


class AdapterOperator:
    """Speaks to /v1/admin/adapters of the gateway at `url` with an operator's key."""

    def __init__(self, url: str, secret: str) -> None:
        self._client = httpx.Client(
            base_url=f"{url}/v1/admin/", headers={"Authorization": f"Bearer {secret}"}, timeout=60
        )

    def close(self) -> None:
        self._client.close()

    def request(self, files: Files, **fields: Any) -> httpx.Request:
        return self._client.build_request("POST", "adapters", files=files, data=fields)

    def post_files(self, files: Files, path: str = "adapters", **fields: Any) -> httpx.Response:
        return self._client.post(path, files=files, data=fields)

    def upload(self, directory: Path, name: str, **fields: Any) -> dict[str, Any]:
        answer = self.post_files(files_of(directory), name=name, **fields)
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def send(self, method: str, path: str, body: Any = None, **parameters: Any) -> httpx.Response:
        return self._client.request(method, path, json=body, params=parameters)

    def ok(self, method: str, path: str, body: Any = None, **parameters: Any) -> Any:
        answer = self.send(method, path, body, **parameters)
        assert answer.status_code in (200, 201, 204), answer.text
        return answer.json() if answer.content else None


class HalfUpload:
    """A client that has sent the first half of an upload and waits."""

    def __init__(self, port: int, operator: AdapterOperator, files: Files) -> None:
        request = operator.request(files, name="half")
        body = request.read()
        head = f"POST /v1/admin/adapters HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        for name in ("authorization", "content-type"):
            head += f"{name}: {request.headers[name]}\r\n"
        self.connection = socket.create_connection(("127.0.0.1", port))
        self.connection.sendall(head.encode() + b"\r\n" + body[: len(body) // 2])
