"""Scrubbing: traces of infrastructure are removed, useful text stays, and hostile text takes no longer."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples

from audit.evaluation.scrubbing import Scrubber, json_text

KNOWN = frozenset({"sess-42", "session-alpha", "hermes-07", "weird id/7", "0012345", "main", "12", "e7"})
SCRUBBER = Scrubber(KNOWN)
UUID = "3f2a9c1e-1111-2222-3333-444455556666"
DIGEST = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("in sess-42, SESS-42.", "in [id], [id]."),
        ("on hermes-07 and hermes-071", "on [id] and [id]1"),
        ("weird id/7 and 0012345", "[id] and [id]"),
        (f"{UUID} and x{UUID.upper()}", "[id] and x[id]"),
        ("run_0042, run-7, event_12, session_9f", "[id], [id], [id], [id]"),
        ("container 4f5e6a7b8c9d", "container [id]"),
        ("toolu_01AbCdEfGhIjKlMnOpQr msg_01XyZ9abc req_011CSHoEeqs5 chatcmpl-9abcDEF123", "[id] [id] [id] [id]"),
        ("run_id=alpha; container id: web", "run_id=[id]; container id: [id]"),
        ("web-7d9f8b6c5-x2x4z", "[id]"),
        ("cat /home/alice/x.py", "cat [path]/x.py"),
        ("in /home/alice or /Users/bob/", "in [path]/ or [path]/"),
        ("/etc/hosts:/tmp/a,'/var/x/y'", "[path]/hosts:[path]/a,'[path]/y'"),
        ("C:\\Users\\bob\\My Files\\c.txt and D:/data/x.csv", "[path]/c.txt and [path]/x.csv"),
        ("~/notes/a.md, ~bob/b.md", "[path]/a.md, [path]/b.md"),
        ("file:///srv/app/a.txt", "[path]/a.txt"),
        ("cc -I/usr/include --out=/tmp/o.bin", "cc -I[path]/include --out=[path]/o.bin"),
        ("\\\\server\\share\\a.doc", "[path]/a.doc"),
        (f"/runs/{UUID}/run_0042", "[path]/[id]"),
        ("docker run -it python:3.11-slim", "docker run -it [image]"),
        ("ghcr.io/acme/agent:1.2.3 and acme/agent-runner:latest", "[image] and [image]"),
        (f"registry.local:5000/team/app:v2 acme/app@sha256:{DIGEST}", "[image] [image]"),
        (f"sha256:{DIGEST}", "[image]"),
        ("password=hunter22 [SECRET:jwt:01234567]", "password=[secret] [secret]"),
        ("sk-ant-abcdefgh12345", "[secret]"),
        ("2026-10-01T09:00:00Z ERROR db: refused", "[log line]"),
        ("a\n2026-10-01 09:00:00,1 INFO x\n[2026-10-01 09:00:01] WARN y\nb", "a\n[2 log lines]\nb"),
        ("Oct  1 09:00:00 host sshd[12]: hi\nI1001 09:00:00.123456    1 main.go:12] hi", "[2 log lines]"),
        ('10.0.0.1 - - [01/Oct/2026:09:00:00 +0000] "GET / HTTP/1.1" 200', "[log line]"),
        ("2026-10-01T09:00:00.123456789Z stdout F hello", "[log line]"),
        ("INFO:root:started", "[log line]"),
        ('time="2026-10-01" level=info msg=x', "[log line]"),
        ('{"ts": 1, "level": "info"}\n{"ts": 2, "level": "info"}', "[2 log lines]"),
        (
            '{"stdout":"2026-10-01T09:00:00Z ERROR x\\nok","path":"\\/home\\/bob\\/x","run_id":"a"}',
            '{"stdout":"[log line]\\nok","path":"[path]/x","run_id":"[id]"}',
        ),
    ],
)
def test_traces_of_the_environment_are_removed(text: str, expected: str) -> None:
    """These say where the agent worked, not how well."""
    assert SCRUBBER.text(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "See https://docs.python.org/3/library/json.html and https://github.com/a/b/blob/main/x.py:12.",
        "src/app.py:12: error in ./lib/x.js, ../README.md and a/b/c; and/or 3/4; </div>",
        "def main(): return run(session_id=session_id, call_tool=run_tests(file_report, msg_count))",
        "On 2026-10-01 at 09:00:00 we met; it took 12 minutes.",
        "requests:2.31.0, numpy==1.2.3, http://localhost:8080/api, at 12:30",
        "commit 1a2b3c4, 1234567890123 rows, phone 004930123456",
        "The password was wrong. Use --token to pass one. max_tokens=100",
        "ERROR: no such file. WARNING: this is slow.",
        "main has 12 commits since e7",
        "/help or /start, and …/incidents/7",
        "x" * 5000,
    ],
)
def test_useful_text_is_kept(text: str) -> None:
    """Relative paths, web addresses, code and prose are the agent's work."""
    assert SCRUBBER.text(text) == text


def test_values_and_names_are_scrubbed_at_every_depth() -> None:
    """Arguments nest, and tools put JSON into texts of JSON."""
    inner = json.dumps({"log": json.dumps({"cwd": "/home/bob/work"})})
    value = {
        "/home/a/k": [{"run_id": "x"}, "sess-42"],
        "image": "thing:prod",
        "n": 12345,
        "at": 1.5,
        "ok": True,
        "in": inner,
        "token": "abc",
    }
    expected = {
        "[path]/k": [{"run_id": "[id]"}, "[id]"],
        "image": "[image]",
        "n": 12345,
        "at": 1.5,
        "ok": True,
        "in": '{"log":"{\\"cwd\\":\\"[path]/work\\"}"}',
        "token": "[secret]",
    }
    assert SCRUBBER.value(value) == expected


def test_names_that_become_equal_are_all_kept() -> None:
    """A removed member would hide work of the agent."""
    assert SCRUBBER.value({"/home/a/k": 1, "/home/b/k": 2}) == {"[path]/k": 1, "[path]/k (2)": 2}


def test_numeric_ids_are_removed() -> None:
    """Some sources number their sessions."""
    assert Scrubber({"4711007", "7"}).value({"a": 4711007, "b": 7}) == {"a": "[id]", "b": 7}


def test_a_value_nested_too_deep_becomes_text() -> None:
    """No depth may exhaust the stack."""
    value: Any = "x"
    for _ in range(5000):
        value = [value]
    assert SCRUBBER.value(value) == json_text(value) == "[a value that is nested too deeply]"
    assert SCRUBBER.text("[" * 5000) == "[" * 5000


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/home/alice/My Documents/the plan.md", "[path]/the plan.md"),
        ("C:\\a b\\c d.txt", "[path]/c d.txt"),
        ("notes/plan.md", "notes/plan.md"),
        (f"/x/{UUID}", "[path]/[id]"),
    ],
)
def test_an_absolute_path_keeps_its_last_name(path: str, expected: str) -> None:
    """The name of a file says what was made, its folders say where."""
    assert SCRUBBER.path(path) == expected


FRAGMENTS = [
    *("/home/a/b.txt", "~/x/y", "C:\\a\\b", "file:///a/b", "[path]/x", "[path]", "[id]", "[image]", "[secret]", "[log line]", "[3 log lines]"),
    *("sess-42", UUID, "run_12", "run_id=", "toolu_01abcdefgh", "4f5e6a7b8c9d", "python:3.11", "a/b:latest", "@sha256:0123456789", "\\n", "\n"),
    *("2026-10-01T09:00:00Z ERROR x", "INFO:a:b", "password=", "token: ", "hunter22", "AKIAABCDEFGHIJKLMNOP", "[SECRET:jwt:01234567]", "Cookie: a=b"),
    *(" ", "/", ":", "_", "-", '"', "'", "\\", "{", "}", "[", "]", ",", '{"a":"', '"}', "é", "\u200b", "\ud800", "Authorization: Bearer "),
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=14).map("".join)


@settings(max_examples=examples(400), deadline=None)
@given(TEXTS)
def test_scrubbing_a_clean_text_changes_nothing(text: str) -> None:
    """Texts are scrubbed alone and inside JSON, so twice must equal once."""
    clean = SCRUBBER.text(text)
    assert SCRUBBER.text(clean) == clean
    assert Scrubber(KNOWN).text(clean) == clean


json_values = st.recursive(
    TEXTS | st.integers() | st.floats() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(150), deadline=None)
@given(json_values)
def test_any_scrubbed_value_can_be_written(value: Any) -> None:
    """Arguments may be any JSON."""
    clean = SCRUBBER.value(value)
    assert "sess-42" not in json.dumps(clean, allow_nan=False).lower()


@pytest.mark.parametrize(
    "piece",
    [
        *("a/", "/a", "/a ", "~/", "C:\\a", "C:\\", "a:b/", "run_1", "run_1/", "a-", "f-", "0", "a0", "_", "msg_", "sha256:", "a/a@", "{", "[", '{"a":'),
        *("2026-10-01 09:00:00 ", "Oct  1 09:00:00 a ", "time=x ", '{"ts": ', "INFO", "x x x [", "[log line]", "[log line]\n", "\\n", "\\", "[path]"),
        *("password=", "docker.io/", "a.b/", "python:", '"', "é", "\ud800", "sess-42", "sess-4", f"{UUID} ", "run_id=x ", "/home/a/b ", "[secret]"),
    ],
)  # fmt: skip
def test_hostile_text_takes_linear_time(piece: str) -> None:
    """Half a megabyte of partial matches takes seconds if linear, hours if not."""
    text = piece * (512 * 1024 // len(piece))
    started = time.process_time()
    Scrubber(KNOWN).text(text)
    assert time.process_time() - started < 20


def test_thousands_of_known_ids_are_found() -> None:
    """A long session has an id for each of its events."""
    scrubber = Scrubber({f"ev-{number:x}-q" for number in range(5_000)})
    assert scrubber.text("ev-0-q, EV-1387-q and ev-zz-q") == "[id], [id] and ev-zz-q"
