-- purpose: exchanges that the judge should have scored and did not, oldest first, with the fields of a new request.
--     `exchange_records` returns their texts
-- grain: one row per exchange whose current score is unscored, but not because it waits for a batch (or, with the name of a cap as the reason, skipped by a cap) and
--     that has no newer request. reasons: distinct reasons of its unscored tiers; revision: the highest revision of
--     its scores and requests
-- parameters: $project (NULL: all except anchor projects, whose round is over), $reason (NULL: all), $without (list
--     of projects to exclude), $limit
WITH latest AS (
    SELECT score_id, max((revision, _offset)) AS version
    FROM log.scores
    WHERE project = $project OR ($project IS NULL AND NOT starts_with(project, 'anchors.'))
    GROUP BY score_id
), unscored AS (
    SELECT
        *,
        list_distinct([
            t.reason FOR t IN [
                {'state': tier2_state, 'reason': tier2_reason},
                {'state': tier2_5_state, 'reason': tier2_5_reason},
                {'state': tier3_state, 'reason': tier3_reason}
            ] IF t.state IN ('unscored', 'skipped_cost_cap')
        ]) AS reasons
    FROM log.scores AS s
    SEMI JOIN latest AS l ON s.score_id = l.score_id AND (s.revision, s._offset) = l.version
    WHERE disposition = 'unscored' OR (disposition = 'skipped_cost_cap' AND ends_with($reason, '_cap'))
), requests AS (
    SELECT connection, exchange_id, max(revision) AS requested
    FROM log.judging_requests
    GROUP BY connection, exchange_id
), pending AS (
    SELECT connection, exchange_id, max(revision) AS pending
    FROM log.scoring_tasks
    WHERE _offset >= (SELECT coalesce(max(next_position), 0) FROM log.watermarks WHERE consumer = 'scoring')
    GROUP BY connection, exchange_id
)
SELECT
    u.connection, u.project, u.session_id, u.exchange_id, u.exchange_at,
    greatest(u.revision, coalesce(r.requested, 0)) AS revision,
    u.turn_number, u.sampling_reason, u.sampling_probability, list_sort(u.reasons) AS reasons
FROM unscored AS u
LEFT JOIN requests AS r USING (connection, exchange_id)
LEFT JOIN pending AS p USING (connection, exchange_id)
WHERE ($reason IS NULL OR list_contains(u.reasons, $reason))
    AND NOT list_contains(u.reasons, 'awaiting_batch')
    AND NOT list_contains($without::VARCHAR[], u.project)
    AND coalesce(p.pending, -1) <= u.revision
ORDER BY u.exchange_at, u.connection, u.session_id, u.turn_number, u.exchange_id
LIMIT $limit
