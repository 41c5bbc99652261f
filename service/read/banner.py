"""The start-up banner: the banner for an agent when a session begins, with the settings in force."""

from __future__ import annotations

from audit.policy import ProjectSettings, Sampling
from service.setup.judge_setup import LIVE, NONE

_TEENS = range(11, 14)
_ENDINGS = {1: "st", 2: "nd", 3: "rd"}


def banner_text(settings: ProjectSettings, open_incidents: int, judge: str, check: str) -> str:
    """Return the banner of a project, six lines; two if it is not audited.

    `judge` names the judge: none, live, or another one such as `simulated judge`, which is shown beside the model it stands for.
    `check` is a sentence about the last check for incidents.
    """
    incidents = f"Open incidents: {open_incidents}" + ("" if open_incidents else f". {check}")
    if not settings.enabled:
        return f"Eval Audit Mode: Off\n{incidents}"
    lines = [
        "Eval Audit Mode: Active",
        f"Judge model: {_judge(settings, judge)}",
        f"Tiers: {_tiers(settings, judge)}",
        f"Sampling: {_sampling(settings.sampling)}",
        f"Cost cap: {_cap(settings.cost_cap_per_session)}",
        incidents,
    ]
    return "\n".join(lines)


def _judge(settings: ProjectSettings, judge: str) -> str:
    if judge == NONE:
        return "none; only Tier 1 runs"
    return settings.judge_model + ("" if judge == LIVE else f" ({judge})")


def _tiers(settings: ProjectSettings, judge: str) -> str:
    tiers = ["1 (structural)"]
    if judge != NONE:
        tiers.append("2 (semantic)")
        tiers += ["2.5 (thinking)"] if settings.thinking_block_analysis else []
        tiers.append("3 (behavioral)")
    return " → ".join(tiers)


def _sampling(sampling: Sampling) -> str:
    if not sampling.enabled or sampling.routine_interval == 1:
        return "every exchange"
    ends = {"first": sampling.always_score_first, "last": sampling.always_score_last}
    always = " / ".join(f"{end} {count}" for end, count in ends.items() if count)
    routine = f"every {_ordinal(sampling.routine_interval)} routine"
    return f"{routine}, always {always}" if always else routine


def _cap(cap: float | None) -> str:
    if cap is None:
        return "none"
    # Half a cent must not be shown as 0.
    amount = f"{cap:.2f}" if cap == round(cap, 2) else f"{cap:.9f}".rstrip("0")
    return f"${amount}/session"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in _TEENS else _ENDINGS.get(number % 10, "th")
    return f"{number}{ending}"
