-- purpose: the scored exchanges of a project, or of all, filtered, sorted and paged
-- grain: one row per exchange with its current score. question, answer: excerpts of one line, NULL for a deleted
--     exchange; sort_number, sort_text, sort_id: sort keys
-- parameters: $project (NULL: all), $since (inclusive) and $until (exclusive) of the time of the exchange (NULL: unbounded),
--     $agent ('' for unnamed; NULL: any), $session (NULL: any), $anomalies (true: only with an anomaly, false: only
--     without; NULL: any), $reason (part of an anomaly reason or a flag, case-insensitive; NULL: any), $outcome (of
--     the score: scored, sampling_skip, skipped_cost_cap or unscored; NULL: any), $tier (tier1, tier2, tier2_5 or
--     tier3), $least and $most (inclusive bounds of the score of this tier; NULL: unbounded), $model (of the agent;
--     NULL: any), $label and $value (of a label of the exchange; NULL: any), $version (of the agent, in its label; NULL:
--     any), $tool (called in the exchange; NULL: any), $tool_error (true: only with a failed call, of that tool if any;
--     NULL: any), $text (all its words must occur in question, answer or names of tools; NULL: any),
--     $blocks (list; the only blocks of the search index to read; NULL: all), $sort (at, agent, session, turn, tier1,
--     tier2, tier2_5, tier3, outcome or cost), $down (true: descending), $last_number, $last_text, $last_id (sort
--     keys of the last row already listed; NULL: first page), $reach_number and $reach_text (end of the page's
--     prefix, from `list_reach`; later rows are ignored; NULL: every row with a sort key is in the prefix), $skip (as
--     for `list_reach`: number of rows to read, by id, at the end of the prefix or among the rows without a sort key,
--     plus one; NULL: all), $limit
WITH tagged AS (
    SELECT id
    FROM log.tagged_exchanges(
        $project, $since::TIMESTAMP, $until::TIMESTAMP, $model, $label, $value, $version, $tool, $tool_error::BOOLEAN, $text::VARCHAR,
        $blocks::BIGINT[]
    )
), listed AS NOT MATERIALIZED (
    SELECT *
    FROM log.listed_scores(
        $project, $since::TIMESTAMP, $until::TIMESTAMP, $agent, $session, $anomalies, $reason, $outcome, $tier, $least, $most, $sort
    )
    WHERE log.listed_after($down, sort_number, sort_text, score_id, $last_number, $last_text, $last_id)
        AND ($last_number IS NULL OR sort_number IS NULL OR CASE WHEN $down THEN sort_number <= $last_number
            ELSE sort_number >= $last_number END)
        -- Read ids only if a filter needs them; otherwise compare ''.
        AND (
            NOT log.is_tagged($model, $label, $value, $version, $tool, $tool_error::BOOLEAN, $text::VARCHAR)
            OR CASE WHEN log.is_tagged($model, $label, $value, $version, $tool, $tool_error::BOOLEAN, $text::VARCHAR) THEN connection || '/' || exchange_id ELSE '' END
                IN (SELECT id FROM tagged)
        )
), prefix AS MATERIALIZED (
    SELECT *
    FROM listed
    WHERE (sort_number IS NOT NULL OR sort_text IS NOT NULL)
        AND ($reach_number IS NULL OR CASE WHEN $down THEN sort_number > $reach_number ELSE sort_number < $reach_number END)
        AND ($reach_text IS NULL OR CASE WHEN $down THEN sort_text > $reach_text ELSE sort_text < $reach_text END)
        AND ($reach_number IS NULL OR $sort <> 'at' OR CASE WHEN $down THEN exchange_at > make_timestamp($reach_number::BIGINT)
            ELSE exchange_at < make_timestamp($reach_number::BIGINT) END)
    UNION ALL
    (
        SELECT *
        FROM listed
        WHERE CASE
                WHEN $reach_number IS NOT NULL THEN sort_number = $reach_number
                WHEN $reach_text IS NOT NULL THEN sort_text = $reach_text
                ELSE $sort NOT IN ('at', 'session', 'outcome') AND sort_number IS NULL AND sort_text IS NULL
            END
            AND ($reach_number IS NULL OR $sort <> 'at' OR exchange_at = make_timestamp($reach_number::BIGINT))
        ORDER BY score_id
        LIMIT coalesce($skip::BIGINT, 1000000000000) + 1
    )
), later AS (
    -- Few scores have several revisions; only those are read twice.
    SELECT score_id, max((revision, _offset)) AS version
    FROM log.scores
    WHERE log.matches_project(project, $project) AND revision > 0 AND exchange_at IN (SELECT exchange_at FROM prefix)
    GROUP BY score_id
), current AS (
    -- A record delivered twice has two rows, so read a few more rows than the page needs.
    SELECT prefix.*
    FROM prefix
    LEFT JOIN later AS l USING (score_id)
    WHERE l.version IS NULL OR (revision, _offset) = l.version
    ORDER BY
        sort_number IS NULL AND sort_text IS NULL, CASE WHEN $down THEN -sort_number ELSE sort_number END,
        CASE WHEN NOT $down THEN sort_text END, CASE WHEN $down THEN sort_text END DESC, score_id
    LIMIT $limit + 50
), page AS MATERIALIZED (
    SELECT * FROM current QUALIFY row_number() OVER (PARTITION BY score_id ORDER BY revision DESC, _offset DESC) = 1
), exchange_rows AS MATERIALIZED (
    -- Select the few rows by time first, so that wide columns are read only for them.
    SELECT rowid AS row FROM log.exchanges
    WHERE log.matches_project(project, $project) AND occurred_at IN (SELECT exchange_at FROM page)
), exchanges AS MATERIALIZED (
    SELECT
        occurred_at, exchange_id, connection, agent_model, labels, log.excerpt(user_message) AS question,
        log.excerpt(agent_response) AS answer
    FROM log.exchanges AS e
    SEMI JOIN exchange_rows ON e.rowid = exchange_rows.row
    QUALIFY row_number() OVER (PARTITION BY connection, exchange_id ORDER BY revision DESC, _offset DESC) = 1
)
SELECT
    s.exchange_at, s.score_id, s.exchange_id, s.connection, s.agent, s.session_id, s.turn_number, s.disposition, s.sampling_reason,
    s.tier1_score, s.tier1_flags, s.tier2_score, s.tier2_5_alignment, s.tier3_score, s.anomaly, s.anomaly_reasons, s.cost_usd, s.simulated,
    e.agent_model, e.labels, e.question, e.answer, s.project, p.sort_number, p.sort_text, p.score_id AS sort_id
FROM page AS p
JOIN log.scores AS s ON s.rowid = p.row
LEFT JOIN exchanges AS e ON e.occurred_at = s.exchange_at AND e.exchange_id = s.exchange_id AND e.connection = s.connection
ORDER BY
    p.sort_number IS NULL AND p.sort_text IS NULL, CASE WHEN $down THEN -p.sort_number ELSE p.sort_number END,
    CASE WHEN NOT $down THEN p.sort_text END, CASE WHEN $down THEN p.sort_text END DESC, p.score_id
LIMIT $limit
