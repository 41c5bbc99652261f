"""The glossary: the terms of the pages, each explained in a few sentences, with its own address."""

from __future__ import annotations

import re
from typing import NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from audit.diagnosis.diagnosis import LOWEST_TRUST
from audit.drift.anomaly_rate import DAYS as SPIKE_DAYS
from audit.drift.consecutive_days import MIN_RUN_DAYS
from service.pages.incident_figures import RULE_EXPLANATIONS
from service.pages.rendering import page
from service.pages.viewing import Viewer
from service.read.project import ANOMALOUS, ENOUGH, UNSCORED
from service.text.words import TERMS, WORDS


class Word(NamedTuple):
    """A term and its meaning."""

    key: str
    """Its place on the page: `#key`."""
    name: str
    means: str

    @property
    def parts(self) -> tuple[str, str]:
        """The first two sentences, and the rest."""
        sentences = re.split(r"(?<=[.?!]) +", self.means)
        return " ".join(sentences[:2]), " ".join(sentences[2:])


class Chapter(NamedTuple):
    """Terms that belong together."""

    key: str
    name: str
    words: tuple[Word, ...]


_SCORES = (
    Word("exchange", "Exchange", "One turn of a session: a message to an agent and its answer."),
    Word("tier1", TERMS["tier1"], "Checks without a judge, on every exchange. The score is 1 minus the share of checks that found something."),
    Word("tier2", TERMS["tier2"], "The judge, a language model, rates from 0 to 1 whether the answer fits the question. Every sampled exchange is judged."),
    Word("tier2_5", TERMS["tier2_5"], "Compares the agent's thinking with its answer, from 0 to 1: did it hold back a doubt, or give in against its own view? It needs an exchange with thinking."),
    Word("tier3", TERMS["tier3"], "The judge rates how the agent behaved, each dimension that applies from 1 to 5. Only exchanges that pass the gate are judged."),
    Word("gate", "Gate", "Decides whether an exchange is judged by Tier 3, behavior quality, the most expensive tier. It opens for a finding of Tier 1, a flag in Tier 2 or 2.5, first and last turns, and an agent that disagrees. Few routine exchanges pass, so Tier 3 is a mean of the less ordinary ones."),
    Word("sampling", "Sampling", "Only a sample of exchanges is judged. An exchange drawn with a chance of one in three represents three, so a weighted mean counts it three times. A mean as sampled counts each once, and changes with the sampling."),
    Word("unscored", "Not judged", "The judge should have scored the exchange and did not: there is no judge, it failed, or a cap was reached. Means leave such exchanges out."),
    Word("anomaly", "Anomaly", "An exchange that deserves a review: Tier 1 found something, a dimension of Tier 3 is 2 or less, the answer contradicts the thinking (0.3 or less), or a text tries to sway the judge. Its page says which."),
)  # fmt: skip
_CHANGES = (
    Word("health", "Health", "Critical: a confirmed critical incident is open or acknowledged. Warning: another confirmed incident is, or in the last seven days "
        f"{UNSCORED:.0%} of the exchanges due to be judged were not judged, a run was unsafe, or {ANOMALOUS:.0%} of the exchanges were anomalous. Not known yet: none of these, but the last seven days have fewer than {ENOUGH} exchanges and fewer than {ENOUGH} runs, "
        "or the project has not been checked for drift since its newest exchanges. Healthy: none of these."),
    Word("worst", "Worst first", "The order of incidents in the inbox and on a project's page, and of the worst incident of each project: open or acknowledged first, then confirmed, then critical, then unacknowledged. Among equals, drift comes before an anomaly spike, which often reflects the same change without a cause; then comes the incident whose series changed most. In the fleet, health comes first. Among projects with an incident, those whose worst one began in the last seven days come first, and among these the ones with more exchanges."),
    Word("incident", "Incident", "A change detected by a rule, with its evidence. Tiers and runs that changed in the same direction on the same days form one incident. It is open until a person acknowledges it (which only names an owner), resolves it or dismisses it. After two whole days of recovery it resolves itself."),
    Word("suspected", "Suspected and confirmed", "An incident whose evidence has just passed the threshold is suspected: it is shown, but sends no alert and does not affect the health. If the evidence holds, it is confirmed, and alerts go out; otherwise it disappears."),
    Word("new-normal", "New normal", "A decision on an incident: the change is intended, and comparisons start at its first day. If you resolve it in another way or dismiss it, comparisons leave out the days of the change."),
    Word("baseline", "Baseline", f"Mean and spread of the last two weeks' scores as sampled, computed every day. {WORDS['charts']['band']} A dotted line is the mean of all days before the change."),
    Word("sigma", "Sigma", "The standard deviation: the typical distance of scores from their mean."),
    Word("drift", "Drift: gradual change", "The mean of a tier is no longer what it was before one day. Evidence is added up hour by hour, so a small change is found if it lasts. " + RULE_EXPLANATIONS["sequential"]),
    Word("days-off", f"Drift: {MIN_RUN_DAYS} days off", f"The means of {MIN_RUN_DAYS} days in a row lie outside the usual band, all on the same side. It finds large changes soon. " + RULE_EXPLANATIONS["consecutive_days"]),
    Word("run-drift", "Drift of runs", "An agent's finished runs got better or worse: their trust, their share of unsafe runs, or a kind of failure. Each agent is compared with its own past. " + RULE_EXPLANATIONS["runs"]),
    Word("no-alarm", "Why was there no alarm?", "An alarm needs at least 14 days and ten sessions with scores of the tier before the change and three after it, or "
        f"{MIN_RUN_DAYS} days in a row off the baseline. Tiers that few exchanges reach, above all 2.5 and 3, take longer, and a wide band means that the tier always varies. First look for an incident of another tier since the same day: one cause often changes several."),
    Word("spike", "Anomaly spike", f"More exchanges with an anomaly, since one of the last {SPIKE_DAYS} days, than earlier days and chance explain."),
    Word("cause", "Cause", "Whether the agent, the judge or the mix of the traffic changed. Anchors are exchanges that never change and are judged again and again; their change is compared with the tier's. Without anchors, or with too few rounds around the change, the cause is unknown unless a version explains the change, and the incident says what is missing."),
)  # fmt: skip
_RUNS = (
    Word("run", "Run", "A finished session, with its events if it has any: tool calls, retries, errors, memory. Without events a run has no verdict."),
    Word("version", "Version", "The label agent_version, prompt_version or tool_version of the exchanges, or else the deployment before them. Agent health compares each agent's newest version with the one before it: answer quality (answer structure without a judge) and the share of unsafe runs, each with a 95% interval. A difference whose interval includes 0 may be chance."),
    Word("trust", "Trust", f"From {LOWEST_TRUST} to 100, to rank runs of the same readiness; decide by readiness. A run without events has no trust score. "
        f"It is the weighted mean of the dimensions, each 100 minus the penalty of its detector's findings. Penalties are limited, so no run has less than {LOWEST_TRUST}, five duplicate refunds still leave 90, and a gate on trust of {LOWEST_TRUST} or less fails no run."),
    Word("readiness", "Readiness", "The verdict on a run. Unsafe for production: a critical failure. Review recommended: a failure of high severity, or a trust below 80. Otherwise ready for runtime."),
    Word("primary-failure", "Primary failure", "The most severe finding of the detectors in a run, such as an endless loop of tool calls."),
    Word("failure-group", "Group of failures", "Runs that are not ready and exchanges with an anomaly that failed alike: a call of the same tool failed with nearly the same words, or the same detector, check or dimension found them. Numbers, ids, paths, hosts, times and quoted values in an error do not count; HTTP statuses and exit codes do. Each failure is in exactly one group. A call that failed does not count if a later call of its tool succeeded. A group is new if none of its failures is older than the period, and growing if its share of all exchanges and runs is larger than in the period before, by a 95% interval."),
    Word("wrap-up", "Wrap-up", "Whether the last exchanges of a session show the five steps of a proper end: a version, a changelog, lessons learned, a start for the next session, a commit. It suits agents that work on code, so it is shown where the methodology asks for it (wrapUp: true), or where the policy has wrapQualityScoring: true."),
    Word("anchor", "Anchor", "An exchange whose texts never change and that is judged again and again. If its score changes, the judge changed."),
    Word("agreement", "Agreement", "How far people's scores and the judge's agree, as a kappa: 1 is full agreement, 0 no better than chance."),
    Word("simulated", "Simulated judge", "A judge that rates by simple rules; nothing is paid, and amounts are what a real judge would have cost. It shows how Driftline works and says nothing about agents."),
)  # fmt: skip
_ROUTINE = (
    Word("look", "1. Look at the fleet", "Projects come worst first. Red ones have an open critical incident; the line beside the name says what changed, and since when."),
    Word("open", "2. Open the incident", "Its title says what got worse, by how much, since when and with which version. Below are the first thing to do, the evidence, and the turns that prove it."),
    Word("read", "3. Read the turns", "Open two or three of the listed turns and read question and answer. Select a turn to see its scores and the judge's reasons."),
    Word("decide", "4. Decide", "Acknowledge while you work on it, resolve it once it is fixed, accept an intended change as the new normal, or dismiss a false alarm. A dismissed change stays away."),
    Word("score", "5. Score a few exchanges", "Review asks for the scores that tell most about the judge. A few each day keep the judge's mean corrected and show when it no longer agrees with people."),
)  # fmt: skip
CHAPTERS = (
    Chapter("routine", "Daily routine", _ROUTINE),
    Chapter("scores", "Scores", _SCORES),
    Chapter("changes", "Health, incidents and changes", _CHANGES),
    Chapter("runs", "Runs, people and the judge", _RUNS),
)


router = APIRouter(include_in_schema=False)


@router.get("/help")
async def help_page(request: Request, _: Viewer) -> HTMLResponse:
    """Show every term."""
    return page(request, "help.html", {"chapters": CHAPTERS})
