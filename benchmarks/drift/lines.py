"""Changes of mixes, batches, sessions and judges: what the watch says of each, through the whole watch over a store, day by day.

Each line draws histories of which it is known what happened in them, lets each day's records come in, and checks at the end of each day,
as the watch does every hour. A title counts as soon as an incident with it is confirmed, and also where a later revision has another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec
import numpy as np

from analytics.store.store import Store
from analytics.sums.daily import refresh_daily
from audit.anchors import ANCHORS, anchor_project
from audit.drift.incident_evidence import evidence_of
from audit.drift.watched_series import DOWN, VERBS
from audit.policy import Policy
from schemas.codec.single_object import encode
from schemas.records import CostAnalysis, Diagnosis, DimensionScores, Exchange, Incident, Label, Record, Score
from service.read.project import read_projects
from streams.log.sink import StorePublisher
from streams.watch.watching import Watch

START = datetime(2026, 1, 5, tzinfo=UTC)
"""A Monday."""
CHANGE = 42
"""The day of a change: six weeks of reference, and a Monday."""
REPETITIONS = 10
LEVEL, SIGMA = 0.7, 0.1
"""Mean and standard deviation of a score before the change."""
SHARED = 0.5
"""The part of a score's variance that the scores of its session share."""
ANCHORS_OF_PROJECT = 20
ANCHOR_NOISE, ANCHOR_MOOD = 0.3, 0.2
"""Standard deviations of a verdict on an anchor and of a judge's day, in sigma."""
FELL, ROSE, HISTORY = "Answer quality fell", "Answer quality rose", "History was added"
VERSION = "Answer quality with version 7, beside other versions fell"
MIX, NEW_AGENT = "mix_changed", "new_agent"
NEW_JUDGE, OTHER_JUDGES, FEW_DAYS, UNSCORED = "new_judge", "other_judges", "few_days", "unscored"
AGENT_STOPPED = "agent_stopped"
Profile = Callable[[int], float]
"""A number for each day."""


def always(value: float) -> Profile:
    """Return the same for each day."""
    return lambda _: value


def step(before: float, after: float, day: int = CHANGE) -> Profile:
    """Return one number before a day and another one from it on."""
    return lambda at: before if at < day else after


def ramp(before: float, after: float, days: int) -> Profile:
    """Return a number that takes so many days, from the change on, to become another one."""
    return lambda at: before + (after - before) * min(1.0, max(0.0, (at - CHANGE) / days))


def every(days: int, value: float) -> Profile:
    """Return a number for one day of so many, and 0 for the others."""
    return lambda at: 0.0 if at % days else value


def weekdays(value: float) -> Profile:
    """Return a number for the days from Monday to Friday, and 0 for the others."""
    return lambda at: 0.0 if at % 7 >= 5 else value


class Traffic(NamedTuple):
    """A part of a project's traffic."""

    a_day: Profile = always(50)
    """Scores a day, or runs, as a mean."""
    level: Profile = always(0)
    """The mean, in sigma from the usual one."""
    agent: str | None = None
    judge: str = "judge"
    length: Profile = always(1)
    """Scores of a session."""
    wander: float = 0.0
    """The standard deviation by which days differ anyway, in sigma."""
    unscored: Profile = always(0)
    """The share of the exchanges that get no score."""
    imported: int | None = None
    """The day on which all of it is imported; None: it comes when it happens."""
    unsafe: Profile | None = None
    """The share of runs that are unsafe; None: it is of scores."""
    is_of_all_tiers: bool = False
    version: str | None = None
    """The value of the label agent_version."""
    wandering_share: float = 0.0
    """The standard deviation by which the logarithm of the traffic differs from day to day."""


class AnchorJudge(NamedTuple):
    """The judge of a round of anchors."""

    name: str
    kindness: float
    """How much higher its scores are, in sigma."""


def new_judge(kindness: float, day: int = CHANGE) -> Callable[[int], AnchorJudge]:
    """Return the judges of anchors that another judge takes over on a day."""
    return lambda at: AnchorJudge("first", 0) if at < day else AnchorJudge("second", kindness)


class Line(NamedTuple):
    """Projects to simulate, and what is to be said of them."""

    name: str
    traffic: tuple[Traffic, ...]
    titles: tuple[str, ...] = ()
    """How the titles of the confirmed incidents begin, and of no others."""
    notice: str | None = None
    """The reason of a blind spot, or against a project's health, that is told."""
    also: tuple[str, ...] = ()
    """How titles begin that are true as well, and may be confirmed before the others or not at all."""
    phrase: str = ""
    """Words that the evidence has, too."""
    change: int = CHANGE
    first_day: int | None = None
    """The first day of the last of the titles; None: it is not asked."""
    days: int = CHANGE + 14
    checked_from: int = CHANGE - 4
    projects: int = REPETITIONS
    anchors: Callable[[int], AnchorJudge] | None = None
    """Who judges the project's anchors on a day; None: it has no anchors."""


def _mixed(share: Profile, better: float = 0.0) -> tuple[Traffic, ...]:
    """Return two agents, of which the one that is two sigma weaker has a share of the traffic; both improve by so much with the change."""
    return (
        Traffic(lambda day: 50 * (1 - share(day)), step(1, 1 + better), "strong"),
        Traffic(lambda day: 50 * share(day), step(-1, -1 + better), "weak"),
    )


def _runs(agents: int) -> tuple[Traffic, ...]:
    """So many agents with runs, of which the last one gets unsafe."""
    steady = [Traffic(always(3), agent=f"agent{number:02}", unsafe=always(0.02)) for number in range(agents - 1)]
    return (*steady, Traffic(always(2), agent=f"agent{agents - 1:02}", unsafe=step(0.02, 0.9)))


def _fell(*agents: str) -> tuple[str, ...]:
    return tuple(f"Answer quality ({agent}) fell" for agent in agents)


def _rose(*agents: str) -> tuple[str, ...]:
    return tuple(f"Answer quality ({agent}) rose" for agent in agents)


LINES = (
    Line("one sigma, from a Monday on, no traffic at weekends", (Traffic(weekdays(50), step(0, -1)),), (FELL,), first_day=CHANGE),
    Line("one sigma, from one weekly batch of 300 on", (Traffic(every(7, 300), step(0, -1, 70)),), (FELL,), change=70, first_day=70, days=99, checked_from=63),
    Line("a weekly batch of 300 that varies by half a sigma", (Traffic(every(7, 300), wander=0.5),), days=120, checked_from=14),
    Line("a monthly batch of 200 that varies by half a sigma", (Traffic(every(30, 200), wander=0.5),), notice=FEW_DAYS, change=0, days=300, checked_from=14),
    Line("sessions get longer, one score to five", (Traffic(length=step(1, 5)),)),
    Line("sessions get shorter, five scores to one", (Traffic(length=step(5, 1)),)),
    Line("share of a weaker agent goes from 20 to 70 %", _mixed(step(0.2, 0.7)), notice=MIX),
    Line("the same over 30 days", _mixed(ramp(0.2, 0.7, 30)), notice=MIX, days=CHANGE + 42),
    Line("both agents improve by half a sigma, the weaker one's share grows", _mixed(step(0.2, 0.7), 0.5), _rose("strong", "weak"), notice=MIX, also=(ROSE,)),
    Line("both agents fall by 0.8 sigma, the weaker one's share shrinks", _mixed(step(0.7, 0.2), -0.8), _fell("strong", "weak"), notice=MIX, also=(FELL,)),
    Line("one agent falls by 3 sigma, another rises by as much", (Traffic(always(25), step(0, -3), "a"), Traffic(always(25), step(0, 3), "b")), (*_fell("a"), *_rose("b"))),
    Line("one agent falls by 2 sigma, another rises to the same level", (Traffic(always(25), step(1, -1), "a"), Traffic(always(25), step(-3, -1), "b")), (*_fell("a"), *_rose("b"))),
    Line("eight agents of constant quality, their shares wander", tuple(Traffic(always(6), always(number - 3.5), f"agent{number}", wandering_share=0.6) for number in range(8)), days=102, checked_from=14, change=0),
    Line("a new agent joins two sigma lower with half of the traffic", (Traffic(step(50, 25), agent="old"), Traffic(step(0, 25), always(-2), "new")), notice=NEW_AGENT),
    Line("an agent with 4 % of the traffic falls by 3 sigma", (Traffic(always(48), agent="large"), Traffic(always(2), step(0, -3), "small")), _fell("small")),
    Line("a canary version with 5 % is 2.5 sigma worse from its first exchange", (Traffic(lambda day: 50 if day < CHANGE else 47.5, agent="a", version="6"), Traffic(step(0, 2.5), always(-2.5), "a", version="7")), (VERSION,)),
    Line("another judge; the agent falls by 2 sigma the same day", (Traffic(step(50, 0), judge="first"), Traffic(step(0, 50), always(-2), judge="second")), notice=NEW_JUDGE),
    Line("another judge; the agent falls by 2 sigma five days later", (Traffic(step(50, 0), judge="first"), Traffic(step(0, 50), step(0, -2, CHANGE + 5), judge="second")), notice=NEW_JUDGE),
    Line("another judge, a sigma kinder, with anchors; the agent falls by 2 sigma the same day", (Traffic(step(50, 0), judge="first"), Traffic(step(0, 50), always(-1), judge="second")), (FELL,), first_day=CHANGE, anchors=new_judge(1)),
    Line("another judge, a sigma kinder, with anchors; the agent falls by 2 sigma five days later", (Traffic(step(50, 0), judge="first"), Traffic(step(0, 50), step(1, -1, CHANGE + 5), judge="second")), (FELL,), change=CHANGE + 5, first_day=CHANGE + 5, days=CHANGE + 19, anchors=new_judge(1)),
    Line("another judge, a sigma kinder, with anchors; the agent is as before", (Traffic(step(50, 0), judge="first"), Traffic(step(0, 50), always(1), judge="second")), days=CHANGE + 30, anchors=new_judge(1)),
    Line("two judges side by side, 60/40; the agent of the 40 % falls by 3 sigma", (Traffic(always(30), agent="a", judge="first"), Traffic(always(20), step(0, -3), "b", "second")), _fell("b")),
    Line("an agent's two judges side by side, 60/40; it falls by 2 sigma", (Traffic(always(30), step(0, -2), judge="first"), Traffic(always(20), step(1, -1), judge="second")), (FELL,)),
    *(
        Line(f"an agent falls by 3 sigma {days} days after another, whose incident is open", (Traffic(always(25), step(0, -3, CHANGE - days), "a"), Traffic(always(25), step(0, -3), "b")), _fell("a", "b"), first_day=CHANGE, checked_from=CHANGE - days)
        for days in (10, 20)
    ),
    Line("runs of 25 agents, the 25th goes from 2 to 90 % unsafe", _runs(25), ("Unsafe runs (agent24) rose",), also=("Trust (agent24) fell",)),
    Line("a third of the scores is missing", (Traffic(unscored=step(0, 0.34)),), notice=UNSCORED),
    Line("one of two agents stops", (Traffic(always(25), agent="a"), Traffic(step(25, 0), agent="b")), notice=AGENT_STOPPED),
    Line("a month is imported beside 30 live days, a sigma higher", (Traffic(step(0, 50, 12)), Traffic(step(50, 0, 30), always(1), imported=CHANGE))),
    Line("the month before 30 live days is imported, a sigma higher", (Traffic(step(0, 50, 30)), Traffic(step(50, 0, 30), always(1), imported=60)), (HISTORY,), change=60, days=74, checked_from=50),
    Line("quiet projects, four tiers, 46 days", (Traffic(is_of_all_tiers=True),), change=0, days=46, checked_from=14, projects=5 * REPETITIONS),
)  # fmt: skip
"""Histories of which it is known what happened in them, each with what is to be said of it."""


class History(NamedTuple):
    """What was said of one simulated project, by the day on which it was said first."""

    titles: dict[str, int]
    """Of confirmed incidents, and of imported history."""
    suspected: set[str]
    """Titles of incidents that were suspected, and never confirmed."""
    notices: dict[str, int]
    incidents: dict[str, Incident]
    """By title, in the latest revision."""


class _Project(NamedTuple):
    """A simulated project."""

    name: str
    line: Line
    history: History
    rng: np.random.Generator


def measure(seed: int, share: float = 1.0, part: str = "") -> list[list[str]]:
    """Return the lines whose name contains `part` as rows of `HEADER`; `share` of the repetitions of each. All projects are in one store."""
    rng = np.random.default_rng(seed)
    projects = [
        _Project(f"line{number:02}-{repetition:03}", line, History({}, set(), {}, {}), rng.spawn(1)[0])
        for number, line in enumerate(LINES)
        if part in line.name
        for repetition in range(max(1, round(share * line.projects)))
    ]
    with Store(None) as store:
        with store.transaction() as transaction:
            transaction.connection.execute(
                "SET GLOBAL threads = 1"
            )  # the queries are small: more threads cost more than they save
        for day in range(max(project.line.days for project in projects)):
            present = [project for project in projects if day < project.line.days and _has_traffic(project.line, day)]
            _append(store, [record for project in present for record in _records_of(project, day)])
            _check(store, [project for project in present if day >= project.line.checked_from], day)
    return [
        _row(line, [project.history for project in projects if project.line is line]) for line in LINES if part in line.name
    ]


HEADER = ("what happens", "to be said", "said", "days", "first day right", "false", "said instead or besides")


def _row(line: Line, histories: Sequence[History]) -> list[str]:
    days_of_reports = [day for history in histories if (day := _day_of_report(line, history)) is not None]
    has_delay = bool(line.titles or line.notice)
    delays = [day - line.change + 1 for day in days_of_reports]
    dated = [history.incidents[line.titles[-1]] for history in histories if line.titles and line.titles[-1] in history.titles]
    dated_correctly = sum(incident.first_day == START + timedelta(days=line.first_day or 0) for incident in dated)
    unexpected_titles = Counter(
        title for history in histories for title in sorted(set(history.titles).difference(line.titles, line.also))
    )
    suspected = Counter(f"{title} (suspected)" for history in histories for title in sorted(history.suspected))
    return [
        line.name,
        ", ".join(filter(None, (*line.titles, line.notice and f"notice: {line.notice}", line.phrase and f"“{line.phrase}”")))
        or "nothing",
        f"{len(days_of_reports)} of {len(histories)}",
        f"{statistics.median(delays):g}" if has_delay and delays else "",
        f"{dated_correctly} of {len(dated)}" if line.first_day is not None else "",
        f"{sum(bool(set(history.titles).difference(line.titles, line.also)) for history in histories)}",
        ", ".join(f"{title} {count}" for title, count in (*unexpected_titles.most_common(), *suspected.most_common())),
    ]


def _day_of_report(line: Line, history: History) -> int | None:
    """Return the day on which everything was said that is to be said; None if it was not, or if something else was confirmed."""
    if set(line.titles) != set(history.titles) - set(line.also) or (
        line.notice is not None and line.notice not in history.notices
    ):
        return None
    if line.phrase and line.phrase not in history.incidents[line.titles[-1]].metadata:
        return None
    days = [history.titles[title] for title in line.titles] + ([history.notices[line.notice]] if line.notice else [])
    return max(days, default=0)


def _has_traffic(line: Line, day: int) -> bool:
    """Tell whether records come on a day: a project is checked when they do."""
    return any(traffic.a_day(day) if traffic.imported is None else traffic.imported == day for traffic in line.traffic)


def _check(store: Store, projects: Sequence[_Project], day: int) -> None:
    """Check projects at the end of a day, and note what is said of each."""
    if not projects:
        return
    checked_at = START + timedelta(days=day + 1, seconds=-1)
    histories = {project.name: project.history for project in projects}
    refresh_daily(store)
    for checked in asyncio.run(Watch(StorePublisher(store, Policy(), lambda: checked_at)).check(list(histories))):
        history = histories[checked.project]
        for incident in checked.incidents:
            for title, is_confirmed in _titles_of(incident).items():
                if is_confirmed:
                    history.titles.setdefault(title, day)
                    history.incidents[title] = incident
                    history.suspected.discard(title)
                elif title not in history.titles:
                    history.suspected.add(title)
        project_check = checked.project_check
        for remark in () if project_check is None else (*project_check.blind_spots, *project_check.notices):
            history.notices.setdefault(remark.reason, day)
    if any(project.line.notice == UNSCORED for project in projects):
        with contextlib.closing(store.cursor()) as cursor:
            for project in read_projects(cursor, Policy(), checked_at):
                if project.project in histories and UNSCORED in project.reasons:
                    histories[project.project].notices.setdefault(UNSCORED, day)


def _titles_of(incident: Incident) -> dict[str, bool]:
    """Return the names of an incident's series with the directions of their changes, and whether each is confirmed. The project is left out beside its agents."""
    if incident.cause == "history":
        return {HISTORY: True}
    alarms = [changed for changed in evidence_of(incident).moved if not changed.fell_too]
    if any(changed.agent is not None for changed in alarms):
        alarms = [changed for changed in alarms if changed.agent is not None]
    return {f"{changed.name} {VERBS[changed.direction or DOWN]}": changed.confirmed for changed in alarms}


def _append(store: Store, records: Sequence[tuple[str, Record]]) -> None:
    topics: dict[str, list[bytes]] = defaultdict(list)
    for topic, record in records:
        topics[topic].append(encode(record))
    with store.transaction() as transaction:
        for topic, messages in topics.items():
            transaction.append(topic, messages)


def _records_of(project: _Project, day: int) -> Iterator[tuple[str, Record]]:
    """Draw the records that come on a day: those of the day, and imported ones of the days before."""
    yield from _anchor_scores(project, day)
    for part, traffic in enumerate(project.line.traffic):
        days = [day] if traffic.imported is None else range(day) if traffic.imported == day else []
        for happened in days:
            yield from _records(project, traffic, f"{project.name}-{part}-{happened}", happened, timedelta(days=day - happened))


def _anchor_scores(project: _Project, day: int) -> Iterator[tuple[str, Record]]:
    """Draw the scores of a round of anchors, at six in the morning of a day."""
    if project.line.anchors is None:
        return
    judge = project.line.anchors(day)
    at = START + timedelta(days=day, hours=6)
    mood = ANCHOR_MOOD * project.rng.normal()
    for number in range(ANCHORS_OF_PROJECT):
        # Judges differ on some anchors more than on others.
        quality = (number / ANCHORS_OF_PROJECT - 0.5) * 4 + judge.kindness * (1 + 0.4 * math.sin(number))
        name = f"{project.name}-anchor{number}@{at:%Y-%m-%dT%H:%MZ}"
        yield (
            "scores",
            msgspec.structs.replace(
                SCORE,
                score_id=name,
                exchange_id=name,
                connection=ANCHORS,
                project=anchor_project(project.name),
                session_id=f"{project.name}@{at:%Y-%m-%dT%H:%MZ}",
                turn_number=number + 1,
                exchange_at=at,
                scored_at=at,
                tier2_score=_score(quality + mood + ANCHOR_NOISE * project.rng.normal()),
                judge_model=judge.name,
            ),
        )


def _records(project: _Project, traffic: Traffic, name: str, day: int, late: timedelta) -> Iterator[tuple[str, Record]]:
    """Draw the records of a day: runs, or scores, with their exchanges where it matters when these came."""
    rng = project.rng
    length = round(traffic.length(day))
    mean = traffic.level(day) + traffic.wander * rng.normal()
    for number in range(rng.poisson(traffic.a_day(day) / length * math.exp(traffic.wandering_share * rng.normal()))):
        began = START + timedelta(days=day, seconds=rng.uniform(0, 86_000))
        session = f"{name}-{number}"
        if traffic.unsafe is not None:
            is_unsafe = rng.random() < traffic.unsafe(day)
            readiness = "unsafe_for_production" if is_unsafe else RUN.readiness_level
            values = {
                "project": project.name,
                "agent": traffic.agent,
                "session_id": session,
                "ended_at": began,
                "closed_at": began,
            }
            yield (
                "diagnoses",
                msgspec.structs.replace(RUN, **values, readiness_level=readiness, trust_score=88 if is_unsafe else 100),
            )
            continue
        shared = SHARED**0.5 * rng.normal()
        for turn in range(length):
            exchange_at = began + timedelta(seconds=turn)
            identity = {
                "exchange_id": f"{session}:{turn}",
                "project": project.name,
                "agent": traffic.agent,
                "session_id": session,
            }
            ingested = exchange_at + late + timedelta(seconds=1)
            if any(one.imported is not None for one in project.line.traffic):
                yield (
                    "exchanges",
                    msgspec.structs.replace(
                        EXCHANGE, **identity, turn_number=turn + 1, occurred_at=exchange_at, ingested_at=ingested
                    ),
                )
            scored = {
                "score_id": identity["exchange_id"],
                "turn_number": turn + 1,
                "exchange_at": exchange_at,
                "scored_at": ingested,
            }
            if rng.random() < traffic.unscored(day):
                unscored = {"disposition": "unscored", "tier2_state": "unscored", "tier2_reason": "no_answer"}
                yield "scores", msgspec.structs.replace(SCORE, **identity, **scored, **unscored)
                continue
            value = _score(mean + shared + (1 - SHARED) ** 0.5 * rng.normal())
            judged = {"tier2_score": value, "judge_model": traffic.judge}
            if late > timedelta(days=1):
                judged["labels"] = (Label(name="arrival", value="later"),)
            if traffic.version is not None:
                judged["labels"] = (Label(name="agent_version", value=traffic.version),)
            if traffic.is_of_all_tiers:
                judged |= {"tier1_score": 1 - (rng.random() < 0.02) / 3, "tier2_5_state": "scored", "tier3_state": "scored"}
                judged |= {"tier2_5_alignment": _score(rng.normal()), "tier3_score": 1 + 4 * _score(rng.normal())}
            yield "scores", msgspec.structs.replace(SCORE, **identity, **scored, **judged)


def _score(deviation: float) -> float:
    """Return the score that lies so many sigma off the usual mean."""
    return float(min(1.0, max(0.0, LEVEL + SIGMA * deviation)))


EXCHANGE = Exchange(
    exchange_id="", connection="simulated", project="", session_id="", occurred_at=START, ingested_at=START,
    user_message="?", agent_response="!", content_digest="0" * 16,
)  # fmt: skip
SCORE = Score(
    score_id="", revision=0, exchange_id="", connection="simulated", project="", session_id="", turn_number=1,
    exchange_at=START, scored_at=START, disposition="scored", sampling_reason="always", sampling_probability=1.0,
    tier1_score=1.0, tier1_flags=(), tier2_state="scored", tier2_reason="always", tier2_5_state="not_applicable",
    tier3_state="skipped_gate", anomaly=False, cost_usd=0.0, methodology="default", methodology_version="1",
    methodology_digest="0" * 16, rule_version="eval-4", policy_digest="0" * 16, evidence_digest="0" * 16,
)  # fmt: skip
RUN = Diagnosis(
    connection="simulated", project="", session_id="", revision=0, ended_at=START, closed_at=START, closed_reason="explicit",
    trust_score=100, readiness_level="ready_for_runtime", scores=DimensionScores(), failure_cause_count=0, event_count=3,
    event_type_count=1, rule_version="r", policy_digest="0" * 16, evidence_digest="0" * 16,
    cost_analysis=CostAnalysis(total_tokens=0, duplicate_calls=0, redundancy_score=0, token_waste=0, cost_efficiency=100),
)  # fmt: skip
