"""The help: what the words on the pages mean, a few sentences each, at an address of its own."""

from __future__ import annotations

from typing import NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from audit.diagnosis.diagnosis import LOWEST_TRUST
from audit.drift.anomaly_rate import DAYS as SPIKE_DAYS
from audit.drift.consecutive_days import SHORTEST_RUN
from service.documents.project_health import ANOMALOUS, ENOUGH, UNSCORED
from service.pages.incidents.wording import EXPLAINED
from service.pages.rendering import page
from service.pages.viewing import Viewer


class Word(NamedTuple):
    """A word, and what it means."""

    key: str
    """Where it stands on its page: `#key`."""
    name: str
    means: str


class Chapter(NamedTuple):
    """Words that belong together."""

    key: str
    name: str
    words: tuple[Word, ...]


_SCORES = (
    Word("exchange", "Exchange", "One turn of a session: a message to an agent and its answer."),
    Word("tier1", "Tier 1 · structure", "Checks without a judge, on every exchange: 1 less the share of the checks that found something. From 0 to 1."),
    Word("tier2", "Tier 2 · semantics", "The judge, a language model, rates whether the answer fits what was asked, from 0 to 1. It is asked about every exchange that is sampled."),
    Word("tier2_5", "Tier 2.5 · thinking", "What the agent thought beside what it said, from 0 to 1: did it keep back a doubt, or give in against its own view? Only where there is thinking."),
    Word("tier3", "Tier 3 · behaviour", "The judge rates how the agent behaved, each dimension that applies from 1 to 5. It is asked only where a gate lets the exchange through."),
    Word("gate", "Gate", "What decides whether Tier 3 is asked, as it costs most: a check of Tier 1 that found something, a flag in Tier 2 or 2.5, the first and last turns, and an agent that disagrees. Of routine exchanges few come through, so Tier 3 is a mean of the less ordinary ones."),
    Word("sampling", "Sampling", "Not every exchange is judged. One that was drawn with a chance of one in three stands for three, so it counts three times: that is what weighted means. A mean as sampled counts each once, and moves when other turns are drawn."),
    Word("unscored", "Unscored", "The judge should have scored it and did not: there is none, it failed, or a cap was reached. That is no bad score; it is in no mean."),
    Word("anomaly", "Anomaly", "An exchange that deserves a look: a check of Tier 1 found something, a dimension of Tier 3 is 2 or less, thinking and answer go together by 0.3 or less, or a text tries to sway the judge. Its page says which."),
)  # fmt: skip
_CHANGES = (
    Word("health", "Health", "Critical: a confirmed critical incident is open or acknowledged. Warning: another confirmed one is, or in the last seven days "
        f"{UNSCORED:.0%} of what was due to be judged stayed unscored, a run was unsafe, or {ANOMALOUS:.0%} of the exchanges were anomalous. Not known yet: none of these, but fewer than {ENOUGH} exchanges came in the last seven days and there are fewer than {ENOUGH} runs, "
        "or the project has not been checked for drift since its newest exchanges. Healthy: none of all this."),
    Word("incident", "Incident", "A change that a rule found, with its evidence. Tiers and runs that moved the same way on the same days are one incident. It is open until a person acknowledges it, which names an owner and changes nothing else, or resolves or dismisses it; once it has recovered, for two whole days, it resolves itself."),
    Word("suspected", "Suspected and confirmed", "Evidence that has just passed the line is suspected: it is shown, but counts for nothing and sends no alert. It is confirmed when the evidence holds, and alerts go out then; otherwise it vanishes by itself."),
    Word("new-normal", "New normal", "A decision on an incident: the change is wanted. From then on, the comparison begins with the first day of the change. Resolved otherwise, or dismissed, the days of a change that is over are left out of what is compared with."),
    Word("baseline", "Baseline", "What is normal: the mean and the spread of the scores of the last two weeks, made again every day. It is of the scores as sampled. The shaded band of a chart is the baseline of each day, its mean ± one sigma; bad days become part of it, so where an incident is open a dotted line says where the tier came from."),
    Word("sigma", "Sigma", "The standard deviation: how far scores usually lie from their mean."),
    Word("drift", "Drift", "A tier's mean moved. " + EXPLAINED["sequential"] + " " + EXPLAINED["consecutive_days"]),
    Word("run-drift", "Drift of runs", "An agent's finished runs changed. " + EXPLAINED["runs"]),
    Word("no-alarm", "A line fell, and there is no alarm", "An alarm needs at least 14 days and ten sessions with scores of the tier before the change and three after it, or "
        f"{SHORTEST_RUN} days in a row off the baseline. Tiers that few exchanges reach, 2.5 and 3 above all, are slower, and a wide band says that the tier varies anyway. Look at an incident of another tier since the same day first: one cause moves several."),
    Word("spike", "Anomaly spike", f"More exchanges with an anomaly, since one of the last {SPIKE_DAYS} days, than the days before it and chance would bring."),
    Word("cause", "Cause", "Whether the agent changed or the judge. Anchors, exchanges that never change, are judged again and again: how far they moved is set beside how far the tier did. Without anchors, or with too few rounds about the change, it is not known, and the incident says what lacks."),
)  # fmt: skip
_RUNS = (
    Word("run", "Run", "A session that is finished, with its events: calls of tools, retries, errors, what was remembered."),
    Word("trust", "Trust", "From 0 to 100: the weighted mean of its dimensions, each 100 less the penalty of what its detector found. Penalties have limits, so no run has less than "
        f"{LOWEST_TRUST}, however bad it was, and five duplicate refunds still leave 90: go by the readiness, and let trust tell runs of one readiness apart. A gate on trust of {LOWEST_TRUST} or less fails no run. Without an event there is none."),
    Word("readiness", "Readiness", "The verdict on a run. Unsafe for production: a critical failure, or a trust below 60, "
        f"which no run has (the lowest is {LOWEST_TRUST}). Review recommended: a failure of high severity, or a trust below 80. Otherwise ready for runtime."),
    Word("primary-failure", "Primary failure", "The gravest of what the detectors found in a run, such as a loop of tool calls that does not end."),
    Word("wrap-up", "Wrap-up", "Whether the last exchanges of a session show the five steps of a proper end: a version, a changelog, what was learned, a start for the next session, a commit. That is for agents that work on code; a bot that answers customers never wraps up, and wrapQualityScoring: false in its policy switches it off."),
    Word("anchor", "Anchor", "An exchange whose right score people settled. When its score moves, the judge changed."),
    Word("agreement", "Agreement", "How far people's scores and the judge's go together, as a kappa: 1 is always, 0 no better than chance."),
    Word("simulated", "Simulated judge", "Rates by simple rules, without understanding, and costs nothing: it shows how Driftline works and says nothing about agents."),
)  # fmt: skip
CHAPTERS = (
    Chapter("scores", "Scores", _SCORES),
    Chapter("changes", "Health, incidents and changes", _CHANGES),
    Chapter("runs", "Runs, people and the judge", _RUNS),
)


router = APIRouter(include_in_schema=False)


@router.get("/help")
async def help_page(request: Request, _: Viewer) -> HTMLResponse:
    """Every word."""
    return page(request, "help.html", {"chapters": CHAPTERS})
