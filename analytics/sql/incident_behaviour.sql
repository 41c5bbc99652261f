-- purpose: the sessions that contributed most to a change of an agent's behaviour: the farthest from the expected value in the direction
--     of the change; equals newest first. Exchanges that are deleted are missing
-- grain: one row per session and day with the mean of its turns or calls, and the verdict on its run, for sessions that ended. moved: weight times
--     distance from the expected value
-- parameters: $project, $agents (list; '' for exchanges without one), $series, $version (NULL: any), $since (inclusive) and $until (exclusive), $expected,
--     $direction (up or down), $limit
WITH measured AS (
    SELECT
        connection, session_id, agent, last_at AS ended_at, total / weight / 1e9 AS value,
        round(weight * (total / weight / 1e9 - $expected::DOUBLE) * CASE WHEN $direction = 'down' THEN -1 ELSE 1 END, 6) AS moved
    FROM log.behaviour_units($project, $since::TIMESTAMP, $until::TIMESTAMP)
    WHERE list_contains($agents::VARCHAR[], agent) AND series = $series AND ($version::VARCHAR IS NULL OR version = $version)
), ranked AS (
    SELECT * FROM measured
    WHERE moved > 0
    ORDER BY moved DESC, ended_at DESC, connection, session_id
    LIMIT $limit
)
SELECT
    printf('run_%03d', n.number) AS run_id, r.connection, r.session_id, r.agent, r.ended_at,
    r.value, r.moved, d.trust_score, d.readiness_level, d.primary_failure_type, list_sort(list_distinct([c.type FOR c IN d.failure_causes])) AS failures
FROM ranked AS r
JOIN log.run_numbers AS n ON n.project = $project AND n.connection = r.connection AND n.session_id = r.session_id
JOIN diagnoses AS d ON d.connection = r.connection AND d.session_id = r.session_id
ORDER BY r.moved DESC, r.ended_at DESC, r.connection, r.session_id
