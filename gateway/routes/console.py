"""GET /admin and below: the console's built files. They need no key, because they contain no secrets; the console uses
the admin API.
"""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, route

from gateway.errors import NotFound
from gateway.http.console_files import INDEX, ConsoleFile
from gateway.services import Services

# No resources from other hosts, nothing inline, no frames: injected markup can neither run scripts nor send data.
SECURITY = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
}
IMMUTABLE = "public, max-age=31536000, immutable"
UNBUILT = """The console is not built here.

In a checkout, with Node.js and npm installed:  make admin-ui
Then load this page again; the gateway need not be restarted. The admin API works without the console: see /schema.
"""


@route(
    ["/admin", "/admin/{path:path}"],
    http_method=["GET", "HEAD"],
    opt={"route": "/admin"},
    include_in_schema=False,
)
async def console(request: Request[Any, Any, Any], services: Services, path: str = "") -> Response[bytes]:
    """A file of the build by its name; for any other name without a dot the index page, whose scripts route it."""
    files = await services.console.files()
    if not files:
        headers = {**SECURITY, "cache-control": "no-store"}
        return Response(UNBUILT.encode(), status_code=404, headers=headers, media_type="text/plain")
    name = path.lstrip("/")
    file = files.get(name)
    if file is None and "." not in name:
        file = files[INDEX]
    if file is None:
        raise NotFound("The console has no such file.")
    return _answer(request, file)


def _answer(request: Request[Any, Any, Any], file: ConsoleFile) -> Response[bytes]:
    headers = {
        **SECURITY,
        "cache-control": IMMUTABLE if file.immutable else "no-cache",
        "etag": file.etag,
        "vary": "accept-encoding",
    }
    if file.etag in [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]:
        return Response(b"", status_code=304, headers=headers)
    encoding = file.encoding(request.headers.get("accept-encoding", ""))
    if encoding:
        headers["content-encoding"] = encoding
    return Response(file.contents[encoding], status_code=200, headers=headers, media_type=file.media_type)
