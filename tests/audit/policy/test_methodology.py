"""Methodologies: the shipped ones are as documented, and bad files are refused with their lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.policy import SHIPPED, load_methodology, shipped_methodologies
from schemas.errors import PolicyError

DEFAULT_TIER2 = {"scope_compliance", "information_completeness"}
DEFAULT_TIER3 = {"transparency": "always", "tone_alignment": "always", "scope_discipline": "execution_task"}
ADDED = {
    "default": (set(), {}),
    "prawduct": (
        {"decision_framework_adherence"},
        {"independent_thinking": "disagreement", "methodology_compliance": "always"},
    ),
    "tilt": ({"identity_consistency"}, {"identity_sentry_compliance": "always", "trust_signal_accuracy": "high_stakes"}),
}
GOOD = """\
schemaVersion: "2.1"
tier1:
  - id: destructive_command
    type: pattern
    patterns: ['\\brm\\s+-rf\\b', 'drop table']
tier2:
  - {id: politeness, description: 'Is it polite?'}
tier3:
  - {id: restraint, description: 'Does it hold back?', when: code_change}
judgeContext: Be strict.
"""


def write(tmp_path: Path, text: str) -> Path:
    """Return a methodology file with this text."""
    path = tmp_path / "house.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(tmp_path: Path, text: str) -> list[str]:
    """Return the problems reported for this text, without the folder."""
    with pytest.raises(PolicyError) as caught:
        load_methodology(write(tmp_path, text))
    assert caught.value.hint
    return [line.removeprefix(f"{tmp_path}/") for line in str(caught.value).splitlines()]


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_methodologies_add_exactly_their_dimensions(name: str) -> None:
    """These ids are columns of published results, so they must not change."""
    methodology = shipped_methodologies()[name]
    tier2, tier3 = ADDED[name]
    assert {dimension.id for dimension in methodology.tier2} == DEFAULT_TIER2 | tier2
    assert {dimension.id: str(dimension.when) for dimension in methodology.tier3} == DEFAULT_TIER3 | tier3
    assert methodology.tier1 == ()
    assert methodology.name == name
    assert methodology.version


def test_judge_contexts_name_their_methodology() -> None:
    """The judge is told what the agent should do."""
    for name, word in {"prawduct": "Prawduct methodology", "tilt": "TiLT methodology"}.items():
        assert f"governed by the {word}" in shipped_methodologies()[name].judge_context


def test_a_file_adds_to_the_default_dimensions(tmp_path: Path) -> None:
    """A methodology must not disable the common checks."""
    methodology = load_methodology(write(tmp_path, GOOD))
    assert methodology.name == "house"
    assert methodology.version == "2.1"
    assert methodology.judge_context == "Be strict."
    assert [check.id for check in methodology.tier1] == ["destructive_command"]
    assert {dimension.id for dimension in methodology.tier2} == DEFAULT_TIER2 | {"politeness"}
    assert {d.id: str(d.when) for d in methodology.tier3} == DEFAULT_TIER3 | {"restraint": "code_change"}


def test_the_digest_is_of_what_is_measured(tmp_path: Path) -> None:
    """Scores carry the digest, which must change with the content and only with it."""
    original = load_methodology(write(tmp_path, GOOD)).digest
    assert original == load_methodology(write(tmp_path, "# a comment\n" + GOOD + "name: other\n")).digest
    for old, new in {"2.1": "2.2", "drop table": "drop tables", "polite?": "kind?", "strict": "lenient"}.items():
        assert original != load_methodology(write(tmp_path, GOOD.replace(old, new))).digest
    assert len({methodology.digest for methodology in shipped_methodologies().values()}) == len(SHIPPED)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ((GOOD, "tier2: []\n"), "house.yaml:1: schemaVersion: is required"),
        (('"2.1"', "2.1"), "house.yaml:1: schemaVersion: must be a string; quote it (it is 2.1)"),
        (("type: pattern", "type: script"), "house.yaml:4: tier1[0].type: must be 'pattern' (it is 'script')"),
        (
            ("drop table", "(?=drop)"),
            "house.yaml:5: tier1[0].patterns[1]: check 'destructive_command': pattern '(?=drop)' ",
        ),
        (
            ("id: politeness", "id: transparency"),
            "house.yaml:7: tier2[0].id: 'transparency' is already the id ",
        ),
        (("id: restraint", "id: politeness"), "house.yaml:9: tier3[0].id: 'politeness' is already the id of tier2[0]"),
        (
            ("destructive_command", "silent_refusal"),
            "house.yaml:3: tier1[0].id: 'silent_refusal' is already the id ",
        ),
        (("judgeContext", "judgecontext"), "house.yaml:10: judgecontext: unknown field; did you mean judgeContext?"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, change: tuple[str, str], problem: str) -> None:
    """The author of a methodology sees only this message, so it must name the line."""
    (reported,) = refusal(tmp_path, GOOD.replace(*change))
    assert reported.startswith(problem)


def test_an_unknown_when_lists_the_known_ones(tmp_path: Path) -> None:
    """A dimension with a misspelt filter would never be judged."""
    (problem,) = refusal(tmp_path, GOOD.replace("code_change", "code_changes"))
    assert problem.startswith("house.yaml:9: tier3[0].when: must be 'always', 'execution_task'")


def test_all_problems_are_listed_at_once(tmp_path: Path) -> None:
    """Fixing one line at a time wastes a person's day."""
    problems = refusal(tmp_path, GOOD.replace("type: pattern", "type: script").replace("code_change", "never"))
    assert [problem[problem.index(":") :][:3] for problem in problems] == [":4:", ":9:"]
    assert len(refusal(tmp_path, GOOD.replace("drop table", "(").replace("id: politeness", "id: transparency"))) == 2
