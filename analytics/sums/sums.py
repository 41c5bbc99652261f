# ruff: noqa: S608 - statements are made of the names of our own tables and columns; values are always parameters
"""Sums of scores by UTC day and by the hour: one definition for kept sums and for those added up on request.

Billionths are added as whole numbers: sums depend neither on the order in which scores are met nor on how they are split. What may be
too large for 64 bits is rounded to a double as it is kept, and adding such sums up adds whole numbers again.
"""

from __future__ import annotations

KEY = "project, day, agent, sampling_reason, disposition, simulated, weight"
"""The columns that tell the rows of the daily sums apart."""
HOUR_KEY = (
    "project, hour, methodology, methodology_version, methodology_digest, rule_version, judge_model, simulated, policy_digest"
)
"""The columns that tell the rows of the hourly sums apart."""
SCORES = {
    "tier1": "tier1_score",
    "tier2": "CASE WHEN tier2_state = 'scored' THEN tier2_score END",
    "tier2_5": "CASE WHEN tier2_5_state = 'scored' THEN tier2_5_alignment END",
    "tier3": "CASE WHEN tier3_state = 'scored' THEN tier3_score END",
}
"""The score of each tier, as an expression over the columns of scores."""
UNSURE = (
    "tier3_score BETWEEN 2.5 AND 3.5 OR tier2_score BETWEEN 0.4 AND 0.6 OR tier2_5_alignment BETWEEN 0.4 AND 0.6"
    " OR abs(tier2_score - (tier3_score - 1) / 4) >= 0.4 OR (tier2_flagged AND tier3_score >= 4)"
)
"""Whether the judge was unsure of a score: a tier is near its middle, or tiers contradict each other."""
_RATED = f"CASE WHEN tier3_score IS NOT NULL THEN CASE WHEN anomaly THEN 'anomaly' WHEN {UNSURE} THEN 'unsure' ELSE 'routine' END END"
_STRATA = {"rated_anomalies": "anomaly", "rated_unsure": "unsure", "rated_routine": "routine"}
"""The columns that count what Tier 3 has scored, by stratum."""
_LEAST = 1e-4
"""The least probability that a policy can sample with. One that landed from elsewhere with less must not break sums of all projects."""
_COLUMNS = ", ".join(
    (
        "project, date_trunc('day', exchange_at) AS day, coalesce(agent, '') AS agent, sampling_reason, disposition, simulated",
        "1 / coalesce(sampling_probability, 1) AS weight, anomaly, round(cost_usd * 1e9)::BIGINT AS nano_usd",
        *(f"round(({score}) * 1e9)::BIGINT AS {tier}" for tier, score in SCORES.items()),
        "\"connection\", session_id, exchange_at, coalesce(judge_model, '') AS judge_model",
        "methodology, methodology_version, methodology_digest, rule_version, policy_digest",
        f"round(1e6 / greatest(coalesce(sampling_probability, 1), {_LEAST}))::BIGINT AS micro_weight, {_RATED} AS rated",
    )
)
# The time of an exchange never changes. It is compared first, because to sort by a number takes two thirds of the time.
_LATEST = "QUALIFY row_number() OVER (PARTITION BY exchange_at, project, score_id ORDER BY revision DESC, _offset DESC) = 1"
_ROUNDED = "::DOUBLE::HUGEINT"
_SUMS = ", ".join(
    (
        "count(*) AS exchanges, count(*) FILTER (anomaly) AS anomalies",
        *(
            f"count({tier}) AS {tier}_count, coalesce(sum({tier}), 0)::BIGINT AS {tier}_sum,"
            f" coalesce(sum({tier}::HUGEINT * {tier}), 0){_ROUNDED} AS {tier}_squares"
            for tier in SCORES
        ),
        "coalesce(sum(nano_usd), 0)::BIGINT AS nano_usd, count(*) - count(nano_usd) AS unknown_costs",
        *(f"count(*) FILTER (rated = '{stratum}') AS {column}" for column, stratum in _STRATA.items()),
    )
)
_WEIGHTS = {tier: "1000000" if tier == "tier1" else "micro_weight" for tier in SCORES}
"""For how many millionths of an exchange a score stands: each exchange has a score of Tier 1."""
_UNIT_SUMS = ", ".join(
    (
        "max(exchange_at) AS last_at, count(*) AS exchanges, count(*) FILTER (anomaly) AS anomalies",
        *(
            f"count({tier}) AS {tier}_count, sum({tier}) AS {tier}_sum, sum({tier}::HUGEINT * {tier}) AS {tier}_squares,"
            f" (sum({weight}) FILTER ({tier} IS NOT NULL))::HUGEINT AS {tier}_weight,"
            f" round(sum({weight}::HUGEINT * {tier}) / 1e6)::HUGEINT AS {tier}_total"
            for tier, weight in _WEIGHTS.items()
        ),
    )
)
_UNIT_KEY = HOUR_KEY.replace("hour", 'day, "connection", session_id', 1)
_EXACT = {
    "count": ("sum({tier}_count)", "::BIGINT", 1),
    "sum": ("sum({tier}_sum)", "::BIGINT", 1e9),
    "squares": ("sum({tier}_squares)", _ROUNDED, 1e18),
    "units": ("count({tier}_weight)", "", 1),
    "weight": ("sum({tier}_weight)", _ROUNDED, 1e6),
    "total": ("sum({tier}_total)", _ROUNDED, 1e9),
    "unit_squares": ("sum({tier}_weight * {tier}_weight)", _ROUNDED, 1e12),
    "unit_mixed": ("sum({tier}_weight * {tier}_total)", _ROUNDED, 1e15),
    "unit_totals": ("sum({tier}_total * {tier}_total)", _ROUNDED, 1e18),
}
"""The sums over the units of an hour: expression, kept form, and the number that makes 1 on the scale of scores and weights."""
_HOUR_SUMS = ", ".join(
    (
        "max(last_at) AS last_at, sum(exchanges)::BIGINT AS exchanges, sum(anomalies)::BIGINT AS anomalies",
        *(
            ", ".join(
                f"coalesce({text.format(tier=tier)}, 0){form} AS {tier}_{name}" for name, (text, form, _) in _EXACT.items()
            )
            + f", min({tier}_total / {tier}_weight) / 1e3 AS {tier}_low, max({tier}_total / {tier}_weight) / 1e3 AS {tier}_high"
            for tier in SCORES
        ),
    )
)
WHOLE_DAYS = ", ".join(f"{tier}_squares::HUGEINT AS {tier}_squares" for tier in SCORES)
"""Columns of kept daily sums that are added as whole numbers."""
WHOLE_HOURS = ", ".join(
    f"{tier}_{name}::HUGEINT AS {tier}_{name}" for tier in SCORES for name, (_, form, _) in _EXACT.items() if form == _ROUNDED
)
"""Columns of kept hourly sums that are added as whole numbers."""
HOUR_SCALES = {f"{tier}_{name}": scale for tier in SCORES for name, (*_, scale) in _EXACT.items() if scale != 1}
"""By how much the columns of kept hourly sums are divided, to be on the scale of scores and weights."""


def current_of(scores: str) -> str:
    """The statement that answers the latest revisions of some rows of the log's scores, given as what follows FROM, as they are added up.

    Of an exchange the rows have all revisions or none.
    """
    return f"SELECT {_COLUMNS} FROM {scores} {_LATEST}"


def days_of(current: str) -> str:
    """The statement that adds up by day what `current_of` answers, given as what follows FROM."""
    return f"SELECT {KEY}, {_SUMS} FROM {current} GROUP BY {KEY}"


def hours_of(current: str) -> str:
    """The statement that adds up by the hour what `current_of` answers, given as what follows FROM.

    The scores of a session on a day that were made with the same are one unit, which counts in the hour of its last exchange.
    """
    units = f"SELECT {_UNIT_KEY}, {_UNIT_SUMS} FROM {current} GROUP BY {_UNIT_KEY}"
    placed = f"SELECT *, date_trunc('hour', last_at) AS hour FROM ({units})"
    return f"SELECT {HOUR_KEY}, {_HOUR_SUMS} FROM ({placed}) GROUP BY {HOUR_KEY}"
