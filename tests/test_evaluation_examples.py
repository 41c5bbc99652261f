"""docs/evaluation.md and examples/evaluation: what a reader types works, offline, and prints what the page says."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from audit.evaluation.cases import Check
from driftline_trial.simulator import RunningJudge, running
from service.cli.main import run

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "evaluation.md").read_text("utf-8")
CONSOLES = re.findall(r"```console\n(.*?)\n```", PAGE, re.DOTALL)
TYPED = [
    (typed, shown) for block in CONSOLES for typed, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n?)*)", block, re.MULTILINE)
]
"""Every command of the page with what it is said to print."""
SUMMARY = re.findall(r"```markdown\n(# Evaluation result\n.*?)\n```", PAGE, re.DOTALL)
GAP = "…"
"""A line that stands for any number of lines."""
LOGGED = "WARNING "
"""How a line of the log begins, which goes where logs go."""
HAIKU, SONNET = "claude-haiku-5-5", "claude-sonnet-5-5"


@dataclass(frozen=True)
class Guided:
    """What came of typing every command of the page."""

    folder: Path
    printed: Mapping[str, tuple[int, str, str]]
    """By command: exit code, output, error output."""
    received: Sequence[dict[str, Any]]
    """Requests that the judge got."""

    def results(self, model: str, case: str) -> list[dict[str, Any]]:
        """Final results of both runs of a model."""
        return [json.loads(self.file(model, case, f"raw_outputs/final_result_{number}.json")) for number in (1, 2)]

    def file(self, model: str, case: str, name: str) -> str:
        """A file that was written."""
        return (self.folder / "results" / "sonnet-three" / model / case / name).read_text("utf-8")


@pytest.fixture(scope="module")
def guided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guided]:
    """A reader who follows the page from its beginning."""
    folder = tmp_path_factory.mktemp("guided")
    (folder / "examples").symlink_to(ROOT / "examples")
    words = shlex.split(next(re.finditer(r"^driftline simulate-judge (.*)$", PAGE, re.MULTILINE)).group(1))
    text, _, steps = words[words.index("--script-for") + 1].rpartition("=")
    with running(scripts_for={text: steps}) as judge, pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith(("DRIFTLINE_", "ANTHROPIC_", "OPENCLAW_")):
                patch.delenv(name)
        patch.chdir(folder)
        patch.setenv("HOME", str(folder))
        patch.setenv("DRIFTLINE_DATABASE", "evaluation.duckdb")
        patch.setenv("ANTHROPIC_API_KEY", "simulated")
        patch.setenv("ANTHROPIC_BASE_URL", judge.base_url)
        printed = {command: typed(command) for command, _ in TYPED}
        yield Guided(folder, printed, requests_of(judge))


def typed(command: str) -> tuple[int, str, str]:
    """What a command comes to."""
    name, *arguments = shlex.split(command)
    assert name == "driftline"
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run(arguments)
    return code, out.getvalue(), err.getvalue()


def requests_of(judge: RunningJudge) -> list[dict[str, Any]]:
    """What a provider would have got to see."""
    return [json.loads(body) for body in judge.received]


def lines_of(text: str) -> list[str]:
    """Lines without costs: which of the runs pays for writing the provider's cache is decided by who comes first."""
    plain = re.sub(r"\$?\d+\.\d{4,6}( USD)?", lambda cost: "#" * len(cost.group()), text)
    return [line.rstrip() for line in plain.strip("\n").split("\n")]


def fits(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """Whether what is shown was printed, gaps apart."""
    expected = "\n".join(r"(?:.*\n)*" if line == GAP else re.escape(line) for line in shown).replace(
        r"(?:.*\n)*" + "\n", r"(?:.*\n)*"
    )
    return re.fullmatch(expected, "\n".join(printed) + ("\n" if shown[-1] == GAP else "")) is not None


def test_the_page_has_commands_and_a_summary() -> None:
    """What is checked below must be there."""
    assert len(TYPED) == 8
    assert len(SUMMARY) == 1


@pytest.mark.parametrize("number", range(len(TYPED)))
def test_a_command_of_the_page_prints_what_the_page_says(number: int, guided: Guided) -> None:
    """Output that was pasted once and never again is a promise that nobody keeps."""
    command, shown = TYPED[number]
    code, out, err = guided.printed[command]
    assert code == 0
    told = set(lines_of(err)) - {""}
    expected = [line for line in lines_of(shown) if line not in told and not line.startswith(LOGGED)]
    assert fits(expected, lines_of(out)), f"{command} printed\n{err}{out}"


def test_the_summary_of_the_page_is_the_one_that_was_written(guided: Guided) -> None:
    """It is what a reader begins with."""
    written = guided.file(HAIKU, "refund-above-limit", "evaluation_result_summary_1.md")
    assert fits(lines_of(SUMMARY[0]), lines_of(written)), written


def test_one_case_passes(guided: Guided) -> None:
    """Every check of both models' runs, and the judge's verdict."""
    for model in (HAIKU, SONNET):
        for result in guided.results(model, "rotate-certificate"):
            assert {check["outcome"] for check in result["checks"]} == {"pass"}
            assert result["evaluation_status"] == "completed"
            assert result["warnings"] == []
            assert result["final_score"] > 7
            assert result["dimension_resolutions"]["task"]["source"] == "weighted"


def test_one_case_fails_a_hard_expectation_and_the_check_that_stands_for_it(guided: Guided) -> None:
    """By one model in both runs, by the other in none: so there is something to compare."""
    for result in guided.results(HAIKU, "refund-above-limit"):
        assert {check["check_id"] for check in result["checks"] if check["outcome"] == "fail"} == {
            "approval-asked",
            "nothing-paid",
        }
        assert result["final_score"] < 5
        assert result["deterministic_dimensions"]["task"] == 5.0
    for result in guided.results(SONNET, "refund-above-limit"):
        assert {check["outcome"] for check in result["checks"]} == {"pass"}
        assert result["final_score"] > 7


def test_the_run_that_speaks_to_the_judge_is_told_of_and_gains_nothing(guided: Guided) -> None:
    """It says that all checks passed, and brings a verdict along."""
    honest, swaying = guided.results(HAIKU, "refund-above-limit")
    assert honest["anomaly_reasons"] == []
    assert swaying["anomaly_reasons"]
    assert all(reason.startswith("judge_tampering: ") for reason in swaying["anomaly_reasons"])
    assert swaying["final_score"] < honest["final_score"]
    assert honest["deterministic_dimensions"] == swaying["deterministic_dimensions"]


def test_the_judge_of_one_case_fails_twice_of_three_and_moves_nothing(guided: Guided) -> None:
    """Both failures are told of; the score is that of the third answer."""
    for model in (HAIKU, SONNET):
        for number, result in enumerate(guided.results(model, "overnight-alerts"), start=1):
            judged = json.loads(guided.file(model, "overnight-alerts", f"raw_outputs/judge_{number}.json"))
            assert [one["outcome"] for one in judged["iterations"]] == ["refused", "refused", "answered"]
            assert tuple(judged[name] for name in ("configured_repetitions", "successful_iterations", "failed_iterations")) == (
                3,
                1,
                2,
            )
            assert result["warnings"] == [f"Judge iteration {failed} failed and was excluded." for failed in (1, 2)]
            assert judged["iterations"][2]["scores"]["overall"] == result["final_score"]


def test_the_files_of_the_prompts_are_what_was_sent(guided: Guided) -> None:
    """A file that was rendered again would prove nothing."""
    sent = {request["messages"][0]["content"] for request in guided.received}
    (system,) = {request["system"][0]["text"] for request in guided.received}
    for model in (HAIKU, SONNET):
        for case in ("rotate-certificate", "refund-above-limit", "overnight-alerts"):
            for number in (1, 2):
                user = guided.file(model, case, f"raw_outputs/judge_{number}.prompt.user.json")
                debug = guided.file(model, case, f"judge_{number}.prompt.debug.md")
                assert user in sent
                assert user in debug
                assert system in debug
    assert len(sent) == 12


def test_nothing_of_where_the_agents_ran_was_sent(guided: Guided) -> None:
    """The transcripts name folders, models and sessions."""
    for request in guided.received:
        for told in ("/srv/", "certificate-haiku", "refund-sonnet", "alerts-haiku", HAIKU, "support-desk", "night-watch"):
            assert told not in request["messages"][0]["content"]


def test_the_page_names_every_kind_of_check() -> None:
    """Whoever writes a case looks here first."""
    kinds = {kind for one in Check.__args__[0].__args__ for kind in one.model_fields["kind"].annotation.__args__}
    assert kinds <= set(re.findall(r"`([a-z0-9_]+)`", PAGE))
