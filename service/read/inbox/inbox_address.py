"""The address of the inbox: the filters and the order of its list, as people share and save them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from schemas.bounds.limits import MAX_ID, NAME
from schemas.errors import InputError
from service.read.inbox.incident_list import ANY, LIVE_STATES, MAX_TEXT, ME, SEVERITIES, SORTS, TYPES, InboxFilter
from service.text.window import ALL, LENGTHS, kept_of
from streams.watch.lifecycle import STATUSES, current_status

Asked = dict[str, list[str]]
"""The fields of an address and their values; a field without a value is not among them."""
_WORDS: Mapping[str, Collection[str]] = {
    "status": (*STATUSES, ANY),
    "type": TYPES,
    "confirmed": ("true", "false"),
    "severity": SEVERITIES,
    "sort": SORTS,
    "window": (*LENGTHS, ALL),
}
"""The fields that take one of some words."""
_MAX_TIME = 40
_LONGEST: Mapping[str, int] = {"project": 63, "agent": MAX_ID, "assignee": MAX_ID, "text": MAX_TEXT, "until": _MAX_TIME}
"""The fields that take a text, and the characters of the longest."""
FIELDS = (*_WORDS, *_LONGEST)
MAX_FIELDS = 50
"""Parameters of an address."""


def read_address(pairs: Iterable[tuple[str, str]]) -> Asked:
    """Return the fields of an address: blank and usual ones are left out, unknown ones ignored. InputError that names a wrong one.

    Several states are given one by one, or with commas between them.
    """
    asked: Asked = {}
    for name, value in pairs:
        said = value.strip()
        if name not in FIELDS or not said:
            continue
        if name == "status":
            asked[name] = [*asked.get(name, []), *(_checked(name, current_status(one.strip())) for one in said.split(","))]
        elif name in asked:
            raise InputError(f"{name}: is given twice", hint="Give it once.")
        else:
            asked[name] = [_checked(name, said)]
    if states := set(asked.pop("status", ())):
        asked["status"] = [ANY] if ANY in states else [one for one in STATUSES if one in states]
    # What the list begins with needs no words in the address.
    usual = {"status": list(LIVE_STATES), "sort": ["worst"], "window": [ALL]}
    return {name: asked[name] for name in FIELDS if name in asked and asked[name] != usual.get(name)}


def read_query(query: str) -> Asked:
    """Return the fields of the part of an address after its question mark; InputError as `read_address`."""
    try:
        pairs = parse_qsl(query.removeprefix("?"), max_num_fields=MAX_FIELDS)
    except ValueError:
        raise InputError(f"query: has more than {MAX_FIELDS} parameters", hint="Copy it from the inbox.") from None
    return read_address(pairs)


def query_of(asked: Mapping[str, list[str]]) -> str:
    """Return the fields as the part of an address after its question mark."""
    return urlencode(asked, doseq=True, quote_via=quote)


def filter_of(asked: Mapping[str, list[str]], own_project: str | None, caller: str) -> InboxFilter:
    """Return the filter that an address stands for; without a state, the incidents that wait for a decision.

    `own_project` is the only one that the caller may see, None for all.
    """
    one: dict[str, Any] = {name: values[0] for name, values in asked.items()}
    statuses = asked.get("status") or LIVE_STATES
    return InboxFilter(
        project=own_project or one.get("project"),
        statuses=() if ANY in statuses else tuple(statuses),
        kind=one.get("type"),
        confirmed={"true": True, "false": False}.get(one.get("confirmed", "")),
        severity=one.get("severity"),
        agent=one.get("agent"),
        assignee=caller if one.get("assignee") == ME else one.get("assignee"),
        text=one.get("text"),
        sort=one.get("sort", "worst"),
    )


def _checked(name: str, value: str) -> str:
    if name in _WORDS and value not in _WORDS[name]:
        raise InputError(f"{name}: must be one of {', '.join(_WORDS[name])}", hint="Choose one in the list.")
    if name in _LONGEST and len(value) > _LONGEST[name]:
        raise InputError(f"{name}: has {len(value)} characters; at most {_LONGEST[name]} are taken", hint="Shorten it.")
    if name == "until" and not kept_of({name: value}):
        raise InputError("until: is no time", hint="Give a day such as 2026-11-26, or a time such as 2026-11-26T14:00Z.")
    if name == "project" and not re.fullmatch(NAME, value):
        raise InputError("project: is no name of a project", hint="Use a-z, 0-9, _ . - and at most 63 characters.")
    return value
