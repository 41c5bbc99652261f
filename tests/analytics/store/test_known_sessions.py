"""Sessions that have a state: one of them must never pass as new, whoever wrote it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from analytics.store.positions import KnownSessions
from analytics.store.store import Store

STAGES = ("intake", "scoring")
Writes = list[tuple[str, list[int]]]


@given(
    st.lists(st.tuples(st.sampled_from(STAGES), st.lists(st.integers(0, 20), max_size=3)), max_size=10),
    st.sets(st.integers(0, 9)),
)
def test_a_session_with_a_state_is_always_known(writes: Writes, reads: set[int]) -> None:
    """Otherwise its next exchange would be taken for its first."""
    with Store(None) as store:
        sessions, expected_sessions = KnownSessions(STAGES), set[str]()
        for index, (stage, numbers) in enumerate(writes):
            keys = [f"c/{number}" for number in numbers]
            with store.transaction() as transaction:
                # A judged stage's position stays where it is while an earlier task is under way.
                transaction.set_states(stage, dict.fromkeys(keys, b""), index // 2)
            expected_sessions.update(keys)
            if index in reads:
                sessions.read(store.cursor())
        sessions.read(store.cursor())
        every = [f"c/{number}" for number in range(21)]
        assert sessions.find_unknown(every) == [key for key in every if key not in expected_sessions]


def test_sessions_are_known_before_their_states_are_written() -> None:
    """States that are only in the write-ahead log count, too."""
    sessions = KnownSessions(STAGES)
    sessions.add(["c/1"])
    assert sessions.find_unknown(["c/1", "c/2"]) == ["c/2"]


def test_writes_of_other_owners_to_a_stage_are_counted() -> None:
    """A cache of states is reloaded exactly if another owner has written to its stages."""
    with Store(None) as store:
        with store.transaction() as transaction:
            transaction.set_states("intake", {"c/1": b""}, 1)
        with store.transaction() as transaction:
            transaction.set_states("diagnosis", {"c/1": b""}, 1)
        assert store.state_changes(STAGES) == 1
        with store.transaction() as transaction:
            transaction.delete_states_of(["c/1"], ["intake", "scoring"])
        assert [store.state_changes(STAGES), store.state_changes(["diagnosis"])] == [3, 1]
        with store.transaction() as transaction:
            transaction.clear_derived([], but="cut")
        assert [store.state_changes(STAGES), store.state_changes(["diagnosis"])] == [4, 2]
