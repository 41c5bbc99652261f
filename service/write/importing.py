"""Importing: publishing the records of files in batches and running the stages over them (see `README.md`).

Afterwards this process, or the server that has the database, checks the imported days for drift (`streams.watch.history`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from analytics.queries import run_query
from audit.exchanges.outcomes import RULE_VERSION
from audit.fingerprints import canonical_json, digest
from schemas.codec.single_object import encode
from schemas.records import Exchange, ImportProgress, JudgingRequest
from service.setup.wiring import redaction_key_of
from service.setup.workspace import Workspace, utc_now
from service.write.ending_sessions import close_idle_sessions
from service.write.input_files import FileReader, FileRecords, read_transcripts, split_into_parts
from streams.judging.rejudging import revise
from streams.log.admission import Admission, EncodedRecords
from streams.sources.copies import SessionFiles, count_lines_only_in_copies
from streams.sources.derived_evidence import OUTPUT_USE, SKILL_USE
from streams.sources.event_files import EVENT_FILES
from streams.sources.openclaw.companions import trajectory_beside
from streams.sources.source import FileSource, PendingAnswer, SkippedTrace
from streams.sources.transcript_sources import TranscriptSource
from streams.watch.history import History, ProjectHistory
from streams.watch.history import ReportProgress as HistoryReport
from streams.watch.watching import Watch


def begin_history(workspace: Workspace, target: str) -> None:
    """Record that an import into a project, or into `EVERY_PROJECT`, begins."""
    if workspace.server is None:
        _history(workspace).begin(target)
    else:
        workspace.server.call("begin_history", type(None), target)


def check_history(workspace: Workspace, target: str, report: HistoryReport = lambda *_: None) -> list[ProjectHistory]:
    """Check each imported day that is over by the workspace's clock, as of its end.

    `report` is not called if a server makes the checks.
    """
    if workspace.server is None:
        return asyncio.run(_history(workspace).check(target, workspace.now(), report))
    return workspace.server.call("check_history", list[ProjectHistory], target, workspace.now())


def resume_histories(workspace: Workspace, report: HistoryReport) -> list[ProjectHistory]:
    """Check the days that interrupted imports left unchecked. This process must have the database open."""
    history = _history(workspace)
    checked: list[ProjectHistory] = []
    for target in history.pending():
        checked += asyncio.run(history.check(target, workspace.now(), report))
    return checked


def _history(workspace: Workspace) -> History:
    return History(Watch(workspace.publisher), workspace.store, utc_now)


EXCHANGES = "exchanges"
BATCH_BYTES = 64 * 1024 * 1024
READER_VERSION = "3"
"""The reader's version: files read by an older version are read again."""


@dataclass
class ImportSummary:
    """The result of an import."""

    files: int = 0
    copies: int = 0
    """Further files of a session that was read from its main file."""
    lines_in_copies: int = 0
    """Lines of copies that could not be merged with the main file."""
    unchanged: int = 0
    exchanges: int = 0
    events: int = 0
    known: int = 0
    """Records that the log already had."""
    conflicts: int = 0
    """Records whose identity the log has with other content. Their first delivery counts as a fault as well."""
    revised: int = 0
    """Exchanges to which the source has added since the last import."""
    faults: int = 0
    """Dead letters."""
    sessions: set[str] = field(default_factory=set)
    sessions_closed: int = 0
    left_out: Counter[SkippedTrace] = field(default_factory=Counter)
    """Traces of an export without an exchange, by reason."""
    open: list[PendingAnswer] = field(default_factory=list)
    """Answers that are not final yet."""

    def as_json(self) -> dict[str, Any]:
        """Return the counts, with the number of sessions read, the open answers, and the traces without an exchange by reason."""
        left_out = [{**reason._asdict(), "traces": traces} for reason, traces in self.left_out.most_common()]
        still_open = [answer._asdict() for answer in self.open]
        return {**vars(self), "sessions": len(self.sessions), "left_out": left_out, "open": still_open}


Report = Callable[[int], None]
"""Called with the number of further bytes that were read."""


class Stamp(NamedTuple):
    """Identifies a file's content by size and modification time, including its companion files."""

    size: int
    modified_ns: int


def stamp_of(path: Path) -> Stamp | None:
    """Return the stamp of a file; None if it does not exist.

    It includes the companion file. While a gateway has a database open, only its write-ahead log may grow; a transcript may have a
    trajectory file beside it.
    """
    try:
        stats = [path.stat()]
    except OSError:
        return None
    companion = path.with_name(f"{path.name}-wal") if path.suffix == ".sqlite" else trajectory_beside(path)
    with contextlib.suppress(OSError):
        stats.append(companion.stat())
    return Stamp(sum(stat.st_size for stat in stats), max(stat.st_mtime_ns for stat in stats))


def stamp_of_session(session_files: SessionFiles) -> Stamp | None:
    """Return the combined stamp of a session's file and its copies; None if the file does not exist."""
    own = stamp_of(session_files.path)
    if own is None or not session_files.copies:
        return own
    stamps = [own, *filter(None, map(stamp_of, session_files.copies))]
    return Stamp(sum(stamp.size for stamp in stamps), max(stamp.modified_ns for stamp in stamps))


class Importer:
    """Imports files into a workspace, under one connection and project."""

    def __init__(self, workspace: Workspace, *, agent: str | None = None, layouts: Mapping[Path, str] | None = None) -> None:
        """`layouts` has the layout of each file, for kinds with several layouts. A file with a changed layout is read again."""
        settings = workspace.settings
        policy = workspace.policy
        self._workspace = workspace
        self._reader = FileReader(
            connection=settings.connection,
            project=settings.project,
            agent=agent,
            now=workspace.now(),
            session_gap=timedelta(minutes=policy.session_gap_minutes),
            redaction=policy.redaction,
            redaction_key=redaction_key_of(settings),
        )
        self._settings_digest = digest(
            canonical_json(
                [
                    settings.connection,
                    settings.project,
                    agent,
                    policy.session_gap_minutes,
                    policy.redaction.model_dump(),
                    RULE_VERSION,
                    READER_VERSION,
                    OUTPUT_USE,
                    SKILL_USE,
                ]
            )
        )
        self._layouts = layouts or {}
        self._summary = ImportSummary()
        self._accepted = EncodedRecords()
        self._revisable: list[tuple[Path, Exchange]] = []
        self._deferred: set[str] = set()
        """Files with revisions to publish later."""
        self._progress: list[ImportProgress] = []

    def import_transcripts(
        self, source: TranscriptSource, files: Iterable[Path], report: Report = lambda _: None
    ) -> ImportSummary:
        """Import the transcripts of a source. `files` must include every file of a session, because they are read together."""
        sessions = source.session_files_in(files)
        self._summary.copies = sum(len(session_files.copies) for session_files in sessions)
        if source.id_field is None:
            with_copies = [session_files for session_files in sessions if session_files.copies]
            self._summary.lines_in_copies = sum(map(count_lines_only_in_copies, with_copies))
        changed = self._select_changed(source.name, sessions, report)
        parts = [part for session_files, stamp in changed for part in split_into_parts(source, session_files, stamp.size)]
        stamps = {session_files.path: stamp for session_files, stamp in changed}
        complete = True
        for part, records in zip(parts, read_transcripts(self._reader, source.name, parts), strict=True):
            self._add_records(part.path, records)
            complete &= records.complete
            if part.is_last:
                self._record_progress(source.name, part.path, stamps[part.path], complete=complete)
                complete = True
            report(part.size)
        return self._finish()

    def import_events(self, files: Iterable[Path], report: Report = lambda _: None) -> ImportSummary:
        """Import files of runtime events."""
        return self._import_files(EVENT_FILES, [(path, stamp_of(path) or Stamp(0, 0)) for path in files], report)

    def import_exchanges(self, source: FileSource, files: Iterable[Path], report: Report = lambda _: None) -> ImportSummary:
        """Import files of exchanges."""
        changed = self._select_changed(source.name, map(SessionFiles, files), report)
        return self._import_files(source, [(session_files.path, stamp) for session_files, stamp in changed], report)

    def _import_files(self, source: FileSource, files: Iterable[tuple[Path, Stamp]], report: Report) -> ImportSummary:
        """Import files reading by reading, because a single file may not fit into memory."""
        for path, stamp in files:
            complete = True
            for records in self._reader.read_file(source, path):
                complete &= records.complete
                self._add_records(path, records)
            self._record_progress(source.name, path, stamp, complete=complete)
            report(stamp.size)
        return self._finish()

    def _select_changed(
        self, source: str, sessions: Iterable[SessionFiles], report: Report
    ) -> list[tuple[SessionFiles, Stamp]]:
        """Return the sessions whose files are not completely imported, or have changed, or were imported with other settings."""
        rows = run_query(self._workspace.store.cursor(), "import_progress", {"source": source}).iter_rows()
        imported_states = {path: state for path, *state in rows}
        changed = []
        for session_files in sessions:
            path = session_files.path
            stamp = stamp_of_session(session_files)
            if stamp is None:  # deleted after the folder was listed
                continue
            if imported_states.get(str(path)) == [*stamp, self._settings_digest_of(path)]:
                self._summary.unchanged += 1
                report(stamp.size)
            else:
                changed.append((session_files, stamp))
        return changed

    def _add_records(self, path: Path, records: FileRecords) -> None:
        """Add the records of a file to the pending ones, and flush them if they are enough for a batch."""
        self._revisable += [(path, exchange) for exchange in records.revisable]
        self._summary.open += records.open
        self._summary.sessions.update(records.session_ids)
        self._summary.left_out += records.skipped_traces
        self._accepted.extend(records.accepted)
        if self._accepted.records >= self._workspace.settings.batch_records or self._accepted.size >= BATCH_BYTES:
            self._flush()

    def _record_progress(self, source: str, path: Path, stamp: Stamp, *, complete: bool) -> None:
        """Add a file's progress to the pending records. It is committed with the file's last records or after them."""
        self._summary.files += 1
        self._progress.append(
            ImportProgress(
                source=source,
                path=str(path),
                size=stamp.size,
                modified_ns=stamp.modified_ns,
                complete=complete,
                settings_digest=self._settings_digest_of(path),
            )
        )

    def _settings_digest_of(self, path: Path) -> str:
        """Return the digest of everything on which a file's records depend, except the file's content."""
        layout = self._layouts.get(path)
        return self._settings_digest if layout is None else digest(canonical_json([self._settings_digest, layout]))

    def _flush(self) -> None:
        """Publish the pending records and run the stages over them."""
        revised = self._add_revisions()
        progress = [replace(entry, complete=entry.complete and entry.path not in self._deferred) for entry in self._progress]
        results = self._workspace.runner.publish(self._accepted, progress, are_own=not revised)
        for appended in results.values():
            self._summary.known += appended.known
            self._summary.conflicts += len(appended.conflicts)
            self._summary.exchanges += appended.written.get("exchanges", 0)
            self._summary.events += appended.written.get("agent_events", 0)
            self._summary.faults += appended.written.get("dead_letters", 0)
        self._summary.exchanges -= revised
        self._summary.revised += revised
        self._accepted = EncodedRecords()
        self._progress = []
        self._workspace.runner.run()

    def _add_revisions(self) -> int:
        """Add the exchanges that revise earlier ones to the pending records. Return the number of revised exchanges.

        The stages must have read all published records. A revision that is not ready is added when its file is read again.
        """
        if not self._revisable:
            return 0
        workspace = self._workspace
        revisions = revise(workspace.store, workspace.policy, [exchange for _, exchange in self._revisable], workspace.now())
        admission = Admission(workspace.redactor, workspace.now())
        for record in revisions.records:
            if isinstance(record, JudgingRequest):
                self._accepted.add(EXCHANGES, encode(record))
            else:
                admission.admit(self._accepted, EXCHANGES, [record], source="import")
        deferred = {exchange.exchange_id for exchange in revisions.waiting}
        self._deferred |= {str(path) for path, exchange in self._revisable if exchange.exchange_id in deferred}
        self._revisable = []
        return revisions.revised

    def _finish(self) -> ImportSummary:
        """Publish the pending records, close idle sessions, and run the stages."""
        self._flush()
        self._summary.sessions_closed = close_idle_sessions(self._workspace)
        self._workspace.runner.run()
        return self._summary
