"""One run of each program that does everything once; without npm its tests are skipped, and in CI they fail."""

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
    """What one session came to."""

    reading: Reading

    def exchange(self, question: str) -> Exchange:
        """The exchange that begins with these words of the user."""
        return next(exchange for exchange in self.reading.exchanges if exchange.user_message.startswith(question))

    def payloads(self, event: str, exchange: Exchange | None = None) -> list[dict[str, Any]]:
        """The payloads of the events of a type, of one exchange or all."""
        found = (json.loads(one.payload) for one in self.events if one.event == event)
        return [payload for payload in found if exchange is None or payload.get("exchange_id") == exchange.exchange_id]

    @property
    def events(self) -> list[AgentEvent]:
        """All events."""
        return self.reading.events


@dataclass(frozen=True)
class Read:
    """What a program's folder came to, session by session."""

    sessions: dict[str, Session]

    def all_events(self) -> list[AgentEvent]:
        """The events of all sessions."""
        return [event for session in self.sessions.values() for event in session.events]

    def asked(self, question: str) -> Session:
        """The session in which the user said this."""
        return next(
            session
            for session in self.sessions.values()
            if any(exchange.user_message.startswith(question) for exchange in session.reading.exchanges)
        )


def read_all(source: TranscriptSource, root: Path) -> Read:
    """Read everything below a folder, a day later."""
    context = ReadingContext(
        "c", "p", None, datetime.now(UTC) + timedelta(days=1), timedelta(minutes=30), Redactor(RedactionSettings(enabled=False))
    )
    readings = [reading for path in source.files_in([root]) for reading in source.read(path, context, EVERY_SESSION)]
    return Read({reading.session_ids[0]: Session(reading) for reading in readings})


@pytest.fixture(scope="session")
def claude_code_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClaudeCode]:
    """A Claude Code that has used tools, failed, been compacted, asked a subagent, changed its model and been forked."""
    program = or_skip(claude_code.installed)
    with stand_in(CLAUDE_CODE) as provider:
        run = ClaudeCode(program, tmp_path_factory.mktemp("claude-code"), provider)
        session = run.turn("How many files are here?")["session_id"]
        again = ("--resume", session)
        run.turn("Try what fails.", *again)
        run.turn("Are you busy?", *again)
        run.turn("Ask a helper.", *again)
        run.turn("Go another way.", *again, "--fork-session")
        run.turn("/compact", *again)
        run.turn("Which model are you?", *again, model="claude-opus-5-5")
        run.turn("Nothing works.")
        yield run


@pytest.fixture(scope="session")
def claude_code_logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClaudeCode]:
    """A Claude Code whose runs were logged: plain, in pieces, resumed, with a subagent, refused, overloaded and cut short."""
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
    """A Codex that has used tools, failed, been compacted, asked a subagent, changed its model, been forked and interrupted."""
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
