"""One run of each program that uses every feature once. Without npm the tests are skipped; in CI they fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.model_apis import responses
from support.model_apis.messages import stand_in
from support.npm import or_skip

from agents import claude_code, codex
from agents.claude_code import ClaudeCode
from agents.codex import Codex
from agents.plays import CLAUDE_CODE, CODEX
from audit.policy import RedactionSettings
from audit.redaction import Redactor
from schemas.records import AgentEvent, Exchange
from streams.sources.source import EVERY_SESSION, Reading, ReadingContext
from streams.sources.transcript_sources import TranscriptSource


@dataclass(frozen=True)
class Session:
    """The records of one session."""

    reading: Reading

    def exchange(self, question: str) -> Exchange:
        """Return the exchange whose user message begins with this text."""
        return next(exchange for exchange in self.reading.exchanges if exchange.user_message.startswith(question))

    def payloads(self, event_type: str, exchange: Exchange | None = None) -> list[dict[str, Any]]:
        """Return the payloads of the events of a type, of one exchange or of all."""
        payloads = (json.loads(event.payload) for event in self.events if event.event == event_type)
        return [payload for payload in payloads if exchange is None or payload.get("exchange_id") == exchange.exchange_id]

    @property
    def events(self) -> list[AgentEvent]:
        """Return all events."""
        return list(self.reading.events)


@dataclass(frozen=True)
class ImportedFolder:
    """The records of a program's folder, by session."""

    sessions: dict[str, Session]

    def all_events(self) -> list[AgentEvent]:
        """Return the events of all sessions."""
        return [event for session in self.sessions.values() for event in session.events]

    def session_with(self, question: str) -> Session:
        """Return the session that has a user message beginning with this text."""
        return next(
            session
            for session in self.sessions.values()
            if any(exchange.user_message.startswith(question) for exchange in session.reading.exchanges)
        )


def read_all(source: TranscriptSource, root: Path) -> ImportedFolder:
    """Read all files below a folder as if a day had passed."""
    context = ReadingContext(
        "c", "p", None, datetime.now(UTC) + timedelta(days=1), timedelta(minutes=30), Redactor(RedactionSettings(enabled=False))
    )
    readings = [reading for path in source.files_in([root]) for reading in source.read(path, context, EVERY_SESSION)]
    return ImportedFolder({reading.session_ids[0]: Session(reading) for reading in readings})


@pytest.fixture(scope="session")
def claude_code_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClaudeCode]:
    """Return a Claude Code that used tools, failed, compacted its context, asked a subagent, changed its model and was forked."""
    program = or_skip(claude_code.installed)
    with stand_in(CLAUDE_CODE) as provider:
        run = ClaudeCode(program, tmp_path_factory.mktemp("claude-code"), provider)
        session = run.turn("How many files are here?")["session_id"]
        resume = ("--resume", session)
        run.turn("Try what fails.", *resume)
        run.turn("Are you busy?", *resume)
        run.turn("Ask a helper.", *resume)
        run.turn("Go another way.", *resume, "--fork-session")
        run.turn("/compact", *resume)
        run.turn("Which model are you?", *resume, model="claude-opus-5-5")
        run.turn("Nothing works.")
        yield run


@pytest.fixture(scope="session")
def claude_code_logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClaudeCode]:
    """Return a Claude Code with logs of its runs: plain, streamed, resumed, with a subagent, refused, overloaded and truncated."""
    program = or_skip(claude_code.installed)
    with stand_in(CLAUDE_CODE) as provider:
        run = ClaudeCode(program, tmp_path_factory.mktemp("claude-code-logs"), provider)
        first = run.log("How many files are here?")
        session = json.loads(first.splitlines()[0])["session_id"]
        run.log("How many files are here?", "--include-partial-messages")
        run.log("Try what fails.", "--resume", session)
        run.log("Go another way.", "--resume", session, "--fork-session")
        run.log("Ask a helper.", "--resume", session)
        run.log("Nothing works.")
        run.log("Are you busy?")
        run.log("How many files are here?", "--max-turns", "1")
        yield run


@pytest.fixture(scope="session")
def codex_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Codex]:
    """Return a Codex that used tools, failed, compacted its context, asked a subagent, changed its model, was forked and interrupted."""
    program = or_skip(codex.installed)
    with responses.stand_in(CODEX) as provider:
        run = Codex(program, tmp_path_factory.mktemp("codex"), provider)
        session = run.turn("How many files are here?")
        run.turn("Try what fails.", "resume", session)
        run.turn("Are you busy?", "resume", session)
        run.turn("Go another way.", "fork", session)
        run.turn("Which model are you?", "-m", "another-model", "resume", session)
        run.turn("Ask a helper.")
        run.turn("Read a lot.")
        run.turn("Nothing works.")
        run.interrupted_turn("Take your time.")
        yield run
