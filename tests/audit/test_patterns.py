"""Patterns: refused with a reason, linear on hostile text, and able to search any str."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.patterns import MAX_MATCH, WINDOW, compile_pattern, decode, encode, straighten
from schemas.errors import PolicyError


@pytest.mark.parametrize("text", [r"(?=a)b", r"(?<!a)b", r"(a)\1", "(", "a{5000}", "[z-a]"])
def test_a_pattern_re2_cannot_run_is_refused_with_place_and_reason(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A pattern that silently never matches would disable its check; RE2's own log would not name the location."""
    with pytest.raises(PolicyError) as caught:
        compile_pattern(text, where="m.yaml:7: tier1[0].patterns[0]")
    assert str(caught.value).startswith("m.yaml:7: tier1[0].patterns[0]: ")
    assert "RE2" in caught.value.hint
    assert capfd.readouterr() == ("", "")


def test_case_is_ignored_unless_asked_for() -> None:
    """Checks run on lower-case text, so a pattern in capitals must still match."""
    assert compile_pattern("DELETE", where="t").matches("please delete it")
    assert not compile_pattern("DELETE", where="t", ignore_case=False).matches("please delete it")


@settings(deadline=None)
@given(st.text(st.characters(), max_size=50))
def test_any_text_survives_the_bytes(text: str) -> None:
    """JSON may contain lone surrogates, which a check must neither fail on nor change."""
    assert decode(encode(text)) == text
    compile_pattern("a|\\w+", where="t").matches(text)


def test_lone_surrogates_do_not_hide_what_follows() -> None:
    """Otherwise one unusual character at the front would disable every check."""
    assert compile_pattern(r"\bsecret\b", where="t").matches("\ud800 secret \udfff")


@settings(deadline=None)
@given(st.lists(st.sampled_from(["ab", "b", "aab", " ", "é", "\ud800"]), max_size=60))
def test_spans_are_what_the_pattern_matches_from_left_to_right(parts: list[str]) -> None:
    """Redaction replaces these spans: too many lose text, too few leave secrets."""
    data = encode("".join(parts))
    spans = list(compile_pattern("a+b", where="t").spans(data))
    assert data.count(b"ab") == len(spans)
    assert all(data[start:end].strip(b"a") == b"b" for start, end in spans)
    assert spans == sorted(spans)


@pytest.mark.parametrize("offset", [0, 1, MAX_MATCH - 1, MAX_MATCH, WINDOW - 3, WINDOW - 1, WINDOW, 3 * WINDOW + 5])
def test_a_match_across_windows_is_found_whole(offset: int) -> None:
    """A secret that crosses the edge of a window must be found like any other."""
    data = b"." * offset + b"x" * 1000 + b"." * WINDOW
    assert list(compile_pattern("x+", where="t").spans(data)) == [(offset, offset + 1000)]


def test_many_matches_behind_a_failing_start_stay_linear() -> None:
    """`a[^b]*b|c` on acacac… would scan to the end for every c: 250 000 times per megabyte."""
    data = b"ac" * 100_000
    assert sum(1 for _ in compile_pattern("a[^b]*b|c", where="t").spans(data)) == 100_000


def test_empty_matches_are_no_places() -> None:
    """A pattern such as `x*` matches the empty string everywhere, which is not a span."""
    assert list(compile_pattern("x*", where="t").spans(b"axb")) == [(1, 2)]


def test_every_apostrophe_becomes_a_straight_one() -> None:
    """Phones and word processors write i can't with a typographic apostrophe."""
    assert straighten("i can\u2019t i can\u02bct") == "i can't i can't"
