"""Rendering of pages: templates, excerpts of long texts, and error pages.

Pages show untrusted texts of agents. Templates therefore escape by default, invisible and direction characters are shown as their codes, and
the content security policy forbids inline scripts and styles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.exceptions import HTTPException

from audit.drift.watched_series import TIERS, bounds_of
from audit.exchanges.outcomes import flag_reason
from audit.exchanges.tier1 import STRUCTURAL_CHECKS
from audit.prompt_quoting import hidden_parts
from audit.times import iso_time
from service.pages.untrusted import render_markdown, shown
from service.read.runs import EXCHANGES_ONLY
from service.setup.access import Holder, SharedLink, mark_of
from service.setup.version import version
from service.text.formats import grouped, grouped_count
from service.text.links import CALLS, INBOX_PAGE, Links
from service.text.window import kept_of
from service.text.words import TERMS, WORDS
from service.text.zone import describe_zone, local, reader_zone
from service.web.authentication import PAGE_MARK
from streams.watch.lifecycle import recovered_since

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FORMS_HEADERS = {
    "Content-Security-Policy": POLICY.replace("form-action 'none'", "form-action 'self'"),
    # With no-referrer, browsers submit forms without an origin, which the server refuses.
    "Referrer-Policy": "same-origin",
}
"""Headers of a page whose forms work without a script. Forms may only be sent to this server."""
_TEMPLATES = Path(__file__).parent / "templates"
_MARK = "page mark"
"""Placeholder of the mark. The mark depends on the page, so it is inserted last."""
MARK_FIELD = "mark"
"""Name of the hidden field in which a form repeats the mark of its page."""
_UNITS = (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1))
"""Units of time with their seconds, largest first."""
_MINUTE = 60
_SHORT_UNITS = (("d", 86400), ("h", 3600), ("min", _MINUTE), ("s", 1))
_FIELD_FIRST = re.compile(r"[^\s:]+:\s")
NOTHING = "\u2013"
"""Shown for an unknown value."""
TIER_HEADINGS = {"tier1": "Structure", "tier2": "Answer", "tier2_5": "Thinking", "tier3": "Behavior"}
"""The names of the tiers above columns of scores."""


def page(request: Request, template: str, values: Mapping[str, Any], status: int = 200, *, forms: bool = False) -> HTMLResponse:
    """Render a page. `forms` allows its forms to be sent without a script."""
    caller: Holder | None = getattr(request.state, "caller", None)
    shared_link: SharedLink | None = getattr(request.state, "shared_link", None)
    cookie: bytes = getattr(request.state, "cookie", b"")
    engine = request.app.state.context.engine
    now = engine.now()
    text = (
        environment()
        .get_template(template)
        .render(
            **values,
            links=links_of(request),
            caller=caller,
            shared_link=shared_link,
            page_mark=_MARK if cookie else "",
            page_mark_header=PAGE_MARK,
            path=request.url.path,
            now=now,
            zone=str(reader_zone()),
            zone_offset=describe_zone(now),
            maintenance_of=lambda project: engine.policy.maintenance_at(project, now),
            policy_of=engine.policy.for_project,
            open_incidents=getattr(request.state, "open_incidents", None),
            judging_notices=getattr(request.state, "judging_notices", ()),
        )
    )
    if cookie:
        # Quotes in texts are escaped, so these strings occur only in templates.
        mark = mark_of(cookie, text)
        text = text.replace(f'content="{_MARK}"', f'content="{mark}"', 1)
        if forms:
            text = text.replace(f'name="{MARK_FIELD}" value="{_MARK}"', f'name="{MARK_FIELD}" value="{mark}"')
    if shared_link is not None:
        # A guest may open no other page, so links to them are texts. What a guest may read is decided before the page is.
        text = _OTHER_PAGES.sub(lambda match: match[0] if re.split("[?#]", match[2])[0] == shared_link.page else match[1], text)
        return HTMLResponse(text, status, {"Content-Security-Policy": POLICY, "Cache-Control": "no-store"})
    return HTMLResponse(text, status, FORMS_HEADERS if forms else {"Content-Security-Policy": POLICY})


_OTHER_PAGES = re.compile(r'(<a\b[^>]*?) href="(/[^"]*)"')
"""A link to a page of this server. Quotes and angle brackets in texts are escaped."""


def links_of(request: Request) -> Links:
    """Return the links of a page, which keep its period.

    Links of the inbox do not, because its period is when incidents were detected, and their pages show other times.
    """
    return Links() if request.url.path == INBOX_PAGE else Links(kept_of(request.query_params))


@cache
def environment() -> Environment:
    """Return the template environment with the common functions."""
    env = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    env.filters |= {
        "moment": moment,
        "number": number,
        "share": share,
        "tier_score": tier_score,
        "findings": list_findings,
        "usd": usd,
        "shown": shown,
        "markdown": render_markdown,
        "field": field_value,
        "day": day,
        "clock": clock,
        "ago": ago,
        "duration": duration,
        "sentence": sentence,
    }
    env.filters |= {"counted": grouped_count, "recovered_since": recovered_since}
    env.globals |= {
        "links": Links(),
        "terms": TERMS,
        "tier_names": TIERS,
        "tier_headings": TIER_HEADINGS,
        "closings": WORDS["closings"],
        "verdicts": WORDS["verdicts"],
        "band_meaning": WORDS["charts"]["band"],
        "version": version(),
        "nothing": NOTHING,
        "exchanges_only": EXCHANGES_ONLY,
    }
    return env


def field_value(text: str) -> Markup:
    """Escape a text for a form field, with invisible characters as character references."""
    parts = hidden_parts(text)
    return Markup("").join(escape(seen) + Markup(f"&#{ord(hidden)};" if hidden else "") for seen, hidden in parts)  # noqa: S704


def sentence(error: str) -> str:
    """Format an error message as a sentence: the API's starts in lower case or with a field's name. `sentenceOf` in pages.js does the same."""
    text = f"Not valid: {error}" if _FIELD_FIRST.match(error) else error[:1].upper() + error[1:]
    return text if "\n" in text or text.endswith((".", "!", "?", "…")) else f"{text}."


def moment(at: datetime | str | None) -> Markup:
    """Format a time, or its text in ISO 8601, as an element with the exact time, which shows the reader's time to the minute; another text stays."""
    if at is None:
        return escape(NOTHING)
    if isinstance(at, str):
        try:
            at = datetime.fromisoformat(at)
        except ValueError:
            # The evidence of an incident may come from a detector that is not ours.
            return shown(at)
    return _format_time(at, "%Y-%m-%d %H:%M")


def clock(at: datetime) -> Markup:
    """Format a time as an element which shows the reader's time of day to the second."""
    return _format_time(at, "%H:%M:%S")


def _format_time(at: datetime, form: str) -> Markup:
    utc = at if at.tzinfo else at.replace(tzinfo=UTC)
    return Markup('<time datetime="{}">{}</time>').format(iso_time(utc), f"{local(utc):{form}}")


def day(at: datetime | None) -> str:
    """Format the day of a time in the reader's zone."""
    return NOTHING if at is None else f"{local(at):%Y-%m-%d}"


def ago(seconds: float) -> str:
    """Format a duration in whole units of the largest that fits."""
    for unit, length in _UNITS:
        count = int(seconds // length)
        if count:
            return f"{count} {unit}{'s' if count != 1 else ''}"
    return "less than a second"


def duration(seconds: float) -> str:
    """Format a duration with its two largest units."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = round(seconds)
    large, small = next((pair for pair in pairwise(_SHORT_UNITS) if whole >= pair[0][1]), _SHORT_UNITS[-2:])
    rest = whole % large[1] // small[1]
    return f"{whole // large[1]} {large[0]}" + (f" {rest} {small[0]}" if rest else "")


def number(value: float | None, digits: int = 0) -> str:
    """Format a number with commas between thousands."""
    return NOTHING if value is None else grouped(value, digits)


def tier_score(value: float | None, tier: str) -> Markup:
    """Format a score of a tier to two digits, marked if it is in the lower half of the tier's scale."""
    middle = sum(bounds_of(tier)) / 2
    if value is None or value >= middle:
        return escape(number(value, 2))
    return Markup('<strong class="down" title="In the lower half of the scale, below {}">{}</strong>').format(
        f"{middle:g}", number(value, 2)
    )


_REASONS_OF_FLAGS = {flag_reason(check.id): check.title for check in STRUCTURAL_CHECKS}
_LIMIT = re.compile(r", [0-9.]+ or less is low$")
_DIMENSION = re.compile(r"^\w+(?= scored )")


def list_findings(score: Mapping[str, Any]) -> str:
    """Return why an exchange is an anomaly in one line: the titles of its flags, then the other reasons."""
    flags = score["tier1_flags"] or ()
    of_flags = {flag_reason(flag) for flag in flags}
    reasons = [reason for reason in score["anomaly_reasons"] or () if reason not in of_flags]
    return "; ".join([*(TERMS.get(flag, flag) for flag in flags), *map(format_reason, reasons)])


def format_reason(reason: str) -> str:
    """Format the reason of an anomaly for a list: the title of a flag, the name of a dimension, and no limit beside a score."""
    text = _REASONS_OF_FLAGS.get(reason) or _LIMIT.sub("", reason)
    text = _DIMENSION.sub(lambda match: match[0].replace("_", " "), text)
    return text[:1].upper() + text[1:]


def share(value: float | None) -> str:
    """Format a share in percent."""
    return NOTHING if value is None else f"{value:.1%}"


def usd(value: float | None) -> str:
    """Format an amount in US dollars: to the cent from 1 dollar on, otherwise to a hundredth of a cent."""
    if value is None:
        return NOTHING
    return f"${value:,.2f}" if value >= 1 or not value else f"${value:.4f}"


MAX_SHOWN = 20_000
"""Maximum length of a text on a page. The judge sees at most 24,000 characters."""
_CODE_LENGTH = 40
"""Length of a code on a page, in characters."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The beginning of a text."""

    text: str
    left_out: int
    """Number of characters after the excerpt; 0 if it is the whole text."""
    whole: str
    """Address of the full text."""

    @property
    def length(self) -> int:
        """The length of the full text, in characters."""
        return len(self.text) + self.left_out


def excerpt(text: str, whole: str) -> Excerpt:
    """Return the beginning of a text that fits on a page. `whole` is the address of the full text.

    Characters that are shown as codes take more space.
    """
    head = text[:MAX_SHOWN]
    room = MAX_SHOWN
    length = 0
    for part, hidden in hidden_parts(head):
        length += min(len(part), room)
        room -= len(part) + (_CODE_LENGTH if hidden else 0)
        if room < 0:
            break
        length += len(hidden)
    return Excerpt(head[:length], len(text) - length, whole)


_TITLES = {
    400: "The address is not valid",
    403: "Not allowed with this token",
    404: "This page does not exist",
    503: "The server is busy",
}
Answers = Callable[[Request, Exception], Awaitable[Response]]
_ERRORS: tuple[type[Exception], ...] = (HTTPException, RequestValidationError)


def add_problem_pages(app: FastAPI) -> None:
    """Answer errors of pages with error pages. The error handlers of the API must already be installed."""
    for kind in _ERRORS:
        app.add_exception_handler(kind, _answer_with_page(app.exception_handlers[kind]))


def _answer_with_page(handler: Any) -> Answers:
    """Wrap an error handler so that browsers get a page."""

    async def answer_with_page(request: Request, error: Exception) -> Response:
        answer: Response = await handler(request, error)
        if not _wants_page(request) or answer.status_code < HTTPStatus.BAD_REQUEST:
            return answer
        message = json.loads(bytes(answer.body))["error"]
        title = _TITLES.get(answer.status_code, "Something went wrong")
        problem = page(request, "problem.html", {"title": title, "words": message}, answer.status_code)
        problem.headers.update({name: answer.headers[name] for name in ("Retry-After", "Set-Cookie") if name in answer.headers})
        return problem

    return answer_with_page


def _wants_page(request: Request) -> bool:
    return not request.url.path.startswith(CALLS) and "text/html" in request.headers.get("accept", "")
