"""docs/how-to/http.md: the calls that a reader copies are taken."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

from support.api_server import Call, Tokens

GUIDE = (Path(__file__).parents[3] / "docs" / "how-to" / "http.md").read_text("utf-8")
CALLS = [shlex.split(block) for block in re.findall(r"^```sh\n(curl .*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)]
"""Each as the words of a command."""


def test_the_calls_of_the_guide_are_accepted(call: Call, tokens: Tokens) -> None:
    """New users send these requests first, in this order."""
    statuses = []
    for arguments in CALLS:
        body = json.loads(arguments[arguments.index("-d") + 1]) if "-d" in arguments else None
        (url,) = (word for word in arguments if word.startswith("http:"))
        assert "Authorization: Bearer $TOKEN" in arguments
        answer = call("POST", urlsplit(url).path, tokens.ops, json=body)
        statuses.append((urlsplit(url).path.rpartition("/")[2], answer.status_code))
        if body and "events" in body:
            assert len(body["events"]) == answer.json()["accepted"]

    assert statuses == [("ingest", 201), ("events", 201), ("finalize", 200)]


def test_the_heartbeat_of_the_guide_is_accepted(call: Call, tokens: Tokens) -> None:
    """The body of the request is in a sentence of the guide."""
    (body,) = re.findall(r"heartbeat` with `(\{.*?\})`", GUIDE)

    assert call("POST", "/api/audit/heartbeat", tokens.ops, json=json.loads(body)).status_code == 200
