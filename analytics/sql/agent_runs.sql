-- purpose: the runs of an agent up to one of them, the latest first: how it did before
-- grain: one row a run
-- parameters: $project, $agent (NULL for runs whose agent nobody named), $number (of the last run), $limit
SELECT
    n.number, printf('run_%03d', n.number) AS run_id, coalesce(d.ended_at, d.closed_at) AS ended_at, d.trust_score,
    d.readiness_level, d.primary_failure_type
FROM log.run_numbers AS n
JOIN diagnoses AS d USING (connection, session_id)
WHERE n.project = $project AND d.agent IS NOT DISTINCT FROM $agent AND n.number <= $number
ORDER BY n.number DESC
LIMIT $limit
