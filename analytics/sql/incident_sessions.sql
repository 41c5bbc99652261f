-- purpose: the judged sessions that contributed most to a change of a score: the farthest from the expected value in the
--     direction of the change; equals newest first
-- grain: one row per session with its score and the verdict on its run. moved: weighted distance from the expected value
-- parameters: $project, $series (overall or a dimension), $since (inclusive) and $until (exclusive) by the end of the
--     session, $expected, $direction (up or down), $limit
WITH series_values AS (
    SELECT connection, session_id, ended_at, weight, scores[$series] AS value
    FROM log.session_judgements()
    WHERE project = $project AND ended_at >= $since::TIMESTAMP AND ended_at < $until::TIMESTAMP
)
SELECT
    printf('run_%03d', n.number) AS run_id, v.connection, v.session_id, d.agent, v.ended_at, v.value,
    round(v.weight * (v.value - $expected::DOUBLE) * CASE WHEN $direction = 'down' THEN -1 ELSE 1 END, 6) AS moved,
    d.trust_score, d.readiness_level, d.primary_failure_type, list_sort(list_distinct([c.type FOR c IN d.failure_causes])) AS failures
FROM series_values AS v
JOIN log.run_numbers AS n ON n.project = $project AND n.connection = v.connection AND n.session_id = v.session_id
JOIN diagnoses AS d ON d.connection = v.connection AND d.session_id = v.session_id
WHERE moved > 0
ORDER BY moved DESC, v.ended_at DESC, v.connection, v.session_id
LIMIT $limit
