"""Logs: one JSON object per line, without secrets, from any logger."""

from __future__ import annotations

import io
import json
import logging
import secrets
from collections.abc import Iterator

import pytest

from audit.policy import RedactionSettings
from audit.redaction import Redactor
from service.server.logs import configure_logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """The stream of a test's logs; the previous configuration is restored."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    for handler in before:
        root.removeHandler(handler)  # so that they are not closed
    stream = io.StringIO()
    configure_logs(stream, Redactor(RedactionSettings()))
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


def test_a_record_is_one_json_line_with_its_fields(stream: io.StringIO) -> None:
    """Programs read logs and search them by id."""
    logging.getLogger("service.http").info("a %s", "request\nof two lines", extra={"route": "/x", "status": 200})
    [line] = stream.getvalue().splitlines()
    fields = json.loads(line)
    assert fields["level"] == "INFO"
    assert fields["logger"] == "service.http"
    assert fields["message"] == "a request\nof two lines"
    assert fields["route"] == "/x"
    assert fields["status"] == 200
    assert fields["time"].startswith("20")


def test_secrets_in_log_messages_are_redacted(stream: io.StringIO) -> None:
    """Libraries log headers, and error messages repeat their input."""
    token = f"dl_{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"
    try:
        int(f"Authorization: Bearer {token}")
    except ValueError:
        logging.getLogger("anybody").exception("cannot use %s", token, extra={"authorization": token, "args_given": [token]})
    assert token not in stream.getvalue()
    assert "ValueError" in json.loads(stream.getvalue())["exc_info"]


def test_records_below_the_level_are_omitted(stream: io.StringIO) -> None:
    """Debug output of libraries contains bodies."""
    logging.getLogger("anybody").debug("body")
    assert stream.getvalue() == ""
