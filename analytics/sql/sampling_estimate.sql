-- purpose: how many of a time's exchanges a sampling would have judged, from what is stored of them: an estimate, to compare two samplings with
-- grain: one row, none without exchanges; exchanges: that have a score; sampled: that were sampled; expected: that this sampling would sample on average. Disagreement is known only of exchanges that were sampled for it
-- parameters: $project, $from (inclusive) and $to (exclusive) in event time; $enabled, $first, $last, $disagreement, $long, $threshold, $interval: the sampling, as in the policy
WITH heard AS (
    SELECT "connection", exchange_id, output_tokens
    FROM log.current_exchanges
    WHERE project = $project AND occurred_at >= $from::TIMESTAMP AND occurred_at < $to::TIMESTAMP
), scored AS (
    SELECT
        s.sampling_reason, len(s.tier1_flags) > 0 AS flagged, h.output_tokens,
        coalesce(s.turn_number, row_number() OVER (session_turns ORDER BY s.exchange_at, s.exchange_id)) AS turn,
        row_number() OVER (session_turns ORDER BY s.turn_number DESC, s.exchange_at DESC, s.exchange_id DESC) AS from_end
    FROM scores AS s
    LEFT JOIN heard AS h ON s."connection" = h."connection" AND s.exchange_id = h.exchange_id
    WHERE s.project = $project AND s.exchange_at >= $from::TIMESTAMP AND s.exchange_at < $to::TIMESTAMP
    WINDOW session_turns AS (PARTITION BY s."connection", s.session_id)
), drawn AS (
    SELECT
        sampling_reason <> 'sampling_skip' AS sampled,
        CASE
            WHEN NOT $enabled OR turn <= $first OR from_end <= $last OR flagged THEN 1
            WHEN $disagreement AND sampling_reason = 'disagreement' THEN 1
            WHEN $long AND coalesce(output_tokens > $threshold, false) THEN 1
            ELSE 1 / $interval
        END AS expected
    FROM scored
)
SELECT count(*) AS exchanges, count(*) FILTER (sampled) AS sampled, round(sum(expected), 3) AS expected
FROM drawn
HAVING count(*) > 0
