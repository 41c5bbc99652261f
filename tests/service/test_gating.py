"""From an incident to a gate: frozen cases, a candidate's answers, what the judge is asked, and what is written for a pull request."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml
from support.builders import exchange, score
from support.watch_histories import fallen, history, put, runs, worse_since

from analytics.queries import query_records
from analytics.store.store import Store
from audit.evaluation.cases import FrozenCases, load_frozen_cases
from audit.evaluation.freezing import scores_of
from audit.exchanges.outcomes import RULE_VERSION
from audit.policy import Policy
from driftline_trial.simulator import RunningJudge, running
from schemas.records import DimensionScore, Incident, ToolCall
from service.cli.main import run

Command = Callable[..., tuple[int, str, str]]
EXAMPLES = Path(__file__).parents[2] / "examples" / "ci"
QUESTION = "Is the nightly backup of the host db2 healthy?"
GOOD = "Yes, the nightly backup of the host db2 is healthy: it ended without an error."
BAD = "Owls can turn their heads."
HOSTILE = 'Owls. \u202eevil\u202c <script>alert(1)</script> ]]> | `x` \x1b[31m "quoted": *x\n- case_id: other'
CALL = ToolCall(name="backup_log", arguments='{"host":"db2"}', result="ended, exit 0", outcome="ok")
GATE = ("gate", "cases.yaml", "--candidate", "results.jsonl")


@pytest.fixture(scope="module")
def incident_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the database of a project whose Tier 2 fell, and the cases of its only incident."""
    folder = tmp_path_factory.mktemp("incident")
    database = folder / "driftline.duckdb"
    judged = {
        "methodology_digest": Policy().for_project("ops").methodology.digest,
        "rule_version": RULE_VERSION,
        "judge_model": "driftline-simulated-judge",
        "sampling_reason": "routine_sample",
    }
    scores = history(fallen(6, to=0.3, before=0.92), 40, a_day=5, **judged)
    exchanges = []
    for number, judged_score in enumerate(scores):
        is_bad = (judged_score.tier2_score or 0) < 0.6
        answer = (HOSTILE if number % 2 else BAD) if is_bad else GOOD
        values = {"user_message": QUESTION, "occurred_at": judged_score.exchange_at, "ingested_at": judged_score.exchange_at}
        values |= {"input_tokens": 500, "output_tokens": 40, "tool_calls": (CALL,)}
        exchanges.append(exchange(judged_score.session_id, 1, answer, **values))
    with Store(database) as store:
        put(store, "exchanges", exchanges)
        put(store, "scores", scores)
    assert run(["check-drift", "--as-of", "2026-11-01T12:00:00Z", "--db", str(database)]) == 0
    with Store(database) as store:
        [incident] = query_records(store.cursor(), "incident_by_id", Incident, {"project": "ops", "incident": ""})
    command = ["cases", "from-incident", incident.incident_id[:8], "--out", str(folder / "cases.yaml"), "--db", str(database)]
    assert run(command) == 0
    return folder


@pytest.fixture(autouse=True)
def cases(driftline: Command, incident_folder: Path, tmp_path: Path) -> FrozenCases:
    """Copy the database and its cases into the folder that commands run in, and return the cases."""
    del driftline  # which changes the folder
    for name in ("driftline.duckdb", "cases.yaml"):
        shutil.copy(incident_folder / name, tmp_path / name)
    return load_frozen_cases(tmp_path / "cases.yaml")


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch, driftline: Command) -> Iterator[RunningJudge]:
    """Serve a simulated judge, named in the environment."""
    del driftline  # which clears the environment
    with running() as simulated:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", simulated.base_url)
        yield simulated


def read_junit(path: Path) -> ET.Element:
    """Return the test suite of a file that this test has written."""
    return ET.fromstring(path.read_text())  # noqa: S314 - our own file


def write_results(frozen: FrozenCases, answer: Callable[[int], str], **fields: Any) -> None:
    """Write the answers of a candidate, by the number of the case."""
    call = {"name": "backup_log", "arguments": {"host": "db2"}, "result": "ended, exit 0"}
    lines = [
        {"case_id": case.case_id, "agent_response": answer(number), "tool_calls": [call], "input_tokens": 500, "output_tokens": 40} | fields
        for number, case in enumerate(frozen.cases)
    ]  # fmt: skip
    Path("results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_cases_have_both_sides_the_level_before_and_the_checks_of_the_detectors(cases: FrozenCases) -> None:
    """A build is compared with what was, so the file must have it, and it must be read as it was written."""
    sides = [case.recorded.side for case in cases.cases if case.recorded]
    level = cases.levels.scores["tier2"]
    first = cases.cases[0].recorded

    assert (sides.count("incident"), sides.count("before")) == (20, 20)
    assert abs(level.mean - 0.92) < 0.03
    assert level.margin == 0.05
    assert first is not None
    assert first.agent_response in {BAD, HOSTILE}
    assert first.tool_calls[0].result == CALL.result
    assert {"infinite_tool_loop", "silent_refusal", "calls-backup_log"} <= {
        check.check_id for check in cases.deterministic_checks
    }


def test_hostile_texts_are_read_back_and_hide_nothing(cases: FrozenCases) -> None:
    """A frozen text of an attacker must neither reorder the lines of a review nor become a part of the file."""
    text = Path("cases.yaml").read_text()

    assert HOSTILE in {case.recorded.agent_response for case in cases.cases if case.recorded}
    assert not {"\u202e", "\x1b"} & set(text)
    assert len(cases.cases) == len({case.case_id for case in cases.cases})


def test_the_answers_of_the_incident_are_blocked_without_a_judge(driftline: Command, cases: FrozenCases) -> None:
    """The recorded answers were judged already, so a gate over them needs no key; and it must block what caused the incident."""
    lines = [
        {"case_id": case.case_id, **case.recorded.model_dump(mode="json", include={"agent_response", "tool_calls"})}
        for case in cases.cases
        if case.recorded
    ]
    Path("results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    code, out, _ = driftline(*GATE, "--junit", "junit.xml", "--markdown", "summary.md", "--json")

    result = json.loads(out)
    assert code == 1
    assert "tier2" in {row["name"] for row in result["comparisons"] if row["worse"]}
    assert not Path("cases.judgements.jsonl").exists()
    suite = read_junit(Path("junit.xml"))
    assert int(suite.attrib["failures"]) == sum(row["worse"] for row in result["comparisons"])
    assert "blocked" in Path("summary.md").read_text().splitlines()[0]


def test_a_good_build_passes_and_is_judged_only_once(driftline: Command, cases: FrozenCases, judge: RunningJudge) -> None:
    """The same answers in the next run of a pipeline must cost nothing, and nothing is asked before its cost is accepted."""
    write_results(cases, lambda number: f"{GOOD} Run {number}.")

    refused = driftline(*GATE)
    requests_before = judge.requests
    first = driftline(*GATE, "--yes", "--json")
    requests = judge.requests
    second = driftline(*GATE, "--json")

    assert (refused[0], requests_before) == (2, 0)
    assert (first[0], second[0]) == (0, 0), first
    assert requests >= len(cases.cases)
    assert judge.requests == requests
    assert json.loads(first[1])["comparisons"] == json.loads(second[1])["comparisons"]


def test_a_gate_that_was_killed_asks_only_what_is_missing(driftline: Command, cases: FrozenCases, judge: RunningJudge) -> None:
    """A pipeline is canceled at any time: what it has paid for must not be paid for again, and what it may have paid for is recorded."""
    write_results(cases, lambda number: f"{GOOD} Run {number}.")
    whole = driftline(*GATE, "--yes", "--json")
    requests = judge.requests
    path = Path("cases.judgements.jsonl")
    last = path.read_bytes().splitlines(keepends=True)[-1]
    path.write_bytes(path.read_bytes()[: -len(last) // 2])  # the process died while it wrote the last judgement

    again = driftline(*GATE, "--yes", "--json")

    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert judge.requests == requests + 1
    assert json.loads(again[1])["comparisons"] == json.loads(whole[1])["comparisons"]
    assert [
        record["outcome"] for record in records if record.get("outcome") != "answered" and record["record"] == "Judgement"
    ] == ["interrupted"]


def test_an_incident_about_runs_gives_the_exchanges_of_its_worst_sessions(driftline: Command, tmp_path: Path) -> None:
    """Loops and costs are found without a judge, and their cases must catch them without one."""
    (tmp_path / "driftline.duckdb").unlink()
    diagnoses = runs(worse_since(8), agent="desk", connection="local", project="ops")
    exchanges, scores = [], []
    for diagnosis in diagnoses:
        is_bad = diagnosis.readiness_level == "unsafe_for_production"
        at = diagnosis.ended_at
        calls = (CALL,) * 9 if is_bad else (CALL,)
        values = {"occurred_at": at, "ingested_at": at, "agent": "desk", "tool_calls": calls, "user_message": QUESTION}
        exchanges.append(exchange(diagnosis.session_id, 1, GOOD, **values))
        digest = Policy().for_project("ops").methodology.digest
        rules = {"methodology_digest": digest, "rule_version": RULE_VERSION, "agent": "desk"}
        scores.append(score(diagnosis.session_id, 1, exchange_at=at, scored_at=at, **rules))
    with Store(tmp_path / "driftline.duckdb") as store:
        put(store, "exchanges", exchanges)
        put(store, "scores", scores)
        put(store, "diagnoses", diagnoses)
    assert driftline("check-drift", "--as-of", "2026-11-01T12:00:00Z")[0] == 0
    with Store(tmp_path / "driftline.duckdb") as store:
        [incident, *_] = query_records(store.cursor(), "incident_by_id", Incident, {"project": "ops", "incident": ""})

    frozen = driftline("cases", "from-incident", incident.incident_id, "--out", "cases.yaml", "--moved", "10")
    cases = load_frozen_cases(tmp_path / "cases.yaml")
    write_results(cases, lambda _number: GOOD)
    good = driftline(*GATE)
    call = {"name": "backup_log", "arguments": {"host": "db2"}, "result": "ended, exit 0"}
    write_results(cases, lambda _number: GOOD, tool_calls=[call] * 9)
    bad = driftline(*GATE, "--json")

    assert frozen[0] == 0, frozen
    assert {len(case.recorded.tool_calls) for case in cases.cases if case.recorded and case.recorded.side == "incident"} == {9}
    assert (good[0], bad[0]) == (0, 1), (good, bad)
    assert "infinite_tool_loop" in {row["name"] for row in json.loads(bad[1])["comparisons"] if row["worse"]}


def test_a_worse_build_is_blocked_and_its_texts_stay_texts(driftline: Command, cases: FrozenCases, judge: RunningJudge) -> None:
    """The answers of a pull request are untrusted: they must not break the report that blocks it."""
    assert judge.base_url
    write_results(cases, lambda number: HOSTILE if number % 2 else GOOD)

    code, out, _ = driftline(*GATE, "--yes", "--junit", "junit.xml", "--markdown", "summary.md")

    assert code == 1
    assert read_junit(Path("junit.xml")).tag == "testsuite"
    for text in (out, Path("summary.md").read_text(), Path("junit.xml").read_text()):
        assert not {"\u202e", "\x1b"} & set(text)
        assert "<script>" not in text


def test_an_undecided_gate_is_neither_a_pass_nor_a_block(driftline: Command, cases: FrozenCases, judge: RunningJudge) -> None:
    """A cap or a dead judge must not let a bad build through, nor stop a good one for being bad; without a judge only checks count."""
    write_results(cases, lambda number: f"{BAD} {number}")

    capped = driftline(*GATE, "--yes", "--cap", "0.000001")
    without = driftline(*GATE, "--judge", "none", "--json")
    write_results(cases, lambda _number: "")
    silent = driftline(*GATE, "--judge", "none", "--json")

    assert capped[0] == 2
    assert "undecided" in capped[2]
    assert judge.requests == 0
    assert without[0] == 0
    assert json.loads(without[1])["unjudged"] == len(cases.cases)
    assert silent[0] == 1
    assert "silent_refusal" in {row["name"] for row in json.loads(silent[1])["comparisons"] if row["worse"]}


def test_secrets_of_a_candidate_reach_neither_the_judge_nor_a_file(
    driftline: Command, cases: FrozenCases, judge: RunningJudge
) -> None:
    """What a build blurts out must not be spread by the gate that checks it."""
    secret = "sk-ant-api03-" + "Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z" * 2
    write_results(cases, lambda number: f"{GOOD} The key is {secret}, run {number}.")

    driftline(*GATE, "--yes", "--markdown", "summary.md")

    assert judge.requests
    assert not any(secret.encode() in body for body in judge.received)
    assert secret not in Path("cases.judgements.jsonl").read_text() + Path("summary.md").read_text()


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("{", "results.jsonl:1: is not JSON"),
        ('{"case_id": "nothing", "agent_response": "x"}', "results.jsonl:1: case_id: there is no case nothing"),
        ('{"case_id": "nothing"}', "results.jsonl:1: agent_response"),
        ('{"case_id": "nothing", "agent_response": "x", "tokens": 1}', "results.jsonl:1: tokens"),
        ('{"case_id": "nothing", "agent_response": "x", "input_tokens": -1}', "results.jsonl:1: input_tokens"),
        ("", "40 of 40 cases have no answer"),
    ],
)
def test_bad_results_are_an_error_that_names_the_line_and_the_field(driftline: Command, line: str, part: str) -> None:
    """A pipeline must not report a broken file as a bad build."""
    Path("results.jsonl").write_text(line + "\n")

    code, _, err = driftline(*GATE)

    assert code == 2
    assert part in err


def test_cases_of_other_rules_are_refused(driftline: Command, cases: FrozenCases) -> None:
    """Scores by two methodologies are not comparable, and a difference between them is no regression."""
    write_results(cases, lambda _number: GOOD)
    text = Path("cases.yaml").read_text()
    Path("cases.yaml").write_text(text.replace(cases.source.methodology_digest, "f" * 16))

    code, _, err = driftline(*GATE)

    assert code == 2
    assert "f" * 16 in err


AGENT = """import json, sys
task = json.load(sys.stdin)
question = task["messages"][-1]["content"]
print(json.dumps({"agent_response": ANSWER, "tool_calls": task["tool_calls"], "input_tokens": 500, "output_tokens": 40}))
"""


@pytest.mark.parametrize("recipe", ["github", "gitlab"])
def test_the_recipes_for_pipelines_run_in_a_shell(recipe: str, judge: RunningJudge, tmp_path: Path) -> None:
    """A recipe that was never run breaks somebody's first pipeline; a worse build must fail it with its summary written."""
    shutil.copy(EXAMPLES / "answer_cases.py", tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, target in (("driftline", "driftline"), ("python", "python")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{Path(sys.executable).parent / target}" "$@"\n')
        (programs / name).chmod(0o755)
    variables = {
        "CASES": "cases.yaml",
        "CANDIDATE": "results.jsonl",
        "DRIFTLINE_POLICY": "",
        "DRIFTLINE_JUDGE": "auto",
        "CAP": "1",
    }
    if recipe == "github":
        steps = yaml.safe_load((EXAMPLES / "action.yml").read_text())["runs"]["steps"]
        answer = 'python answer_cases.py "$CASES" "$CANDIDATE" -- ./my-agent'
        [gate] = [step for step in steps if "run" in step]
        assert set(gate["env"]) == set(variables)
        lines = [answer, gate["run"]]
    else:
        job = yaml.safe_load((EXAMPLES / "gitlab-ci.yml").read_text())["driftline-gate"]
        assert set(job["variables"]) <= set(variables)
        del variables["DRIFTLINE_POLICY"]
        lines = job["script"]
    environment = {**os.environ, **variables, "PATH": f"{programs}:{os.environ['PATH']}", "GITHUB_STEP_SUMMARY": "step.md"}
    environment |= {"ANTHROPIC_BASE_URL": judge.base_url, "ANTHROPIC_API_KEY": "simulated"}
    codes = {}
    for name, text in (("good", '"Yes. " + question + " It ended without an error."'), ("bad", '"Owls can turn their heads."')):
        (tmp_path / "my-agent").write_text(f"#!{sys.executable}\n{AGENT.replace('ANSWER', text)}")
        (tmp_path / "my-agent").chmod(0o755)
        command = ["/bin/bash", "-e", "-c", "\n".join(lines)]
        finished = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        codes[name] = finished.returncode, finished.stderr

    assert (codes["good"][0], codes["bad"][0]) == (0, 1), codes
    assert "blocked" in (tmp_path / ".driftline" / "summary.md").read_text()
    assert read_junit(tmp_path / ".driftline" / "junit.xml").attrib["failures"] != "0"
    if recipe == "github":
        assert (tmp_path / "step.md").read_text().count("## Driftline gate") == 2


def test_frozen_cases_are_cases_of_an_evaluation(driftline: Command, cases: FrozenCases) -> None:
    """There is one format of cases: what an incident left can be evaluated on finished sessions, too."""
    profile = {
        "judges": [{"judge_id": "one", "model": "claude-haiku-4-5", "type": "recorded"}],
        "judge_runs": [{"judge_run_id": "once", "judge_id": "one"}],
    }
    Path("profile.json").write_text(json.dumps(profile))
    session = cases.cases[-1].recorded
    assert session is not None
    driftline("finalize", session.session_id)

    code, out, err = driftline(
        "evaluate", "--case", "cases.yaml", "--profile", "profile.json", "--session", session.session_id, "--dry-run", "--json"
    )

    assert code == 0, err
    assert json.loads(out)["evaluations"] == len(cases.cases)


def test_scores_of_an_exchange_are_named_by_tier_and_dimension() -> None:
    """The levels and the scores of a candidate meet by these names."""
    [judged_score] = history(
        lambda _back: 0.5, 0, a_day=1, tier2_dimensions=(DimensionScore(dimension="tone", score=0.25, reasoning=""),)
    )

    assert scores_of(judged_score) == {"tier2": judged_score.tier2_score, "tier2.tone": 0.25}
