-- purpose: the sessions of a project with the cost of judging their exchanges, by the time of the exchange, filtered,
--     sorted and paged
-- grain: one row per session. Judgements without a stored exchange (such as those of evaluations) count by the time
--     of the answer. last_at: hour of the newest exchange; cost_usd: sum of the known costs, including simulated
--     ones, NULL if all are unknown; sort_number, sort_text, sort_id: sort keys
-- parameters: $project, $since (inclusive) and $until (exclusive) of the time of the exchange, $agent ('' for
--     unnamed; NULL: any), $least and $most (inclusive bounds of the cost in USD; NULL: unbounded), $sort (at,
--     session, agent, judgements, input, output, writes, reads or cost), $down (true: descending), $last_number,
--     $last_text, $last_id (sort keys of the last row already listed; NULL: first page), $limit
WITH sessions AS (
    SELECT
        connection, session_id, max(agent) AS agent, max(hour) AS last_at, sum(judgements)::BIGINT AS judgements,
        sum(input_tokens)::BIGINT AS input_tokens, sum(output_tokens)::BIGINT AS output_tokens,
        sum(cache_write_tokens)::BIGINT AS cache_write_tokens, sum(cache_read_tokens)::BIGINT AS cache_read_tokens,
        log.known_usd(sum(judgements), sum(unknown_costs), sum(nano_usd)) AS cost_usd,
        sum(unknown_costs)::BIGINT AS unknown_costs, sum(simulated)::BIGINT AS simulated
    FROM log.cost_hours($project, $since::TIMESTAMP, $until::TIMESTAMP)
    GROUP BY connection, session_id
), filtered AS (
    SELECT
        *,
        CASE $sort
            WHEN 'at' THEN epoch_us(last_at)::DOUBLE WHEN 'judgements' THEN judgements::DOUBLE
                WHEN 'input' THEN input_tokens::DOUBLE WHEN 'output' THEN output_tokens::DOUBLE
            WHEN 'writes' THEN cache_write_tokens::DOUBLE WHEN 'reads' THEN cache_read_tokens::DOUBLE WHEN 'cost' THEN cost_usd
        END AS sort_number,
        CASE $sort WHEN 'session' THEN session_id WHEN 'agent' THEN agent END AS sort_text,
        connection || '/' || coalesce(session_id, '') AS sort_id
    FROM sessions
    WHERE ($agent IS NULL OR coalesce(agent, '') = $agent) AND ($least IS NULL OR cost_usd >= $least)
        AND ($most IS NULL OR cost_usd <= $most)
), page AS (
    SELECT *
    FROM filtered
    WHERE log.listed_after($down, sort_number, sort_text, sort_id, $last_number, $last_text, $last_id)
    ORDER BY
        sort_number IS NULL AND sort_text IS NULL, CASE WHEN $down THEN -sort_number ELSE sort_number END,
        CASE WHEN NOT $down THEN sort_text END, CASE WHEN $down THEN sort_text END DESC, sort_id
    LIMIT $limit
)
SELECT p.*, printf('run_%03d', n.number) AS run_id
FROM page AS p
LEFT JOIN log.run_numbers AS n ON n.project = $project AND n.connection = p.connection AND n.session_id = p.session_id
ORDER BY
    sort_number IS NULL AND sort_text IS NULL, CASE WHEN $down THEN -sort_number ELSE sort_number END,
    CASE WHEN NOT $down THEN sort_text END, CASE WHEN $down THEN sort_text END DESC, sort_id
