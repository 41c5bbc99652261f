"""`driftline evaluate`: what it costs before it asks, who is asked, what is written and printed, and the exit codes of a gate."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema_rs
import pytest
from support.builders import closing, exchange
from support.evaluation_builders import published_schema
from support.sample_evaluations import PROFILE, REFUND, REPORT

from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from driftline_trial.simulator import RunningJudge, running
from schemas.codec.single_object import encode
from service.cli.evaluation_tables import SIMULATED_NOTE
from service.setup.workspace import utc_now
from streams.engine.embedded import EmbeddedRunner
from streams.log.admission import EncodedRecords
from streams.log.log import SINK

Command = Callable[..., tuple[int, str, str]]
MODELS = {"s1": "vendor/model-1", "s2": "claude-haiku-4-5"}
BASE = ("evaluate", "--case", "cases", "--profile", "profile.yaml")


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> Path:
    """A database with two finished sessions, a folder of two cases and a profile, in the folder that commands run in."""
    with Store(tmp_path / "driftline.duckdb") as store:
        runner = EmbeddedRunner(store, Policy(), Redactor(Policy().redaction), utc_now)
        accepted = EncodedRecords()
        for name, model in MODELS.items():
            refund = exchange(name, 1, "I refunded 12.50 EUR.", agent_model=model, input_tokens=900, output_tokens=80)
            accepted.add("exchanges", encode(refund))
            accepted.add("exchanges", encode(closing(name, 2)))
        runner.publish(accepted)
        runner.run()
    (tmp_path / "cases").mkdir()
    # JSON is YAML.
    (tmp_path / "cases" / "b.yaml").write_text(json.dumps(REFUND))
    (tmp_path / "cases" / "a.yml").write_text(json.dumps(REPORT))
    (tmp_path / "cases" / "notes.txt").write_text("no case")
    (tmp_path / "profile.yaml").write_text(json.dumps(PROFILE))
    return tmp_path


@pytest.fixture
def simulator(driftline: Command, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningJudge]:
    """A simulated judge, named in the environment."""
    del driftline  # which clears the environment
    with running() as judge:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", judge.base_url)
        yield judge


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    """Have a person at a terminal answer."""
    stdin = io.StringIO(typed)
    monkeypatch.setattr(stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", stdin)


def test_a_dry_run_estimates_the_cost_without_a_call(driftline: Command, simulator: RunningJudge) -> None:
    """Users who pay want to know in advance."""
    code, out, err = driftline(*BASE, "--dry-run", "-o", "results")
    assert code == 0
    assert out == ""
    assert "4 evaluations to make, 0 reused" in err
    assert "about 12 calls" in err
    assert "USD at most" in err
    document = json.loads(driftline(*BASE, "--dry-run", "--output", "json")[1])
    assert document["sessions"] == 2
    assert document["evaluations"] == 4
    assert document["calls"] == 12
    assert document["reused"] == 0
    assert 0 < document["expectedUsd"] < document["atMostUsd"]
    assert simulator.requests == 0
    assert not Path("results").exists()


def test_evaluations_are_made_written_and_reused(driftline: Command, simulator: RunningJudge) -> None:
    """A repetition costs nothing and gives the same output and files."""
    code, out, err = driftline(*BASE, "--yes", "-o", "results")
    assert code == 0
    assert out.splitlines()[0] == SIMULATED_NOTE
    assert out.count(" exec ") == 4
    assert "4 evaluations made for 0." in out
    assert "4 results written to results" in err
    assert simulator.requests == 12
    contents = {path: path.read_bytes() for path in Path("results").rglob("*") if path.is_file()}
    assert len(contents) == 20
    assert Path("results/three_times/vendor--model-1/refund-policy/evaluation_result_summary_1.md") in contents

    code, out, err = driftline(*BASE, "--yes", "-o", "results")
    assert code == 0
    assert out.count(" exec ") == 0
    assert out.count(" reuse ") == 4
    assert "0 evaluations made; 4 reused" in out
    assert "4 reused; no judge is called" in err
    assert simulator.requests == 12
    assert contents == {path: path.read_bytes() for path in Path("results").rglob("*") if path.is_file()}


@pytest.mark.usefixtures("simulator")
@pytest.mark.parametrize(("cap", "said"), [(1.0, "the cap of each evaluation applies"), (None, "so the cost has no limit")])
def test_an_estimate_mentions_a_cap_only_if_there_is_one(driftline: Command, cap: float | None, said: str) -> None:
    """Users rely on a cap and leave the command alone."""
    Path("profile.yaml").write_text(json.dumps(PROFILE | {"cost_cap_usd": cap}))
    _, _, err = driftline(*BASE, "--dry-run")
    assert said in err
    assert sum(words in err for words in ("the cap of each evaluation applies", "so the cost has no limit")) == 1


def test_the_json_is_one_document_that_matches_its_schema(driftline: Command, simulator: RunningJudge) -> None:
    """Scripts read nothing else."""
    del simulator
    _, out, err = driftline(*BASE, "--session", "s1", "--connection", "local", "--yes", "--output", "json")
    document = json.loads(out)
    schema = published_schema("evaluation-report")
    jsonschema_rs.validator_for(schema).validate(document)
    assert [(one["run"], one["case_id"]) for one in document["evaluations"]] == [
        ("s1", "monthly-report"),
        ("s1", "refund-policy"),
    ]
    assert "written" not in err


@pytest.mark.usefixtures("simulator")
def test_a_judge_of_another_provider_is_refused_before_anything_is_written(driftline: Command) -> None:
    """The message says what to configure, and the database has no failed evaluations."""
    profile = PROFILE | {"judges": [{"judge_id": one["judge_id"], "model": "gpt-4o"} for one in PROFILE["judges"]]}
    Path("profile.yaml").write_text(json.dumps(profile))
    for dry in ((), ("--dry-run",)):
        code, out, err = driftline(*BASE, "--yes", *dry)
        assert code == 2
        assert out == ""
        assert "gpt-4o" in err
        assert "in the policy" in err
    Path("profile.yaml").write_text(json.dumps(PROFILE))
    assert "4 evaluations to make, 0 reused" in driftline(*BASE, "--dry-run")[2]


def test_the_profile_of_another_maker_runs_unchanged(driftline: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source's own profile names its judge `openai/gpt-5.4-mini`; the maker's variables are all it needs."""
    judges = [{"judge_id": "my_judge", "type": "llm_probe", "model": "openai/gpt-5.4-mini"}]
    runs = [{"judge_run_id": "three_times", "judge_id": "my_judge", "repetitions": 3}]
    Path("profile.yaml").write_text(json.dumps(PROFILE | {"judges": judges, "judge_runs": runs}))
    with running() as judge:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-proj-any")
        monkeypatch.setenv("OPENAI_BASE_URL", f"{judge.base_url}/v1")
        code, out, err = driftline(*BASE, "--yes", "--output", "json")
        assert code == 0, err
        assert judge.requests == 12
        assert {json.loads(body)["model"] for body in judge.received} == {"gpt-5.4-mini"}
    document = json.loads(out)
    assert {one["result"]["judge_result"]["judge_model"] for one in document["evaluations"]} == {"openai/gpt-5.4-mini"}


def test_nobody_pays_without_consent(driftline: Command, simulator: RunningJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal, a build has to pass --yes."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    code, _, err = driftline(*BASE)
    assert code == 2
    assert "there is no terminal" in err
    assert "--yes" in err
    at_a_terminal(monkeypatch, "n\n")
    assert driftline(*BASE)[0] == 1
    assert simulator.requests == 0
    at_a_terminal(monkeypatch, "y\n")
    assert driftline(*BASE, "--session", "s1")[0] == 0
    assert simulator.requests == 6


def test_a_score_below_the_gate_fails_a_build(driftline: Command, simulator: RunningJudge) -> None:
    """The gate applies to each evaluation, because a good one would raise a mean."""
    del simulator
    arguments = (*BASE, "--session", "s1", "--yes", "--output", "json")
    scores = sorted(one["score"] for one in json.loads(driftline(*arguments)[1])["evaluations"])
    assert scores[0] < scores[1]
    codes = {low: driftline(*arguments, "--fail-under", str(low))[0] for low in (scores[0], sum(scores) / 2, 10.0)}
    assert list(codes.values()) == [0, 1, 1]


def test_an_evaluation_without_a_score_fails_a_build_and_is_requested_again(
    driftline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed evaluation is not reused; one with a missing answer is requested again only on demand."""
    with running("refusal*3,refusal,answer*5") as judge:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", judge.base_url)
        arguments = ("evaluate", "--case", "cases/b.yaml", "--profile", "profile.yaml", "--session", "s1", "--yes")
        code, out, _ = driftline(*arguments, "-o", "results")
        assert code == 1
        assert " failed " in out
        assert "1 failed: the judge gave no valid answer" in out
        (summary,) = Path("results").rglob("evaluation_result_summary_1.md")
        assert "none: the evaluation failed" in summary.read_text("utf-8")
        assert driftline(*arguments)[0] == 0
        assert judge.requests == 6
        assert driftline(*arguments)[0] == 0
        assert judge.requests == 6
        code, out, _ = driftline(*arguments, "--retry-failed", "--output", "json")
        (evaluation,) = json.loads(out)["evaluations"]
        assert code == 0
        assert judge.requests == 7
        assert evaluation["evaluation"] == "exec"
        assert evaluation["revision"] == 2
        assert evaluation["result"]["judge_result"]["failed_iterations"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--judge-run", "four_times"), "--judge-run four_times: profile.yaml does not define this judge run"),
        (("--connection", "north"), "--connection needs --session"),
        (("-o", "profile.yaml"), "profile.yaml: File exists"),
        (("--since", "yesterday"), "--since: "),
        (("--session", "s9"), "there is no session 's9'"),
        (("--project", "none"), "--project: there is no project 'none'"),
        (("--case", "results.yaml"), "results.yaml: does not exist"),
        (("--case", "copy.yaml"), "copy.yaml: case_id: refund-policy is also the id of cases/b.yaml"),
        (("--case", "empty"), "empty: contains no *.yaml or *.yml"),
        (("--fail-under", "11"), "--fail-under"),
        (("--output", "xml"), "--output"),
    ],
)
def test_a_usage_error_is_reported_before_a_call(
    driftline: Command, simulator: RunningJudge, arguments: tuple[str, ...], said: str
) -> None:
    """An unusable result must not be paid for, and exit code 2 differs from the 1 of a gate."""
    Path("empty").mkdir()
    Path("copy.yaml").write_text(json.dumps(REFUND))
    code, out, err = driftline(*BASE, "--yes", *arguments)
    assert code == 2
    assert out == ""
    assert simulator.requests == 0
    assert said in " ".join(err.split())


def test_without_a_judge_the_command_says_so(driftline: Command) -> None:
    """A missing key must not be recorded as a failure."""
    code, _, err = driftline(*BASE, "--yes")
    assert code == 2
    assert "there is no judge" in err
    assert driftline(*BASE, "--dry-run")[0] == 0
    with Store(Path("driftline.duckdb")) as store:
        assert store.cursor().execute("SELECT count(*) FROM evaluation_requests").fetchone() == (0,)


def test_a_recorded_judge_makes_no_call(driftline: Command) -> None:
    """It needs no key; a question without a recorded answer stays unscored, which fails a build."""
    judge = {"judge_id": "haiku", "type": "recorded", "model": "claude-haiku-4-5"}
    Path("profile.yaml").write_text(json.dumps(PROFILE | {"judges": [judge]}))
    code, out, err = driftline(*BASE, "--session", "s1")
    assert code == 1
    assert out.count(" failed ") == 2
    assert "no judge is called" in err
    assert "6 questions will not be asked" in err


def test_recorded_answers_can_be_aggregated_differently_without_a_judge(driftline: Command, simulator: RunningJudge) -> None:
    """Choosing median or mean must not cost anything."""
    assert driftline(*BASE, "--session", "s1", "--yes")[0] == 0
    before = simulator.requests
    judge = {"judge_id": "haiku", "type": "recorded", "model": "claude-haiku-4-5"}
    Path("profile.yaml").write_text(json.dumps(PROFILE | {"judges": [judge], "aggregation": {"method": "mean"}}))

    code, out, err = driftline(*BASE, "--session", "s1", "-o", "results", "--output", "json")
    assert code == 0
    assert simulator.requests == before
    assert "2 evaluations to make, 0 reused" in err
    assert "6 questions already answered" in err
    report = json.loads(out)
    assert [one["evaluation_cost_usd"] for one in report["evaluations"]] == [0.0, 0.0]
    (_, summary) = sorted(Path("results").rglob("evaluation_result_summary_1.md"))
    assert "which paid for them: 1, 2, 3." in summary.read_text("utf-8")


def test_beside_kafka_the_command_names_the_server_option(driftline: Command) -> None:
    """No worker would see a request that is on no topic."""
    with Store(Path("driftline.duckdb")) as store, store.transaction() as transaction:
        transaction.set_watermark(SINK, "exchanges", 2)
    code, _, err = driftline(*BASE, "--yes")
    assert code == 2
    assert "is filled from Kafka" in err
    assert "`driftline evaluate --server`" in " ".join(err.split())
