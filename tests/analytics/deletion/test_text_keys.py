"""Keys of texts: a forgotten leaf can never be derived again, and every other leaf still can, whoever erased it and in any order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.deletion.text_keys import (
    BUCKETS,
    LEAF_BITS,
    SECRET_BYTES,
    KeyTree,
    TextKeys,
    UnknownTreeError,
    UnreadableTextError,
    bucket_of,
    is_bucket,
    is_encrypted,
    parse_secret,
)

SECRET = bytes(range(SECRET_BYTES))
LEAVES = st.integers(0, 2**LEAF_BITS - 1)
NAME, CONTEXT = b"local/s", b"exchanges\0local/s"


def keys_of(*trees: KeyTree) -> TextKeys:
    """Return the keys of trees that were read as a whole."""
    keys = TextKeys(SECRET)
    for tree in trees:
        for number, bucket in tree.buckets.items():
            keys.set_bucket(tree.id, number, bucket)
        keys.use_tree(tree.id)
    return keys


@settings(max_examples=50, deadline=None)
@given(st.lists(LEAVES, min_size=1, max_size=8, unique=True), st.lists(LEAVES, max_size=8))
def test_a_punctured_tree_derives_exactly_the_other_leaves(forgotten: list[int], others: list[int]) -> None:
    """The neighbors of a forgotten leaf differ in a single bit: they keep their values."""
    tree = KeyTree.create()
    neighbors = {leaf ^ 1 << bit for leaf in forgotten for bit in (0, 1, 17, LEAF_BITS - 1)}
    kept = (neighbors | {*others}) - {*forgotten}
    before = {leaf: tree.value(leaf) for leaf in kept}
    assert len({*before.values()}) == len(before)
    for leaf in forgotten:
        assert tree.value(leaf) is not None
        assert tree.puncture(leaf)
        assert not tree.puncture(leaf)
    assert [tree.value(leaf) for leaf in forgotten] == [None] * len(forgotten)
    assert {leaf: tree.value(leaf) for leaf in kept} == before


@settings(max_examples=30, deadline=None)
@given(st.sets(st.integers(0, 2**20), min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_concurrent_erasures_converge(leaves: set[int], chance: random.Random) -> None:
    """Two processes that replace the same bucket without knowing of each other's erasure bring no key back."""
    tree = KeyTree.create()
    processes = [keys_of(tree), keys_of(tree)]
    entries: list[int | bytes] = []
    for leaf in leaves:
        process = chance.choice(processes)
        process.forget([leaf])
        entries += [leaf, process.trees[tree.id].buckets[bucket_of(leaf)]]
    chance.shuffle(entries)
    reader = keys_of(tree)
    for entry in entries:
        if isinstance(entry, int):
            reader.forget([entry])
        else:
            reader.set_bucket(tree.id, 0, entry)
    assert [reader.trees[tree.id].value(leaf) for leaf in leaves] == [None] * len(leaves)
    in_order = keys_of(tree)
    in_order.forget(sorted(leaves))
    assert reader.trees[tree.id].buckets == in_order.trees[tree.id].buckets


@pytest.mark.parametrize("session_id", ["s", None])
def test_an_erasure_reaches_a_session_or_a_whole_connection(session_id: str | None) -> None:
    """What was encrypted before cannot be decrypted, and nothing more is encrypted; other sessions are untouched."""
    keys = keys_of(KeyTree.create())
    names = [b"local/s", b"local/other", b"remote/s"]
    values = {name: keys.encrypt(name, b"a text", CONTEXT) for name in names}
    keys.forget([keys.erased_leaf("local", session_id)])
    erased = names[:1] if session_id else names[:2]
    for name, value in values.items():
        assert value is not None
        assert keys.decrypt(value, CONTEXT, name) == (None if name in erased else b"a text")
        assert (keys.encrypt(name, b"a text", CONTEXT) is None) == (name in erased)
        assert keys.is_erased(name) == (name in erased)


def test_a_value_belongs_to_its_session_its_context_and_its_key() -> None:
    """A value that was moved to another record, or changed in a single bit, is refused."""
    keys = keys_of(KeyTree.create())
    value = keys.encrypt(NAME, b"a text", CONTEXT)
    assert value is not None
    assert is_encrypted(value)
    assert b"a text" not in value
    assert keys.decrypt(value, CONTEXT, NAME) == b"a text"
    refused = [
        (value, b"scores\0local/s", NAME),
        (value, CONTEXT, b"local/t"),
        (value[:20], CONTEXT, NAME),
        (value[:3], CONTEXT, NAME),
    ]
    refused += [(value[:-1] + bytes([value[-1] ^ 1]), CONTEXT, NAME)]
    for changed, context, name in refused:
        with pytest.raises(UnreadableTextError):
            keys.decrypt(changed, context, name)
    with pytest.raises(UnknownTreeError):
        keys_of(KeyTree.create()).decrypt(value, CONTEXT, NAME)


def test_a_value_may_name_its_session() -> None:
    """A dead letter is on a topic by its own id, and encrypted with the key of the session whose record it holds."""
    keys = keys_of(KeyTree.create())
    value = keys.encrypt(NAME, b"a text", CONTEXT, is_named=True)
    assert value is not None
    assert keys.decrypt(value, CONTEXT, b"another name") == b"a text"
    keys.forget([keys.session_leaf(NAME)])
    assert keys.decrypt(value, CONTEXT) is None


def test_trees_of_two_creators_are_both_valid() -> None:
    """Two processes that start at the same time may each create a tree; an erasure reaches both."""
    first, second = KeyTree.create(), KeyTree.create()
    one = keys_of(first)
    both = keys_of(first, second)
    values = [keys.encrypt(NAME, b"a text", CONTEXT) for keys in (one, keys_of(second), both)]
    assert [both.decrypt(value, CONTEXT, NAME) for value in values if value] == [b"a text"] * 3
    both.forget([both.session_leaf(NAME)])
    assert [both.decrypt(value, CONTEXT, NAME) for value in values if value] == [None] * 3


def test_no_erasure_of_a_connection_reaches_what_has_none() -> None:
    """A dead letter whose bytes nobody can read is named by its own id; an erasure from a topic may name any connection."""
    keys = keys_of(KeyTree.create())
    value = keys.encrypt(b"letter", b"a text", CONTEXT)
    assert value is not None
    keys.forget([keys.erased_leaf("", None), keys.erased_leaf("letter", None)])
    assert keys.decrypt(value, CONTEXT, b"letter") == b"a text"
    assert not keys.is_erased(b"letter")


def test_leaves_depend_on_the_secret() -> None:
    """Without it, nobody can look for a session id that shares its leaf with another session."""
    first, second = TextKeys(SECRET), TextKeys(SECRET[::-1])
    assert first.session_leaf(NAME) == TextKeys(SECRET).session_leaf(NAME)
    assert first.session_leaf(NAME) != second.session_leaf(NAME)
    assert first.erased_leaf("local", None) != second.erased_leaf("local", None)


@pytest.mark.parametrize("damaged", [b"", b"seeds", bytes(8) + bytes([LEAF_BITS + 1]) + bytes(16)])
def test_damaged_seeds_are_no_bucket(damaged: bytes) -> None:
    """An empty bucket would make every session look erased that has its leaf there."""
    assert all(map(is_bucket, KeyTree.create().buckets.values()))
    assert not is_bucket(damaged)


def test_an_incomplete_tree_is_not_used() -> None:
    """The process that created it was killed: without all parts, an unknown key would look like an erased one."""
    tree = KeyTree.create()
    del tree.buckets[BUCKETS - 1]
    assert not keys_of(tree).are_usable


@pytest.mark.parametrize("text", ["", "no key", "ab" * 31])
def test_a_text_that_is_no_secret_is_refused(text: str) -> None:
    """A short key would encrypt as well."""
    assert parse_secret("ab" * 32 + "\n") == b"\xab" * 32
    with pytest.raises(ValueError, match=r"hex|holds"):
        parse_secret(text)
