"""The laws that hold once a history is over, whatever happened in it: the tables against what senders were told, and against each other."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from simulation.judge import BilledCall
from simulation.senders import Answers, Key, event_of, exchange_of, stored_keys
from simulation.world import World
from support.invariants import encoded, rows

from analytics.deletion.deleting import schemas_of_sessions
from analytics.identity.duplicate_matching import identity_of
from analytics.store.positions import POSITION
from analytics.store.store import Store
from analytics.store.tables import full_name, quote
from audit.cost import nano_of
from audit.redaction import Redactor
from schemas.codec.single_object import decode
from schemas.records import Judgement, ScoringTask
from schemas.registry import schema_of
from streams.engine.embedded import StageRunner
from streams.judging.judged_stages import STATE, Subject
from streams.stage_batches import RecordBatch, StageBatch, session_key_of
from streams.topology import stage_named

INTAKE, SCORING, DIAGNOSIS = map(stage_named, ("intake", "scoring", "diagnosis"))

DERIVED = ("scores", "diagnoses")
"""What comes of everything in the end."""
RECORDS = (
    "Exchange",
    "AgentEvent",
    "JudgingRequest",
    "SessionClosed",
    "ScoringTask",
    "Score",
    "Reservation",
    "Judgement",
    "Diagnosis",
)
"""What a history has of records."""


def check_tables(
    world: World, store: Store, answers: Answers, bill: Sequence[BilledCall], spent_in_states: Mapping[str, int]
) -> None:
    """Check every law. `spent_in_states` is what the states of sessions say that they have spent, in nano-USD."""
    check_records(world, store, answers)
    check_identities(world, store)
    check_scores(world, store)
    check_order(world, store)
    check_money(world, store, bill, spent_in_states)
    check_calls(world, store)
    check_erased(world, store, answers)
    check_faults_of_ours(world, store)
    check_replay(world, store)


def check_records(world: World, store: Store, answers: Answers) -> None:
    """What was accepted is there, with the content that was accepted; nothing is there that nobody sent."""
    with contextlib.closing(store.cursor()) as cursor:
        stored = stored_keys(cursor)
    contents = _contents(store)
    for key, attempts in answers.attempts.items():
        if key[1] in answers.erasing:
            continue
        accepted = answers.accepted(key)
        if accepted is not None:
            world.require(key in stored, "what was accepted is there", f"{key} is lost")
            world.require(contents[key] == _content(key, accepted), "what was accepted is there", f"{key} has other content")
        elif key in stored:
            sent = {_content(key, attempt.content) for attempt in attempts}
            world.require(contents[key] in sent, "nothing is there that nobody sent", f"{key}: {contents[key]}")
    unknown = stored - answers.attempts.keys()
    world.require(not unknown, "nothing is there that nobody sent", f"{sorted(unknown)}")


def _contents(store: Store) -> dict[Key, str]:
    exchanges = rows(store, "SELECT session_id, exchange_id, content_digest FROM log.exchanges")
    events = rows(store, "SELECT session_id, seq, payload FROM log.agent_events")
    found = {("exchanges", session, int(name.partition(":")[2])): digest for session, name, digest in exchanges}
    return found | {("events", session, seq): payload for session, seq, payload in events}


def _content(key: Key, content: int) -> str:
    kind, session, number = key
    if kind == "exchanges":
        return exchange_of(session, number, content).content_digest
    return event_of(session, number, content).payload


def check_identities(world: World, store: Store) -> None:
    """Nothing is there twice, and no offset was given twice."""
    for schema in map(schema_of, RECORDS):
        stored = rows(store, f"SELECT {', '.join(map(quote, [*POSITION, *identity_of(schema)]))} FROM {full_name(schema)}")
        for keys in ([row[:3] for row in stored], [(row[0], *row[3:]) for row in stored]):
            twice = [key for key, count in Counter(keys).items() if count > 1]
            world.require(not twice, "nothing is there twice", f"{schema.table}: {twice}")


def check_scores(world: World, store: Store) -> None:
    """Each exchange has one score of each revision, without a gap."""
    revisions: dict[str, list[int]] = {name: [] for (name,) in rows(store, "SELECT exchange_id FROM log.exchanges")}
    for name, revision in rows(store, "SELECT exchange_id, revision FROM log.scores ORDER BY revision"):
        revisions.setdefault(name, []).append(revision)
    wrong = {name: found for name, found in revisions.items() if found != list(range(len(found))) or not found}
    world.require(not wrong, "each exchange has one score of each revision", f"{wrong}")


def check_order(world: World, store: Store) -> None:
    """The tasks of a session are scored in their order."""
    tasks = rows(store, "SELECT session_id, exchange_id, revision, _offset FROM log.scoring_tasks")
    offsets = {(name, revision): offset for _, name, revision, offset in tasks}
    scored: dict[str, list[int]] = defaultdict(list)
    for session, name, revision in rows(store, "SELECT session_id, exchange_id, revision FROM log.scores ORDER BY _offset"):
        if (name, revision) in offsets:
            scored[session].append(offsets[name, revision])
    for session, found in scored.items():
        in_order = all(earlier < later for earlier, later in pairwise(found))
        world.require(in_order, "a session's tasks are scored in their order", f"{session}: tasks {found}")


def check_money(world: World, store: Store, bill: Sequence[BilledCall], spent_in_states: Mapping[str, int]) -> None:
    """What judgements cost is in the scores, in the states, under the cap, and no less than the provider's bill."""
    spent: Counter[str] = Counter()
    for session, cost in rows(store, "SELECT session_id, cost_usd FROM log.judgements"):
        spent[session] += nano_of(cost or 0)
    in_scores: Counter[str] = Counter()
    for session, cost in rows(store, "SELECT session_id, cost_usd FROM scores"):
        in_scores[session] += nano_of(cost)
    in_states = Counter(spent_in_states)
    world.require(+spent == +in_scores, "scores carry what judgements cost", f"{spent} {in_scores}")
    world.require(+spent == +in_states, "a session's state has what it has spent", f"{spent} {in_states}")
    cap = world.policy.for_project("ops").cap
    beyond = {session: nano for session, nano in spent.items() if cap is not None and nano > cap}
    world.require(not beyond, "no cap is exceeded", f"{beyond} of {cap}")
    billed: Counter[str] = Counter()
    for call in bill:
        billed[call.session] += call.nano_usd
    there = {session for (session,) in rows(store, "SELECT DISTINCT session_id FROM log.exchanges")}
    unpaid = {session: nano for session, nano in billed.items() if session in there and nano > spent[session]}
    world.require(not unpaid, "every call is accounted for", f"billed {unpaid}, recorded {spent}")


def check_calls(world: World, store: Store) -> None:
    """Each reservation is settled once, and what was answered was not asked again."""
    reserved = Counter(name for (name,) in rows(store, "SELECT reservation_id FROM log.reservations"))
    settled = Counter(name for (name,) in rows(store, "SELECT unnest(reservation_ids) FROM log.judgements"))
    world.require(
        reserved == settled, "judgements settle each reservation once", f"{sorted((settled - reserved) + (reserved - settled))}"
    )
    again = rows(
        store,
        "SELECT any_value(subject_id), any_value(purpose) FROM log.judgements WHERE outcome = 'answered' GROUP BY fingerprint HAVING count(*) > 1",
    )
    world.require(not again, "no answer is paid twice", f"{again}")


def stored_spent(store: Store) -> dict[str, int]:
    """What each session has spent by its state in the tables."""
    states = rows(store, "SELECT key, state FROM log.stage_state WHERE stage = 'scoring'")
    return {key.split("/")[1]: STATE.decode(state).spent for key, state in states}


def check_erased(world: World, store: Store, answers: Answers) -> None:
    """Nothing of an erased session is there."""
    for session in sorted(answers.erased):
        found = {
            schema.table: count
            for schema in schemas_of_sessions()
            if (count := rows(store, f"SELECT count(*) FROM {full_name(schema)} WHERE session_id = '{session}'")[0][0])
        }
        states = rows(store, f"SELECT stage FROM log.stage_state WHERE key = 'local/{session}'")
        world.require(not found and not states, "nothing of an erased session is there", f"{session}: {found} {states}")


def check_faults_of_ours(world: World, store: Store) -> None:
    """Nothing was set aside."""
    letters = rows(store, "SELECT reason, detail FROM log.dead_letters")
    world.require(not letters, "nothing is set aside", f"{letters}")


def check_replay(world: World, store: Store) -> None:
    """Made again from what came from outside, with what the judge said, everything is the same byte for byte."""
    made = {topic: encoded(store, topic) for topic in DERIVED}
    digest = hashlib.sha256(b"".join(message for topic in DERIVED for message in made[topic]))
    world.note(f"the stages made {digest.hexdigest()}")
    for topic, messages in replay(world, store).items():
        differences = [decode(message) for message in sorted(set(made[topic]) ^ set(messages))]
        world.require(made[topic] == messages, "a replay is equal", f"{topic}: {differences}")


def replay(world: World, store: Store) -> dict[str, list[bytes]]:
    """What the stages make of everything at once."""
    judgements: dict[Subject, list[Judgement]] = defaultdict(list)
    for _, _, record in _whole(store, "judgements").records():
        if isinstance(record, Judgement):
            judgements[record.connection, record.subject_id].append(record)
    runs = StageRunner(world.policy, lambda _: judgements, Redactor(world.policy.redaction), world.read_clock)
    decided = runs.run(INTAKE, _whole(store, INTAKE.source), {})
    tasks = [record for _, record in decided.records if isinstance(record, ScoringTask)]
    batch = RecordBatch([(number, session_key_of(task), task) for number, task in enumerate(tasks)])
    outcomes = [decided, runs.run(SCORING, batch, {}), runs.run(DIAGNOSIS, _whole(store, DIAGNOSIS.source), {})]
    return {
        topic: sorted(message for outcome in outcomes for message in outcome.output.messages.get(topic, []))
        for topic in DERIVED
    }


def _whole(store: Store, topic: str) -> StageBatch:
    return StageBatch.of(topic, store.read(topic, 0, store.end_of(topic)))
