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
    """An exchange with its score and what the judge was asked; the address of its page."""
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


def test_a_page_tells_what_was_said_and_found(call: Call, tokens: Tokens, store: Store) -> None:
    """From the texts to the judge's words and the money: the whole story on one page."""
    said = exchange("s", 1, "All is well.", agent_thinking="Let me see.", raw_user_message="[Slack] Is the backup healthy?")
    read = words(shown(call, tokens, told(store, said=said)))
    for one in (
        "Is the backup healthy?", "All is well.", "Let me see.", "[Slack] Is the backup healthy?", "It strays.",
        "The first turns of a session are always judged", "Nothing opened the gate", "500 in, 100 out", "$0.0010",
        "claude-haiku-4-5-20251001", "Scored",
    ):  # fmt: skip
        assert one in read, one


@pytest.mark.parametrize(("dropped", "said"), [(1, "1 quote"), (2, "2 quotes")])
def test_quotes_that_were_left_out_are_counted(call: Call, tokens: Tokens, store: Store, dropped: int, said: str) -> None:
    """The page counts the omitted quotes and says where to find them."""
    assert said in words(shown(call, tokens, told(store, of=score("s", 1, **JUDGED | {"dropped_quotes": dropped}))))
    assert "in none of the texts" not in words(shown(call, tokens, told(store, of=score("s", 2, **JUDGED))))


def test_what_tier_1_found_is_told_in_sentences(call: Call, tokens: Tokens, store: Store) -> None:
    """One after the other, as people write them."""
    of = score("s", 1, **JUDGED | {"tier1_flags": ("silent_refusal", "constraint_disclosure")})
    read = words(shown(call, tokens, told(store, of=of)))
    assert "no response" in read
    assert "refused" in read


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_text_of_anybody_is_markup(call: Call, tokens: Tokens, store: Store, kind: str) -> None:
    """Users, agents and judges write what is shown here: it stays text, and what it hides is shown."""
    text = HOSTILE[kind]
    dimension = DimensionScore(dimension=text[:200], score=0.5, reasoning=text)
    said = exchange(
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
    asked = judgement("s", 1, answer=text, error=text, attempt_errors=(text,), stop_reason=text, answering_model=text)
    page = shown(call, tokens, told(store, said=said, of=of, asked=asked))
    assert Elements(page).active() == []
    assert not set("\u202e\u2066\u2069\u200b\u00ad\ufeff\x1b\U000e0041") & set(page)
    assert " 49 " not in words(page)


@pytest.mark.parametrize("kind", ["markup", "SVG"])
def test_what_runs_would_be_found(kind: str) -> None:
    """The check must be able to detect markup."""
    assert Elements(HOSTILE[kind]).active()
    assert Elements('<a href="javascript:alert(1)">').active()
    assert not Elements('<a href="/projects/ops"><script src="/static/pages.js"></script>').active()


def test_a_text_that_is_too_long_is_cut_and_whole_in_a_file(call: Call, tokens: Tokens, store: Store) -> None:
    """Long texts are cut on the page and complete in the file."""
    text = "<b>\u200b</b>" * 60_000
    page = shown(call, tokens, told(store, said=exchange("s", 1, text)))
    assert len(page) < 300_000
    (place,) = re.findall(r'href="([^"]+/texts/agent_response[^"]*)"', page)
    file = call("GET", unescape(place), headers=cookie(signed_in(call, tokens.root)))
    assert text == file.content.decode()
    assert (
        file.headers["content-type"], file.headers["x-content-type-options"], file.headers["content-disposition"],
    ) == ("text/plain; charset=utf-8", "nosniff", 'attachment; filename="ops-1-agent_response.txt"')  # fmt: skip
    assert "sandbox" in file.headers["content-security-policy"]
    assert f"of {len(text):,} characters".replace(",", " ") in words(page)


def test_a_text_that_fits_is_not_cut(call: Call, tokens: Tokens, store: Store) -> None:
    """A text of exactly the limit is shown in full."""
    assert "Cut after" not in shown(call, tokens, told(store, said=exchange("s", 1, "x" * MAX_SHOWN)))


@pytest.mark.parametrize("name", ["nothing", "answer:nothing", "prompt:nothing", "agent_thinking", "content_digest"])
def test_there_is_no_file_of_what_is_not_there(call: Call, tokens: Tokens, store: Store, name: str) -> None:
    """Only the texts of this exchange can be downloaded."""
    told(store)
    place = LINKS.exchange_text("ops", "score s:1", name)
    assert call("GET", place, headers=cookie(signed_in(call, tokens.root))).status_code == 404


def test_a_prompt_is_shown_where_it_is_the_one_that_was_sent(call: Call, tokens: Tokens, store: Store) -> None:
    """The fingerprint proves that the prompt is the same; only the random boundary differs, and the page says so."""
    said = exchange("s", 1, "Done. </agent_response>", agent_thinking="Hm.")
    policy = Policy.model_validate({}).for_project("ops")
    asked = tier2_question(said, policy)
    address = told(store, said=said, asked=judgement("s", 1, fingerprint=asked.fingerprint))
    page = shown(call, tokens, address)
    assert asked.content("BOUNDARY") in unescape(page)
    assert asked.instructions in unescape(page)
    assert "BOUNDARY" in page
    (place,) = set(re.findall(r'href="([^"]+/texts/prompt[^"]*)"', page))
    file = call("GET", unescape(place), headers=cookie(signed_in(call, tokens.root))).text
    assert asked.content("BOUNDARY") in file
    put(store, "judgements", [judgement("s", 1, "tier2_5", fingerprint=thinking_question(said, policy).fingerprint)])
    assert shown(call, tokens, address).count("The prompt, reconstructed") == 2


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"policy_digest": "1" * 16}, "differs from the score's (1111111111111111)"),
        ({"policy_digest": Policy.model_validate({}).for_project("ops").digest}, "different fingerprint"),
    ],
)
def test_a_prompt_that_may_be_another_is_not_shown(
    call: Call, tokens: Tokens, store: Store, fields: dict[str, str], why: str
) -> None:
    """A similar prompt would be mistaken for the one that was sent."""
    read = words(shown(call, tokens, told(store, of=score("s", 1, **JUDGED | fields))))
    assert why in read
    assert "made again from the record" not in read


def test_what_has_been_deleted_is_said_to_be(call: Call, tokens: Tokens, store: Store) -> None:
    """Scores may outlive their texts, and the page must still open."""
    put(store, "scores", [score("s", 1, **JUDGED)])
    put(store, "judgements", [judgement("s", 1)])
    read = words(shown(call, tokens, LINKS.exchange("ops", "score s:1")))
    assert "The texts were deleted" in read
    assert "so the prompt cannot be reconstructed" in read


def test_an_empty_answer_is_told_in_words(call: Call, tokens: Tokens, store: Store) -> None:
    """An empty box would be ambiguous."""
    assert "The agent gave no response." in shown(call, tokens, told(store, said=exchange("s", 1, " \n")))


def test_what_is_not_known_is_no_zero(call: Call, tokens: Tokens, store: Store) -> None:
    """Missing scores, token counts and prices must not be shown as zero."""
    asked = judgement("s", 1, outcome="timeout", answer=None, cost_usd=None, input_tokens=None, output_tokens=None)
    page = shown(call, tokens, told(store, of=score("s", 1), asked=asked))
    read = words(page)
    assert "\u2013 in, \u2013 out; cache \u2013 written" in read
    assert "No judge is configured." in read
    assert "price unknown" in read
    assert "There is no answer." in read


def test_a_simulated_judge_is_told_of(call: Call, tokens: Tokens, store: Store) -> None:
    """Scores of a simulated judge must not pass for real ones."""
    page = shown(call, tokens, told(store, of=score("s", 1, **JUDGED, simulated=True), asked=judgement("s", 1, simulated=True)))
    assert "<strong>simulated judge" in page
    assert "Simulated judge" in page
    assert "simulated judge" not in shown(call, tokens, told(store, of=score("t", 1, **JUDGED)))


def test_turns_of_a_session_lead_to_each_other_and_to_the_run(call: Call, tokens: Tokens, store: Store) -> None:
    """A problem often began in the previous turn."""
    scores = [score("s", number, **JUDGED) for number in (1, 2, 3)]
    put(store, "scores", [*scores, score("other", 4)])
    page = shown(call, tokens, LINKS.exchange("ops", "score s:2", scores[1].exchange_at))
    places = re.findall(r'rel="(?:prev|next)" href="([^"]+)"', page)
    assert places == [LINKS.exchange("ops", one.score_id, one.exchange_at) for one in (scores[0], scores[2])]
    assert re.findall(r"Turn [13]\b", words(page))[:2] == ["Turn 1", "Turn 3"]
    ends = shown(call, tokens, LINKS.exchange("ops", "score other:4"))
    assert 'rel="prev"' not in ends


def test_a_wrong_time_in_the_address_does_no_harm(call: Call, tokens: Tokens, store: Store) -> None:
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


def test_another_project_is_not_shown(call: Call, tokens: Tokens, store: Store) -> None:
    """Other projects' exchanges are hidden, even under the name of a visible project."""
    told(store, said=exchange("s", 1, project="web"), of=score("s", 1, project="web", **JUDGED))
    reader = cookie(signed_in(call, tokens.ops_reader))
    assert call("GET", LINKS.exchange("web", "score s:1"), headers=reader).status_code == 403
    assert call("GET", LINKS.exchange("ops", "score s:1"), headers=reader).status_code == 404
    assert call("GET", LINKS.exchange_text("web", "score s:1", "user_message"), headers=reader).status_code == 403
    assert call("GET", LINKS.exchange_text("ops", "score s:1", "user_message"), headers=reader).status_code == 404


def test_nobody_sees_it_without_a_sign_in(call: Call, store: Store) -> None:
    """Texts of agents need a sign-in, for the page and for the file."""
    told(store)
    for place in (LINKS.exchange("ops", "score s:1"), LINKS.exchange_text("ops", "score s:1", "user_message")):
        assert call("GET", place).status_code == 303


def test_a_project_that_takes_no_scores_of_people_says_so(call: Call, tokens: Tokens, store: Store) -> None:
    """A form must not be offered if it would be refused."""
    page = shown(call, tokens, told(store))
    assert "not accept human scores" in page
    assert LINKS.scoring("ops", "score s:1") not in page


def test_a_token_that_may_not_review_gets_no_form(call: Call, access: AccessStore, store: Store) -> None:
    """The page says what is missing."""
    address = told(store)
    token = access.add(Holder("operator", "looker", None, scopes=frozenset({"read"})))
    answer = call("GET", address, headers=cookie(signed_in(call, token)))
    assert "needs a token with the scope review" in answer.text


class TestPeople:
    """A server whose policy accepts human scores."""

    @pytest.fixture
    def engine(self, store: Store, loop: asyncio.Runner) -> Iterator[Engine]:
        """A started engine with such a policy."""
        policy = Policy.model_validate({"defaults": {"bidirectionalScoring": True}})
        started = Engine(store, policy, Redactor(policy.redaction), lambda: NOW)
        loop.run(started.start())
        yield started
        loop.run(started.stop())

    def test_what_a_person_says_appears_with_its_history(self, call: Call, tokens: Tokens, store: Store) -> None:
        """The form's fields are what the API takes, and the page shows what came of it."""
        page = shown(call, tokens, told(store))
        place = LINKS.scoring("ops", "score s:1")
        assert f'action="{place}"' in page
        value = signed_in(call, tokens.root)
        for points, rater in ((2, "ann"), (4, "ann"), (3, "bob")):
            body = {"score": points, "comment": f"<i>{points}</i>", "rater": rater}
            assert call("POST", place, json=body, headers=from_page(value)).status_code == 200
        page = shown(call, tokens, LINKS.exchange("ops", "score s:1"))
        assert all(f"&lt;i&gt;{points}&lt;/i&gt;" in page for points in (2, 3, 4))
        assert words(page).count(" of 5 ") == 3
        assert words(page).count("(an earlier view)") == 1
