-- purpose: the sort key at which a page of a list of exchanges ends. It reads only the sorted column, so that
--     `list_exchanges` need not read the rows after it
-- grain: one row with the number or text of the row after the first $skip scores, none if there are fewer; and one
--     row of NULLs if more than $skip scores have no sort key. Revisions are not counted; scores that were replaced
--     by them are
-- parameters: $project (NULL: all), $since (inclusive) and $until (exclusive) of the time of the exchange (NULL: unbounded),
--     $agent ('' for unnamed; NULL: any), $session (NULL: any), $anomalies (true: only with an anomaly, false: only
--     without; NULL: any), $reason (part of an anomaly reason or a flag, case-insensitive; NULL: any), $outcome (of
--     the score: scored, sampling_skip, skipped_cost_cap or unscored; NULL: any), $tier (tier1, tier2, tier2_5 or
--     tier3), $least and $most (inclusive bounds of the score of this tier; NULL: unbounded), $model (of the agent;
--     NULL: any), $label and $value (of a label of the exchange; NULL: any), $version (of the agent, in its label; NULL:
--     any), $tool (called in the exchange; NULL: any), $tool_error (true: only with a failed call, of that tool if any;
--     NULL: any), $text (all its words must occur in question, answer or names of tools; NULL: any),
--     $blocks (list; the only blocks of the search index to read; NULL: all), $sort (at, agent, session, turn, tier1,
--     tier2, tier2_5, tier3, outcome or cost), $down (true: descending), $last_number, $last_text (sort keys of the
--     last row already listed; NULL: first page), $skip
WITH tagged AS (
    SELECT id
    FROM log.tagged_exchanges(
        $project, $since::TIMESTAMP, $until::TIMESTAMP, $model, $label, $value, $version, $tool, $tool_error::BOOLEAN, $text::VARCHAR,
        $blocks::BIGINT[]
    )
), counted AS NOT MATERIALIZED (
    SELECT *
    FROM log.listed_scores(
        $project, $since::TIMESTAMP, $until::TIMESTAMP, $agent, $session, $anomalies, $reason, $outcome, $tier, $least, $most, $sort
    )
    WHERE revision = 0
), plain AS NOT MATERIALIZED (
    SELECT *
    FROM counted
    WHERE NOT log.is_tagged($model, $label, $value, $version, $tool, $tool_error::BOOLEAN, $text::VARCHAR)
), named AS NOT MATERIALIZED (
    SELECT *
    FROM counted
    SEMI JOIN tagged ON connection || '/' || exchange_id = id
    WHERE log.is_tagged($model, $label, $value, $version, $tool, $tool_error::BOOLEAN, $text::VARCHAR)
)
(
    -- The planner removes all branches except one or two. A scan ordered by a stored column skips row groups that cannot be first.
    SELECT epoch_us(exchange_at)::DOUBLE AS number, NULL AS text FROM plain
    WHERE $sort = 'at' AND $down AND ($last_number IS NULL OR exchange_at <= make_timestamp($last_number::BIGINT))
    ORDER BY exchange_at DESC LIMIT 1 OFFSET $skip
) UNION ALL (
    SELECT epoch_us(exchange_at)::DOUBLE, NULL FROM plain
    WHERE $sort = 'at' AND NOT $down AND ($last_number IS NULL OR exchange_at >= make_timestamp($last_number::BIGINT))
    ORDER BY exchange_at LIMIT 1 OFFSET $skip
) UNION ALL (
    SELECT turn_number, NULL FROM plain
    WHERE $sort = 'turn' AND $down AND turn_number IS NOT NULL AND ($last_number IS NULL OR turn_number <= $last_number)
    ORDER BY turn_number DESC LIMIT 1 OFFSET $skip
) UNION ALL (
    SELECT turn_number, NULL FROM plain
    WHERE $sort = 'turn' AND NOT $down AND turn_number IS NOT NULL AND ($last_number IS NULL OR turn_number >= $last_number)
    ORDER BY turn_number LIMIT 1 OFFSET $skip
) UNION ALL (
    SELECT sort_number, NULL FROM plain
    WHERE $sort NOT IN ('at', 'turn') AND $down AND sort_number IS NOT NULL AND ($last_number IS NULL OR sort_number <= $last_number)
    ORDER BY sort_number DESC LIMIT 1 OFFSET $skip
) UNION ALL (
    SELECT sort_number, NULL FROM plain
    WHERE $sort NOT IN ('at', 'turn') AND NOT $down AND sort_number IS NOT NULL AND ($last_number IS NULL OR sort_number >= $last_number)
    ORDER BY sort_number LIMIT 1 OFFSET $skip
) UNION ALL (
    SELECT NULL, sort_text FROM plain
    WHERE $down AND sort_text IS NOT NULL AND ($last_text IS NULL OR sort_text <= $last_text)
    ORDER BY sort_text DESC LIMIT 1 OFFSET $skip
) UNION ALL (
    SELECT NULL, sort_text FROM plain
    WHERE NOT $down AND sort_text IS NOT NULL AND ($last_text IS NULL OR sort_text >= $last_text)
    ORDER BY sort_text LIMIT 1 OFFSET $skip
) UNION ALL (
    SELECT sort_number, sort_text FROM named
    WHERE (sort_number IS NOT NULL OR sort_text IS NOT NULL)
        AND ($last_number IS NULL OR CASE WHEN $down THEN sort_number <= $last_number ELSE sort_number >= $last_number END)
        AND ($last_text IS NULL OR CASE WHEN $down THEN sort_text <= $last_text ELSE sort_text >= $last_text END)
    ORDER BY CASE WHEN $down THEN -sort_number ELSE sort_number END, CASE WHEN NOT $down THEN sort_text END, sort_text DESC
    LIMIT 1 OFFSET $skip
) UNION ALL (
    SELECT sort_number, sort_text FROM plain
    WHERE $sort NOT IN ('at', 'session', 'outcome') AND sort_number IS NULL AND sort_text IS NULL
    LIMIT 1 OFFSET $skip
) UNION ALL (
    SELECT sort_number, sort_text FROM named
    WHERE $sort NOT IN ('at', 'session', 'outcome') AND sort_number IS NULL AND sort_text IS NULL
    LIMIT 1 OFFSET $skip
)
ORDER BY number IS NULL AND text IS NULL
