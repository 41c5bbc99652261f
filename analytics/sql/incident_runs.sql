-- purpose: the runs that contributed most to a change of an agent's series: the farthest from the expected value in
--     the direction of the change; equals by lowest trust, then newest first
-- grain: one row per run with its value in the series and its verdict. moved: distance from the expected value
-- parameters: $project, $agent ('' for runs without an agent), $series (trust, unsafe, or failure: with a type),
--     $since (inclusive) and $until (exclusive) by the end of the run, $expected, $direction (up or down), $limit
WITH latest AS (
    SELECT connection, session_id, max((revision, _offset)) AS version
    FROM log.diagnoses
    WHERE project = $project
    GROUP BY connection, session_id
), series_values AS (
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
FROM series_values AS t
JOIN log.run_numbers AS n ON n.project = $project AND n.connection = t.connection AND n.session_id = t.session_id
WHERE moved > 0
ORDER BY moved DESC, trust_score, ended_at DESC, t.connection, t.session_id
LIMIT $limit
