"""The page that a browser shows when a sign-in at the provider has failed: what happened, and the way back.

It needs no script and no build of the console.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from html import escape

from litestar import Response

STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:15vh auto;padding:0 1.5rem;color:#1c1f24;"
    "background:#fff}a{color:#0b57d0}.note{color:#5a616b;font-size:.9rem}"
    "@media(prefers-color-scheme:dark){body{color:#e6e8eb;background:#16181c}a{color:#8ab4f8}.note{color:#a0a7b1}}"
)
_HASH = b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
SECURITY = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def failure_page(status: int, title: str, message: str, request_id: str) -> Response[str]:
    """`message`: what happened and what helps."""
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)} – Laneway</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body><main>'
        f"<h1>{escape(title)}</h1><p>{escape(message)}</p>"
        '<p><a href="/admin/">Back to the sign-in</a></p>'
        f'<p class="note">Request {escape(request_id)}</p></main></body></html>'
    )
    return Response(page, status_code=status, headers=SECURITY, media_type="text/html")
