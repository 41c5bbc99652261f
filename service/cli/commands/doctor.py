"""`driftline doctor`: checks of the configuration, each with advice."""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from analytics.queries import query_rows
from analytics.store.connection import IN_USE_HINT
from analytics.store.store import Store
from audit.cost import ListedPrice, shipped_prices, typical_cost
from audit.exchanges.questions import BATCH_REVISIONS
from audit.policy import Policy, ProjectSettings, load_policy
from audit.times import iso_time
from schemas.errors import DriftlineError, PolicyError
from schemas.lazy import duckdb
from service.cli.commands.options import AsJson, Database, PolicyFile, for_database, print_json, settings_of
from service.cli.commands.topics import CollectorTopic, administration_of, topics_of_collector
from service.cli.exit_codes import fails_when, leave
from service.cli.terminal import out
from service.read.caps import reached_caps
from service.read.judges import unreadable_judges
from service.read.telemetry import UnusedSpans, read_unused_spans, sum_up_expected
from service.setup.access import AccessStore, access_file
from service.setup.judge_setup import NONE, PRICE_HINT, SIMULATED, describe_judge, unpriced_note
from service.setup.kafka import framing_of
from service.setup.settings import Settings
from service.setup.version import GET_TRIAL, trial_version, version
from service.setup.wiring import policy_of
from service.setup.workspace import CATCH_UP, describe_lag, open_store, utc_now
from service.text.formats import counted, plain
from streams.kafka.topics import COLLECTOR
from streams.log.log import log_folder
from streams.sources.openclaw.storage import PLUGIN, STATE_VARIABLE, OpenClawState, read_state, state_folders
from streams.sources.transcript_sources import OPENCLAW, SOURCES

MAX_UNUSED_GROUPS = 8
"""Maximum number of groups of unused spans that are listed; the others are counted."""
STYLES = {"ok": "green", "note": "cyan", "problem": "red"}


class Finding(NamedTuple):
    """The result of a check. `state` is ok, note (something could be better) or problem (the check fails)."""

    subject: str
    state: str
    detail: str
    advice: str = ""


@fails_when("a check fails")
def doctor(
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Check the configuration, and suggest what to fix."""
    settings = settings_of(database, policy)
    findings = [finding for check in CHECKS for finding in check(settings)]
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        for finding in findings:
            out.print(f"[{STYLES[finding.state]}]{finding.state:8}[/] {finding.subject}: ", end="")
            out.say(plain(finding.detail, 400))
            if finding.advice:
                out.say(f"         → {finding.advice}")
    leave(failed=any(finding.state == "problem" for finding in findings))


def _check_versions(_settings: Settings) -> Iterator[Finding]:
    yield Finding("python", "ok", f"{platform.python_version()}, DuckDB {duckdb.__version__}")


def _check_policy(settings: Settings) -> Iterator[Finding]:
    if settings.policy is None:
        yield Finding("policy", "note", "none: all defaults apply", "write a policy file and set DRIFTLINE_POLICY")
        return
    try:
        policy = load_policy(settings.policy)
    except DriftlineError as error:
        yield Finding("policy", "problem", str(error), error.hint)
    else:
        yield Finding("policy", "ok", f"{settings.policy}: {len(policy.projects)} projects, digest {policy.digest}")
        if not policy.redaction.enabled:
            yield Finding("redaction", "note", "turned off by the policy: secrets in texts are stored unredacted")


def _check_redaction_key(settings: Settings) -> Iterator[Finding]:
    if settings.redaction_key is None:
        advice = "set DRIFTLINE_REDACTION_KEY, so that a marker cannot confirm a guess at a weak secret"
        yield Finding("redaction key", "note", "the public default", advice)
    else:
        yield Finding("redaction key", "ok", "set")


def _check_database(settings: Settings) -> Iterator[Finding]:
    path = settings.database
    if not path.exists():
        parent = path.resolve().parent
        if parent.is_dir() and os.access(parent, os.W_OK):
            advice = "driftline import openclaw PATH or driftline serve creates it"
            yield Finding("database", "note", f"none yet at {path}", advice)
        else:
            yield Finding("database", "problem", f"none yet at {path}", f"create the folder {parent} and make it writable")
        return
    try:
        # Opening it as a store also migrates it, and detects whether another process has it.
        with open_store(path) as (store, server):
            findings = list(_check_store(store, path, has_server=server is not None))
            findings += _report_reached_caps(store, settings)
    except DriftlineError as error:
        yield _report_unopened(settings, error)
    else:
        yield from findings


def _check_store(store: Store, path: Path, *, has_server: bool) -> Iterator[Finding]:
    counts = [f"{store.count(table)} {table}" for table in COUNTED_TABLES]
    yield Finding("database", "ok", f"{path} ({path.stat().st_size / 1e6:.1f} MB): {', '.join(counts)}")
    pending = 0 if has_server else _count_pending(store)
    if pending:
        detail = f"{counted(pending, 'record')} in {log_folder(path)} {'is' if pending == 1 else 'are'} not in the tables yet"
        advice = "the next command that reads them, or the start of the server, flushes them"
        yield Finding("write-ahead log", "note", detail, advice)
    lag = describe_lag(store)
    if lag:
        yield Finding("stages", "problem", lag, CATCH_UP)
    yield from _report_unused_spans(read_unused_spans(store.cursor(), utc_now()))
    for waiting in query_rows(store.cursor(), "waiting_for_batches", {"revisions": BATCH_REVISIONS}):
        detail = (
            f"{counted(waiting['exchanges'], 'exchange')} waiting for a batch, the oldest since {iso_time(waiting['since'])}"
        )
        advice = "" if has_server else "the server asks about them: driftline serve"
        yield Finding("batches", "ok" if has_server else "note", detail, advice)
    for judge in unreadable_judges(store.cursor(), None, utc_now()):
        yield Finding("judge", "problem", judge.summary, judge.consequence)
    dead_letters = query_rows(store.cursor(), "dead_letters")
    if dead_letters:
        total = sum(row["records"] for row in dead_letters)
        detail = f"{total} records were rejected, e.g. {dead_letters[0]['source']}: {dead_letters[0]['example']}"
        yield Finding("dead letters", "note", detail, for_database("driftline dead-letters list", path))


def _report_reached_caps(store: Store, settings: Settings) -> Iterator[Finding]:
    with contextlib.suppress(PolicyError):  # `_check_policy` reports it
        for cap in reached_caps(store.cursor(), policy_of(settings), None, utc_now()):
            yield Finding("cost cap", "note", cap.summary, cap.consequence)


def _report_unused_spans(unused: Sequence[UnusedSpans]) -> Iterator[Finding]:
    """Report the unused spans of the last day."""
    unexpected = [group for group in unused if group.needs_action]
    for group in unexpected[:MAX_UNUSED_GROUPS]:
        yield Finding("traces", "note", f"{group.words}, e.g. {group.example} (connection {group.connection})", group.advice)
    if len(unexpected) > MAX_UNUSED_GROUPS:
        spans = sum(group.spans for group in unexpected[MAX_UNUSED_GROUPS:])
        yield Finding(
            "traces",
            "note",
            f"{counted(spans, 'more span')} of other scopes were ignored",
            "driftline sql shows all of them: column unused_spans of trace_assemblies",
        )
    expected = sum_up_expected(unused)
    if expected:
        yield Finding("traces", "ok", f"ignored as intended, per day: {expected}")


def _count_pending(store: Store) -> int:
    """Count the records that a killed server left in its write-ahead log. Raises StoreError if the database is an older copy."""
    if store.path is None or not log_folder(store.path).exists():
        return 0
    from streams.log.local_log import waiting_in  # noqa: PLC0415 - RocksDB takes a while to load

    return waiting_in(store)


def _report_unopened(settings: Settings, error: DriftlineError) -> Finding:
    """Report a database that cannot be opened. If another process uses it, that is most likely the server, which is normal."""
    if error.hint != IN_USE_HINT:
        return Finding("database", "problem", str(error), error.hint)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address_hint = f"According to the settings, the server is at http://{host}:{settings.port} (/readyz)."
    return Finding("database", "note", f"in use, so not checked: {error}", f"{IN_USE_HINT} {address_hint}")


def _check_judge(settings: Settings) -> Iterator[Finding]:
    try:
        policy = policy_of(settings)
    except DriftlineError:  # `_check_policy` reports it
        return
    try:
        judge = describe_judge(settings, policy)
    except DriftlineError as error:
        yield Finding("judge", "problem", str(error), error.hint)
        return
    if judge.name == NONE:
        advice = "set ANTHROPIC_API_KEY, or ANTHROPIC_BASE_URL to your own server; driftline simulate-judge is one for trials"
        yield Finding("judge", "note", "none: Tiers 2, 2.5 and 3 stay unscored with the reason no_judge", advice)
        return
    if judge.note:
        yield Finding("judge", "note", judge.note, "start it, or set ANTHROPIC_BASE_URL to its address")
    else:
        yield Finding("judge", "note" if judge.name == SIMULATED else "ok", f"{judge.name} at {judge.address}")
    yield from _report_prices(policy)


def _report_prices(policy: Policy) -> Iterator[Finding]:
    """Report the prices of all projects' models, and the projects whose judge is not called because it has no price."""
    projects = [policy.for_project(name) for name in ("", *policy.projects)]
    prices = {judge.name: judge.price for project in projects for judge in project.judges.values()}
    for name, price in prices.items():
        if price is not None:
            date = f", as of {price.read_on}" if isinstance(price, ListedPrice) else ""
            detail = f"{name}: {price.input:g} / {price.output:g} USD per million tokens{date}"
            yield Finding("price", "ok", detail)
    yield from _report_cheaper_judge(policy)
    unpriced = unpriced_note(policy)
    if unpriced:
        yield Finding("price", "problem", unpriced, PRICE_HINT)


def _report_cheaper_judge(policy: Policy) -> Iterator[Finding]:
    """Say how much more the default model costs than the cheapest one with a listed price, for the same exchanges."""
    default = ProjectSettings().judge_model
    if not any(judge.name == default for judge in policy.used_judges):
        return
    costs = {name: typical_cost(price) for name, price in shipped_prices().items()}
    cheapest = min(costs, key=lambda name: costs[name])
    times = round(costs[default] / costs[cheapest])
    if times > 1:
        detail = f"{default} costs {times} times as much as {cheapest} for the same exchanges"
        yield Finding("price", "note", detail, f"judgeModel: {cheapest} in the policy; compare both with anchors first")


def _check_kafka(settings: Settings) -> Iterator[Finding]:
    """Check that the cluster answers and that its topics are configured correctly. Without a cluster there are no findings."""
    if settings.kafka is None:
        return
    try:
        framing_of(settings)
        with administration_of(settings) as administration:
            mismatches = administration.check()
            collected = topics_of_collector(settings, administration)
    except DriftlineError as error:
        yield Finding("Kafka", "problem", str(error), error.hint)
        return
    if mismatches:
        first = mismatches[0]
        more = f", and {len(mismatches) - 1} more" if len(mismatches) > 1 else ""
        yield Finding("Kafka", "problem", f"{settings.kafka}: {first.topic} {first.what}{more}", "driftline topics check")
    else:
        yield Finding("Kafka", "ok", f"{settings.kafka}: all topics are configured correctly")
    yield from _report_collector(collected)


def _report_collector(topics: Sequence[CollectorTopic]) -> Iterator[Finding]:
    """Report whether the topics of an OpenTelemetry Collector exist, and how many of their messages are not read."""
    subject = "Collector"
    if not any(topic.partitions for topic in topics):
        names = " or ".join(topic.topic for topic in topics)
        detail = f"no topic {names}: no OpenTelemetry Collector writes to this cluster"
        yield Finding(subject, "note", detail, "see docs/how-to/collector.md to set one up")
        return
    for topic in topics:
        if not topic.partitions:
            yield Finding(subject, "note", f"there is no topic {topic.topic}")
        elif topic.unread is None:
            yield Finding(
                subject, "note", f"{topic.topic}: nothing has been read yet", f"driftline worker --stages {COLLECTOR}"
            )
        else:
            detail = f"{topic.topic}: {counted(topic.partitions, 'partition')}, {counted(topic.unread, 'message')} not read yet"
            yield Finding(subject, "ok", detail)


def _check_access(settings: Settings) -> Iterator[Finding]:
    path = access_file(settings.database)
    if not path.exists():
        yield Finding(
            "access",
            "note",
            "no tokens: the server accepts no records over HTTP",
            "driftline connections add NAME --project PROJECT",
        )
        return
    try:
        with AccessStore(path, utc_now) as access:
            counts = [counted(len(access.holders(kind)), kind) for kind in ("connection", "operator")]
    except DriftlineError as error:
        yield Finding("access", "problem", str(error), error.hint)
    else:
        yield Finding("access", "ok", f"{path}: {', '.join(counts)}")


def _find_transcripts(settings: Settings) -> Iterator[Finding]:
    folders = state_folders()
    for folder in folders:
        yield from _report_openclaw(settings, read_state(folder))
    if not folders:
        yield Finding(
            "OpenClaw", "note", "no state folder on this machine", f"pass the folder to the import, or set {STATE_VARIABLE}"
        )
    for source in SOURCES.values():
        folder = Path(source.folder).expanduser()
        if source is not OPENCLAW and folder.is_dir():
            command = for_database(f"driftline import {source.name} {shlex.quote(str(folder))}", settings.database)
            yield Finding(source.label, "ok", f"its folder is {folder}", command)


def _report_openclaw(settings: Settings, state: OpenClawState) -> Iterator[Finding]:
    """Report an OpenClaw installation: its version, the format of its transcripts, and its plugin."""
    openclaw_version = state.version or "of unknown version"
    formats = " and ".join(state.forms) or "no transcripts yet"
    detail = f"{openclaw_version}, {counted(state.agents, 'agent')} under {state.folder}: {formats}"
    command = for_database(f"driftline import openclaw {shlex.quote(str(state.folder))}", settings.database)
    yield Finding("OpenClaw", "ok", detail, command)
    for problem in state.unreadable:
        advice = "stop the gateway and check the file; an import reads the other agents"
        yield Finding("OpenClaw", "problem", problem, advice)
    yield _report_plugin(state)


def _report_plugin(state: OpenClawState) -> Finding:
    plugin = state.plugin
    subject = "OpenClaw plugin"
    if plugin.is_on is None:
        config = state.folder / "openclaw.json"
        return Finding(subject, "note", f"unknown: {config} is not plain JSON", "run openclaw plugins list")
    if not plugin.is_on:
        return Finding(subject, "note", "off: sessions arrive by import only", "see docs/openclaw.md to turn it on")
    if not plugin.reads_conversations:
        advice = f"openclaw config set plugins.entries.{PLUGIN}.hooks.allowConversationAccess true"
        return Finding(subject, "note", "on, but not allowed to read conversations: it sends no exchanges", advice)
    if plugin.url is None:
        advice = f"openclaw config set plugins.entries.{PLUGIN}.config.url http://127.0.0.1:8377"
        return Finding(
            subject, "note", "on; its address is not in the configuration, so it must be in the gateway's environment", advice
        )
    return Finding(subject, "ok", f"on, sends to {plugin.url}")


def _check_trial_package(_settings: Settings) -> Iterator[Finding]:
    subject = "driftline-trial"
    installed = trial_version()
    if installed is None:
        yield Finding(
            subject, "note", "not installed: driftline demo and driftline simulate-judge are not available", GET_TRIAL
        )
    elif installed != version():
        yield Finding(subject, "problem", f"version {installed} does not fit Driftline {version()}", GET_TRIAL)
    else:
        yield Finding(subject, "ok", f"version {installed}")


COUNTED_TABLES = ("exchanges", "agent_events", "scores", "diagnoses")
CHECKS: tuple[Callable[[Settings], Iterator[Finding]], ...] = (
    _check_versions,
    _check_database,
    _check_policy,
    _check_redaction_key,
    _check_judge,
    _check_kafka,
    _check_access,
    _find_transcripts,
    _check_trial_package,
)
