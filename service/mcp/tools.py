"""The tools: what got worse and why, evidence, sessions, exchanges and SQL. They only read.

Each call opens the database for its duration, or reads through the server that has it, as commands do. A tool gives an operator's token no
more than the HTTP API: its project, and SQL only with the scope `query` for every project.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import Field

from analytics.adhoc import fetch_rows
from audit.drift.watched_series import BEHAVIOUR, NOTICE, TOOL_ERRORS
from schemas.bounds import EARLIEST
from schemas.errors import InputError
from schemas.lazy import duckdb
from schemas.records import Incident
from service.mcp.answers import MAX_BYTES, QUOTED, AnswerText, cut_to_fit, name, next_call, quote
from service.read.cold_days import cold_days
from service.read.incident_actions import IncidentFacts, format_explained_share, format_slice_means
from service.read.incidents import LIVE_STATES, InboxFilter, find_incident, inbox, incident_answer
from service.read.known_projects import known_projects, unknown_project
from service.read.project import describe_check, rank_projects, read_projects, sort_worst_first, worst_incidents
from service.read.queries.protocol import QueryLimits
from service.read.scores import ScoreFilter, exchanges_by_id, project_scores
from service.read.sessions import SessionFilter, TurnRange, find_sessions, read_session, recent_sessions, session_turns
from service.setup.access import Holder
from service.setup.settings import Settings
from service.setup.workspace import Workspace, open_workspace, readable_file
from service.text.window import moment_of

PAGE = 10
"""Incidents, sessions or exchanges in a list, and turns in a conversation."""
EXCERPT = 400
"""Characters of a text in a list or a conversation."""
PART = 3_000
"""Characters of a text that `read_exchange` quotes at once."""
MAX_SQL_ROWS = 200
Project = Annotated[str | None, Field(description="Name of a project; all projects by default.")]
ProjectName = Annotated[str, Field(description="Name of the project.")]
Agent = Annotated[str | None, Field(description="Only this agent.")]
Version = Annotated[str | None, Field(description="Only this version of the agent (label agent_version).")]
ToolName = Annotated[str | None, Field(description="Only with a call of this tool.")]
ToolErrors = Annotated[bool, Field(description="Only with a failed tool call.")]
Since = Annotated[str | None, Field(description="Only from this time on: a date, a time in ISO 8601, or an age such as 7d.")]
Until = Annotated[str | None, Field(description="Only before this time.")]
Page = Annotated[int, Field(description="Page of the list, from 1.", ge=1, le=100)]


@dataclass(frozen=True, slots=True)
class Rights:
    """The data that a caller may read: of one project, or of all (None). `may_query` allows SQL, which sees every project."""

    project: str | None = None
    may_query: bool = True


def rights_of(holder: Holder) -> Rights | None:
    """Return the rights of a token's holder; None if it may not read."""
    if holder.kind != "operator" or "read" not in holder.scopes:
        return None
    return Rights(holder.project, may_query=holder.project is None and "query" in holder.scopes)


class Tools:
    """The tools over one database. `find_rights` returns the rights of the present caller."""

    def __init__(self, settings: Settings, find_rights: Callable[[], Rights]) -> None:
        self._settings = settings
        self._find_rights = find_rights
        self._lock = threading.Lock()
        """A process can open a database only once."""

    def all(self) -> list[Callable[..., str]]:
        """Return every tool; the name and the description of a tool are those of its method."""
        return [
            self.what_got_worse,
            self.explain_incident,
            self.list_projects,
            self.list_exchanges,
            self.read_exchange,
            self.list_sessions,
            self.read_session,
            self.sql,
        ]

    def what_got_worse(self, project: Project = None, agent: Agent = None, closed: bool = False, page: Page = 1) -> str:
        """List what got worse: the incidents of drift, worst first, each with the suspected version or tool. Start here.

        An incident is a lasting change of answer quality, errors of a tool, tokens, anomalies or failures of runs. `closed` adds
        resolved and dismissed ones.
        """
        with self._open() as workspace:
            cursor = workspace.store.cursor()
            selected = self._select_project(cursor, project)
            filters = InboxFilter(project=selected, statuses=() if closed else LIVE_STATES, agent=agent)
            listed = inbox(cursor, filters, None, PAGE * page, now=workspace.now())
            if not listed.total:
                checks = read_projects(cursor, workspace.policy, workspace.now(), project=selected)
                answer = AnswerText("No incident" + ("" if closed else " is open") + ".")
                answer.add_each((f"{name(entry.project)}: {name(describe_check(entry), 300)}",) for entry in checks)
                answer.add(next_call("list_projects", "see the health of each project"))
                return answer.text("Name a project.")
        shown = listed.listed[PAGE * (page - 1) :]
        answer = AnswerText(f"{listed.total} incidents, worst first; {len(shown)} on page {page}.")
        number = PAGE * (page - 1) + answer.add_each(_list_incident(entry.incident) for entry in shown)
        if number < listed.total:
            more = {"project": project, "agent": agent, "closed": closed or None}
            answer.add(next_call("what_got_worse", "see more", **more, page=page + 1))
        return answer.text("Narrow by project or agent.")

    def explain_incident(self, incident_id: Annotated[str, Field(description="Id of the incident, or its beginning.")]) -> str:
        """Explain an incident: the suspected version, tool or part of the traffic, reasons with counts, examples, what to do."""
        with self._open() as workspace:
            own = self._find_rights().project
            incident = find_incident(
                workspace.store.cursor(), incident_id, project=own, hint="Call what_got_worse for the ids."
            )
        return _explain(incident)

    def list_projects(self) -> str:
        """List the projects, worst health first: reasons, exchanges, anomalies and unsafe runs of the last days, check for drift."""
        with self._open() as workspace:
            cursor = workspace.store.cursor()
            own = self._find_rights().project
            projects = read_projects(cursor, workspace.policy, workspace.now(), project=own)
            ranked = sort_worst_first(projects, rank_projects(projects, worst_incidents(cursor, own)))
        answer = AnswerText(f"{len(ranked)} projects, worst first.")
        for entry in ranked:
            reasons = ", ".join(entry.reasons) or "no problem"
            recent = entry.recent
            answer.add(
                f"- {name(entry.project)}: {entry.health} ({reasons}). {entry.open_incidents} open incidents, "
                f"{entry.suspected_incidents} suspected. In {recent.days} days: {recent.scores} exchanges, {recent.anomalies} "
                f"with an anomaly, {recent.unsafe_runs} of {recent.runs} runs unsafe."
            )
        answer.add(next_call("what_got_worse", "list incidents"))
        return answer.text("Call what_got_worse with the name of a project.")

    def list_exchanges(
        self,
        project: Project = None,
        *,
        agent: Agent = None,
        version: Version = None,
        tool: ToolName = None,
        tool_errors: ToolErrors = False,
        text: Annotated[str | None, Field(description="Only with all these words.", max_length=200)] = None,
        anomalies: Annotated[bool, Field(description="Only with an anomaly.")] = False,
        since: Since = None,
        until: Until = None,
    ) -> str:
        """List scored exchanges (a user's message with the agent's answer), newest first, with scores and what is wrong with them."""
        with self._open() as workspace:
            cursor = workspace.store.cursor()
            selected = self._select_project(cursor, project)
            start, end = _read_period(workspace, since, until)
            filters = ScoreFilter(
                start=start,
                end=end,
                agent=agent,
                version=version,
                tool=tool,
                tool_error=tool_errors,
                text=text,
                anomalies=anomalies,
                limit=PAGE + 1,
            )
            scores = project_scores(cursor, selected, filters)
            cold = cold_days(cursor, selected, start, end)
        answer = AnswerText(f"{min(len(scores), PAGE)} exchanges, newest first. {QUOTED}")
        for score in scores[:PAGE]:
            tiers = (
                ("Tier 1", score.tier1_score),
                ("Tier 2", score.tier2_score),
                ("Tier 2.5", score.tier2_5_alignment),
                ("Tier 3", score.tier3_score),
            )
            levels = ", ".join(f"{tier} {value:.2f}" for tier, value in tiers if value is not None)
            lines = [f"- {score.exchange_at:%Y-%m-%d %H:%M:%S} {name(score.project)}, agent {name(score.agent)}: {levels}"]
            if score.anomaly:
                lines.append(quote("  anomaly", score.anomaly_reason, EXCERPT))
            call = next_call("read_exchange", "read it", project=score.project, exchange_id=score.exchange_id)
            answer.add(*lines, call)
        if len(scores) > PAGE:
            answer.add(f"There are older ones: call again with until={scores[PAGE - 1].exchange_at:%Y-%m-%dT%H:%M:%SZ}.")
        if cold:
            answer.add(f"{cold.summary}.")
        return answer.text("Call again with a shorter period.")

    def read_exchange(
        self,
        project: ProjectName,
        exchange_id: Annotated[str, Field(description="Id of the exchange.")],
        part: Annotated[
            str, Field(description="all, or only user, agent or thinking in full.", pattern="^(all|user|agent|thinking)$")
        ] = "all",
        start: Annotated[int, Field(description="With a part: the first character.", ge=0)] = 0,
    ) -> str:
        """Read one exchange: texts, tool calls with their outcome, labels, scores, and the judge's reasons."""
        with self._open() as workspace:
            cursor = workspace.store.cursor()
            selected = self._select_project(cursor, project)
            details = exchanges_by_id(cursor, selected or project, exchange_id, None)
        if not details:
            raise InputError(f"project {name(project)} has no exchange {name(exchange_id)!r}", hint="Call list_exchanges.")
        exchange, score = details[0].exchange, details[0].score
        texts = {"user": exchange.user_message, "agent": exchange.agent_response, "thinking": exchange.agent_thinking}
        if part != "all":
            unread = (texts[part] or "")[start:]
            answer = AnswerText(QUOTED, quote(part, unread, PART))
            following = start + len(cut_to_fit(unread, PART))
            if following < start + len(unread):
                more = {"project": project, "exchange_id": exchange_id, "part": part, "start": following}
                answer.add(next_call("read_exchange", "read on", **more))
            return answer.text()
        labels = ", ".join(f"{name(key)} {name(value)}" for key, value in exchange.labels.items()) or "none"
        answer = AnswerText(
            f"Exchange of agent {name(exchange.agent)} at {exchange.occurred_at:%Y-%m-%d %H:%M:%S} UTC, outcome {exchange.outcome}, "
            f"model {name(exchange.agent_model)}, labels: {labels}. {QUOTED}",
            *(quote(source, text, 3 * EXCERPT) for source, text in texts.items() if text),
        )
        if score is not None:
            answer.add(*_describe_score(score))
        for call in exchange.tool_calls:
            answer.add(
                f"Tool call {name(call.name)}: {call.outcome}",
                quote("  arguments", call.arguments, EXCERPT),
                quote("  result", call.result, EXCERPT),
            )
        session = {"session_id": exchange.session_id, "connection": exchange.connection}
        answer.add(next_call("read_session", "read its conversation", **session, exchange_id=exchange_id))
        return answer.text("Call read_exchange with part=user, agent or thinking for a whole text.")

    def list_sessions(
        self,
        project: Project = None,
        *,
        agent: Agent = None,
        version: Version = None,
        tool: ToolName = None,
        tool_errors: ToolErrors = False,
        anomalies: Annotated[bool, Field(description="Only with an anomaly.")] = False,
        since: Since = None,
        until: Until = None,
    ) -> str:
        """List sessions (conversations), most recently active first: turns, events, anomalies, verdict of the run, first question."""
        with self._open() as workspace:
            cursor = workspace.store.cursor()
            selected = self._select_project(cursor, project)
            start, end = _read_period(workspace, since, until)
            filters = SessionFilter(
                start=start or EARLIEST,
                end=end or workspace.now() + timedelta(days=1),
                agent=agent,
                version=version,
                tool=tool,
                tool_error=tool_errors,
                anomalies=anomalies,
                limit=PAGE + 1,
            )
            sessions = recent_sessions(cursor, selected, filters)
            cold = cold_days(cursor, selected, start, end)
        answer = AnswerText(f"{min(len(sessions), PAGE)} sessions, most recently active first. {QUOTED}")
        for session in sessions[:PAGE]:
            run = f", run {session.readiness_level}, {session.primary_failure_type or 'no failure'}" if session.run_id else ""
            answer.add(
                f"- {session.last_at:%Y-%m-%d %H:%M:%S} {name(session.project)}, agent {name(session.agent)}: {session.turns} turns, "
                f"{session.events} events, {session.anomalies} anomalies{run}",
                quote("  user", session.question, EXCERPT // 2),
                next_call("read_session", "read it", session_id=session.session_id, connection=session.connection),
            )
        if len(sessions) > PAGE:
            answer.add(f"There are older ones: call again with until={sessions[PAGE - 1].last_at:%Y-%m-%dT%H:%M:%SZ}.")
        if cold:
            answer.add(f"{cold.summary}.")
        return answer.text("Call again with a shorter period.")

    def read_session(
        self,
        session_id: Annotated[str, Field(description="Id of the session.")],
        connection: Annotated[str | None, Field(description="Its connection, if several have a session with this id.")] = None,
        turn: Annotated[int, Field(description="First turn to read, from 1.", ge=1)] = 1,
        exchange_id: Annotated[str | None, Field(description="Read the turns around this exchange instead.")] = None,
    ) -> str:
        """Read a conversation turn by turn, with scores and the findings of its run (loops, costs, ignored outputs and others)."""
        with self._open() as workspace:
            cursor = workspace.store.cursor()
            own = self._find_rights().project
            headers = find_sessions(cursor, session_id, None if own is None else [own], connection)
            if not headers:
                raise InputError(f"there is no session {name(session_id)!r}", hint="Call list_sessions.")
            header = headers[0]
            turns = TurnRange(skip=turn - 1, exchange=exchange_id, limit=PAGE, max_text_length=EXCERPT + 1)
            rows = session_turns(cursor, header, turns)
            session = read_session(cursor, header).session
        agents = ", ".join(map(name, session.agents)) or "unnamed"
        run = "no run yet" if session.run is None else f"run {session.run.readiness_level}, trust {session.run.trust_score}"
        answer = AnswerText(
            f"Session {name(session_id)} of project {name(header.project)}, {header.state}, agents {agents}, {session.exchanges} "
            f"exchanges, {session.tool_calls} tool calls, {session.anomalies} anomalies, {run}. {QUOTED}"
        )
        for finding in session.findings[:PAGE]:
            answer.add(f"Finding: {name(finding.type)} ({finding.severity}): {name(finding.description, 300)}")
        shown = 0
        for row in rows:
            tier = "not judged" if row["tier2_score"] is None else f"Tier 2 {row['tier2_score']:.2f}"
            lines = [f"Turn {row['place']} of {row['places']}, {row['said_at']:%Y-%m-%d %H:%M:%S}, {tier}"]
            lines += [quote("  user", row["user_message"], EXCERPT), quote("  agent", row["agent_response"], EXCERPT)]
            lines += [quote("  anomaly", reason, EXCERPT) for reason in (row["anomaly_reasons"] or ())[:3]]
            shown += answer.add(*lines)
        if rows and rows[-1]["row"] < rows[-1]["places"]:
            following = rows[0]["row"] + shown
            answer.add(
                next_call("read_session", "read on", session_id=session_id, connection=header.connection, turn=following)
            )
        return answer.text(
            f"Call read_session with turn={(rows[0]['row'] if rows else 1) + shown}, or read_exchange for a whole text."
        )

    def sql(
        self,
        statement: Annotated[str, Field(description="One read-only statement in DuckDB's dialect.", max_length=20_000)],
        limit: Annotated[int, Field(description="Maximum number of rows.", ge=1, le=MAX_SQL_ROWS)] = 50,
    ) -> str:
        """Run one read-only SQL statement (DuckDB). `SHOW TABLES` and `DESCRIBE scores` list tables and columns.

        Useful tables: exchanges, scores, incidents, diagnoses, agent_events, deployments, days.
        """
        if not self._find_rights().may_query:
            raise InputError(
                "SQL needs a token for every project with the scope query", hint="Use the other tools, which read your project."
            )
        limits = QueryLimits()
        bounds = (f"SET memory_limit = '{limits.memory}B'", f"SET max_execution_time = {int(limits.seconds * 1000)}")
        with self._lock, readable_file(self._settings) as file:
            columns, rows, has_more = fetch_rows(file, statement, limit, bounds)
        answer = AnswerText(f"{len(rows)} rows. {QUOTED}", quote("columns", ", ".join(columns), EXCERPT * 3))
        shown = answer.add_each(
            (quote("row", ", ".join("NULL" if value is None else str(value)[: EXCERPT + 1] for value in row), MAX_BYTES // 4),)
            for row in rows
        )
        if has_more and shown == len(rows):
            answer.add(f"There are more rows: raise limit (up to {MAX_SQL_ROWS}), or add OFFSET {len(rows)}.")
        return answer.text(f"Select fewer columns, aggregate, or add OFFSET {shown}.")

    @contextlib.contextmanager
    def _open(self) -> Iterator[Workspace]:
        with self._lock, open_workspace(self._settings) as workspace:
            yield workspace

    def _select_project(self, cursor: duckdb.DuckDBPyConnection, project: str | None) -> str | None:
        """Return the project to read; None for all. Raises InputError for an unknown one, or for another one than the caller's."""
        own = self._find_rights().project
        if own is not None and project not in (None, own):
            raise InputError(f"your token is for the project {name(own)} only", hint="Name this project, or none.")
        if project is not None and own is None:
            projects = known_projects(cursor, ())
            if project not in projects:
                raise unknown_project(project, projects, place="project")
        return project if own is None else own


def _read_period(workspace: Workspace, since: str | None, until: str | None) -> tuple[datetime | None, datetime | None]:
    now = workspace.now()
    return (
        None if since is None else moment_of(since, "since", now),
        None if until is None else moment_of(until, "until", now),
    )


def _describe_score(score: Any) -> list[str]:
    """Return lines about a score: its tiers, and the judge's reasons."""
    lines = [f"Tier 1 {score.tier1_score:.2f}" + (f", flags {', '.join(score.tier1_flags)}" if score.tier1_flags else "")]
    if score.tier2_score is not None:
        lines += [f"Tier 2 {score.tier2_score:.2f}", quote("  judge", score.tier2_reasoning, EXCERPT * 2)]
    if score.tier2_5_alignment is not None:
        lines += [f"Tier 2.5 {score.tier2_5_alignment:.2f}", quote("  judge", score.tier2_5_reasoning, EXCERPT)]
    if score.tier3_score is not None:
        lines.append(f"Tier 3 {score.tier3_score:.2f} of 5")
    if score.anomaly:
        lines.append(quote("anomaly", score.anomaly_reason, EXCERPT))
    return lines


def name_suspect(incident: Incident) -> str | None:
    """Return what an incident's evidence suspects, as the judge, a tool, or a version or other part of the traffic; None without a suspect."""
    facts = IncidentFacts(incident)
    if incident.severity == NOTICE or incident.cause == "judge":
        return "the judge, not an agent"
    agent = f" of agent {name(incident.agent)}" if incident.agent else ""
    tier = incident.tier or ""
    if tier.startswith(BEHAVIOUR + TOOL_ERRORS):
        return f"tool {name(tier.removeprefix(BEHAVIOUR + TOOL_ERRORS))}{agent}"
    lead = facts.lead_slice
    if lead is not None and lead.slice is not None:
        return f"{name(lead.slice)}{agent}"
    comparison = facts.slice_comparison
    if comparison is not None and comparison.found is not None:
        row = comparison.found
        same = [f"{name(other.name)}" for other in row.same_as[:3]]
        return f"{name(row.name)}{agent}" + (f" (the same exchanges as {', '.join(same)})" if same else "")
    deployed = sorted({deployment.name for deployment in facts.evidence.deployments})
    if deployed:
        return f"{', '.join(map(name, deployed[:3]))}, deployed when the change began"
    return agent.removeprefix(" of ") or None


def _list_incident(incident: Incident) -> tuple[str, ...]:
    state = f"{incident.status}, {incident.severity}, {incident.confidence}"
    return (
        f"- {name(incident.title, 400)} (project {name(incident.project)}; {state}; found {incident.detected_at:%Y-%m-%d})",
        f"  Suspect: {name_suspect(incident) or 'none by its evidence'}",
        next_call("explain_incident", "see why", incident_id=incident.incident_id),
    )


def _explain(incident: Incident) -> str:
    """Return the explanation of an incident."""
    shown, facts = incident_answer(incident, with_sql=False), IncidentFacts(incident)
    state = f"{incident.status}, {incident.severity}, {incident.confidence}"
    answer = AnswerText(
        name(incident.title, 400),
        f"Project {name(incident.project)}, {state}, first day {shown.first_day or 'unknown'}.",
        f"Suspect: {name_suspect(incident) or 'none by its evidence'}",
        name(incident.description, 1_500),
        "Why, strongest first:",
    )
    answer.add_each((f"- {name(reason.text, 600)}",) for reason in shown.why.reasons)
    examples = [*facts.evidence.exchanges[:3], *facts.evidence.usual[:1]]
    for number, example in enumerate(examples):
        purpose = (
            "read an example" if number < len(examples) - len(facts.evidence.usual[:1]) else "read one from before, to compare"
        )
        arguments = {"project": incident.project, "exchange_id": example.exchange_id}
        if example.exchange_id:
            answer.add(next_call("read_exchange", purpose, **arguments))
    for run in facts.evidence.runs[:3]:
        answer.add(next_call("read_session", "read a run that shows it", session_id=run.session_id, connection=run.connection))
    if facts.slice_comparison is not None and facts.slice_comparison.listed:
        answer.add("Parts of the traffic, by how much of the change each explains:")
        answer.add_each(
            (f"- {name(row.name)}: {format_explained_share(row)}, share {row.shares}, level {format_slice_means(row)}",)
            for row in facts.slice_comparison.listed[:PAGE]
        )
    if shown.moved:
        answer.add("Series that changed:")
        answer.add_each(
            (f"- {name(series.name)} since {series.since}, {'confirmed' if series.confirmed else 'suspected'}",)
            for series in shown.moved[: 2 * PAGE]
        )
    for deployment in facts.evidence.deployments[:PAGE]:
        answer.add(f"Deployed {name(deployment.name)} at {name(deployment.at)}")
    if shown.why.actions:
        answer.add("What to do:")
        answer.add_each((f"- {name(action.title, 300)}. {name(action.because, 500)}",) for action in shown.why.actions)
    return answer.text("Call list_exchanges or sql for more evidence.")
