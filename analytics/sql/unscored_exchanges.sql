-- purpose: exchanges that a judge should have scored and did not, oldest first, with what it takes to ask for them again; `exchange_records` has their texts
-- grain: one row an exchange whose current score is unscored; reasons: of its unscored tiers, each once; revision: of that score
-- parameters: $project, $reason (NULL for all), $limit
WITH latest AS (
    SELECT score_id, max((revision, _offset)) AS version
    FROM log.scores
    WHERE $project IS NULL OR project = $project
    GROUP BY score_id
), unscored AS (
    SELECT
        *,
        list_distinct([
            t.reason FOR t IN [
                {'state': tier2_state, 'reason': tier2_reason},
                {'state': tier2_5_state, 'reason': tier2_5_reason},
                {'state': tier3_state, 'reason': tier3_reason}
            ] IF t.state = 'unscored'
        ]) AS reasons
    FROM log.scores AS s
    SEMI JOIN latest AS l ON s.score_id = l.score_id AND (s.revision, s._offset) = l.version
    WHERE disposition = 'unscored'
)
SELECT
    connection, project, session_id, exchange_id, exchange_at, revision, turn_number, sampling_reason, sampling_probability,
    list_sort(reasons) AS reasons
FROM unscored
WHERE $reason IS NULL OR list_contains(reasons, $reason)
ORDER BY exchange_at, connection, session_id, turn_number, exchange_id
LIMIT $limit
