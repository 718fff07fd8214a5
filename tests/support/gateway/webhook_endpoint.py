"""A webhook's receiver for tests."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Endpoint:
    """An HTTP server that answers with `status` and records the requests."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.status = 200
        self.location = ""
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                endpoint.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(endpoint.status)
                if endpoint.location:
                    self.send_header("location", endpoint.location)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/alerts?from=laneway"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def ids(self) -> list[str]:
        return [json.loads(body)["id"] for _headers, body in self.got]

    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _headers, body in self.got]
