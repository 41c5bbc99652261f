-- purpose: what a project had in a time, to be set beside the time before: anomalies, finished runs, incidents, evaluations
-- grain: one row, none where it had nothing; mean_score: of the finished evaluations, 0 to 10, NULL without any
-- parameters: $project, $from (inclusive) and $to (exclusive): of the exchange, of the end of the run, of the beginning of the incident, of when it was judged
WITH scored AS (
    SELECT coalesce(sum(anomalies), 0)::BIGINT AS anomalies
    FROM log.score_days($project, $from::TIMESTAMP, $to::TIMESTAMP)
    WHERE project = $project
), ended AS (
    SELECT count(*) AS runs, count(*) FILTER (readiness_level = 'unsafe_for_production') AS unsafe_runs
    FROM log.run_diagnoses($project)
    WHERE coalesce(ended_at, closed_at) >= $from::TIMESTAMP AND coalesce(ended_at, closed_at) < $to::TIMESTAMP
), incident_versions AS (
    SELECT incident_id, max((revision, _offset)) AS version FROM log.incidents WHERE project = $project GROUP BY incident_id
), begun AS (
    SELECT count(*) AS incidents
    FROM log.incidents AS i
    JOIN incident_versions AS v ON i.incident_id = v.incident_id AND (i.revision, i._offset) = v.version
    WHERE coalesce(first_day, detected_at) >= $from::TIMESTAMP AND coalesce(first_day, detected_at) < $to::TIMESTAMP
), current_evaluations AS (
    SELECT evaluated_at, final_score
    FROM log.evaluations
    WHERE project = $project
    QUALIFY row_number() OVER (PARTITION BY evaluation_id ORDER BY status = 'completed' DESC, revision DESC, _offset DESC) = 1
), judged AS (
    SELECT count(*) AS evaluations, avg(final_score ORDER BY final_score) AS mean_score
    FROM current_evaluations
    WHERE evaluated_at >= $from::TIMESTAMP AND evaluated_at < $to::TIMESTAMP
)
SELECT anomalies, runs, unsafe_runs, incidents, evaluations, mean_score
FROM scored, ended, begun, judged
WHERE anomalies + runs + incidents + evaluations > 0
