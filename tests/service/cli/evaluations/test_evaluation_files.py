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
    """Every file below a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def written(folder: Path, made: Sequence[Made]) -> list[Evaluated]:
    """Evaluations, written into a folder."""
    found = [evaluated(one) for one in made]
    write_files(folder, found)
    return found


def cut_out(document: str) -> list[str]:
    """The texts between fences, as the debug file says that they are to be cut out."""
    texts = []
    while fence := re.search(r"^(`{4,})[a-z]*\n", document, re.MULTILINE):
        text, document = document[fence.end() :].split(f"\n{fence[1]}\n", 1)
        texts.append(text)
    return texts


def test_every_file_is_where_it_is_said_to_be(tmp_path: Path) -> None:
    """One set of files for each model, case and repetition."""
    written(tmp_path, SET)
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


def test_the_prompts_are_the_bytes_that_were_sent(tmp_path: Path) -> None:
    """Whoever audits a verdict has to see what the judge saw, fences in a prompt and a missing line break included."""
    (one,) = written(tmp_path, SET[:1])
    (user,) = tmp_path.rglob("judge_1.prompt.user.json")
    (debug,) = tmp_path.rglob("judge_1.prompt.debug.md")
    assert one.user_prompt.encode() == user.read_bytes()
    assert cut_out(debug.read_bytes().decode()) == [one.system_prompt, one.user_prompt]
    assert "\n```\n" in one.system_prompt
    assert one.system_prompt.endswith("\n")
    assert not one.user_prompt.endswith("\n")


@pytest.mark.parametrize("name", SUMMARIES)
def test_summaries_are_as_they_were_checked_by_eye(name: str, tmp_path: Path) -> None:
    """Any change of what people read shows here."""
    written(tmp_path, [SUMMARIES[name]])
    (path,) = tmp_path.rglob("evaluation_result_summary_1.md")
    assert (GOLDEN / f"summary_{name}.md").read_text("utf-8") == path.read_text("utf-8")


def test_an_answer_that_nobody_was_asked_for_has_no_unknown_cost() -> None:
    """What the cap left no room for has cost nothing, and people look for a bill."""
    row = row_of(evaluated(SET[1]))
    judge = row.result.judge_result
    asked_nobody = judge.iterations[0].model_copy(update={"attempts": 0, "cost_usd": None, "outcome": "cost_cap"})
    changed = judge.model_copy(update={"iterations": (asked_nobody, *judge.iterations[1:])})
    told = summary_markdown(row.model_copy(update={"result": row.result.model_copy(update={"judge_result": changed})}), 1)
    (line,) = [line for line in told.splitlines() if line.startswith("| 1   | cost_cap")]
    assert "| not asked " in line


def test_a_summary_says_which_answers_were_paid_for_by_another_evaluation() -> None:
    """An evaluation that has cost nothing has not been judged by nobody."""
    row = row_of(evaluated(SET[0]))
    first, *others = row.result.judge_result.iterations
    taken = first.model_copy(update={"taken_over_from": "another", "cost_usd": 0.0})
    judge = row.result.judge_result.model_copy(update={"iterations": (taken, *others)})
    told = summary_markdown(row.model_copy(update={"result": row.result.model_copy(update={"judge_result": judge})}), 1)
    words = "Given before, to another evaluation that asked the same, and paid for there: answer 1."
    assert told.count(words) == 1
    assert summary_markdown(row, 1).count("Given before") == 0


def test_the_results_as_json_are_as_they_were_checked_by_eye(tmp_path: Path) -> None:
    """Programs read them by their names, in an order that does not change."""
    written(tmp_path, SET[1:2])
    for name in ("final_result", "judge"):
        (path,) = tmp_path.rglob(f"raw_outputs/{name}_1.json")
        assert (GOLDEN / f"{name}.json").read_text("utf-8") == path.read_text("utf-8")


@pytest.mark.parametrize(
    ("schema", "pattern"), [("evaluation-result", "final_result_*.json"), ("judge-result", "judge_?.json")]
)
def test_results_keep_their_published_schemas(schema: str, pattern: str, tmp_path: Path) -> None:
    """What is written is what the schema promises, scored or failed, hostile or not."""
    written(tmp_path, [*SET, SWAYING])
    validator = jsonschema_rs.validator_for(published_schema(schema))
    found = [*tmp_path.rglob(pattern)]
    assert len(found) == 6
    for path in found:
        validator.validate(json.loads(path.read_bytes()))


def test_nothing_hostile_is_more_than_a_text(tmp_path: Path) -> None:
    """Headings, tables and links of a summary are ours; evidence, models and sessions make none, and no file moves a cursor."""
    written(tmp_path, [SWAYING])
    (path,) = tmp_path.rglob("evaluation_result_summary_1.md")
    rendered = RENDERER.render(path.read_text("utf-8"))
    ours = RENDERER.render((GOLDEN / "summary_scored.md").read_text("utf-8"))
    for tag in ("<h1", "<h2", "<h3", "<tr", "<td", "<table", "<a", "<script", "<img", "<pre", "<hr"):
        assert ours.count(tag) == rendered.count(tag)
    for file in (one for one in tmp_path.rglob("*") if one.is_file()):
        assert not re.findall("[^\\n\\x20-\\x7e\\u00a1-\\u167f\\u2010-\\u2027]", file.read_text("utf-8"))
    assert files(tmp_path) == {name for name in files(tmp_path) if name.startswith("three_times/etc----frac-a+")}


def test_the_same_results_give_the_same_bytes_and_leave_other_files_alone(tmp_path: Path) -> None:
    """A folder of results can be kept in version control, with notes beside them."""
    written(tmp_path, SET)
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    note = tmp_path / "three_times" / CLAUDE / "note.txt"
    note.write_text("mine")
    written(tmp_path, SET)
    assert before | {note.relative_to(tmp_path).as_posix(): b"mine"} == {
        name: (tmp_path / name).read_bytes() for name in files(tmp_path)
    }


def test_runs_that_are_evaluated_one_after_the_other_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """Each command counts its own repetitions from 1; a run keeps the number that it has in the folder."""
    first, second = SET[0], dataclasses.replace(SET[2], repetition=1)
    written(tmp_path, [first])
    written(tmp_path, [second])
    both = files(tmp_path)
    written(tmp_path, [dataclasses.replace(first, repetition=2), second])
    assert both == files(tmp_path)
    sessions = {path.name: json.loads(path.read_bytes())["session_id"] for path in tmp_path.rglob("final_result_*.json")}
    assert sessions == {"final_result_1.json": "s-0001", "final_result_2.json": "s-0003"}


def test_json_for_people_is_the_document(tmp_path: Path) -> None:
    """What is escaped so that nobody's terminal obeys it is still the same text for a program."""
    del tmp_path
    report = report_of([evaluated(SWAYING)])
    text = readable_json(report)
    assert report.model_dump(mode="json") == json.loads(text)
    assert HOSTILE[5] in json.loads(text)["evaluations"][0]["result"]["final_result"]["judge_overall"]["evidence"]
    assert re.sub("[^\\n\\x20-\\x7e]", "", text) == text
