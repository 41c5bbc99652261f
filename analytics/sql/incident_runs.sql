-- purpose: the runs that changed a series of an agent's runs most: those farthest off what was expected, on the side of the change, among equals the least trusted and the newest first
-- grain: one row per run: its value in the series, how far that is off, and its verdict
-- parameters: $project, $agent ('' for runs of no named agent), $series (trust, unsafe, or failure: and a type), $since (inclusive) and $until (exclusive), when runs ended, $expected, $direction (up or down), $limit
WITH latest AS (
    SELECT connection, session_id, max((revision, _offset)) AS version
    FROM log.diagnoses
    WHERE project = $project
    GROUP BY connection, session_id
), told AS (
    SELECT
        d.connection, d.session_id, agent, coalesce(ended_at, closed_at) AS ended_at, trust_score, readiness_level, primary_failure_type,
        list_sort(list_distinct([c.type FOR c IN failure_causes])) AS failures,
        log.run_value($series, trust_score, readiness_level, [c.type FOR c IN failure_causes]) AS value
    FROM log.diagnoses AS d
    JOIN latest AS l ON d.connection = l.connection AND d.session_id = l.session_id AND (d.revision, d._offset) = l.version
    WHERE project = $project AND coalesce(agent, '') = $agent AND trust_score IS NOT NULL
        AND coalesce(ended_at, closed_at) >= $since::TIMESTAMP AND coalesce(ended_at, closed_at) < $until::TIMESTAMP
)
SELECT
    printf('run_%03d', n.number) AS run_id, t.connection, t.session_id, agent, ended_at, value,
    round((value - $expected::DOUBLE) * CASE WHEN $direction = 'down' THEN -1 ELSE 1 END, 6) AS moved,
    trust_score, readiness_level, primary_failure_type, failures
FROM told AS t
JOIN log.run_numbers AS n ON n.project = $project AND n.connection = t.connection AND n.session_id = t.session_id
WHERE moved > 0
ORDER BY moved DESC, trust_score, ended_at DESC, t.connection, t.session_id
LIMIT $limit
