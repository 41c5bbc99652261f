-- purpose: how a series of an agent's runs went day by day: trust, the share of unsafe runs, or the share of runs with a type of failure
-- grain: one row per UTC day on which runs of the agent ended, without those that have no evidence; mean: of the series over these runs, unsafe and failures as shares
-- parameters: $project, $agent ('' for runs of no named agent), $series (trust, unsafe, or failure: and a type), $as_of (what ended then or later is left out), $days (the last UTC days, of which the last one may not be over)
WITH latest AS (
    SELECT connection, session_id, max((revision, _offset)) AS version
    FROM log.diagnoses
    WHERE project = $project
    GROUP BY connection, session_id
), told AS (
    SELECT
        coalesce(ended_at, closed_at) AS ended,
        log.run_value($series, trust_score, readiness_level, [c.type FOR c IN failure_causes]) AS value
    FROM log.diagnoses AS d
    JOIN latest AS l ON d.connection = l.connection AND d.session_id = l.session_id AND (d.revision, d._offset) = l.version
    WHERE project = $project AND coalesce(agent, '') = $agent AND trust_score IS NOT NULL
        AND coalesce(ended_at, closed_at) >= log.first_day_of($as_of::TIMESTAMP, $days) AND coalesce(ended_at, closed_at) < $as_of::TIMESTAMP
)
SELECT ended::DATE AS day, count(*) AS runs, round(avg(value), 3) AS mean
FROM told
GROUP BY day
ORDER BY day
