-- purpose: whether the mix of exchanges that were judged changed with the scores: how many of each sampling reason before a change and after it
-- grain: one row a sampling reason; shares: of the judged exchanges of each time
-- parameters: $project, $before_since, $before_until, $after_since, $after_until (in event time, each from inclusive to exclusive)
WITH latest AS (
    SELECT score_id, max((revision, _offset)) AS version
    FROM log.scores
    WHERE project = $project AND exchange_at >= $before_since::TIMESTAMP AND exchange_at < $after_until::TIMESTAMP
    GROUP BY score_id
), counted AS (
    SELECT
        sampling_reason, count(*) FILTER (exchange_at < $before_until::TIMESTAMP) AS before,
        count(*) FILTER (exchange_at >= $after_since::TIMESTAMP) AS after
    FROM log.scores AS s
    SEMI JOIN latest AS l ON s.score_id = l.score_id AND (s.revision, s._offset) = l.version
    WHERE disposition = 'scored'
    GROUP BY sampling_reason
)
SELECT
    sampling_reason, before, after, round(before / nullif(sum(before) OVER (), 0), 3) AS share_before,
    round(after / nullif(sum(after) OVER (), 0), 3) AS share_after
FROM counted
WHERE before + after > 0
ORDER BY before + after DESC, sampling_reason
