"""`driftline demo`: synthetic sessions through the real pipeline, imported and over HTTP, and a report of the findings."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import RenderableType

from analytics.queries import query_rows
from driftline_trial.demo import shop
from driftline_trial.demo.conversations import DAYS, PROJECTS, WORSE_AGENT, Session, dialogues, worse_since
from driftline_trial.demo.costs import cost_report, records_of
from driftline_trial.demo.fleet import EVENTS_FILE, write_fleet
from driftline_trial.demo.judge_change import ANCHORS, STRICTNESS, JudgeSchedule
from driftline_trial.demo.judge_change import PROJECT as JUDGED_STRICTLY
from driftline_trial.demo.reports import delivered_line, exchange_report, fleet_report, worst_first, worst_run
from driftline_trial.demo.script import policy_file, present_of
from schemas.bounds import EARLIEST
from schemas.errors import SettingsError
from schemas.records import Incident
from service.cli.commands.importing import file_progress, show
from service.cli.commands.incidents import check_projects
from service.cli.import_findings import format_commands, pages_steps, program_name
from service.cli.incident_views import check_limits, check_view
from service.cli.progress import working
from service.cli.terminal import err, heading, out
from service.cli.views import SIMULATED
from service.read.why import why
from service.server.supervisor import unwound_by_signals
from service.setup.settings import Settings, load_settings
from service.setup.workspace import Workspace, open_workspace, utc_now
from service.write.importing import Importer
from service.write.input_files import exchange_source, profile_files
from streams.sources.transcript_sources import OPENCLAW

MARKER = ".driftline-demo"
PROJECT = "demo"
"""Project of the imported sessions; those that come over HTTP have projects of their own."""
_EARLIEST = EARLIEST.date() + timedelta(days=DAYS)
TELLING = frozenset({"roll_back", "check_judge"})
"""Actions that name what changed."""
QUERIES = (
    (
        "agents by trust, lowest first",
        "SELECT agent, count(*) AS runs, avg(trust_score)::INT AS trust FROM diagnoses WHERE event_count > 0 GROUP BY agent ORDER BY trust",
    ),
    (
        "failures by type, with their number",
        "SELECT c.type, c.severity, count(*) AS sessions FROM diagnoses, unnest(failure_causes) AS u(c) GROUP BY ALL ORDER BY ALL",
    ),
    (
        "drift by day",
        (
            "SELECT exchange_at::DATE AS day, round(avg(tier2_score), 2) AS tier2 FROM scores WHERE project = 'support' "
            "GROUP BY day ORDER BY day"
        ),
    ),
)
"""Example queries in SQL, each with its purpose. None contains a character that a shell interprets inside double quotes."""


def demo(
    folder: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Folder for the demo's files; replaced each time.")
    ] = Path("demo-data"),
    last_day: Annotated[
        datetime | None,
        typer.Option(
            "--last-day",
            metavar="DAY",
            formats=["%Y-%m-%d"],
            show_default="yesterday",
            help="Last day of the records, UTC; it must be over.",
        ),
    ] = None,
) -> None:
    """Generate sessions, import some, have a simulated judge score others, and report the findings. Offline, no key."""
    from driftline_trial.demo.deliveries import judge_over_http  # noqa: PLC0415 - the HTTP client takes a while to load

    yesterday = utc_now().date() - timedelta(days=1)
    end = _require_over(last_day.date(), yesterday) if last_day else yesterday
    _empty_folder(folder)
    policy = folder / "policy.yaml"
    policy.write_bytes(policy_file())
    settings = load_settings(database=folder / "demo.duckdb", policy=policy, project=PROJECT, connection="transcripts")
    out.print("[bold]Driftline demo[/]: every session here is synthetic: written by a generator, not by an agent")
    out.print(f"The judge is a {SIMULATED}: it rates by simple rules, not by understanding, and costs nothing")
    with unwound_by_signals():
        _import_transcripts(folder, settings, end)
        _import_shop(folder, msgspec.structs.replace(settings, project=shop.PROJECT), end)
        sessions = dialogues(end)
        with working("starting a server and a judge") as tell:
            judge_over_http(sessions, end, settings, folder, tell)
        with open_workspace(settings, now=lambda: present_of(end)) as workspace, working("making the report"):
            parts = list(_report(workspace, sessions, end, is_of_now=end == yesterday))
        for part in parts:
            # A wrapped line cannot be copied.
            out.print(part, markup=False, soft_wrap=isinstance(part, str))


def _require_over(last_day: date, yesterday: date) -> date:
    """Return the day; SettingsError if it is not over, or if the records would begin before the earliest accepted time."""
    if last_day > yesterday:
        raise SettingsError(f"--last-day {last_day}: this day is not over, UTC", hint=f"The latest is {yesterday}.")
    if last_day < _EARLIEST:
        raise SettingsError(f"--last-day {last_day}: too early", hint=f"The earliest is {_EARLIEST}.")
    return last_day


def _import_transcripts(folder: Path, settings: Settings, last_day: date) -> None:
    """Write a fleet of transcripts and import it."""
    err.print("making a synthetic fleet of OpenClaw transcripts …")
    plan = write_fleet(folder / "openclaw", last_day)
    events = plan.root / EVENTS_FILE
    with open_workspace(settings, now=lambda: present_of(last_day), create=True) as workspace:
        files = OPENCLAW.files_in([plan.root / "agents"])
        with file_progress(files) as report:
            summary = Importer(workspace).import_transcripts(OPENCLAW, files, report)
        show(summary, settings.database, as_json=False)
        with file_progress([events]) as report:
            show(Importer(workspace).import_events([events], report), settings.database, as_json=False)


def _import_shop(folder: Path, settings: Settings, last_day: date) -> None:
    """Write the table of the shop and import it."""
    path = folder / shop.TABLE
    shop.write_table(path, last_day)
    with open_workspace(settings, now=lambda: present_of(last_day)) as workspace:
        redactor = workspace.redactor
        layouts = profile_files([path], None, redactor, columns_by_field=shop.LABELS).layouts(redactor)
        summary = Importer(workspace).import_exchanges(exchange_source(layouts, {}), layouts)
        show(summary, settings.database, as_json=False)


def _report(workspace: Workspace, sessions: Sequence[Session], last_day: date, *, is_of_now: bool) -> Iterator[RenderableType]:
    """Lines and tables: the outcomes of the dialogues, then the report on the imported sessions and that on the dialogues."""
    store, settings, projects = workspace.store, workspace.settings, list(PROJECTS.values())
    schedule, present = JudgeSchedule(last_day), present_of(last_day)
    yield delivered_line(store, projects, len(sessions))
    yield (
        f"the judge of {JUDGED_STRICTLY} is stricter since {schedule.since:%m-%d}, by {STRICTNESS} of the scale "
        f"and under the same name; {ANCHORS} anchors were judged {len(schedule.rounds)} times"
    )
    yield (
        f"project {shop.PROJECT}: more requests go to the weaker agent {shop.WEAKER} in the last {shop.MIX_DAYS} days; the small agent "
        f"{shop.VICTIM} is worse in the last {shop.VICTIM_DAYS}, and a canary, version {shop.CANARY} of search, in the last {shop.CANARY_DAYS}"
    )
    yield heading(f"━━ The imported transcripts (project {PROJECT}): what their events show ━━")
    yield fleet_report(store, PROJECT)
    yield heading(f"━━ The sessions over HTTP ({len(projects)} projects): the scores of the {SIMULATED} ━━")
    yield exchange_report(store, projects, worse_since(last_day))
    yield heading(f"Drift and anomaly spikes in all projects, as of {present:%m-%d}; {SIMULATED}")
    checks = check_projects(workspace, [*projects, PROJECT, shop.PROJECT])
    yield check_view(checks)
    ledger = [
        row
        for row in query_rows(store.cursor(), "judge_costs", {"by": "project", "project": None, "from": None, "to": None})
        if row["project"] in projects
    ]
    agents = {project: agent for agent, project in PROJECTS.items()}
    yield cost_report(ledger, agents, records_of(store, projects), workspace.policy.defaults, schedule.strictness_of)
    program, database, policy = program_name(), settings.database, settings.policy or Path()
    worst = worst_first(store, projects)[0]["session_id"]
    yield heading("Look closer")
    yield from _next_steps(program, database, worst_run(store, PROJECT), worst, policy)
    # People see the end of the output first.
    yield heading(f"In short, checked as of {present:%Y-%m-%d}; {SIMULATED}")
    yield from _in_short([incident for check in checks for incident in check.opened])
    quiet = sum(bool(check.project_check) and not check.findings for check in checks)
    yield "\n".join([f"{quiet} of {len(checks)} projects: checked, nothing found", *check_limits(checks)])
    yield heading("See it in a browser")
    yield from pages_steps(program, database, policy, as_of=None if is_of_now else present.date())


def _in_short(incidents: Sequence[Incident]) -> Iterator[str]:
    """Summarise the findings of each project once, with what to roll back or check if the evidence names it."""
    printed = set()
    for incident in incidents:
        is_of_project = incident.title.startswith(f"{incident.project}: ")
        yield incident.title if is_of_project else f"{incident.project}, {incident.title}"
        for action in why(incident).actions:
            if action.id in TELLING and (incident.project, action.title) not in printed:
                printed.add((incident.project, action.title))
                yield f"    → {action.title}"


def _next_steps(program: str, database: Path, run: str, session: str, policy: Path) -> list[str]:
    """Return commands that query the database, each below a comment with its purpose.

    `program` is how the reader starts the command line; the run and the session are those to look at first.
    """
    database_option, policy_option = f"--db {shlex.quote(str(database))}", f"--policy {shlex.quote(str(policy))}"
    steps = [
        ("one of the failed sessions, with causes and evidence", f"run {run} {database_option}"),
        ("all finished sessions", f"runs {database_option}"),
        (f"what {WORSE_AGENT} did", f"scores --anomalies --project {PROJECTS[WORSE_AGENT]} {database_option}"),
        ("incidents of drift: since when, and how much", f"incidents list {database_option}"),
        ("the session of the worst exchange, turn by turn", f"scores --session {session} {database_option}"),
        ("what judging cost", f"costs --by project {database_option}"),
        (
            "how well sessions were wrapped up",
            f"wrap-quality --project {PROJECTS['code-review']} {database_option} {policy_option}",
        ),
        ("what judging the transcripts would cost", f"rejudge --dry-run {database_option} {policy_option}"),
        *[(f"SQL: {purpose}", f'sql "{query}" {database_option}') for purpose, query in QUERIES],
    ]
    return format_commands(program, steps)


def _empty_folder(folder: Path) -> None:
    """Empty the demo's own folder; SettingsError for a folder with anything else in it."""
    marker = folder / MARKER
    if folder.exists() and any(folder.iterdir()):
        if not marker.exists():
            raise SettingsError(f"{folder} is not empty and no earlier demo made it", hint="Choose another folder with --dir.")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    marker.write_text("Made by `driftline demo`, which empties this folder when it runs again.\n", encoding="utf-8")
