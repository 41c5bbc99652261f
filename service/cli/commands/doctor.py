"""`driftline doctor`: checks of the configuration, each with advice."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from analytics.queries import query_rows
from analytics.store.connection import IN_USE
from analytics.store.store import Store
from audit.policy import Policy, load_policy
from schemas.errors import DriftlineError
from schemas.lazy import duckdb
from service.cli.commands.options import AsJson, Database, PolicyFile, for_database, print_json, settings_of
from service.cli.commands.topics import CollectorTopic, administration_of, topics_of_collector
from service.cli.exit_codes import fails_when, leave
from service.cli.terminal import out
from service.read.judges import unreadable_judges
from service.read.telemetry import UnusedSpans, read_unused_spans, sum_up_expected
from service.setup.access import AccessStore, access_file
from service.setup.judge_setup import NONE, PRICE_HINT, SIMULATED, describe_judge, unpriced_note
from service.setup.kafka import framing_of
from service.setup.settings import Settings
from service.setup.version import GET_TRIAL, trial_version, version
from service.setup.wiring import policy_of
from service.setup.workspace import CATCH_UP, opened_store, stages_behind, utc_now
from service.text.formats import counted, plain
from streams.kafka.topics import COLLECTOR
from streams.log.log import log_folder
from streams.sources.openclaw.storage import PLUGIN, STATE_VARIABLE, OpenClawState, read_state, state_folders
from streams.sources.transcript_sources import OPENCLAW, SOURCES

SHOWN_UNUSED = 8
"""Groups of spans that made nothing of which each has a line."""
STYLES = {"ok": "green", "note": "cyan", "problem": "red"}


class Finding(NamedTuple):
    """One check. `state` is ok, note (something could be better) or problem (a check fails)."""

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
    findings = [finding for look in LOOKS for finding in look(settings)]
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        for finding in findings:
            out.print(f"[{STYLES[finding.state]}]{finding.state:8}[/] {finding.subject}: ", end="")
            out.say(plain(finding.detail, 400))
            if finding.advice:
                out.say(f"         → {finding.advice}")
    leave(failed=any(finding.state == "problem" for finding in findings))


def _look_at_versions(_settings: Settings) -> Iterator[Finding]:
    yield Finding("python", "ok", f"{platform.python_version()}, DuckDB {duckdb.__version__}")


def _look_at_policy(settings: Settings) -> Iterator[Finding]:
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


def _look_at_redaction_key(settings: Settings) -> Iterator[Finding]:
    if settings.redaction_key is None:
        advice = "set DRIFTLINE_REDACTION_KEY, so that a marker cannot confirm a guess at a weak secret"
        yield Finding("redaction key", "note", "the public default", advice)
    else:
        yield Finding("redaction key", "ok", "set")


def _look_at_database(settings: Settings) -> Iterator[Finding]:
    path = settings.database
    if not path.exists():
        parent = path.resolve().parent
        writable = parent.is_dir() and os.access(parent, os.W_OK)
        advice = (
            "driftline import openclaw PATH or driftline serve creates it"
            if writable
            else f"create the folder {parent} and make it writable"
        )
        yield Finding("database", "note" if writable else "problem", f"none yet at {path}", advice)
        return
    try:
        # Opening it as a store also migrates it, and detects whether another process has it.
        with opened_store(path) as (store, server):
            letters = query_rows(store.cursor(), "dead_letters")
            unused = read_unused_spans(store.cursor(), utc_now())
            counts = [f"{store.count(table)} {table}" for table in COUNTED]
            lag = stages_behind(store)
            waiting = _waiting(store) if server is None else 0
            judges = unreadable_judges(store.cursor(), None, utc_now())
    except DriftlineError as error:
        yield _unopened(settings, error)
        return
    yield Finding("database", "ok", f"{path} ({path.stat().st_size / 1e6:.1f} MB): {', '.join(counts)}")
    if waiting:
        detail = f"{counted(waiting, 'record')} in {log_folder(path)} {'is' if waiting == 1 else 'are'} not in the tables yet"
        yield Finding(
            "write-ahead log", "note", detail, "they are flushed by the next command that reads, or when the server starts"
        )
    if lag:
        yield Finding("stages", "problem", lag, CATCH_UP)
    yield from _unused_spans(unused)
    for judge in judges:
        yield Finding("judge", "problem", judge.summary, judge.consequence)
    if letters:
        total = sum(row["records"] for row in letters)
        yield Finding(
            "dead letters",
            "note",
            f"{total} records were refused, e.g. {letters[0]['source']}: {letters[0]['example']}",
            for_database("driftline dead-letters list", path),
        )


def _unused_spans(unused: Sequence[UnusedSpans]) -> Iterator[Finding]:
    """Report unused spans of the last day."""
    lost = [group for group in unused if group.needs_action]
    for group in lost[:SHOWN_UNUSED]:
        yield Finding("traces", "note", f"{group.words}, e.g. {group.example} (connection {group.connection})", group.advice)
    if len(lost) > SHOWN_UNUSED:
        spans = sum(group.spans for group in lost[SHOWN_UNUSED:])
        yield Finding(
            "traces",
            "note",
            f"{counted(spans, 'more span')} of other scopes were ignored",
            "driftline sql has all: unused_spans of trace_assemblies",
        )
    if expected := sum_up_expected(unused):
        yield Finding("traces", "ok", f"ignored as intended, per day: {expected}")


def _waiting(store: Store) -> int:
    """Count the records that a killed server left in its write-ahead log. StoreError if the database is an older copy."""
    if store.path is None or not log_folder(store.path).exists():
        return 0
    from streams.log.local_log import waiting_in  # noqa: PLC0415 - RocksDB takes a while to load

    return waiting_in(store)


def _unopened(settings: Settings, error: DriftlineError) -> Finding:
    """Report a database that cannot be opened. Use by another process is normal: most likely the server has it."""
    if error.hint != IN_USE:
        return Finding("database", "problem", str(error), error.hint)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address_hint = f"By these settings the server is at http://{host}:{settings.port} (/readyz)."
    return Finding("database", "note", f"in use, so not checked: {error}", f"{IN_USE} {address_hint}")


def _look_at_judge(settings: Settings) -> Iterator[Finding]:
    try:
        policy = policy_of(settings)
    except DriftlineError:  # reported as a separate finding
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
    yield from _prices(policy)


def _prices(policy: Policy) -> Iterator[Finding]:
    """Report the prices of all projects' models, and projects whose judge is not asked because it has no price."""
    projects = [policy.for_project(name) for name in ("", *policy.projects)]
    for model, price in {project.settings.judge_model: project.price for project in projects}.items():
        if price is not None:
            detail = f"{model}: {price.input:g} / {price.output:g} USD per million tokens, as of {price.read_on}"
            yield Finding("price", "ok", detail)
    if unpriced := unpriced_note(policy):
        yield Finding("price", "problem", unpriced, PRICE_HINT)


def _look_at_kafka(settings: Settings) -> Iterator[Finding]:
    """Check that the cluster answers and its topics are correct; no findings without a cluster."""
    if settings.kafka is None:
        return
    try:
        framing_of(settings)
        with administration_of(settings) as administration:
            mismatches, collected = administration.check(), topics_of_collector(settings, administration)
    except DriftlineError as error:
        yield Finding("Kafka", "problem", str(error), error.hint)
        return
    if mismatches:
        first, *others = mismatches
        more = f", and {len(others)} more" if others else ""
        yield Finding("Kafka", "problem", f"{settings.kafka}: {first.topic} {first.what}{more}", "driftline topics check")
    else:
        yield Finding("Kafka", "ok", f"{settings.kafka}: all topics are configured correctly")
    yield from _collector(collected)


def _collector(topics: Sequence[CollectorTopic]) -> Iterator[Finding]:
    """Report whether an OpenTelemetry Collector's topics exist, and whether their messages are read."""
    subject = "Collector"
    if not any(topic.partitions for topic in topics):
        names = " and none ".join(topic.topic for topic in topics)
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


def _look_at_access(settings: Settings) -> Iterator[Finding]:
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


def _look_for_transcripts(settings: Settings) -> Iterator[Finding]:
    folders = state_folders()
    for folder in folders:
        yield from _openclaw(settings, read_state(folder))
    if not folders:
        yield Finding("OpenClaw", "note", "no state folder here", f"name the folder, or set {STATE_VARIABLE}")
    for source in SOURCES.values():
        folder = Path(source.folder).expanduser()
        if source is not OPENCLAW and folder.is_dir():
            command = for_database(f"driftline import {source.name} {shlex.quote(str(folder))}", settings.database)
            yield Finding(source.label, "ok", f"its folder is {folder}", command)


def _openclaw(settings: Settings, state: OpenClawState) -> Iterator[Finding]:
    """Report an OpenClaw: its version, the format of its transcripts, whether the plugin delivers."""
    version = state.version or "of unknown version"
    forms = " and ".join(state.forms) or "no transcripts yet"
    detail = f"{version}, {counted(state.agents, 'agent')} under {state.folder}: {forms}"
    command = for_database(f"driftline import openclaw {shlex.quote(str(state.folder))}", settings.database)
    yield Finding("OpenClaw", "ok", detail, command)
    for problem in state.unreadable:
        yield Finding("OpenClaw", "problem", problem, "an import takes the other agents; stop the gateway and check the file")
    yield _openclaw_plugin(state)


def _openclaw_plugin(state: OpenClawState) -> Finding:
    plugin, subject = state.plugin, "OpenClaw plugin"
    if plugin.is_on is None:
        config = state.folder / "openclaw.json"
        return Finding(subject, "note", f"unknown: {config} is not plain JSON", "run openclaw plugins list")
    if not plugin.is_on:
        return Finding(subject, "note", "off: sessions come by import only", "see docs/openclaw.md to turn it on")
    if not plugin.reads_conversations:
        advice = f"openclaw config set plugins.entries.{PLUGIN}.hooks.allowConversationAccess true"
        return Finding(subject, "note", "on, but not allowed to read conversations: it sends no exchanges", advice)
    if plugin.url is None:
        advice = f"openclaw config set plugins.entries.{PLUGIN}.config.url http://127.0.0.1:8377"
        return Finding(
            subject, "note", "on; its address is not in the configuration, so it must be in the gateway's environment", advice
        )
    return Finding(subject, "ok", f"on, delivers to {plugin.url}")


def _look_for_trial_gear(_settings: Settings) -> Iterator[Finding]:
    subject, gear = "trial gear", trial_version()
    if gear is None:
        yield Finding(subject, "note", "not installed: no driftline demo, no driftline simulate-judge", GET_TRIAL)
    elif gear != version():
        yield Finding(subject, "problem", f"driftline-trial {gear} is not for Driftline {version()}", GET_TRIAL)
    else:
        yield Finding(subject, "ok", f"driftline-trial {gear}")


COUNTED = ("exchanges", "agent_events", "scores", "diagnoses")
LOOKS: tuple[Callable[[Settings], Iterator[Finding]], ...] = (
    _look_at_versions,
    _look_at_database,
    _look_at_policy,
    _look_at_redaction_key,
    _look_at_judge,
    _look_at_kafka,
    _look_at_access,
    _look_for_transcripts,
    _look_for_trial_gear,
)
