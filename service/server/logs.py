"""Logs for machines: one JSON object per line, without secrets.

Our own code logs no secrets. Messages of libraries and tracebacks are redacted in case they contain one.
"""

from __future__ import annotations

import logging
from typing import Any, TextIO

from pythonjsonlogger.json import JsonFormatter

from audit.redaction import Redactor

FIELDS = {"asctime": "time", "levelname": "level", "name": "logger"}
"""The names of a log record's attributes in a line; its message is `message`, with extra fields beside it."""


class RedactingFormatter(JsonFormatter):
    """Formats a record as JSON with secrets redacted in every text."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__(" ".join(f"%({name})s" for name in (*FIELDS, "message")), rename_fields=FIELDS, timestamp=False)
        self._redactor = redactor

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of the line, redacted."""
        log_data.pop("color_message", None)  # uvicorn repeats its message in this field
        redacted: dict[str, Any] = self._redactor.redact_json(super().process_log_record(log_data))[0]
        return redacted


def configure_logs(stream: TextIO, redactor: Redactor, level: int = logging.INFO) -> None:
    """Send every log record of the process to the stream as JSON lines, replacing earlier configuration."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(RedactingFormatter(redactor))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # These libraries log every judge call, every connection and every started component.
    for chatty in ("httpx2", "anthropic", "kafka", "aiokafka", "faust", "mode"):
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))
