"""The page of an exchange: its texts and findings, verbatim and escaped."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from html import unescape

import pytest
from support.api_server import NOW, Call, Tokens
from support.builders import START, exchange, judgement, score
from support.pages import Elements, cookie, from_page, signed_in
from support.watch_histories import put

from analytics.store.store import Store
from audit.exchanges.prompts import thinking_question, tier2_question
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.records import DimensionScore, Exchange, Judgement, Score
from service.pages.rendering import MAX_SHOWN
from service.setup.access import AccessStore, Holder
from service.text.links import Links
from streams.engine.engine import Engine

LINKS = Links()
JUDGED = {
    "disposition": "scored",
    "tier2_state": "scored",
    "tier2_reason": "always",
    "tier2_score": 0.5,
    "tier2_dimensions": (DimensionScore(dimension="scope_compliance", score=0.5, reasoning="It strays."),),
    "tier3_state": "skipped_gate",
    "tier3_reason": "routine",
    "judge_model": "claude-haiku-4-5",
    "judgement_ids": ("judgement s:1:tier2",),
    "cost_usd": 0.001,
}
HOSTILE = {
    "markup": "<script>alert(1)</script><img src=x onerror=alert(1)></pre></textarea>",
    "an attribute": '" onmouseover="alert(1)" x=\'',
    "SVG": "<svg onload=alert(1)><foreignObject><iframe src=javascript:alert(1)>",
    "a template": "{{ 7 * 7 }} {% include 'sign_in.html' %}",
    "turned text": "invoice\u202efdp.exe\u2066x\u2069",
    "invisible text": "a\u200bb\u00adc\U000e0041\ufeff\x1b[31m",
    "a line without an end": "x" * 19_000,
    "marks on marks": "Z" + "\u0301" * 500,
}


def told(store: Store, *, said: Exchange | None = None, of: Score | None = None, asked: Judgement | None = None) -> str:
    """Store an exchange with its score and judgement, and return the address of its page."""
    said, of = said or exchange("s", 1), of or score("s", 1, **JUDGED)
    put(store, "exchanges", [said])
    put(store, "scores", [of])
    put(store, "judgements", [asked or judgement("s", 1)])
    return LINKS.exchange(of.project, of.score_id)


def shown(call: Call, tokens: Tokens, address: str) -> str:
    """Return the page for an operator with every right."""
    answer = call("GET", address, headers=cookie(signed_in(call, tokens.root)))
    assert answer.status_code == 200, answer.text
    return answer.text


def words(page: str) -> str:
    """Return the visible text of a page."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", page)))


def test_a_page_shows_texts_and_findings(call: Call, tokens: Tokens, store: Store) -> None:
    """The page has the texts, the judge's explanations and the costs."""
    talk = exchange("s", 1, "All is well.", agent_thinking="Let me see.", raw_user_message="[Slack] Is the backup healthy?")
    page_text = words(shown(call, tokens, told(store, said=talk)))
    for fragment in (
        "Is the backup healthy?", "All is well.", "Let me see.", "[Slack] Is the backup healthy?", "It strays.",
        "The first turns of a session are always judged", "Nothing opened the gate", "500 in, 100 out", "$0.0010",
        "claude-haiku-4-5-20251001", "Scored",
    ):  # fmt: skip
        assert fragment in page_text, fragment


@pytest.mark.parametrize(("dropped", "said"), [(1, "1 quote"), (2, "2 quotes")])
def test_omitted_quotes_are_counted(call: Call, tokens: Tokens, store: Store, dropped: int, said: str) -> None:
    """The page counts the omitted quotes and says where to find them."""
    assert said in words(shown(call, tokens, told(store, of=score("s", 1, **JUDGED | {"dropped_quotes": dropped}))))
    assert "in none of the texts" not in words(shown(call, tokens, told(store, of=score("s", 2, **JUDGED))))


def test_tier_1_findings_are_sentences(call: Call, tokens: Tokens, store: Store) -> None:
    """They are listed one after another in plain English."""
    of = score("s", 1, **JUDGED | {"tier1_flags": ("silent_refusal", "constraint_disclosure")})
    page_text = words(shown(call, tokens, told(store, of=of)))
    assert "no response" in page_text
    assert "refused" in page_text


@pytest.mark.parametrize("kind", HOSTILE)
def test_foreign_texts_are_never_markup(call: Call, tokens: Tokens, store: Store, kind: str) -> None:
    """Users, agents and judges write these texts, so they stay text, and hidden characters are shown."""
    text = HOSTILE[kind]
    dimension = DimensionScore(dimension=text[:200], score=0.5, reasoning=text)
    hostile_exchange = exchange(
        "s", 1, text, user_message=text, agent_thinking=text, raw_user_message=text, agent=text, agent_model=text,
        stop_reason=text, tags=(text,),
    )  # fmt: skip
    of = score(
        "s", 1,
        **JUDGED | {
            "agent": text, "tier2_dimensions": (dimension,), "tier2_flagged": True, "tier2_flag_reason": text,
            "tier2_5_state": "scored", "tier2_5_reason": text, "tier2_5_reasoning": text, "tier1_flags": (text,),
            "anomaly": True, "anomaly_reasons": (text,), "tier3_anomaly": True, "tier3_anomaly_reason": text,
        },
    )  # fmt: skip
    hostile_judgement = judgement(
        "s", 1, answer=text, error=text, attempt_errors=(text,), stop_reason=text, answering_model=text
    )
    page = shown(call, tokens, told(store, said=hostile_exchange, of=of, asked=hostile_judgement))
    assert Elements(page).active() == []
    assert not set("\u202e\u2066\u2069\u200b\u00ad\ufeff\x1b\U000e0041") & set(page)
    assert " 49 " not in words(page)


@pytest.mark.parametrize("kind", ["markup", "SVG"])
def test_the_check_detects_markup(kind: str) -> None:
    """The check must be able to detect markup."""
    assert Elements(HOSTILE[kind]).active()
    assert Elements('<a href="javascript:alert(1)">').active()
    assert not Elements('<a href="/projects/ops"><script src="/static/pages.js"></script>').active()


def test_a_long_text_is_truncated_with_a_link_to_the_complete_file(call: Call, tokens: Tokens, store: Store) -> None:
    """Long texts are cut on the page and complete in the file."""
    text = "<b>\u200b</b>" * 60_000
    page = shown(call, tokens, told(store, said=exchange("s", 1, text)))
    assert len(page) < 300_000
    (file_path,) = re.findall(r'href="([^"]+/texts/agent_response[^"]*)"', page)
    file = call("GET", unescape(file_path), headers=cookie(signed_in(call, tokens.root)))
    assert text == file.content.decode()
    assert (
        file.headers["content-type"], file.headers["x-content-type-options"], file.headers["content-disposition"],
    ) == ("text/plain; charset=utf-8", "nosniff", 'attachment; filename="ops-1-agent_response.txt"')  # fmt: skip
    assert "sandbox" in file.headers["content-security-policy"]
    assert f"of {len(text):,} characters".replace(",", " ") in words(page)


def test_a_text_within_the_limit_is_not_truncated(call: Call, tokens: Tokens, store: Store) -> None:
    """A text of exactly the limit is shown in full."""
    assert "Cut after" not in shown(call, tokens, told(store, said=exchange("s", 1, "x" * MAX_SHOWN)))


@pytest.mark.parametrize("name", ["nothing", "answer:nothing", "prompt:nothing", "agent_thinking", "content_digest"])
def test_other_texts_cannot_be_downloaded(call: Call, tokens: Tokens, store: Store, name: str) -> None:
    """Only the texts of this exchange can be downloaded."""
    told(store)
    file_path = LINKS.exchange_text("ops", "score s:1", name)
    assert call("GET", file_path, headers=cookie(signed_in(call, tokens.root))).status_code == 404


def test_a_prompt_is_shown_if_it_equals_the_sent_one(call: Call, tokens: Tokens, store: Store) -> None:
    """The fingerprint proves that the prompt is the same; only the random boundary differs, and the page says so."""
    talk = exchange("s", 1, "Done. </agent_response>", agent_thinking="Hm.")
    policy = Policy.model_validate({}).for_project("ops")
    question = tier2_question(talk, policy)
    address = told(store, said=talk, asked=judgement("s", 1, fingerprint=question.fingerprint))
    page = shown(call, tokens, address)
    assert question.content("BOUNDARY") in unescape(page)
    assert question.instructions in unescape(page)
    assert "BOUNDARY" in page
    (file_path,) = set(re.findall(r'href="([^"]+/texts/prompt[^"]*)"', page))
    file = call("GET", unescape(file_path), headers=cookie(signed_in(call, tokens.root))).text
    assert question.content("BOUNDARY") in file
    put(store, "judgements", [judgement("s", 1, "tier2_5", fingerprint=thinking_question(talk, policy).fingerprint)])
    assert shown(call, tokens, address).count("The prompt, reconstructed") == 2


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"policy_digest": "1" * 16}, "differs from the score's (1111111111111111)"),
        ({"policy_digest": Policy.model_validate({}).for_project("ops").digest}, "different fingerprint"),
    ],
)
def test_a_prompt_that_may_differ_is_not_shown(
    call: Call, tokens: Tokens, store: Store, fields: dict[str, str], why: str
) -> None:
    """A similar prompt would be mistaken for the one that was sent."""
    page_text = words(shown(call, tokens, told(store, of=score("s", 1, **JUDGED | fields))))
    assert why in page_text
    assert "made again from the record" not in page_text


def test_deleted_texts_are_reported(call: Call, tokens: Tokens, store: Store) -> None:
    """Scores may outlive their texts, and the page must still open."""
    put(store, "scores", [score("s", 1, **JUDGED)])
    put(store, "judgements", [judgement("s", 1)])
    page_text = words(shown(call, tokens, LINKS.exchange("ops", "score s:1")))
    assert "The texts were deleted" in page_text
    assert "so the prompt cannot be reconstructed" in page_text


def test_an_empty_answer_is_explained(call: Call, tokens: Tokens, store: Store) -> None:
    """An empty box would be ambiguous."""
    assert "The agent gave no response." in shown(call, tokens, told(store, said=exchange("s", 1, " \n")))


def test_an_unknown_number_is_not_zero(call: Call, tokens: Tokens, store: Store) -> None:
    """Missing scores, token counts and prices must not be shown as zero."""
    timed_out = judgement("s", 1, outcome="timeout", answer=None, cost_usd=None, input_tokens=None, output_tokens=None)
    page = shown(call, tokens, told(store, of=score("s", 1), asked=timed_out))
    page_text = words(page)
    assert "\u2013 in, \u2013 out; cache \u2013 written" in page_text
    assert "No judge is configured." in page_text
    assert "price unknown" in page_text
    assert "There is no answer." in page_text


def test_a_simulated_judge_is_marked(call: Call, tokens: Tokens, store: Store) -> None:
    """Scores of a simulated judge must not pass for real ones."""
    page = shown(call, tokens, told(store, of=score("s", 1, **JUDGED, simulated=True), asked=judgement("s", 1, simulated=True)))
    assert "<strong>simulated judge" in page
    assert "Simulated judge" in page
    assert "simulated judge" not in shown(call, tokens, told(store, of=score("t", 1, **JUDGED)))


def test_turns_link_to_each_other_and_to_the_run(call: Call, tokens: Tokens, store: Store) -> None:
    """A problem often began in the previous turn."""
    scores = [score("s", number, **JUDGED) for number in (1, 2, 3)]
    put(store, "scores", [*scores, score("other", 4)])
    page = shown(call, tokens, LINKS.exchange("ops", "score s:2", scores[1].exchange_at))
    places = re.findall(r'rel="(?:prev|next)" href="([^"]+)"', page)
    assert places == [LINKS.exchange("ops", one.score_id, one.exchange_at) for one in (scores[0], scores[2])]
    assert re.findall(r"Turn [13]\b", words(page))[:2] == ["Turn 1", "Turn 3"]
    ends = shown(call, tokens, LINKS.exchange("ops", "score other:4"))
    assert 'rel="prev"' not in ends


def test_a_wrong_time_in_the_address_is_harmless(call: Call, tokens: Tokens, store: Store) -> None:
    """The time only speeds up the search; a wrong one finds the same exchange."""
    told(store)
    right, wrong = (LINKS.exchange("ops", "score s:1", at) for at in (score("s", 1).exchange_at, START))
    assert words(shown(call, tokens, right)) == words(shown(call, tokens, wrong))


def test_every_revision_is_listed(call: Call, tokens: Tokens, store: Store) -> None:
    """Earlier revisions explain why an older report has other scores."""
    put(store, "scores", [score("s", 1, disposition="sampling_skip", sampling_reason="sampling_skip")])
    page = shown(call, tokens, told(store, of=score("s", 1, **JUDGED, revision=1)))
    rows = re.search(r'id="revisions".*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    assert rows
    assert rows[1].count("<tr>") == 2
    assert "Left out by sampling" in rows[1]


def test_another_project_is_hidden(call: Call, tokens: Tokens, store: Store) -> None:
    """Other projects' exchanges are hidden, even under the name of a visible project."""
    told(store, said=exchange("s", 1, project="web"), of=score("s", 1, project="web", **JUDGED))
    reader = cookie(signed_in(call, tokens.ops_reader))
    assert call("GET", LINKS.exchange("web", "score s:1"), headers=reader).status_code == 403
    assert call("GET", LINKS.exchange("ops", "score s:1"), headers=reader).status_code == 404
    assert call("GET", LINKS.exchange_text("web", "score s:1", "user_message"), headers=reader).status_code == 403
    assert call("GET", LINKS.exchange_text("ops", "score s:1", "user_message"), headers=reader).status_code == 404


def test_a_page_requires_a_sign_in(call: Call, store: Store) -> None:
    """Texts of agents need a sign-in, for the page and for the file."""
    told(store)
    for path in (LINKS.exchange("ops", "score s:1"), LINKS.exchange_text("ops", "score s:1", "user_message")):
        assert call("GET", path).status_code == 303


def test_a_project_without_human_scores_says_so(call: Call, tokens: Tokens, store: Store) -> None:
    """A form must not be offered if it would be refused."""
    page = shown(call, tokens, told(store))
    assert "not accept human scores" in page
    assert LINKS.scoring("ops", "score s:1") not in page


def test_a_token_without_the_right_to_review_gets_no_form(call: Call, access: AccessStore, store: Store) -> None:
    """The page says what is missing."""
    address = told(store)
    token = access.add(Holder("operator", "looker", None, scopes=frozenset({"read"})))
    answer = call("GET", address, headers=cookie(signed_in(call, token)))
    assert "needs a token with the scope review" in answer.text


class TestPeople:
    """A server whose policy accepts human scores."""

    @pytest.fixture
    def engine(self, store: Store, loop: asyncio.Runner) -> Iterator[Engine]:
        """Yield a started engine with this policy."""
        policy = Policy.model_validate({"defaults": {"bidirectionalScoring": True}})
        started = Engine(store, policy, Redactor(policy.redaction), lambda: NOW)
        loop.run(started.start())
        yield started
        loop.run(started.stop())

    def test_what_a_person_says_appears_with_its_history(self, call: Call, tokens: Tokens, store: Store) -> None:
        """The form's fields are what the API takes, and the page shows what came of it."""
        page = shown(call, tokens, told(store))
        form_path = LINKS.scoring("ops", "score s:1")
        assert f'action="{form_path}"' in page
        value = signed_in(call, tokens.root)
        for points, rater in ((2, "ann"), (4, "ann"), (3, "bob")):
            body = {"score": points, "comment": f"<i>{points}</i>", "rater": rater}
            assert call("POST", form_path, json=body, headers=from_page(value)).status_code == 200
        page = shown(call, tokens, LINKS.exchange("ops", "score s:1"))
        assert all(f"&lt;i&gt;{points}&lt;/i&gt;" in page for points in (2, 3, 4))
        assert words(page).count(" of 5 ") == 3
        assert words(page).count("(an earlier view)") == 1


def test_a_repair_of_the_judges_answer_is_named(call: Call, tokens: Tokens, store: Store) -> None:
    """A person who doubts a score must see that the answer was not in the form that was asked for."""
    page = shown(call, tokens, told(store, asked=judgement("s", 1, repairs=("number_as_text", "a later kind"))))
    assert 'title="number_as_text"' in page
    assert "a later kind" in page
