"""The APIs that receivers of alerts speak, as their makers document them: each checks a request, answers, and keeps what is open."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import msgspec
from support.alerting import API_KEY, ROUTING_KEY
from support.receivers import Answer, Post

ACCEPTED = Answer(202, body=b"{}")
MAX_CARD_BYTES = 28 * 1024
_OPSGENIE_LIMITS = {"message": 130, "alias": 512, "description": 15_000, "entity": 512, "source": 100}
_OPSGENIE_FIELDS = {*_OPSGENIE_LIMITS, "priority", "tags", "details"}
_CARD_ELEMENTS = {"RichTextBlock": {"type", "inlines"}, "TextRun": {"type", "text", "weight", "size", "color", "isSubtle"}}


class PagerDuty:
    """The Events API v2: a repeated `trigger` changes nothing, and `resolve` closes the alert of its key."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        """The keys of all alerts."""
        self.open: dict[str, dict[str, Any]] = {}
        """The payloads of open alerts by key."""

    def __call__(self, post: Post) -> Answer:
        """Answer an event."""
        event = post.document
        payload = event.get("payload", {})
        is_trigger = event.get("event_action") == "trigger"
        valid = (
            post.path == "/v2/enqueue"
            and event.get("routing_key") == ROUTING_KEY
            and 0 < len(event.get("dedup_key", "")) <= 255
            and len(post.body) < 512_000
            and (is_trigger or event.get("event_action") == "resolve")
        )
        if is_trigger:
            valid = valid and (
                0 < len(payload["summary"]) <= 1024
                and bool(payload["source"])
                and payload["severity"] in {"critical", "error", "warning", "info"}
                and datetime.fromisoformat(payload["timestamp"]).tzinfo is not None
                and all(link["href"].startswith("http") for link in event.get("links", ()))
            )
        if not valid:
            return Answer(400, body=b'{"status":"invalid event"}')
        key = event["dedup_key"]
        if is_trigger:
            if key not in self.open:
                self.opened.append(key)
            self.open[key] = payload
        else:
            self.open.pop(key, None)
        return ACCEPTED


class Opsgenie:
    """The Alert API: a repeated alias opens no second alert, and closing one that is not open changes nothing."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.open: dict[str, dict[str, Any]] = {}

    def __call__(self, post: Post) -> Answer:
        """Answer a request."""
        body = post.document
        if post.headers.get("authorization") != f"GenieKey {API_KEY}":
            return Answer(403)
        if closed := re.fullmatch(r"/v2/alerts/([^/?]+)/close\?identifierType=alias", post.path):
            if body.keys() - {"user", "source", "note"} or len(body.get("note", "")) > 25_000:
                return Answer(422)
            self.open.pop(closed[1], None)
            return ACCEPTED
        valid = (
            post.path == "/v2/alerts"
            and not body.keys() - _OPSGENIE_FIELDS
            and bool(body.get("message"))
            and all(len(body.get(name, "")) <= limit for name, limit in _OPSGENIE_LIMITS.items())
            and body["priority"] in {"P1", "P2", "P3", "P4", "P5"}
            and len(body["tags"]) <= 20
            and all(len(tag) <= 50 for tag in body["tags"])
            and all(isinstance(value, str) for value in body["details"].values())
        )
        if not valid:
            return Answer(422)
        if body["alias"] not in self.open:
            self.opened.append(body["alias"])
        self.open[body["alias"]] = body
        return ACCEPTED


def check_card(body: bytes) -> list[str]:
    """Return the texts of a message to a workflow of Teams. Only elements without Markdown are allowed."""
    assert len(body) <= MAX_CARD_BYTES
    message = msgspec.json.decode(body)
    assert message["type"] == "message"
    (attachment,) = message["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    card = attachment["content"]
    assert (card["type"], card["version"]) == ("AdaptiveCard", "1.4")
    assert all(action["type"] == "Action.OpenUrl" for action in card["actions"])
    texts = []
    for block in card["body"]:
        for element in (block, *block["inlines"]):
            assert not element.keys() - _CARD_ELEMENTS[element["type"]]
        texts += [run["text"] for run in block["inlines"]]
    assert all(texts)
    return texts
