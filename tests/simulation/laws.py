"""The laws that hold after a history: the tables agree with the answers to senders and with each other."""

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
"""The topics with final results."""
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
"""The kinds of records in a history."""


def check_tables(
    world: World, store: Store, answers: Answers, bill: Sequence[BilledCall], spent_in_states: Mapping[str, int]
) -> None:
    """Check every law. `spent_in_states` is the spending in the states of sessions, in nano-USD."""
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
    """Check that accepted records are stored with their content, and that only sent records are stored."""
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
    contents = {("exchanges", session, int(name.partition(":")[2])): digest for session, name, digest in exchanges}
    return contents | {("events", session, seq): payload for session, seq, payload in events}


def _content(key: Key, content: int) -> str:
    kind, session, number = key
    if kind == "exchanges":
        return exchange_of(session, number, content).content_digest
    return event_of(session, number, content).payload


def check_identities(world: World, store: Store) -> None:
    """Check that identities and offsets are unique."""
    for schema in map(schema_of, RECORDS):
        stored = rows(store, f"SELECT {', '.join(map(quote, [*POSITION, *identity_of(schema)]))} FROM {full_name(schema)}")
        for keys in ([row[:3] for row in stored], [(row[0], *row[3:]) for row in stored]):
            duplicates = [key for key, count in Counter(keys).items() if count > 1]
            world.require(not duplicates, "nothing is stored twice", f"{schema.table}: {duplicates}")


def check_scores(world: World, store: Store) -> None:
    """Check that the revisions of each exchange's scores are unique and consecutive."""
    revisions: dict[str, list[int]] = {name: [] for (name,) in rows(store, "SELECT exchange_id FROM log.exchanges")}
    for name, revision in rows(store, "SELECT exchange_id, revision FROM log.scores ORDER BY revision"):
        revisions.setdefault(name, []).append(revision)
    faulty = {name: numbers for name, numbers in revisions.items() if not numbers or numbers != list(range(len(numbers)))}
    world.require(not faulty, "each exchange has one score of each revision", f"{faulty}")


def check_order(world: World, store: Store) -> None:
    """Check that the tasks of each session are scored in order."""
    tasks = rows(store, "SELECT session_id, exchange_id, revision, _offset FROM log.scoring_tasks")
    offsets = {(name, revision): offset for _, name, revision, offset in tasks}
    scored: dict[str, list[int]] = defaultdict(list)
    for session, name, revision in rows(store, "SELECT session_id, exchange_id, revision FROM log.scores ORDER BY _offset"):
        if (name, revision) in offsets:
            scored[session].append(offsets[name, revision])
    for session, task_offsets in scored.items():
        in_order = all(earlier < later for earlier, later in pairwise(task_offsets))
        world.require(in_order, "a session's tasks are scored in their order", f"{session}: tasks {task_offsets}")


def check_money(world: World, store: Store, bill: Sequence[BilledCall], spent_in_states: Mapping[str, int]) -> None:
    """Check that judgements, scores and states agree on costs, within the cap and at least at the provider's bill."""
    spent: Counter[str] = Counter()
    for session, cost in rows(store, "SELECT session_id, cost_usd FROM log.judgements"):
        spent[session] += nano_of(cost or 0)
    cost_of_scores: Counter[str] = Counter()
    for session, cost in rows(store, "SELECT session_id, cost_usd FROM scores"):
        cost_of_scores[session] += nano_of(cost)
    in_states = Counter(spent_in_states)
    world.require(+spent == +cost_of_scores, "scores carry what judgements cost", f"{spent} {cost_of_scores}")
    world.require(+spent == +in_states, "a session's state has what it has spent", f"{spent} {in_states}")
    cap = world.policy.for_project("ops").cap
    beyond = {session: nano for session, nano in spent.items() if cap is not None and nano > cap}
    world.require(not beyond, "no cap is exceeded", f"{beyond} of {cap}")
    billed: Counter[str] = Counter()
    for call in bill:
        billed[call.session] += call.nano_usd
    stored_sessions = {session for (session,) in rows(store, "SELECT DISTINCT session_id FROM log.exchanges")}
    unpaid = {session: nano for session, nano in billed.items() if session in stored_sessions and nano > spent[session]}
    world.require(not unpaid, "every call is accounted for", f"billed {unpaid}, recorded {spent}")


def check_calls(world: World, store: Store) -> None:
    """Check that each reservation is settled once and no answered question is asked again."""
    reserved = Counter(name for (name,) in rows(store, "SELECT reservation_id FROM log.reservations"))
    settled = Counter(name for (name,) in rows(store, "SELECT unnest(reservation_ids) FROM log.judgements"))
    world.require(
        reserved == settled, "judgements settle each reservation once", f"{sorted((settled - reserved) + (reserved - settled))}"
    )
    repeated_answers = rows(
        store,
        "SELECT any_value(subject_id), any_value(purpose) FROM log.judgements WHERE outcome = 'answered' GROUP BY fingerprint HAVING count(*) > 1",
    )
    world.require(not repeated_answers, "no answer is paid twice", f"{repeated_answers}")


def stored_spent(store: Store) -> dict[str, int]:
    """Return the spending of each session by its state in the tables, in nano-USD."""
    states = rows(store, "SELECT key, state FROM log.stage_state WHERE stage = 'scoring'")
    return {key.split("/")[1]: STATE.decode(state).spent for key, state in states}


def check_erased(world: World, store: Store, answers: Answers) -> None:
    """Check that no record of an erased session is stored."""
    for session in sorted(answers.erased):
        row_counts = {}
        for schema in schemas_of_sessions():
            ((count,),) = rows(store, f"SELECT count(*) FROM {full_name(schema)} WHERE session_id = '{session}'")
            if count:
                row_counts[schema.table] = count
        states = rows(store, f"SELECT stage FROM log.stage_state WHERE key = 'local/{session}'")
        world.require(
            not row_counts and not states, "nothing of an erased session is stored", f"{session}: {row_counts} {states}"
        )


def check_faults_of_ours(world: World, store: Store) -> None:
    """Check that there are no dead letters."""
    letters = rows(store, "SELECT reason, detail FROM log.dead_letters")
    world.require(not letters, "there are no dead letters", f"{letters}")


def check_replay(world: World, store: Store) -> None:
    """Check that a replay of the inputs with the recorded judgements gives the same bytes."""
    results = {topic: encoded(store, topic) for topic in DERIVED}
    digest = hashlib.sha256(b"".join(message for topic in DERIVED for message in results[topic]))
    world.note(f"the stages made {digest.hexdigest()}")
    for topic, messages in replay(world, store).items():
        differences = [decode(message) for message in sorted(set(results[topic]) ^ set(messages))]
        world.require(results[topic] == messages, "a replay is equal", f"{topic}: {differences}")


def replay(world: World, store: Store) -> dict[str, list[bytes]]:
    """Return the results of the stages when they process all records at once."""
    judgements: dict[Subject, list[Judgement]] = defaultdict(list)
    for _, _, record in _read_topic(store, "judgements").records():
        if isinstance(record, Judgement):
            judgements[record.connection, record.subject_id].append(record)
    runs = StageRunner(world.policy, lambda _: judgements, Redactor(world.policy.redaction), world.read_clock)
    decided = runs.run(INTAKE, _read_topic(store, INTAKE.source), {})
    tasks = [record for _, record in decided.records if isinstance(record, ScoringTask)]
    batch = RecordBatch([(number, session_key_of(task), task) for number, task in enumerate(tasks)])
    outcomes = [decided, runs.run(SCORING, batch, {}), runs.run(DIAGNOSIS, _read_topic(store, DIAGNOSIS.source), {})]
    return {
        topic: sorted(message for outcome in outcomes for message in outcome.output.messages.get(topic, []))
        for topic in DERIVED
    }


def _read_topic(store: Store, topic: str) -> StageBatch:
    return StageBatch.of(topic, store.read(topic, 0, store.end_of(topic)))
