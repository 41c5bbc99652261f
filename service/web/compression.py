"""Compressed answers: pages, and the files they load.

What is compressed has a length that tells what repeats in it. An attacker who reads lengths on the line and gets texts of their own
onto a page could so guess a secret on it. The only secret of a page is its mark, which is another one as soon as anything else on the page is
(`service.setup.access.sign_ins`). JSON is not compressed: callers of the API send tokens, not cookies, and may put a proxy in front.
"""

from __future__ import annotations

import gzip

from starlette.datastructures import MutableHeaders
from starlette.types import Scope

from service.web.request_limits import header_values

LEVEL = 5
"""A higher level makes a page hardly smaller and takes twice as long."""
SMALLEST = 1024
"""Bytes; less fits one packet as it is."""
VARIES = "Accept-Encoding"
_PAGE = "text/html"


def takes_gzip(scope: Scope) -> bool:
    """Tell whether the caller accepts answers compressed with gzip."""
    given = b",".join(header_values(scope, b"accept-encoding")).decode("latin-1").lower()
    parts = (part.partition(";") for part in given.split(","))
    return any(
        name.strip() == "gzip" and weight.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
        for name, _, weight in parts
    )


def packed(body: bytes) -> bytes:
    """Return a body compressed, the same bytes each time."""
    return gzip.compress(body, LEVEL, mtime=0)


def is_packed(headers: MutableHeaders, body: bytes, *, takes: bool) -> bool:
    """Tell whether to send a body compressed: it is a page, and its caller `takes` that.

    The ETag is of what the page says, so it becomes a weak one: the bytes are others.
    """
    if not headers.get("content-type", "").startswith(_PAGE):
        return False
    headers.add_vary_header(VARIES)
    if not takes or len(body) < SMALLEST:
        return False
    headers["Content-Encoding"] = "gzip"
    headers["ETag"] = f"W/{headers['ETag']}"
    return True
