"""Posting to a channel: one attempt with one deadline. Errors are reported without the address, which is a secret."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from functools import cache

from schemas.lazy.httpx2 import httpx2
from service.alerts.channels import Channel, Letter
from service.alerts.retrying import Outcome, verdict_of
from service.setup.workspace import Clock
from streams.judges.rate_limits import retry_after

DEADLINE_SECONDS = 10.0
"""Seconds for the receiver's whole answer."""
MOST_READ = 256
"""Bytes of an answer that are read."""
_WORD = re.compile(r"[a-z_]{1,40}")
"""A word that Slack answers, such as `no_service`; other answers are not repeated."""


@cache
def _failures() -> tuple[tuple[type[Exception], str], ...]:
    """Return the words for each kind of failure, the narrowest first."""
    late = f"no answer within {DEADLINE_SECONDS:g} s"
    return (
        (httpx2.TimeoutException, late),
        (TimeoutError, late),
        (httpx2.ConnectError, "no connection"),
        (httpx2.ProxyError, "the proxy did not pass it on"),
        (httpx2.TransportError, "the connection broke off"),
    )


def open_client() -> httpx2.AsyncClient:
    """Open a client that follows no redirects: messages go where the settings say, or nowhere."""
    # At this level it logs every address it calls.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    return httpx2.AsyncClient(follow_redirects=False, timeout=DEADLINE_SECONDS, headers={"Accept-Encoding": "identity"})


async def post(client: httpx2.AsyncClient, channel: Channel, letter: Letter, now: Clock) -> Outcome:
    """Post a message once, and return the outcome."""
    url, content, headers = channel.url.reveal(), letter.body.encode(), channel.headers(letter, now())
    try:
        async with asyncio.timeout(DEADLINE_SECONDS), client.stream("POST", url, content=content, headers=headers) as response:
            return _outcome(response, await _beginning(response))
    except (httpx2.HTTPError, TimeoutError) as error:
        return Outcome("later", _in_words(error))
    except httpx2.InvalidURL:
        return Outcome("never", "the address is no URL")


async def _beginning(response: httpx2.Response) -> str:
    """Return the first bytes of an answer as text."""
    body = b""
    async for chunk in response.aiter_raw():
        body += chunk[:MOST_READ]
        if len(body) >= MOST_READ:
            break
    return body[:MOST_READ].decode("ascii", "replace")


def _outcome(response: httpx2.Response, body: str) -> Outcome:
    verdict = verdict_of(response.status_code)
    if verdict == "delivered":
        return Outcome(verdict)
    word = f": {body}" if _WORD.fullmatch(body) else ""
    reason = f"the answer was {response.status_code}{word}"
    if response.is_redirect:
        reason += ", and redirects are not followed"
    return Outcome(verdict, reason, retry_after(response.headers, time.time))


def _in_words(error: BaseException) -> str:
    """Say why there was no answer. Only types are named: a message may hold the address."""
    words = next((words for kind, words in _failures() if isinstance(error, kind)), "the call failed")
    root = error
    while (deeper := root.__cause__ or root.__context__) is not None:
        root = deeper
    return f"{words} ({type(root).__name__})"
