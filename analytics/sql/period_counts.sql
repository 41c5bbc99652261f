-- purpose: a project's totals in a period, to compare with the period before: anomalies, finished runs, incidents,
--     evaluations
-- grain: one row, none if all totals are 0. mean_score: mean of the finished evaluations, 0 to 10, NULL without any;
--     whole sessions, which have no case, do not count
-- parameters: $project, $from (inclusive) and $to (exclusive), by the time of the exchange, the end of the run, the
--     first day of the incident, and the time of the evaluation
WITH scored AS (
    SELECT coalesce(sum(anomalies), 0)::BIGINT AS anomalies
    FROM log.score_days($project, $from::TIMESTAMP, $to::TIMESTAMP)
    WHERE project = $project
), finished_runs AS (
    SELECT count(*) AS runs, count(*) FILTER (readiness_level = 'unsafe_for_production') AS unsafe_runs
    FROM log.run_diagnoses($project)
    WHERE coalesce(ended_at, closed_at) >= $from::TIMESTAMP AND coalesce(ended_at, closed_at) < $to::TIMESTAMP
), incident_versions AS (
    SELECT incident_id, max((revision, _offset)) AS version FROM log.incidents WHERE project = $project GROUP BY incident_id
), begun_incidents AS (
    SELECT count(*) AS incidents
    FROM log.incidents AS i
    JOIN incident_versions AS v ON i.incident_id = v.incident_id AND (i.revision, i._offset) = v.version
    WHERE coalesce(first_day, detected_at) >= $from::TIMESTAMP AND coalesce(first_day, detected_at) < $to::TIMESTAMP
), current_evaluations AS (
    SELECT evaluated_at, final_score
    FROM log.evaluations
    WHERE project = $project AND sampling_probability IS NULL
    QUALIFY row_number() OVER (PARTITION BY evaluation_id ORDER BY status = 'completed' DESC, revision DESC, _offset DESC) = 1
), judged AS (
    SELECT count(*) AS evaluations, avg(final_score ORDER BY final_score) AS mean_score
    FROM current_evaluations
    WHERE evaluated_at >= $from::TIMESTAMP AND evaluated_at < $to::TIMESTAMP
)
SELECT anomalies, runs, unsafe_runs, incidents, evaluations, mean_score
FROM scored, finished_runs, begun_incidents, judged
WHERE anomalies + runs + incidents + evaluations > 0
