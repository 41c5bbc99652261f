-- purpose: a series of an agent's runs per day: trust, the share of unsafe runs, or the share of runs with a failure
--     type
-- grain: one row per UTC day on which runs of the agent with evidence ended. mean: mean of the series, as a share for
--     unsafe and failures
-- parameters: $project, $agent ('' for runs without an agent), $series (trust, unsafe, or failure: with a type),
--     $as_of (exclusive end), $days (number of UTC days; the last may be incomplete)
WITH latest AS (
    SELECT connection, session_id, max((revision, _offset)) AS version
    FROM log.diagnoses
    WHERE project = $project
    GROUP BY connection, session_id
), series_values AS (
    SELECT
        coalesce(ended_at, closed_at) AS ended,
        log.run_value($series, trust_score, readiness_level, [c.type FOR c IN failure_causes]) AS value
    FROM log.diagnoses AS d
    JOIN latest AS l ON d.connection = l.connection AND d.session_id = l.session_id AND (d.revision, d._offset) = l.version
    WHERE project = $project AND coalesce(agent, '') = $agent AND trust_score IS NOT NULL
        AND coalesce(ended_at, closed_at) >= log.first_day_of($as_of::TIMESTAMP, $days)
            AND coalesce(ended_at, closed_at) < $as_of::TIMESTAMP
)
SELECT ended::DATE AS day, count(*) AS runs, round(avg(value), 3) AS mean
FROM series_values
GROUP BY day
ORDER BY day
