"""The process beside the server that maps large requests, one after the other, until its standard input ends.

1. It reads two frames for a request, the task and the body, and answers with one; an empty frame says that it is ready, or that the
   server has to map this request itself.
2. Its environment and command line hold nothing of the server's: what it needs to know comes with each task.
3. It ends with the server. Signals that a terminal or a service manager sends to all processes are left to the server.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from functools import lru_cache
from typing import BinaryIO

import msgspec

from analytics.sandbox.subprocesses import end_with_parent
from audit.redaction.redactor import Redactor
from service.otlp.frames import LENGTH_BYTES, length, length_of
from service.otlp.mapping import LogLine, ProcessAnswer, ProcessTask, Redaction, mapped
from streams.garbage_collection import collect_rarely
from streams.stop_signals import STOP

_tasks = msgspec.msgpack.Decoder(ProcessTask)


def main() -> None:
    """Answer what comes."""
    end_with_parent()
    for number in STOP:
        signal.signal(number, signal.SIG_IGN)
    collect_rarely()
    kept = KeptLog()
    logging.basicConfig(level=logging.INFO, handlers=[kept], force=True)
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    _write(answers, b"")
    while (task := _read(requests)) is not None and (body := _read(requests)) is not None:
        _write(answers, _answer(task, body, kept))
    os._exit(0)


def _answer(task: bytes, body: bytes, kept: KeptLog) -> bytes:
    try:
        given = _tasks.decode(task)
        spans = mapped(given.task, body, _redactor(given.redaction)).without_content()
        return msgspec.msgpack.encode(ProcessAnswer(spans, kept.taken()))
    except Exception:  # noqa: BLE001 - the server runs into the same, and tells of it
        kept.taken()
        return b""


@lru_cache(1)
def _redactor(redaction: Redaction) -> Redactor:
    return Redactor(redaction, redaction.key)


def _read(requests: BinaryIO) -> bytes | None:
    """Return the content of the next frame; None at the end."""
    head = requests.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    content = requests.read(length(head))
    return content if len(content) == length(head) else None


def _write(answers: BinaryIO, content: bytes) -> None:
    answers.write(length_of(content))
    answers.write(content)
    answers.flush()


class KeptLog(logging.Handler):
    """Keeps what is logged, so that the server writes it as it writes its own lines: as JSON, without secrets."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[LogLine] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        trace = None if record.exc_info is None else logging.Formatter().formatException(record.exc_info)
        self._lines.append(LogLine(record.name, record.levelno, record.getMessage(), trace))

    def taken(self) -> list[LogLine]:
        """Return the lines since the last time."""
        lines, self._lines = self._lines, []
        return lines


if __name__ == "__main__":
    main()
