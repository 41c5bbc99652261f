"""Importing: files are read, what they hold is published in batches, and the stages run over it.

A batch is durable before the next is read, and nothing depends on where an import stopped: importing again leaves out what the
log has. A file that was taken completely and has not changed since is not read again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from analytics.queries import run_query
from audit.fingerprints import canonical_json, digest
from audit.outcomes import RULE_VERSION
from schemas.errors import InputError
from schemas.records import ImportProgress
from service.sessions import close_idle_sessions
from service.workspace import Workspace
from streams.admission import Accepted, Door, Place, Refusal
from streams.sources.event_files import read_event_file
from streams.sources.openclaw import find_transcripts, read_transcript
from streams.sources.openclaw_sqlite import find_databases, read_database
from streams.sources.reading import Reading, ReadingContext

BATCH_BYTES = 64 * 1024 * 1024
OPENCLAW, EVENTS = "openclaw", "events"


@dataclass
class ImportSummary:
    """What an import did. Records that the log had already are `known`; what was set aside as dead letters is `faults`."""

    files: int = 0
    unchanged: int = 0
    exchanges: int = 0
    events: int = 0
    known: int = 0
    faults: int = 0
    sessions: set[str] = field(default_factory=set)
    sessions_closed: int = 0

    def as_json(self) -> dict[str, int]:
        """The counts, with the number of sessions read."""
        return {**vars(self), "sessions": len(self.sessions)}


@dataclass(frozen=True)
class FileRead:
    """Reported after each file: its path and size in bytes."""

    path: Path
    size: int


Report = Callable[[FileRead], None]


class Importer:
    """Imports files into a workspace, filed under one connection and project."""

    def __init__(self, workspace: Workspace, *, agent: str | None = None) -> None:
        self._workspace = workspace
        self._agent = agent
        self._now = workspace.now()
        self._door = Door(workspace.redactor, self._now)
        self._summary = ImportSummary()
        self._accepted = Accepted()
        self._progress: list[ImportProgress] = []

    def openclaw(self, files: Iterable[Path], report: Report = lambda _: None) -> ImportSummary:
        """Import OpenClaw transcripts and session databases."""
        taken = self._taken(OPENCLAW)
        for path in files:
            try:
                stat = path.stat()
            except OSError:  # it was there when the folder was listed: whoever took it away did not want it imported
                continue
            if taken.get(str(path)) == (stat.st_size, stat.st_mtime_ns, self._settings_digest()):
                self._summary.unchanged += 1
            else:
                self._take(OPENCLAW, path, stat, _openclaw_readings(path, self._context()))
            report(FileRead(path, stat.st_size))
        return self._finish()

    def events(self, path: Path, report: Report = lambda _: None) -> ImportSummary:
        """Import one file of runtime events."""
        stat = path.stat()
        self._take(EVENTS, path, stat, read_event_file(path, self._context()))
        report(FileRead(path, stat.st_size))
        return self._finish()

    def _context(self) -> ReadingContext:
        settings, policy = self._workspace.settings, self._workspace.policy
        return ReadingContext(
            connection=settings.connection,
            project=settings.project,
            agent=self._agent,
            ingested_at=self._now,
            session_gap=timedelta(minutes=policy.session_gap_minutes),
            redactor=self._workspace.redactor,
        )

    def _settings_digest(self) -> str:
        settings = self._workspace.settings
        filed = [settings.connection, settings.project, self._agent, self._workspace.policy.session_gap_minutes]
        return digest(canonical_json([*filed, RULE_VERSION]))

    def _taken(self, source: str) -> dict[str, tuple[int, int, str]]:
        rows = run_query(self._workspace.store.cursor(), "import_progress", {"source": source}).iter_rows()
        return {path: (size, modified_ns, settings) for path, size, modified_ns, settings in rows}

    def _take(self, source: str, path: Path, stat: os.stat_result, readings: Iterable[Reading]) -> None:
        complete = True
        try:
            for reading in readings:
                complete &= reading.complete
                self._admit(path, reading)
                if self._accepted.records >= self._workspace.settings.batch_records or self._accepted.size >= BATCH_BYTES:
                    self._flush()
        except InputError as error:  # one file that cannot be read stops no other
            complete = False
            refusal = Refusal("import", "unreadable_file", str(error))
            self._door.set_aside(self._accepted, Place(str(path), 0), refusal, b"")
        self._summary.files += 1
        # Noted with the batch that holds the file's last records: a kill before that commit reads the file again.
        self._progress.append(
            ImportProgress(
                source=source,
                path=str(path),
                size=stat.st_size,
                modified_ns=stat.st_mtime_ns,
                complete=complete,
                settings_digest=self._settings_digest(),
            )
        )

    def _admit(self, path: Path, reading: Reading) -> None:
        self._summary.sessions.update(reading.session_ids)
        self._door.admit(self._accepted, "exchanges", reading.exchanges, source=str(path))
        self._door.admit(self._accepted, "agent-events", reading.events, source=str(path))
        for fault in reading.faults:
            place, refusal = Place(str(path), fault.line), Refusal("import", fault.reason, fault.detail)
            self._door.set_aside(self._accepted, place, refusal, fault.body, size=fault.size, digest=fault.digest)

    def _flush(self) -> None:
        done = self._workspace.runner.publish(self._accepted, self._progress)
        for appended in done.values():
            self._summary.known += appended.known
            self._summary.exchanges += appended.written.get("exchanges", 0)
            self._summary.events += appended.written.get("agent_events", 0)
            self._summary.faults += appended.written.get("dead_letters", 0)
        self._accepted, self._progress = Accepted(), []

    def _finish(self) -> ImportSummary:
        """Publish the rest, run the stages, close what fell idle and run the stages over that."""
        self._flush()
        self._workspace.runner.run()
        self._summary.sessions_closed = close_idle_sessions(self._workspace)
        self._workspace.runner.run()
        return self._summary


def transcripts_in(paths: Iterable[Path]) -> list[Path]:
    """Every transcript and session database under the paths, each once, in a fixed order; InputError for a missing path."""
    found = (
        file for path in paths for file in ([path] if path.is_file() else [*find_transcripts(path), *find_databases(path)])
    )
    return list(dict.fromkeys(found))


def _openclaw_readings(path: Path, context: ReadingContext) -> Iterator[Reading]:
    if path.suffix == ".sqlite":
        yield from read_database(path, context)
    else:
        yield read_transcript(path, context)
