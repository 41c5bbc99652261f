"""The files of an evaluation: where they are, that prompts are what was sent, and what people and programs read in them."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path

import jsonschema_rs
import pytest
from markdown_it import MarkdownIt
from support.evaluation_builders import published_schema
from support.sample_evaluations import CLAUDE, HOSTILE, MINIMAX, REFUND, SET, Made, evaluated

from audit.evaluation.report import Evaluated, report_of, row_of
from service.cli.evaluation_files import readable_json, summary_markdown, write_files

GOLDEN = Path(__file__).parents[3] / "golden" / "evaluation"
SWAYING = Made("../../etc/$\\frac{a}$", REFUND, "s-h|# x", (8.5, 8.0, 9.0), simulated=True, evidence=HOSTILE[:8])
SUMMARIES = {"scored": SET[0], "one_of_three": SET[1], "failed": SET[4], "hostile": SWAYING}
RENDERER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def files(folder: Path) -> set[str]:
    """Return every file below a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def write_evaluations(folder: Path, samples: Sequence[Made]) -> list[Evaluated]:
    """Write evaluations into a folder."""
    evaluations = [evaluated(one) for one in samples]
    write_files(folder, evaluations)
    return evaluations


def cut_out(document: str) -> list[str]:
    """Return the texts between fences, extracted as the debug file describes."""
    texts = []
    while fence := re.search(r"^(`{4,})[a-z]*\n", document, re.MULTILINE):
        text, document = document[fence.end() :].split(f"\n{fence[1]}\n", 1)
        texts.append(text)
    return texts


def test_every_file_has_its_documented_path(tmp_path: Path) -> None:
    """There is one set of files per model, case and repetition."""
    write_evaluations(tmp_path, SET)
    numbers = {f"{MINIMAX.replace('/', '--')}/refund-policy": (1, 2), f"{MINIMAX.replace('/', '--')}/monthly-report": (1,)}
    numbers |= {f"{CLAUDE}/refund-policy": (1,), f"{CLAUDE}/monthly-report": (1,)}
    names = ("evaluation_result_summary_{}.md", "judge_{}.prompt.debug.md")
    raw = ("raw_outputs/judge_{}.json", "raw_outputs/judge_{}.prompt.user.json", "raw_outputs/final_result_{}.json")
    expected = {
        f"three_times/{place}/{name.format(number)}"
        for place, of_place in numbers.items()
        for number in of_place
        for name in (*names, *raw)
    }
    assert files(tmp_path) == expected


def test_prompt_files_have_the_bytes_that_were_sent(tmp_path: Path) -> None:
    """An auditor has to see what the judge saw, including fences and a missing final line break."""
    (evaluation,) = write_evaluations(tmp_path, SET[:1])
    (user,) = tmp_path.rglob("judge_1.prompt.user.json")
    (debug,) = tmp_path.rglob("judge_1.prompt.debug.md")
    assert evaluation.user_prompt.encode() == user.read_bytes()
    assert cut_out(debug.read_bytes().decode()) == [evaluation.system_prompt, evaluation.user_prompt]
    assert "\n```\n" in evaluation.system_prompt
    assert evaluation.system_prompt.endswith("\n")
    assert not evaluation.user_prompt.endswith("\n")


@pytest.mark.parametrize("name", SUMMARIES)
def test_summaries_equal_the_reviewed_files(name: str, tmp_path: Path) -> None:
    """Any change of the text shows up in a diff."""
    write_evaluations(tmp_path, [SUMMARIES[name]])
    (path,) = tmp_path.rglob("evaluation_result_summary_1.md")
    assert (GOLDEN / f"summary_{name}.md").read_text("utf-8") == path.read_text("utf-8")


def test_an_unasked_question_has_no_unknown_cost() -> None:
    """A question that the cap excluded cost nothing, so nobody should look for a bill."""
    row = row_of(evaluated(SET[1]))
    judge = row.result.judge_result
    asked_nobody = judge.iterations[0].model_copy(update={"attempts": 0, "cost_usd": None, "outcome": "cost_cap"})
    changed = judge.model_copy(update={"iterations": (asked_nobody, *judge.iterations[1:])})
    summary = summary_markdown(row.model_copy(update={"result": row.result.model_copy(update={"judge_result": changed})}), 1)
    (line,) = [line for line in summary.splitlines() if line.startswith("| 1   | cost_cap")]
    assert "| not asked " in line


def test_a_summary_names_answers_paid_for_by_another_evaluation() -> None:
    """An evaluation without costs was still judged."""
    row = row_of(evaluated(SET[0]))
    first, *other_answers = row.result.judge_result.iterations
    reused = first.model_copy(update={"taken_over_from": "another", "cost_usd": 0.0})
    judge = row.result.judge_result.model_copy(update={"iterations": (reused, *other_answers)})
    summary = summary_markdown(row.model_copy(update={"result": row.result.model_copy(update={"judge_result": judge})}), 1)
    assert "Reused from another evaluation" in summary
    assert "Reused from another evaluation" not in summary_markdown(row, 1)


def test_the_results_as_json_equal_the_reviewed_file(tmp_path: Path) -> None:
    """Programs read the fields by name, in a fixed order."""
    write_evaluations(tmp_path, SET[1:2])
    for name in ("final_result", "judge"):
        (path,) = tmp_path.rglob(f"raw_outputs/{name}_1.json")
        assert (GOLDEN / f"{name}.json").read_text("utf-8") == path.read_text("utf-8")


@pytest.mark.parametrize(
    ("schema", "pattern"), [("evaluation-result", "final_result_*.json"), ("judge-result", "judge_?.json")]
)
def test_results_match_their_published_schemas(schema: str, pattern: str, tmp_path: Path) -> None:
    """This holds for scored, failed and hostile results."""
    write_evaluations(tmp_path, [*SET, SWAYING])
    validator = jsonschema_rs.validator_for(published_schema(schema))
    paths = [*tmp_path.rglob(pattern)]
    assert len(paths) == 6
    for path in paths:
        validator.validate(json.loads(path.read_bytes()))


def test_hostile_text_stays_text_in_the_files(tmp_path: Path) -> None:
    """Only Driftline writes headings, tables and links; evidence, models and sessions cannot add any, or move a cursor."""
    write_evaluations(tmp_path, [SWAYING])
    (path,) = tmp_path.rglob("evaluation_result_summary_1.md")
    rendered = RENDERER.render(path.read_text("utf-8"))
    ours = RENDERER.render((GOLDEN / "summary_scored.md").read_text("utf-8"))
    for tag in ("<h1", "<h2", "<h3", "<tr", "<td", "<table", "<a", "<script", "<img", "<pre", "<hr"):
        assert ours.count(tag) == rendered.count(tag)
    for file in (one for one in tmp_path.rglob("*") if one.is_file()):
        assert not re.findall("[^\\n\\x20-\\x7e\\u00a1-\\u167f\\u2010-\\u2027]", file.read_text("utf-8"))
    assert files(tmp_path) == {name for name in files(tmp_path) if name.startswith("three_times/etc----frac-a+")}


def test_equal_results_give_equal_bytes_and_leave_other_files_alone(tmp_path: Path) -> None:
    """A folder of results can be kept in version control, together with notes."""
    write_evaluations(tmp_path, SET)
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    note = tmp_path / "three_times" / CLAUDE / "note.txt"
    note.write_text("mine")
    write_evaluations(tmp_path, SET)
    assert before | {note.relative_to(tmp_path).as_posix(): b"mine"} == {
        name: (tmp_path / name).read_bytes() for name in files(tmp_path)
    }


def test_runs_evaluated_one_after_another_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """Each command counts repetitions from 1, but a run keeps its number in the folder."""
    first, second = SET[0], dataclasses.replace(SET[2], repetition=1)
    write_evaluations(tmp_path, [first])
    write_evaluations(tmp_path, [second])
    both = files(tmp_path)
    write_evaluations(tmp_path, [dataclasses.replace(first, repetition=2), second])
    assert both == files(tmp_path)
    sessions = {path.name: json.loads(path.read_bytes())["session_id"] for path in tmp_path.rglob("final_result_*.json")}
    assert sessions == {"final_result_1.json": "s-0001", "final_result_2.json": "s-0003"}


def test_escaped_json_is_the_same_document(tmp_path: Path) -> None:
    """Escaping protects terminals, and programs still read the same text."""
    del tmp_path
    report = report_of([evaluated(SWAYING)])
    text = readable_json(report)
    assert report.model_dump(mode="json") == json.loads(text)
    assert HOSTILE[5] in json.loads(text)["evaluations"][0]["result"]["final_result"]["judge_overall"]["evidence"]
    assert re.sub("[^\\n\\x20-\\x7e]", "", text) == text
