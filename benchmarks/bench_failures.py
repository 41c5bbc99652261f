# ruff: noqa: S608 - the texts with SQL are errors of tools
"""Groups of failures: ten planted kinds among noise, how pure and complete their groups are, and the time at volume.

`--sessions N` says how many (10,000 without it), over 28 days; one in ten fails. Of these, three in four have one of ten kinds, with their own numbers,
ids, hosts, paths and wordings as tools print them; the others fail once each, for a reason of their own, half of them with the tools of the kinds. One
in three healthy sessions has a call that failed and was made good. The bar is for the planted kinds. Two further lists show how the rules do with
programs whose wordings differ more, half of the failures in each wording: the second was used to refine the rules, the third was written last. `--day N` measures the time of a day with so many sessions (100,000 without it).
"""

import argparse
import itertools
import random
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from analytics.store.store import Store
from analytics.sums.daily import refresh_daily
from analytics.sums.failures import MAX_EXAMPLES, assign_groups
from analytics.sums.kept import FAILURES_BY_DAY
from audit.detectors.thresholds import DEFAULTS, EVENTS
from audit.diagnosis.diagnosis import EVIDENCE_REFERENCES, diagnose
from audit.diagnosis.diagnosis import to_record as diagnosis_record
from audit.diagnosis.events import normalise_event, to_record
from audit.diagnosis.evidence import SessionEvidence
from audit.exchanges.outcomes import anomaly_reasons, score_id
from audit.fingerprints import canonical_json
from benchmarks.measure import print_table
from schemas.codec.single_object import encode
from schemas.records import AgentEvent, Diagnosis, DimensionScore, Exchange, Record, Score, ToolCall
from service.read.failures import read_failures

START, DAYS, PROJECT = datetime(2026, 10, 1, tzinfo=UTC), 28, "ops"
FAILING, PLANTED, RECOVERED = 0.1, 0.75, 0.33
BAR = 0.95
AT_ONCE = 5_000
"""Sessions per transaction."""
HOSTS = ("search", "es-data", "opensearch", "catalog", "index", "db-main", "replica")
NAMES = (
    "orders",
    "customers",
    "refunds",
    "parcels",
    "invoices",
    "carts",
    "returns",
    "prices",
    "suppliers",
    "stock",
    "shipments",
    "ledgers",
)
Text = Callable[[random.Random], str]


def _ip(chance: random.Random) -> str:
    return ".".join(str(chance.randrange(1, 255)) for _ in range(4))


def _host(chance: random.Random) -> str:
    return f"{chance.choice(HOSTS)}-{chance.randrange(30)}.{chance.choice(['internal', 'svc.cluster.local', 'example.com'])}"


def _hex(chance: random.Random, digits: int) -> str:
    return f"{chance.getrandbits(4 * digits):0{digits}x}"


def _path(chance: random.Random) -> str:
    folder = chance.choice(["/srv/app", "/home/agent/work", "./data", "/tmp/job-" + _hex(chance, 6)])  # noqa: S108 - part of a text
    return f"{folder}/{chance.choice(NAMES)}/{chance.choice(NAMES)}_{chance.randrange(1000)}.csv"


def _at(chance: random.Random) -> str:
    return f"2026-10-{chance.randrange(1, 29):02}T{chance.randrange(24):02}:{chance.randrange(60):02}:{chance.randrange(60):02}.{chance.randrange(1000):03}Z"


class Kind(NamedTuple):
    """A planted kind of failure: the tool and the wordings of its error, or its cause."""

    name: str
    tool: str = ""
    wordings: tuple[Text, ...] = ()
    cause: str = ""


KINDS = (
    Kind(
        "search: connection refused",
        "search",
        (
            lambda c: f"Error: connect ECONNREFUSED {_ip(c)}:9200",
            lambda c: (
                f"FetchError: request to http://{_host(c)}:9200/{c.choice(NAMES)}/_search failed, reason: connect ECONNREFUSED {_ip(c)}:9200"
            ),
            lambda c: f"connect ECONNREFUSED {_ip(c)}:9200 after {c.randrange(1, 6)} attempts",
        ),
    ),
    Kind(
        "search: timeout",
        "search",
        (
            lambda c: (
                f"TimeoutError: request to http://{_host(c)}:9200/{c.choice(NAMES)}/_search timed out after {c.randrange(1000, 60000)}ms"
            ),
            lambda c: f"request to {_host(c)} timed out ({c.randrange(5, 60)} s), request id {_hex(c, 16)}",
        ),
    ),
    Kind(
        "fetch_page: too many requests",
        "fetch_page",
        (
            lambda c: f"Request failed with status code 429: Too Many Requests, retry after {c.randrange(1, 90)} s",
            lambda c: f"[{_at(c)}] request {_hex(c, 8)} failed with status code 429 (too many requests)",
        ),
    ),
    Kind(
        "fetch_page: not found",
        "fetch_page",
        (
            lambda c: (
                f"Request failed with status code 404: Not Found https://{_host(c)}/{c.choice(NAMES)}/{c.randrange(10**6)}"
            ),
            lambda c: f"[{_at(c)}] request {_hex(c, 8)} failed with status code 404 (not found)",
        ),
    ),
    Kind(
        "query_db: no such relation",
        "query_db",
        (
            lambda c: (
                f'psycopg2.errors.UndefinedTable: relation "{c.choice(NAMES)}_{c.randrange(99)}" does not exist\nLINE 1: SELECT * FROM {c.choice(NAMES)}\n                      ^'
            ),
            lambda c: (
                "Traceback (most recent call last):\n"
                f'  File "{_path(c)}", line {c.randrange(900)}, in run\n    cursor.execute(sql)\n'
                f'psycopg2.errors.UndefinedTable: relation "{c.choice(NAMES)}" does not exist\nLINE {c.randrange(9)}: SELECT'
            ),
        ),
    ),
    Kind(
        "query_db: deadlock",
        "query_db",
        (
            lambda c: (
                f"psycopg2.errors.DeadlockDetected: deadlock detected\nDETAIL:  Process {c.randrange(9999)} waits for ShareLock on transaction {c.randrange(10**6)}; blocked by process {c.randrange(9999)}."
            ),
            lambda c: f"ERROR:  deadlock detected (SQLSTATE 40P01) at {_at(c)}",
        ),
    ),
    Kind(
        "write_file: permission denied",
        "write_file",
        (
            lambda c: f"EACCES: permission denied, open '{_path(c)}'",
            lambda c: f"PermissionError: [Errno 13] Permission denied: '{_path(c)}'",
            lambda c: '{"ok": false, "error": {"code": "EACCES", "message": "permission denied, open \'' + _path(c) + "'\"}}",
        ),
    ),
    Kind("a loop of track_parcel", "track_parcel", cause="infinite_tool_loop"),
    Kind("no answer", cause="silent_refusal"),
    Kind("scope scored low", cause="scope_discipline"),
)
OTHER_KINDS = (
    Kind(
        "shell: npm cannot resolve",
        "shell",
        (
            lambda c: (
                f"npm ERR! code ERESOLVE\nnpm ERR! ERESOLVE unable to resolve dependency tree\nnpm ERR! Found: react@{c.randrange(15, 20)}.2.0"
            ),
            lambda c: (
                f"npm error code ERESOLVE\nnpm error ERESOLVE could not resolve\nnpm error While resolving: app@1.0.{c.randrange(50)}"
            ),
        ),
    ),
    Kind(
        "shell: git push rejected",
        "shell",
        (
            lambda c: (
                " ! [rejected]        main -> main (fetch first)\n"
                f"error: failed to push some refs to 'git@github.com:acme/{c.choice(NAMES)}.git'"
            ),
            lambda c: (
                f"To https://github.com/acme/{c.choice(NAMES)}.git\n"
                f" ! [rejected]        fix/{c.randrange(900)}-x -> fix/{c.randrange(900)}-x (non-fast-forward)\n"
                f"error: failed to push some refs to 'https://github.com/acme/{c.choice(NAMES)}.git'\nhint: Updates were rejected"
            ),
        ),
    ),
    Kind(
        "shell: disk full",
        "shell",
        (
            lambda c: f"OSError: [Errno 28] No space left on device: '{_path(c)}'",
            lambda c: (
                f"tar: {_path(c)}: Cannot write: No space left on device\ntar: Exiting with failure status due to previous errors"
            ),
            lambda c: f"write /var/lib/docker/tmp/GetImageBlob{c.randrange(10**9)}: no space left on device",
        ),
    ),
    Kind(
        "kubectl: not found",
        "kubectl",
        (
            lambda c: f'Error from server (NotFound): pods "{c.choice(NAMES)}-{_hex(c, 8)}-{_hex(c, 5)}" not found',
            lambda c: f'Error from server (NotFound): deployments.apps "{c.choice(NAMES)}" not found',
        ),
    ),
    Kind(
        "kubectl: unauthorized",
        "kubectl",
        (
            lambda _: "error: You must be logged in to the server (Unauthorized)",
            lambda c: (
                f"E1130 {c.randrange(24):02}:54:18.{c.randrange(10**6):06}   {c.randrange(99999)} memcache.go:265] couldn't get current server API "
                "group list: the server has asked for the client to provide credentials\nerror: You must be logged in to the server (Unauthorized)"
            ),
        ),
    ),
    Kind(
        "run_tests: missing module",
        "run_tests",
        (
            lambda c: (
                f"ImportError while importing test module '{_path(c)}'.\nHint: make sure your test modules/packages have valid Python names.\n"
                f"Traceback:\nimport {c.choice(NAMES)}\nE   ModuleNotFoundError: No module named '{c.choice(NAMES)}'"
            ),
            lambda c: (
                "Traceback (most recent call last):\n"
                f'  File "{_path(c)}", line {c.randrange(99)}, in <module>\n    import {c.choice(NAMES)}\n'
                f"ModuleNotFoundError: No module named '{c.choice(NAMES)}'"
            ),
        ),
    ),
    Kind(
        "send_mail: credentials",
        "send_mail",
        (
            lambda c: (
                "smtplib.SMTPAuthenticationError: (535, b'5.7.8 Username and Password not accepted. For more information, go to\\n5.7.8 "
                f"https://support.example.com/mail/?p=BadCredentials {_hex(c, 12)} - gsmtp')"
            ),
            lambda c: (
                f"Invalid login: 535-5.7.8 Username and Password not accepted. For more information, go to https://support.example.com/{_hex(c, 6)}"
            ),
        ),
    ),
    Kind(
        "summarize: context too long",
        "summarize",
        (
            lambda c: (
                f"This model's maximum context length is {c.choice([8192, 128000])} tokens. However, you requested {c.randrange(9000, 300000)} tokens "
                "(8021 in the messages, 1000 in the completion). Please reduce the length of the messages or completion."
            ),
            lambda c: (
                '{"error": {"message": "This model\'s maximum context length is 8192 tokens. However, your messages resulted in '
                f'{c.randrange(9000, 99999)} tokens. Please reduce the length of the messages.", "type": "invalid_request_error", "param": "messages"}}}}'
            ),
        ),
    ),
    Kind(
        "edit: text not found",
        "edit",
        (
            lambda c: (
                f"<tool_use_error>String to replace not found in file.\nString:     if {c.choice(NAMES)} == {c.randrange(9)}:</tool_use_error>"
            ),
            lambda c: f"Error: String to replace was not found in the file {_path(c)}",
        ),
    ),
    Kind(
        "browser: timeout",
        "browser",
        (
            lambda c: (
                f'page.goto: Timeout {c.choice([15000, 30000])}ms exceeded.\nCall log:\n  - navigating to "https://{_host(c)}/"'
            ),
            lambda c: (
                f"locator.click: Timeout {c.choice([5000, 30000])}ms exceeded.\nCall log:\n  - waiting for locator('#{c.choice(NAMES)}')"
            ),
        ),
    ),
)
LAST_KINDS = (
    Kind(
        "terraform: state lock",
        "terraform",
        (
            lambda c: (
                f"Error: Error acquiring the state lock\n\nError message: ConditionalCheckFailedException: The conditional request failed\nLock Info:\n  ID: {_hex(c, 8)}"
            ),
            lambda c: (
                f"\x1b[31m╷\x1b[0m\n│ Error: Error acquiring the state lock\n│ \n│ Error message: operation error DynamoDB: PutItem, RequestID: {_hex(c, 20)}"
            ),
        ),
    ),
    Kind(
        "terraform: no credentials",
        "terraform",
        (
            lambda c: f"Error: No valid credential sources found\n\n  with provider, on {_path(c)} line {c.randrange(90)}",
            lambda c: (
                f"Error: configuring Terraform AWS Provider: no valid credential sources for Terraform AWS Provider found. Request {_hex(c, 12)}"
            ),
        ),
    ),
    Kind(
        "docker: no daemon",
        "docker",
        (
            lambda _: "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
            lambda c: (
                f"ERROR: Cannot connect to the Docker daemon at tcp://{_ip(c)}:2375. Is the docker daemon running?\nerrors pretty printing info"
            ),
        ),
    ),
    Kind(
        "docker: no manifest",
        "docker",
        (
            lambda c: (
                f"Error response from daemon: manifest for registry.example.com/{c.choice(NAMES)}:v{c.randrange(99)} not found: manifest unknown: manifest unknown"
            ),
            lambda c: (
                f"manifest for {c.choice(NAMES)}:1.{c.randrange(99)} not found: manifest unknown: The named manifest is not known to the registry."
            ),
        ),
    ),
    Kind(
        "mysql: lost connection",
        "mysql",
        (
            lambda c: (
                f"pymysql.err.OperationalError: (2013, 'Lost connection to MySQL server during query ([Errno 104] Connection reset by peer)') [{_hex(c, 6)}]"
            ),
            lambda c: f"ERROR 2013 (HY000) at line {c.randrange(900)}: Lost connection to MySQL server during query",
        ),
    ),
    Kind(
        "mysql: duplicate key",
        "mysql",
        (
            lambda c: (
                f"ERROR 1062 (23000) at line {c.randrange(900)}: Duplicate entry '{c.randrange(10**6)}' for key '{c.choice(NAMES)}.PRIMARY'"
            ),
            lambda c: (
                f"pymysql.err.IntegrityError: (1062, \"Duplicate entry '{_hex(c, 8)}' for key '{c.choice(NAMES)}.email'\")"
            ),
        ),
    ),
    Kind(
        "compile: not assignable",
        "compile",
        (
            lambda c: (
                f"src/{c.choice(NAMES)}/{c.choice(NAMES)}.ts({c.randrange(300)},{c.randrange(80)}): error TS2345: Argument of type 'string' is not assignable to parameter of type 'number'."
            ),
            lambda c: (
                f"src/{c.choice(NAMES)}.tsx:{c.randrange(300)}:{c.randrange(80)} - error TS2345: Argument of type '{c.choice(NAMES)}' is not assignable to parameter of type '{c.choice(NAMES)}'."
            ),
        ),
    ),
    Kind(
        "compile: no property",
        "compile",
        (
            lambda c: (
                f"src/{c.choice(NAMES)}.ts({c.randrange(300)},{c.randrange(80)}): error TS2339: Property '{c.choice(NAMES)}' does not exist on type '{c.choice(NAMES)}'."
            ),
            lambda c: (
                f"src/{c.choice(NAMES)}/x.ts:{c.randrange(300)}:7 - error TS2339: Property '{c.choice(NAMES)}' does not exist on type 'never'."
            ),
        ),
    ),
    Kind(
        "read_sheet: quota",
        "read_sheet",
        (
            lambda c: (
                "<HttpError 429 when requesting https://sheets.example.com/v4/"
                + _hex(c, 20)
                + '?alt=json returned "Quota exceeded for quota metric '
                f"'Read requests' and limit 'Read requests per minute per user' of service 'sheets.example.com' for consumer 'project_number:{c.randrange(10**9)}'.\">"
            ),
            lambda c: (
                '{"error": {"code": 429, "message": "Quota exceeded for quota metric \'Read requests\' and limit \'Read requests per minute per user\' of '
                f'service \'sheets.example.com\' for consumer \'project_number:{c.randrange(10**9)}\'.", "status": "RESOURCE_EXHAUSTED"}}}}'
            ),
        ),
    ),
    Kind(
        "mcp: unknown tool",
        "mcp__crm__lookup",
        (
            lambda _: "MCP error -32602: Tool lookup not found",
            lambda _: "MCP error -32602: MCP error -32602: Tool lookup not found",
        ),
    ),
)
PLANTED_KINDS = "planted kinds"
LISTS = {
    PLANTED_KINDS: KINDS,
    "other programs": OTHER_KINDS,
    "other programs, written last": LAST_KINDS,
}
NOISE = (
    lambda c: f"{_word(c)} of {_word(c)} is {_word(c)} in {_word(c)}",
    lambda c: f"error: {_word(c)} {_word(c)} {_word(c)} for '{_host(c)}'",
    lambda c: f"Command exited with code {c.randrange(2, 250)}: {_word(c)} {_word(c)}",
    lambda c: f"{_word(c).title()}Error: {_word(c)} {_word(c)} {_hex(c, 12)}",
)


def _word(chance: random.Random) -> str:
    return "".join(chance.choice("bcdfghklmnprstvz") + chance.choice("aeiou") for _ in range(chance.randrange(2, 5)))


def build_session(
    chance: random.Random, number: int, at: datetime, planted: Sequence[Kind]
) -> tuple[str, list[Exchange], list[Score], list[AgentEvent], list[Diagnosis]]:
    """Return a session, with the name of its kind of failure; empty without one."""
    session, tools = f"s{number}", [kind.tool for kind in planted if kind.wordings]
    if chance.random() >= FAILING:
        calls = [("search", "ok", "3 hits")]
        if chance.random() < RECOVERED:
            kind = chance.choice([kind for kind in planted if kind.wordings])
            calls = [(kind.tool, "error", chance.choice(kind.wordings)(chance)), (kind.tool, "ok", "done")]
        turn, score = _turn(session, at, calls)
        return "", [turn], [score], [], []
    if chance.random() >= PLANTED:
        tool = chance.choice(tools) if chance.random() < 0.5 else _word(chance)
        turn, score = _turn(session, at, [(tool, "error", chance.choice(NOISE)(chance))], low="completeness")
        return f"noise {number}", [turn], [score], [], []
    kind = chance.choice(planted)
    if kind.cause == "infinite_tool_loop":
        events, diagnosis = _loop(session, at, kind.tool, [])
        return kind.name, [], [], events, [diagnosis]
    if not kind.wordings:
        low = kind.cause if kind.cause == "scope_discipline" else ""
        turn, score = _turn(session, at, [("search", "ok", "1 hit")], low=low, flag="" if low else kind.cause)
        return kind.name, [turn], [score], [], []
    text = chance.choice(kind.wordings)
    if chance.random() < 0.4:
        events, diagnosis = _loop(session, at, kind.tool, [text(chance) for _ in range(7)])
        return kind.name, [], [], events, [diagnosis]
    turn, score = _turn(
        session, at, [("search", "ok", "")] * (kind.tool != "search") + [(kind.tool, "error", text(chance))], low="completeness"
    )
    return kind.name, [turn], [score], [], []


def _turn(
    session: str, at: datetime, calls: Sequence[tuple[str, str, str]], *, low: str = "", flag: str = ""
) -> tuple[Exchange, Score]:
    exchange_id = f"{session}:1"
    turn = Exchange(
        exchange_id=exchange_id, connection="bench", project=PROJECT, session_id=session, occurred_at=at, ingested_at=at, user_message="Where is it?",
        agent_response="" if flag else "Here it is.", content_digest="0" * 16, input_tokens=900, output_tokens=100,
        tool_calls=tuple(ToolCall(name=tool, arguments="{}", result=result, outcome=outcome) for tool, outcome, result in calls),
    )  # fmt: skip
    flags = (flag,) if flag else ()
    reasons = anomaly_reasons(flags, {low: 1.0} if low else {}, None, ())
    score = Score(
        score_id=score_id("bench", exchange_id), revision=0, exchange_id=exchange_id, connection="bench", project=PROJECT, agent=None, session_id=session,
        turn_number=1, exchange_at=at, scored_at=at, disposition="scored", sampling_reason="routine_sample", sampling_probability=1.0,
        tier1_score=1.0, tier1_flags=flags, tier2_state="scored", tier2_reason=None, tier2_score=0.8, tier2_dimensions=(), tier2_flagged=False,
        tier2_flag_reason=None, tier2_5_state="not_applicable", tier2_5_reason=None, tier2_5_alignment=None, tier2_5_sycophancy=None,
        tier2_5_advocacy_suppression=None, tier2_5_reasoning=None, tier3_state="scored", tier3_reason=None, tier3_score=4.0,
        tier3_dimensions=(DimensionScore(dimension=low, score=1.0, reasoning="low"),) if low else (), anomaly=bool(reasons), anomaly_reasons=reasons,
        judge_model="bench", simulated=True, judgement_ids=(), cost_usd=0.0, methodology="default", methodology_version="1", methodology_digest="0",
        rule_version="eval-5", policy_digest="0", evidence_digest="0",
    )  # fmt: skip
    return turn, score


def _loop(session: str, at: datetime, tool: str, errors: Sequence[str]) -> tuple[list[AgentEvent], Diagnosis]:
    """Return a run that calls a tool seven times with the same arguments, and its diagnosis by the detectors."""
    raw: list[dict[str, object]] = []
    for place in range(7):
        raw.append({"event": "tool_call", "tool": tool, "args": {"id": 7}})
        raw.append(
            {
                "event": "tool_output",
                "tool": tool,
                **({"is_error": True, "result": errors[place]} if errors else {"result": "not yet"}),
            }
        )
    evidence = SessionEvidence(reference_limit=EVIDENCE_REFERENCES)
    evidence.hold_to(DEFAULTS["events"])
    events = []
    for seq, fields in enumerate(raw):
        normalised = normalise_event(fields, seq)
        evidence.add(normalised, seq)
        moment = at + timedelta(seconds=seq)
        events.append(
            to_record(
                normalised, connection="bench", project=PROJECT, agent=None, session_id=session, seq=seq, occurred_at=moment, ingested_at=moment,
                payload_json=canonical_json(normalised.payload),
            )
        )  # fmt: skip
    end = events[-1].occurred_at
    diagnosis = diagnosis_record(
        diagnose(evidence, EVENTS), evidence, connection="bench", project=PROJECT, agent=None, session_id=session, revision=0, started_at=at,
        ended_at=end, closed_at=end, closed_reason="session_end", policy_digest="0", profile=DEFAULTS["events"],
    )  # fmt: skip
    return events, diagnosis


def fill(store: Store, sessions: int, days: int, chance: random.Random, planted: Sequence[Kind] = KINDS) -> dict[str, str]:
    """Store sessions; return the kind of failure of each that failed."""
    kinds = {}
    for first in range(0, sessions, AT_ONCE):
        topics: dict[str, list[Record]] = defaultdict(list)
        for number in range(first, min(first + AT_ONCE, sessions)):
            at = START + timedelta(seconds=number * days * 86_400 // sessions)
            kind, exchanges, scores, events, diagnoses = build_session(chance, number, at, planted)
            if kind:
                kinds[f"s{number}"] = kind
            for topic, records in {
                "exchanges": exchanges,
                "scores": scores,
                "agent-events": events,
                "diagnoses": diagnoses,
            }.items():
                topics[topic] += records
        with store.transaction() as transaction:
            for topic, records in topics.items():
                if records:
                    transaction.append(topic, [encode(record) for record in records])
    return kinds


def read_members(store: Store) -> dict[str, tuple[str, str]]:
    """Return the group of each session that failed, and its name: with statements that keep all examples, not three."""
    statements = [
        statement.replace(f", {MAX_EXAMPLES}) AS examples", ", 999999) AS examples")
        for statement in FAILURES_BY_DAY.replacement
    ]
    days = [(PROJECT, (START + timedelta(days=day)).date()) for day in range(DAYS)]
    with store.transaction() as transaction:
        replace(FAILURES_BY_DAY, replacement=tuple(statements)).recompute(transaction.connection, days)
    rows = store.cursor().execute("SELECT failure_group, name, unnest(examples).session_id FROM log.daily_failures").fetchall()
    return {session: (group, name) for group, name, session in rows}


def measure_groups(sessions: int, seed: int, planted: Sequence[Kind]) -> tuple[list[list[str]], list[str]]:
    """Return a row per planted kind with its largest group, and the row of all of them."""
    with Store(None) as store:
        kinds = fill(store, sessions, DAYS, random.Random(seed), planted)
        members = read_members(store)
    sizes = Counter(group for group, _ in members.values())
    pairs = Counter((kinds[session], group) for session, (group, _) in members.items())
    names = dict(members.values())
    rows, groups, hits, grouped, failures = [], set(), 0, 0, 0
    for kind in planted:
        failed = sum(count for (name, _), count in pairs.items() if name == kind.name)
        (_, group), count = max(
            ((pair, count) for pair, count in pairs.items() if pair[0] == kind.name), key=lambda item: item[1]
        )
        groups.add(group)
        hits, grouped, failures = hits + count, grouped + sizes[group], failures + failed
        rows.append([kind.name, names[group][:60], str(failed), f"{count / sizes[group]:.3f}", f"{count / failed:.3f}"])
    purity, completeness = hits / grouped, hits / failures
    large = sum(size >= failures / len(planted) / 10 for size in sizes.values())
    is_met = len(groups) == large == len(planted) and min(purity, completeness) >= BAR and len(members) == len(kinds)
    total = [
        f"all of {len(kinds)} failures",
        f"{len(groups)} groups of kinds, {large} large groups",
        str(failures),
        f"{purity:.3f}",
        f"{completeness:.3f}",
    ]
    return [*rows, total], [str(seed), f"{large}", f"{purity:.3f}", f"{completeness:.3f}", "met" if is_met else "MISSED"]


def measure_time(sessions: int) -> list[list[str]]:
    """Return the seconds that a day with so many sessions of one project takes."""
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "day.duckdb") as store:
        kinds = fill(store, sessions, 1, random.Random(1))
        refresh_daily(store)
        rows = []
        for name, act in {
            f"all failures of the day again ({len(kinds):,} of {sessions:,} sessions)": lambda: _recompute(store),
            "of these, the groups": lambda: _assign(store),
            "the groups of a project, read": lambda: read_failures(store.cursor(), PROJECT, START, START + timedelta(days=1)),
        }.items():
            wall, processor = time.perf_counter(), time.process_time()
            act()
            rows.append([name, f"{time.perf_counter() - wall:.2f}", f"{time.process_time() - processor:.2f}"])
        ((count,),) = store.cursor().execute("SELECT count(*) FROM log.daily_failures").fetchall()
        return [*rows, ["rows of the day", str(count), ""]]


def _recompute(store: Store) -> None:
    with store.transaction() as transaction:
        FAILURES_BY_DAY.recompute(transaction.connection, [(PROJECT, START.date())])


def _assign(store: Store) -> None:
    with store.transaction() as transaction:
        assign_groups(transaction.connection, [PROJECT])


def main(arguments: Sequence[str] = ()) -> None:
    """Print the tables; fail if the bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks failures")
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--day", type=int, default=100_000)
    options = parser.parse_args(arguments)
    verdicts = []
    for seed, (name, planted) in itertools.product(range(1, options.seeds + 1), LISTS.items()):
        rows, verdict = measure_groups(options.sessions, seed, planted)
        verdicts.append([name, *(verdict if name == PLANTED_KINDS else [*verdict[:-1], "no bar"])])
        if seed == 1:
            print_table(
                [f"{options.sessions:,} sessions, {name}, seed 1", "largest group", "failures", "purity", "completeness"], rows
            )
            print()
    print_table([f"bar: 10 groups, both {BAR} or more", "seed", "large groups", "purity", "completeness", ""], verdicts)
    print()
    if options.day:
        print_table(["a day of one project", "seconds", "of the processor"], measure_time(options.day))
    if any(verdict[-1] == "MISSED" for verdict in verdicts):
        raise SystemExit("the bar is missed")
