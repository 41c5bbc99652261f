-- purpose: the runs of a project, newest first, each beside the run of the same agent before it: did it get better or worse, and with the same failure
-- grain: one row a run, that is a finalized session; previous_trust, change and repeated: NULL for an agent's first run; mean_of_five: of it and up to four runs before it; final_score: of its newest finished evaluation, 0 to 10
-- parameters: $project (NULL for all), $limit
WITH runs AS (
    SELECT connection, session_id, project, number FROM log.run_numbers WHERE $project IS NULL OR project = $project
), latest AS (
    SELECT connection, session_id, max((revision, _offset)) AS version
    FROM log.diagnoses
    SEMI JOIN runs USING (connection, session_id)
    GROUP BY connection, session_id
), compared AS (
    SELECT
        n.number, n.project, coalesce(d.agent, '') AS agent, d.connection, d.session_id,
        coalesce(d.ended_at, d.closed_at) AS ended_at, d.trust_score, d.readiness_level, d.primary_failure_type,
        lag(d.trust_score) OVER before AS previous_trust, d.trust_score - previous_trust AS change,
        round(avg(d.trust_score) OVER (before ROWS 4 PRECEDING), 1) AS mean_of_five,
        CASE WHEN lag(d.session_id) OVER before IS NOT NULL
            THEN coalesce(d.primary_failure_type = lag(d.primary_failure_type) OVER before, false) END AS repeated
    FROM runs AS n
    JOIN latest AS l USING (connection, session_id)
    JOIN log.diagnoses AS d
        ON d.connection = n.connection AND d.session_id = n.session_id AND (d.revision, d._offset) = l.version
    WINDOW before AS (PARTITION BY n.project, coalesce(d.agent, '') ORDER BY coalesce(d.ended_at, d.closed_at), n.number)
), newest AS (
    SELECT * FROM compared ORDER BY ended_at DESC, project, number DESC LIMIT $limit
), evaluated AS (
    SELECT connection, session_id, arg_max(final_score, (evaluated_at, evaluation_id)) AS final_score
    FROM evaluations
    WHERE status = 'completed'
    GROUP BY connection, session_id
)
SELECT
    printf('run_%03d', number) AS run_id, project, agent, connection, session_id, ended_at, trust_score, previous_trust, change,
    mean_of_five, readiness_level, primary_failure_type, repeated, final_score
FROM newest
LEFT JOIN evaluated USING (connection, session_id)
ORDER BY ended_at DESC, project, number DESC
