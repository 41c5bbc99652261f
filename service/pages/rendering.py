"""Rendering of pages: templates, excerpts of long texts, and errors as pages.

The pages show texts written by agents. So templates escape by default, invisible and direction characters are shown as their codes,
and the content security policy allows no inline scripts or styles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.exceptions import HTTPException

from audit.prompt_quoting import hidden_parts
from audit.times import iso_time
from service.read.runs import EXCHANGES_ONLY
from service.setup.access import Holder, mark_of
from service.setup.version import version
from service.text.formats import grouped, grouped_count
from service.text.links import CALLS, INBOX_PAGE, Links
from service.text.window import kept_of
from service.text.words import TERMS, WORDS
from service.web.authentication import PAGE_MARK
from streams.watch.lifecycle import recovered_since

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FORMS_HEADERS = {
    "Content-Security-Policy": POLICY.replace("form-action 'none'", "form-action 'self'"),
    # With no-referrer, a browser submits a form without an origin, and the server refuses it.
    "Referrer-Policy": "same-origin",
}
"""The headers of a page whose forms work without a script: they may send to this server, and nowhere else."""
_TEMPLATES = Path(__file__).parent / "templates"
_MARK = "page mark"
"""Stands for the mark until the page is complete, because the mark depends on the page."""
MARK_FIELD = "mark"
"""Name of the hidden field in which a form repeats the mark of its page."""
_UNITS = (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1))
"""Units of time with their seconds, the largest first."""
_FIELD_FIRST = re.compile(r"[^\s:]+:\s")
NOTHING = "\u2013"
"""Shown for an unknown value."""


def page(request: Request, template: str, values: Mapping[str, Any], status: int = 200, *, forms: bool = False) -> HTMLResponse:
    """Render a page; `values` are plain values, and foreign texts. With `forms`, its forms work without a script."""
    caller: Holder | None = getattr(request.state, "caller", None)
    cookie: bytes = getattr(request.state, "cookie", b"")
    text = (
        environment()
        .get_template(template)
        .render(
            **values,
            links=links_of(request),
            caller=caller,
            page_mark=_MARK if cookie else "",
            page_mark_header=PAGE_MARK,
            path=request.url.path,
            now=request.app.state.context.engine.now(),
            open_incidents=getattr(request.state, "open_incidents", None),
            unreadable_judges=getattr(request.state, "unreadable_judges", ()),
        )
    )
    if cookie:
        # Quotes in texts are escaped, so these matches are always placeholders in templates.
        mark = mark_of(cookie, text)
        text = text.replace(f'content="{_MARK}"', f'content="{mark}"', 1)
        if forms:
            text = text.replace(f'name="{MARK_FIELD}" value="{_MARK}"', f'name="{MARK_FIELD}" value="{mark}"')
    return HTMLResponse(text, status, FORMS_HEADERS if forms else {"Content-Security-Policy": POLICY})


def links_of(request: Request) -> Links:
    """Return the links of a page, which keep the period in its address.

    Links of the inbox do not: its period is when incidents were found, and an incident may be about any other time.
    """
    return Links() if request.url.path == INBOX_PAGE else Links(kept_of(request.query_params))


@cache
def environment() -> Environment:
    """Return the template environment with the common functions."""
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {
        "moment": moment,
        "number": number,
        "share": share,
        "usd": usd,
        "shown": shown,
        "day": day,
        "ago": ago,
        "sentence": sentence,
    }
    made.filters |= {"counted": grouped_count, "recovered_since": recovered_since}
    made.globals |= {
        "links": Links(),
        "terms": TERMS,
        "closings": WORDS["closings"],
        "band_meaning": WORDS["charts"]["band"],
        "version": version(),
        "nothing": NOTHING,
        "exchanges_only": EXCHANGES_ONLY,
    }
    return made


_CODE = Markup('<span class="code-point">U+{}</span>')


def sentence(error: str) -> str:
    """Format an error message as a sentence: the API's starts in lower case or with a field's name. `sentenceOf` in pages.js does the same."""
    text = f"Not valid: {error}" if _FIELD_FIRST.match(error) else error[:1].upper() + error[1:]
    return text if "\n" in text or text.endswith((".", "!", "?", "…")) else f"{text}."


def shown(text: object) -> Markup:
    """Escape a foreign text, replacing every invisible or direction character by its code."""
    parts = hidden_parts(str(text))
    if len(parts) == 1:
        return escape(parts[0][0])
    return Markup("").join(
        part for seen, hidden in parts for part in (escape(seen), _CODE.format(f"{ord(hidden):04X}") if hidden else "")
    )


def moment(at: datetime | None) -> Markup:
    """Format a time: exact for machines, and in UTC to the minute for people."""
    if at is None:
        return escape(NOTHING)
    utc = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    return Markup('<time datetime="{}">{}</time>').format(iso_time(utc), f"{utc:%Y-%m-%d %H:%M}")


def day(at: datetime | None) -> str:
    """Format the UTC day of a time."""
    return NOTHING if at is None else f"{at:%Y-%m-%d}"


def ago(seconds: float) -> str:
    """Format a duration for people, in whole units of the largest that fits."""
    for unit, length in _UNITS:
        count = int(seconds // length)
        if count:
            return f"{count} {unit}{'s' if count != 1 else ''}"
    return "less than a second"


def number(value: float | None, digits: int = 0) -> str:
    """Format a number with a thin space between thousands."""
    return NOTHING if value is None else grouped(value, digits)


def share(value: float | None) -> str:
    """Format a share in percent."""
    return NOTHING if value is None else f"{value:.1%}"


def usd(value: float | None) -> str:
    """Format an amount of money: to the cent, or for less than a cent with just enough digits to be seen."""
    if value is None:
        return NOTHING
    return f"${value:,.2f}" if value >= 1 or not value else f"${value:.4f}"


MAX_SHOWN = 20_000
"""Maximum length of a text on a page. The judge sees at most 24 000 characters."""
_CODE_LENGTH = 40
"""Length of a code on a page, in characters."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The beginning of a text."""

    text: str
    left_out: int
    """The number of remaining characters; 0 if the excerpt is the whole text."""
    whole: str
    """Address of the whole text."""

    @property
    def length(self) -> int:
        """The number of characters of the whole text."""
        return len(self.text) + self.left_out


def excerpt(text: str, whole: str) -> Excerpt:
    """Return the part of a text that fits on a page, which is less if many characters are shown as codes."""
    head = text[:MAX_SHOWN]
    room, kept = MAX_SHOWN, 0
    for seen, hidden in hidden_parts(head):
        kept += min(len(seen), room)
        room -= len(seen) + (_CODE_LENGTH if hidden else 0)
        if room < 0:
            break
        kept += len(hidden)
    return Excerpt(head[:kept], len(text) - kept, whole)


_TITLES = {
    400: "The address is not valid",
    403: "Not allowed with this token",
    404: "This page does not exist",
    503: "The server is busy",
}
Answers = Callable[[Request, Exception], Awaitable[Response]]
_ERRORS: tuple[type[Exception], ...] = (HTTPException, RequestValidationError)


def add_problem_pages(app: FastAPI) -> None:
    """Answer errors of pages with pages. The handlers for other answers must already be installed."""
    for kind in _ERRORS:
        app.add_exception_handler(kind, _as_page(app.exception_handlers[kind]))


def _as_page(otherwise: Any) -> Answers:
    """Return the handler's answer, or a page if a browser wants one."""

    async def answer_with_page(request: Request, error: Exception) -> Response:
        answer: Response = await otherwise(request, error)
        if not _wants_page(request) or answer.status_code < HTTPStatus.BAD_REQUEST:
            return answer
        message = json.loads(bytes(answer.body))["error"]
        title = _TITLES.get(answer.status_code, "Something went wrong")
        return page(request, "problem.html", {"title": title, "words": message}, answer.status_code)

    return answer_with_page


def _wants_page(request: Request) -> bool:
    return not request.url.path.startswith(CALLS) and "text/html" in request.headers.get("accept", "")
