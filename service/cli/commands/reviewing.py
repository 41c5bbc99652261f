"""`driftline review` and `driftline agreement`: human scores beside the judge's."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from schemas.errors import InputError
from schemas.lazy import duckdb
from service.cli.commands.incidents import require_operator
from service.cli.commands.options import AsJson, Database, OfProject, PolicyFile, print_json, settings_of
from service.cli.terminal import err, out, table
from service.cli.views import agreement_cells
from service.read.agreement import VerdictEstimate, project_agreement
from service.read.known_projects import require_known
from service.read.people import ReviewItem, ScoreTimes, find_scores, next_of_queue, next_to_review, with_human_score
from service.read.review_queues import (
    MAX_ADDED,
    MAX_QUEUES,
    QUEUE_NAME,
    QueueSettings,
    ReviewQueue,
    dump_settings,
    parse_settings,
    read_queues,
    review_queues,
)
from service.read.scores import score_by_id
from service.setup.workspace import Workspace, open_workspace
from service.text.answers import document
from service.text.formats import MISSING, counted, plain
from streams.upkeep.annotations import REVIEWS, human_score, queue_item, require_human_scores, review_queue

review_app = typer.Typer(no_args_is_help=True, help="Show the next exchange to review, and record your score.")
Rater = Annotated[str | None, typer.Option("--rater", metavar="NAME", help="Name of the reviewer; your account by default.")]
InQueue = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="A review queue; by default the general one.")]
QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the review queue.")]


class QueueOrder(StrEnum):
    """The order of the review queue."""

    ANOMALIES = "anomalies"
    INTERVAL = "interval"


_MAX_TEXT = 4000
"""Maximum characters of a text that are shown."""


@review_app.command("next")
def review_next(
    project: OfProject,
    rater: Rater = None,
    skip: Annotated[list[str] | None, typer.Option("--skip", metavar="SCORE", help="Skip this score; may be repeated.")] = None,
    blind: Annotated[bool, typer.Option("--blind", help="Hide the judge's verdict, which could bias yours.")] = False,
    order: Annotated[
        QueueOrder,
        typer.Option(
            "--order", help="anomalies: anomalies first. interval: what narrows the interval of the corrected mean most."
        ),
    ] = QueueOrder.ANOMALIES,
    queue: InQueue = None,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the next exchange to review, and why it is next."""
    with open_workspace(settings_of(database, policy)) as workspace:
        require_known(workspace, project)
        require_human_scores(workspace.policy, project)
        with contextlib.closing(workspace.store.cursor()) as cursor:
            reviewer = _name_reviewer(rater)
            if queue is None:
                item = next_to_review(cursor, project, reviewer, skip or [], blind=blind, order=order.value)
            else:
                named = _require_queue(cursor, project, queue)
                item, _ = next_of_queue(cursor, project, named, reviewer, skip or [], now=workspace.now(), blind=blind)
    if as_json:
        print_json(None if item is None else document(item))
    elif item is None:
        err.print(f"nothing is left to review in project {plain(project, 64)}", markup=False)
    else:
        for line in _format_item(item):
            out.say(line)


@review_app.command("score")
def review_score(
    score_id: Annotated[str, typer.Argument(metavar="SCORE", help="Id of the judge's score, as shown by `review next`.")],
    value: Annotated[int, typer.Argument(metavar="1…5", min=1, max=5, help="From 1 (worst) to 5 (best).")],
    project: OfProject,
    comment: Annotated[str | None, typer.Option("--comment", metavar="TEXT", help="Comment on the score.")] = None,
    rater: Rater = None,
    queue: InQueue = None,
    dimension: Annotated[
        list[str] | None,
        typer.Option("--dimension", metavar="NAME=1…5", help="Score of a dimension that the queue asks for; may be repeated."),
    ] = None,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Record a human score beside the judge's. The newest score of each reviewer counts."""
    with open_workspace(settings_of(database, policy), writes=True) as workspace:
        require_known(workspace, project)
        require_human_scores(workspace.policy, project)
        with contextlib.closing(workspace.store.cursor()) as cursor:
            score = score_by_id(cursor, project, score_id)
            points = _parse_points(dimension or [], _require_queue(cursor, project, queue) if queue else None)
        if score is None:
            raise InputError(f"no score {plain(score_id)!r} in project {project}", hint="`driftline review next` shows ids.")
        reviewer = _name_reviewer(rater)
        review = human_score(
            project,
            score_id,
            reviewer,
            value,
            comment,
            redactor=workspace.redactor,
            now=workspace.now(),
            queue=queue,
            dimensions=points,
            exchange_at=score.exchange_at if queue else None,
        )
        asyncio.run(workspace.publisher.publish(REVIEWS, [review]))
    if as_json:
        print_json(document(with_human_score(score, review)))
    else:
        out.say(f"{plain(review.reviewer)} gives {plain(score.exchange_id)} {value} of 5")


@review_app.command("queues")
def review_queue_list(
    project: OfProject, rater: Rater = None, database: Database = None, policy: PolicyFile = None, as_json: AsJson = False
) -> None:
    """List the open review queues with their progress."""
    with open_workspace(settings_of(database, policy)) as workspace, contextlib.closing(workspace.store.cursor()) as cursor:
        require_known(workspace, project)
        queues = review_queues(cursor, project, _name_reviewer(rater), workspace.now())
    if as_json:
        print_json([document(queue) for queue in queues])
        return
    headers = ["queue", "exchanges", "done", "waiting", "rule", "assigned to", "rubric"]
    rows = [
        [
            plain(queue.name),
            str(queue.items),
            str(queue.done),
            str(queue.waiting),
            "yes" if queue.settings.rule else "by hand",
            plain(", ".join(queue.settings.assignees)) or "anyone",
            plain(queue.settings.rubric, 80),
        ]
        for queue in queues
    ]
    out.print(table(headers, rows, right=headers[1:4]))


@review_app.command("queue")
def define_review_queue(
    name: QueueArgument,
    project: OfProject,
    settings: Annotated[
        str | None,
        typer.Argument(
            metavar="JSON", help="rubric, dimensions, assignees, reviews and rule, as `review queues --json` shows."
        ),
    ] = None,
    close: Annotated[bool, typer.Option("--close", help="Close the queue. Its scores stay.")] = False,
    rater: Rater = None,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Create a review queue, replace its definition, or close it."""
    if close == (settings is not None):
        raise InputError("give either the settings of the queue or --close", hint='An example: \'{"rubric": "Polite?"}\'.')
    with open_workspace(settings_of(database, policy), writes=True) as workspace:
        require_known(workspace, project)
        with contextlib.closing(workspace.store.cursor()) as cursor:
            names = {queue.name for queue in read_queues(cursor, project)}
            if close:
                _require_queue(cursor, project, name)
        parsed = None if settings is None else _parse_queue(name, settings, workspace, project)
        if parsed and len(names | {name}) > MAX_QUEUES:
            raise InputError(f"the project has {MAX_QUEUES} review queues", hint="Close one first.")
        text = None if parsed is None else dump_settings(parsed)
        record = review_queue(project, name, _name_reviewer(rater), text, now=workspace.now())
        asyncio.run(workspace.publisher.publish(REVIEWS, [record]))
    if as_json:
        print_json({"queue": name, "project": project, "status": record.status})
    else:
        out.say(f"queue {plain(name)} of project {project}: {record.status}")


@review_app.command("add")
def add_to_review_queue(
    name: QueueArgument,
    project: OfProject,
    scores: Annotated[list[str] | None, typer.Argument(metavar="SCORE", help="Ids of the exchanges' scores.")] = None,
    session: Annotated[
        str | None, typer.Option("--session", metavar="ID", help=f"The first {MAX_ADDED} scored exchanges of a session.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the exchanges out.")] = False,
    rater: Rater = None,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Add exchanges to a review queue, or take them out."""
    with open_workspace(settings_of(database, policy), writes=True) as workspace:
        require_known(workspace, project)
        with contextlib.closing(workspace.store.cursor()) as cursor:
            _require_queue(cursor, project, name)
            items = find_scores(cursor, ScoreTimes(), project, scores or [], session=session)
        missing = next((score_id for score_id, at in items.items() if at is None), None)
        if missing or not items:
            reason = f"no score {plain(missing)!r}" if missing else "no scored exchange of this session, and none was named,"
            raise InputError(f"{reason} in project {project}", hint="`driftline scores` shows ids.")
        by, now = _name_reviewer(rater), workspace.now()
        records = [
            queue_item(project, name, score_id, at, by, now=now, is_removed=remove) for score_id, at in items.items() if at
        ]
        asyncio.run(workspace.publisher.publish(REVIEWS, records))
    if as_json:
        print_json({"queue": name, "project": project, "exchanges": len(records), "removed": remove})
        return
    out.say(f"{counted(len(records), 'exchange')} {'taken out of' if remove else 'added to'} {plain(name)}")


def _require_queue(cursor: duckdb.DuckDBPyConnection, project: str, name: str) -> ReviewQueue:
    queues = read_queues(cursor, project)
    for queue in queues:
        if queue.name == name:
            return queue
    hint = f"Open queues: {', '.join(queue.name for queue in queues)}." if queues else "`driftline review queue` creates one."
    raise InputError(f"project {project} has no open review queue {plain(name, 64)!r}", hint=hint)


def _parse_queue(name: str, text: str, workspace: Workspace, project: str) -> QueueSettings:
    if not re.fullmatch(QUEUE_NAME, name):
        raise InputError(f"{plain(name, 64)!r} is not a name of a queue", hint="Use letters, digits, spaces, _ . and -.")
    try:
        settings = parse_settings(json.loads(text), workspace.policy.for_project(project))
    except json.JSONDecodeError as error:
        raise InputError(f"settings: not JSON: {error}", hint="Quote the JSON for the shell.") from None
    for assignee in settings.assignees:
        require_operator(workspace, project, assignee, None)
    return msgspec.structs.replace(settings, rubric=workspace.redactor.redact(settings.rubric)[0])


def _parse_points(texts: Sequence[str], queue: ReviewQueue | None) -> dict[str, int]:
    points = {}
    for text in texts:
        name, _, number = text.partition("=")
        if queue is None or name not in queue.settings.dimensions:
            raise InputError(f"--dimension: {plain(name, 64)!r} is not a dimension of the queue", hint="Give --queue, too.")
        if number not in {"1", "2", "3", "4", "5"}:
            raise InputError(f"--dimension: {plain(text, 64)!r} is not NAME=1…5", hint="1 is worst and 5 is best.")
        points[name] = int(number)
    return points


def agreement(
    project: OfProject,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Show the agreement of people and the judge, of judges with each other and of a judge with itself: kappa and bias with intervals."""
    settings = settings_of(database)
    with open_workspace(settings) as workspace, contextlib.closing(workspace.store.cursor()) as cursor:
        require_known(workspace, project)
        answer = project_agreement(cursor, project, database=settings.database)
    if as_json:
        print_json(document(answer))
        return
    rows = [("everybody", answer.overall), *((estimate.rater, estimate) for estimate in answer.raters)]
    rows += [(f"everybody, {estimate.month}", estimate) for estimate in answer.months]
    rows.append(("people among themselves", answer.between_raters))
    rows += [(f"everybody, in the queue {estimate.queue}", estimate) for estimate in answer.queues]
    headers = ["judge against", "labels", "exchanges", "sessions", "kappa", "judge minus people"]
    out.print(table(headers, [agreement_cells(name, estimate) for name, estimate in rows], right=headers[1:4]))
    if answer.queues:
        out.say("Exchanges of queues were chosen by people and rules, so their labels count in no other figure.")
    mean = answer.corrected_mean
    if mean.corrected is not None:
        out.print(
            f"Mean of behavior quality (Tier 3): {mean.judge:.2f} by the judge, {mean.corrected:.2f} corrected by people"
            f" (95% interval {mean.low:.2f} to {mean.high:.2f})."
        )
    elif mean.labels:
        out.print(f"The mean of behavior quality (Tier 3) is not corrected: {mean.shortage}")
    if answer.covered is not None:
        out.print(f"The labels represent {answer.covered:.0%} of the exchanges whose behavior (Tier 3) was judged.")
    if answer.unjudged:
        out.print(f"{answer.unjudged} more labels are on exchanges whose behavior (Tier 3) was not judged.")
    _print_verdicts("two judges on the same exchanges", answer.judges)
    if not answer.judges:
        out.say(
            "No two judges have judged the same exchanges. For a second opinion, copy the policy with another judgeModel and run:"
        )
        out.say(answer.second_opinion)
    _print_verdicts("a judge against itself", [*answer.itself, *answer.itself_by_month])
    if not answer.itself:
        out.say("No judge has judged an exchange twice: driftline anchors add has it judge some again every day.")
    for problem in answer.unreadable_replays:
        err.say(f"replay {plain(problem)}", style="yellow")


def _print_verdicts(title: str, estimates: Sequence[VerdictEstimate]) -> None:
    if not estimates:
        return
    headers = [title, "tier", "by", "pairs", "exchanges", "sessions", "kappa", "difference"]
    rows = []
    for estimate in estimates:
        judges = estimate.first if estimate.first == estimate.second else f"{estimate.first}, then {estimate.second}"
        name = plain(judges if estimate.month is None else f"{judges}, {estimate.month}")
        rows.append(
            [
                name,
                estimate.tier.removeprefix("tier").replace("_", "."),
                plain(estimate.source),
                *agreement_cells("", estimate)[1:],
            ]
        )
    out.print(table(headers, rows, right=headers[3:6]))


def _name_reviewer(rater: str | None) -> str:
    reviewer = getpass.getuser() if rater is None else rater.strip()
    if not reviewer:
        raise InputError("--rater must not be blank", hint="Give the name of the reviewer.")
    return reviewer


def _format_item(item: ReviewItem) -> list[str]:
    reason = item.pick if item.stratum is None else f"{item.pick}, {item.stratum}"
    reviewed = f"reviewed by {item.seen_by}" if item.seen_by else "not reviewed yet"
    lines = [
        f"score {item.score_id} ({reason}; {reviewed})",
        *([item.gain.reason] if item.gain is not None else []),
        f"exchange {plain(item.exchange_id)}, session {plain(item.session_id)}, turn {item.turn_number}",
    ]
    texts = {"user": item.user_message, "agent": item.agent_response, "thinking": item.agent_thinking}
    lines += [f"{name}: {plain(text, _MAX_TEXT)}" for name, text in texts.items() if text is not None]
    if item.score is not None:
        tiers = (item.score.tier2_score, item.score.tier2_5_alignment, item.score.tier3_score)
        lines.append(f"judge: tiers 2, 2.5, 3: {', '.join(MISSING if tier is None else f'{tier:.2f}' for tier in tiers)}")
        if item.score.anomaly_reason:
            lines.append(f"anomaly: {plain(item.score.anomaly_reason, _MAX_TEXT)}")
    return lines
