"""What a browser sends that has signed in, without a browser."""

from __future__ import annotations

from http.cookies import SimpleCookie

from api_server import Call

from service.api.authentication import COOKIE, PAGE_MARK
from service.sign_ins import mark_of

SIGN_IN, SIGN_OUT = "/api/audit/sign-in", "/api/audit/sign-out"
OURS = "http://localhost:8321"
HTML = {"accept": "text/html"}


def signed_in(call: Call, token: str) -> str:
    """The cookie of a new sign-in."""
    answer = call("POST", SIGN_IN, token, json={})
    assert 204 == answer.status_code
    return SimpleCookie(answer.headers["set-cookie"])[COOKIE].value


def cookie(value: str) -> dict[str, str]:
    """The headers of a browser that looks at a page."""
    return {"cookie": f"theme=dark; {COOKIE}={value}", **HTML}


def from_page(value: str, **other: str) -> dict[str, str]:
    """The headers of a page that writes."""
    return {**cookie(value), PAGE_MARK: mark_of(value.encode()), "sec-fetch-site": "same-origin", "origin": OURS} | other
