"""Logs for machines: one JSON object per line, without secrets.

Nothing secret is logged to begin with. What a library says in its own words goes through redaction all the same, tracebacks too.
"""

from __future__ import annotations

import logging
from typing import Any, TextIO

from pythonjsonlogger.json import JsonFormatter

from audit.redaction import Redactor

FIELDS = {"asctime": "time", "levelname": "level", "name": "logger"}
"""The names of a log record's attributes in a line; its message is `message`, with extra fields beside it."""


class RedactingFormatter(JsonFormatter):
    """Writes a record as JSON, each of its texts without secrets."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__(" ".join(f"%({name})s" for name in (*FIELDS, "message")), rename_fields=FIELDS, timestamp=False)
        self._redactor = redactor

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of the line, redacted."""
        log_data.pop("color_message", None)  # uvicorn says everything twice
        redacted: dict[str, Any] = self._redactor.redact_json(super().process_log_record(log_data))[0]
        return redacted


def configure_logs(stream: TextIO, redactor: Redactor, level: int = logging.INFO) -> None:
    """Send every log record of the process to the stream, as JSON lines; earlier configuration no longer counts."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(RedactingFormatter(redactor))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # A line for every call of the judge, every connection, every part of a framework that starts.
    for chatty in ("httpx2", "anthropic", "kafka", "aiokafka", "faust", "mode"):
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))
