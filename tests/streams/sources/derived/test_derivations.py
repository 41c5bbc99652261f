"""Rules for derived evidence: which outputs count as ignored, which skills as not followed, and what the events never contain."""

from __future__ import annotations

import json
import string
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.sources import derived_evidence
from streams.sources.derived_evidence import (
    MAX_EXCHANGE_CHARACTERS,
    MAX_TEXT_CHARACTERS,
    OUTPUT_USE,
    SKILL_USE,
    ExchangeEvidence,
    SessionFigures,
    find_claimed_figures,
    find_named_skills,
    find_skill_files,
    find_terms,
    is_computed,
    occurs,
    reassures,
    reports_trouble,
)

CONFIG = '{"listen": "0.0.0.0:7443", "workers": 24, "retention_days": 198}'
LOG = "\n".join(
    f"2026-11-1{n % 10}T03:{n:02d}:01Z ingest[77{n}] INFO copied table orders_{n:02d} rows={n * 731}" for n in range(40)
)
SKILLS = frozenset({"proofread", "image-tools"})
TEXTS = st.text(max_size=300)
TIMER_FLOOR_SECONDS = 0.005
"""Shorter measurements are mostly noise."""


class ExchangeBuilder:
    """Builds the evidence of one exchange, call by call."""

    def __init__(
        self,
        question: str = "Which port does it use?",
        *,
        session: SessionFigures | None = None,
        skills: frozenset[str] = SKILLS,
        read_skills: set[str] | None = None,
    ) -> None:
        self.read_skills: set[str] = set() if read_skills is None else read_skills
        self.evidence = ExchangeEvidence(question, session or SessionFigures(), skills=skills, read_skills=self.read_skills)
        self._count = 0

    def call_tool(self, result: str, tool: str = "exec", arguments: Any = None, **output: Any) -> ExchangeBuilder:
        """Add a call and its output."""
        self._count += 1
        call_id = f"call{self._count}"
        self.evidence.add_call({"event": "tool_call", "tool": tool, "tool_call_id": call_id, "arguments": arguments or {}})
        payload = {"event": "tool_output", "tool": tool, "tool_call_id": call_id, "is_error": False, "result": result, **output}
        self.evidence.add_output(payload, f"entry{self._count}.use")
        return self

    def add_text(self, text: str) -> ExchangeBuilder:
        """Add a text of the agent."""
        self.evidence.add_text(text)
        return self

    def events(self) -> list[dict[str, Any]]:
        """Return the derived events."""
        return self.evidence.derive_events()

    def reasons(self) -> list[str]:
        """Return why outputs count as unused."""
        return [event["reason"] for event in self.events() if event["event"] == "output_use"]

    def skills(self) -> list[tuple[str, str, str]]:
        """Return the reported skill events."""
        return [
            (event["skill"], event["status"], event["action"]) for event in self.events() if event["event"] == "skill_event"
        ]


def test_an_invented_figure_shows_that_the_output_was_ignored() -> None:
    """The file says 7443, the answer 8080: the event names output, rule and reason."""
    event = ExchangeBuilder().call_tool(CONFIG, "read", {"path": "config.json"}).add_text("It uses port 8080.").events()[0]

    assert event["event"] == "output_use"
    assert event["used"] is False
    assert event["derived_by"] == OUTPUT_USE
    assert event["event_id"] == "entry1.use"
    assert event["tool_call_id"] == "call1"
    assert event["tool"] == "read"
    assert event["reason"] == "unsupported_figure"
    assert event["terms"] >= 3


def test_evidence_contains_no_text_of_the_output() -> None:
    """Outputs may hold secrets, so only their number of terms is reported."""
    events = ExchangeBuilder().call_tool(CONFIG + ' "api_key": "sk-very-secret-0001"').add_text("It uses port 8080.").events()

    assert events
    assert "secret" not in json.dumps(events)


@pytest.mark.parametrize(
    ("output", "answer"),
    [
        pytest.param(CONFIG, "It listens on 7443.", id="a figure"),
        pytest.param(CONFIG, "There are 24 of them, of at most 64.", id="one figure of two"),
        pytest.param("rows=68701 bytes=412334", "About 69k rows.", id="a rounded figure"),
        pytest.param("took 1234 ms, 55 calls", "It took 1.2 s.", id="another unit"),
        pytest.param("amounts\n1200\n3400\n5600\n", "10,200 in all.", id="a sum"),
        pytest.param("id,amount\n1,1200\n2,3400\n3,5600\n", "3400 on average.", id="a mean of a column"),
        pytest.param("used 40 of 160 slots", "That is 25 % of them.", id="a share"),
        pytest.param("started 2026-11-01 03:00 size=4455, 3321 files", "It is 22 days old.", id="a span of time"),
        pytest.param(CONFIG, "Set `--workers 64` if you like.", id="code"),
        pytest.param(LOG, "Everything is fine.", id="a quiet log"),
        pytest.param(LOG, "No errors, no warnings, nothing to do for you. The service is healthy.", id="a long all-clear"),
        pytest.param(LOG, "Tudo certo, a rotina terminou sem problemas.", id="another language"),
        pytest.param(LOG + "\nsummary: 0 errors, failed=0", "All good.", id="no errors"),
        pytest.param(LOG + "\nERROR disk full on /backup3", "The backup failed: the disk is full.", id="trouble that is named"),
        pytest.param(CONFIG, "Done.", id="one word"),
        pytest.param(CONFIG, "NO_REPLY", id="silence"),
    ],
)
def test_an_answer_that_uses_the_output_needs_no_figure_of_it(output: str, answer: str) -> None:
    """Using, computing, summarising and approving an output all show that it was read."""
    assert ExchangeBuilder("Please have a look.").call_tool(output).add_text(answer).reasons() == []


def test_calling_a_log_full_of_errors_healthy_ignores_it() -> None:
    """The contradiction is evidence even without a figure."""
    log = LOG + "\n2026-11-21T03:40:00Z ingest[7] ERROR disk full on /backup3"

    assert ExchangeBuilder("Is it healthy?").call_tool(log).add_text("Yes, the backup is healthy.").reasons() == [
        "contradicted_alarm"
    ]


def test_an_answer_about_something_else_ignores_a_prose_output() -> None:
    """Output and answer are English prose without a common word."""
    notes = "Marta reported that the migration of the billing service slipped because the vendor delivered the adapters late."
    answer = (
        "Typically such gatherings settle budgets, hiring plans and quarterly objectives. I would recommend naming owners "
        "and scheduling a check within the month to keep everybody aligned."
    )

    assert ExchangeBuilder("What did they agree on?").call_tool(notes, "read").add_text(answer).reasons() == [
        "unrelated_answer"
    ]
    assert (
        ExchangeBuilder("What did they agree on?")
        .call_tool(notes, "read")
        .add_text(f"{answer} The vendor was late with adapters.")
        .reasons()
        == []
    )


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"is_error": True}, id="an error"),
        pytest.param({"exit_code": 2}, id="a failed command"),
        pytest.param({"tool_status": "running"}, id="still running"),
        pytest.param({"tool": "write"}, id="a confirmation of a write"),
        pytest.param({"tool": "message"}, id="a delivery"),
        pytest.param({"tool": "process", "arguments": {"action": "poll", "sessionId": "a"}}, id="polling"),
        pytest.param({"tool": "read", "arguments": {"path": "skills/x/SKILL.md"}}, id="a skill's instructions"),
        pytest.param({"result": "ok 17"}, id="a confirmation of two terms"),
        pytest.param({"result": ""}, id="nothing"),
        pytest.param({"result": f"{CONFIG} [truncated 400 lines]"}, id="cut by the tool"),
        pytest.param({"result": CONFIG + "x7 " * MAX_TEXT_CHARACTERS}, id="too long to be read whole"),
    ],
)
def test_outputs_that_need_no_use_are_not_judged(change: dict[str, Any]) -> None:
    """Each of these would be reported if it were an ordinary output."""
    ordinary: dict[str, Any] = {"result": CONFIG, "tool": "read", "arguments": {"path": "config.json"}}

    assert ExchangeBuilder().call_tool(**ordinary).add_text("It uses port 8080.").reasons()
    assert ExchangeBuilder().call_tool(**(ordinary | change)).add_text("It uses port 8080.").reasons() == []


def test_outputs_before_the_last_used_one_are_no_failure() -> None:
    """Only outputs after the last used one are judged."""
    builder = (
        ExchangeBuilder("Which port?")
        .call_tool("alpha-77 beta-88 gamma-99 12345", "ls")
        .call_tool(CONFIG, "read", {"path": "config.json"})
    )

    assert builder.add_text("Port 7443, with 4096 connections.").reasons() == []


def test_every_output_after_the_last_used_one_is_reported() -> None:
    """Two unused sources are two failures, in order."""
    events = (
        ExchangeBuilder()
        .call_tool(CONFIG, "read")
        .call_tool("load 93.5 71.2 66.1 on host cygnus-7", "exec")
        .add_text("It uses port 8080.")
        .events()
    )

    assert [event["tool"] for event in events] == ["read", "exec"]


@pytest.mark.parametrize("where", ["question", "argument", "earlier text", "earlier exchange"])
def test_a_figure_known_from_an_earlier_text_is_not_invented(where: str) -> None:
    """The figure comes from an earlier text."""
    session = SessionFigures()
    if where == "earlier exchange":
        ExchangeBuilder("The port is 8080.", session=session).add_text("Noted.").evidence.add_to_session()
    builder = ExchangeBuilder("Is it 8080?" if where == "question" else "Which port?", session=session)
    if where == "earlier text":
        builder.add_text("I think it is 8080.")
    builder.call_tool(CONFIG, "read", {"path": "c.json", "expect": "8080"} if where == "argument" else {"path": "c.json"})

    assert builder.add_text("Port 8080.").reasons() == []


def test_a_term_known_from_an_earlier_text_does_not_show_use() -> None:
    """The user named the file and the host, so repeating them does not show that the output was read."""
    builder = (
        ExchangeBuilder("Which port does cygnus-7 use?")
        .call_tool("host cygnus-7: 7443 open, 24 workers, 198 days")
        .add_text("cygnus-7 uses 8080.")
    )

    assert builder.reasons() == ["unsupported_figure"]


def test_a_session_too_long_to_remember_has_no_invented_figure() -> None:
    """The figure may be in a part that is no longer in memory."""
    session = SessionFigures()
    for _ in range(9):
        session.add(["x" * 1024 * 1024])

    assert ExchangeBuilder(session=session).call_tool(CONFIG).add_text("It uses port 8080.").reasons() == []


def test_an_exchange_that_is_too_long_is_not_judged() -> None:
    """Memory is bounded, and nothing uncertain is reported."""
    builder = ExchangeBuilder().add_text("y" * (MAX_EXCHANGE_CHARACTERS + 1)).call_tool(CONFIG)

    assert builder.add_text("It uses port 8080.").reasons() == []


@pytest.mark.parametrize(
    "question",
    [
        "/proofread my draft",
        "/skill proofread my draft",
        "Use the proofread skill.",
        "please use the `proofread` skill",
        "$proofread this",
    ],
)
def test_a_requested_skill_that_was_not_read_is_ignored(question: str) -> None:
    """OpenClaw's agents must read SKILL.md before they act."""
    assert ExchangeBuilder(question).add_text("It reads well.").skills() == [("proofread", "ignored", "not_read")]


@pytest.mark.parametrize(
    "question", ["/status", "/imagine", "Which skills do you have?", "Use the best skill you have.", "$HOME is what?"]
)
def test_a_command_that_is_not_a_skill_requests_none(question: str) -> None:
    """A gateway command or a figure of speech is not a skill."""
    assert ExchangeBuilder(question).add_text("Hm.").skills() == []


def test_without_a_list_of_skills_none_counts_as_ignored() -> None:
    """Without the list, a skill cannot be distinguished from a command."""
    assert ExchangeBuilder("/proofread my draft", skills=frozenset()).add_text("It reads well.").skills() == []


def test_an_available_skill_that_is_not_used_is_no_failure() -> None:
    """It is merely available."""
    assert ExchangeBuilder("How are you?").add_text("Fine, thanks.").skills() == []


def test_a_skill_is_read_once_per_session() -> None:
    """Its instructions stay in the conversation."""
    first = ExchangeBuilder("/proofread a").call_tool("# Proofread", "read", {"path": "skills/proofread/SKILL.md"})
    assert first.add_text("Done.").skills() == []

    assert ExchangeBuilder("/proofread b", read_skills=first.read_skills).add_text("Done.").skills() == []


@pytest.mark.parametrize("after", [[], [0], [1, 0], [1, 2, 0]])
def test_a_skill_whose_last_command_succeeds_has_not_failed(after: list[int]) -> None:
    """An intermediate failure that was corrected does not count."""
    builder = ExchangeBuilder("Check it.").call_tool("# Proofread", "read", {"path": "/srv/skills/proofread/SKILL.md"})
    for code in after:
        builder.call_tool(f"code {code}", "exec", {"command": "sh count.sh"}, exit_code=code)

    assert builder.add_text("Done.").skills() == []


def test_a_skill_whose_last_command_fails_has_failed() -> None:
    """The exit code tells, not isError, which OpenClaw 2026.9 leaves false."""
    builder = ExchangeBuilder("Check it.").call_tool("# Proofread", "read", {"path": "/srv/skills/proofread/SKILL.md"})
    builder.call_tool("unknown option", "exec", {"command": "sh count.sh --lang fr"}, exit_code=2)

    assert builder.add_text("I could not.").skills() == [("proofread", "failed", "commands_failed")]


def test_a_search_without_matches_is_no_failed_command() -> None:
    """Grep exits with 1 if it finds nothing."""
    builder = ExchangeBuilder("Check it.").call_tool("# Proofread", "read", {"path": "skills/proofread/SKILL.md"})
    builder.call_tool("", "exec", {"command": "grep -n DRAFT draft.md"}, exit_code=1)

    assert builder.add_text("No DRAFT is left.").skills() == []


def test_a_failed_command_without_a_skill_fails_no_skill() -> None:
    """Only commands after a SKILL.md count."""
    assert (
        ExchangeBuilder("Run it.").call_tool("boom", "exec", {"command": "false"}, exit_code=1).add_text("It failed.").skills()
        == []
    )


def test_an_unreadable_skill_file_has_failed_unless_it_is_read_later() -> None:
    """A second attempt in another folder corrects it."""
    missing = ExchangeBuilder("Bills, please.").call_tool(
        "not found", "read", {"path": "skills/invoicing/SKILL.md"}, is_error=True
    )
    assert missing.add_text("Sorry.").skills() == [("invoicing", "failed", "read_failed")]

    builder = ExchangeBuilder("Bills, please.").call_tool(
        "not found", "read", {"path": "skills/invoicing/SKILL.md"}, is_error=True
    )
    builder.call_tool("# Invoicing", "read", {"path": "~/.openclaw/skills/invoicing/SKILL.md"})
    assert builder.add_text("Done.").skills() == []


def test_skill_events_name_the_rule_that_derived_them() -> None:
    """Derived events must not be mistaken for the agent's own."""
    assert [event["derived_by"] for event in ExchangeBuilder("/proofread x").add_text("No.").events()] == [SKILL_USE]


def test_skill_names_are_compared_as_commands() -> None:
    """OpenClaw turns `image-tools` into `image_tools`."""
    assert find_named_skills("/image_tools resize", SKILLS) == ["image-tools"]
    assert find_named_skills("Use the image-tools skill and the proofread skill", SKILLS) == ["image-tools"]
    assert find_named_skills("Use the image-tools skill. Then use the proofread skill", SKILLS) == ["image-tools", "proofread"]


def test_writing_a_skill_does_not_read_it() -> None:
    """An agent that creates a skill does not follow it."""
    assert find_skill_files("write", {"path": "skills/new/SKILL.md"}) == []
    assert find_skill_files("exec", {"command": "cat skills/new/SKILL.md"}) == ["new"]


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("0.0.0.0:7443", {"7443"}),
        ("rows=68701", {"68701"}),
        ("h00012/report.md", {"h00012/report.md", "h00012"}),
        ("camelCase snake_case", {"camelcase", "snake_case"}),
        ("18,231 files", {"18231"}),
        ("about 69k, or 1.2 s", {"~69", "~12"}),
    ],
)
def test_figures_and_identifiers_are_marks(text: str, marks: set[str]) -> None:
    """Each part of a joined token may be a mark as well."""
    assert marks <= find_terms(text).marks


def test_words_are_compared_by_their_stems() -> None:
    """`adapters` matches `adapter`; function words match nothing."""
    assert find_terms("The adapters were late").stems == find_terms("adapter lately").stems
    assert not find_terms("there were those which would have been").stems


def test_claims_are_figures_from_ten_that_are_not_times_years_or_code() -> None:
    """Only the remaining figures are statements of the answer."""
    answer = "In 2026, at 14:30, 3 of `head -n 20` took 45 minutes; 1,250 rows on port 8080, 12.5 % of v2.3.1."

    assert find_claimed_figures(answer) == ["1250", "8080", "12.5"]


def test_problem_words_count_only_in_log_lines() -> None:
    """Words of trouble in prose do not count."""
    assert reports_trouble("ok\n2026 ERROR disk full")
    assert not reports_trouble("An error budget is what it is. Terror. 0 errors\nfailed: 0")
    assert reassures("All good, no errors.")
    assert not reassures("It is fine, but one table failed.")


@given(st.lists(st.integers(10, 9000), min_size=2, max_size=16))
def test_sums_means_and_differences_are_computed(figures: list[int]) -> None:
    """This holds for any figures."""
    values = [float(value) for value in figures]

    assert is_computed(sum(values), values)
    assert is_computed(round(sum(values) / len(values), 1), values)
    assert is_computed(abs(values[0] - values[1]), values)


@given(TEXTS, TEXTS, TEXTS)
def test_repeating_a_figure_of_an_output_uses_it(question: str, output: str, answer: str) -> None:
    """This holds whatever the other texts are."""
    builder = (
        ExchangeBuilder(question, skills=frozenset())
        .call_tool(f"{output} 918273645 {output}")
        .add_text(f"{answer} 918273645 {answer}")
    )

    assert builder.reasons() == []


@given(st.lists(st.tuples(st.sampled_from(["said", "tool", "broken"]), TEXTS), max_size=12), TEXTS)
def test_judging_is_deterministic_and_reports_each_output_at_most_once(parts: list[tuple[str, str]], question: str) -> None:
    """No text may break the rules, and no event id may repeat."""

    def derive() -> list[dict[str, Any]]:
        builder = ExchangeBuilder(question)
        for kind, text in parts:
            if kind == "said":
                builder.add_text(text)
            elif kind == "tool":
                builder.call_tool(text, "exec", {"command": text})
            else:
                builder.evidence.add_call({"event": "tool_call", "arguments": [text, None, {"x": [text]}], "tool": None})
                builder.evidence.add_output(
                    {"event": "tool_output", "tool": 7, "result": None, "tool_call_id": [text]}, "broken.use"
                )
        return builder.events()

    first = derive()

    assert derive() == first
    ids = [event["event_id"] for event in first if event["event"] == "output_use"]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        ".",
        "-",
        "_",
        "/",
        "`",
        "```",
        "no ",
        "1.",
        "1,",
        "12:",
        "2026-",
        "/SKILL.md",
        "$a",
        "use the ",
        "\\n",
        "é",
        "ERROR:",
        "\n",
        " ",
    ],
)
def test_hostile_texts_take_linear_time(unit: str) -> None:
    """A pattern that backtracks takes quadratic time on repetitive text: 64 times as long for 8 times the text."""
    short_seconds = _measure_derivation(unit * (MAX_TEXT_CHARACTERS // 2 // len(unit)))
    long_seconds = _measure_derivation(unit * (MAX_TEXT_CHARACTERS * 4 // len(unit)))

    assert long_seconds < 24 * max(short_seconds, TIMER_FLOOR_SECONDS)


def _measure_derivation(text: str) -> float:
    """Return the shortest CPU time of three derivations from this text, in seconds."""
    durations = []
    for _ in range(3):
        begun = time.process_time()
        ExchangeBuilder(text).call_tool(text[:MAX_TEXT_CHARACTERS], "exec", {"command": text}).add_text(text).events()
        durations.append(time.process_time() - begun)
    return min(durations)


@given(st.text(alphabet=string.printable, max_size=200))
def test_terms_are_folded_and_never_empty(text: str) -> None:
    """Otherwise they could not be compared."""
    terms = find_terms(text)

    assert all(term and term == term.casefold() for term in terms.marks | terms.stems)


FIGURES = st.text(st.sampled_from("0123456789.,ab _-"), max_size=24)


@given(FIGURES, st.from_regex(r"[1-9][0-9]{0,5}(\.[0-9]{1,2})?", fullmatch=True))
def test_the_index_of_figures_agrees_with_a_full_search(text: str, figure: str) -> None:
    """The index must give the same answer as a search of every text."""
    texts = SessionFigures()
    texts.add([text])
    assert occurs(figure, text) != texts.lacks(figure)


def test_a_session_with_too_many_figures_remembers_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """An incomplete memory could make any figure look unsupported."""
    monkeypatch.setattr(derived_evidence, "MAX_SESSION_FIGURES", 100)
    texts = SessionFigures()
    texts.add([" ".join(map(str, range(1000, 1200)))])
    assert not texts.lacks("77")
    texts.add(["12"])
    assert not texts.lacks("77")
