-- purpose: the runs of a project, newest first, each compared with the previous run of the same agent that has
--     evidence: the change of trust, and whether the failure is the same
-- grain: one row per run (a finalized session). previous_trust, change, repeated: NULL for an agent's first run with
--     evidence and for runs without; mean_of_five: mean trust of the run and up to four earlier ones with evidence;
--     final_score: of its newest finished evaluation, 0 to 10
-- parameters: $project (NULL: all), $from (inclusive) and $to (exclusive) of the end of the run (NULL: unbounded),
--     $limit
WITH ends AS (
    SELECT
        connection, session_id, project, coalesce(agent, '') AS agent, coalesce(ended_at, closed_at) AS last_at, trust_score,
        readiness_level, primary_failure_type,
        ($from IS NULL OR last_at >= $from::TIMESTAMP) AND ($to IS NULL OR last_at < $to::TIMESTAMP) AS is_in_period
    FROM log.run_diagnoses($project)
), edge AS (
    SELECT CASE WHEN count(*) = $limit THEN min(last_at) ELSE TIMESTAMP '-infinity' END AS first_at
    FROM (SELECT last_at FROM ends WHERE is_in_period ORDER BY last_at DESC LIMIT $limit)
), agents AS (
    SELECT project, agent, min(last_at) AS began_at
    FROM ends
    JOIN edge ON last_at >= first_at
    WHERE is_in_period AND trust_score IS NOT NULL
    GROUP BY project, agent
), lookback AS (
    -- A run is compared with one of the five runs with evidence before it.
    SELECT project, agent, began_at, list_min(max(last_at, 5)) AS earliest
    FROM ends
    JOIN agents USING (project, agent)
    WHERE last_at < began_at AND trust_score IS NOT NULL
    GROUP BY project, agent, began_at
), candidates AS MATERIALIZED (
    SELECT e.*, last_at >= first_at AND is_in_period AS is_shown
    FROM ends AS e
    CROSS JOIN edge
    LEFT JOIN lookback AS r USING (project, agent)
    WHERE is_shown OR (trust_score IS NOT NULL AND last_at >= earliest AND last_at < began_at)
), compared AS (
    SELECT
        n.number, d.project, d.agent, d.connection, d.session_id, d.last_at, d.trust_score, d.readiness_level, d.primary_failure_type,
        d.is_shown, lag(d.trust_score) OVER before AS previous_trust, d.trust_score - previous_trust AS change,
        round(avg(d.trust_score) OVER (before ROWS 4 PRECEDING), 1) AS mean_of_five,
        CASE WHEN lag(d.trust_score) OVER before IS NOT NULL
            THEN coalesce(d.primary_failure_type = lag(d.primary_failure_type) OVER before, false) END AS repeated
    FROM candidates AS d
    JOIN log.run_numbers AS n USING (connection, session_id)
    WINDOW before AS (PARTITION BY d.project, d.agent, d.trust_score IS NULL ORDER BY d.last_at, n.number)
), newest AS (
    SELECT * FROM compared WHERE is_shown ORDER BY last_at DESC, project, number DESC LIMIT $limit
), evaluated AS (
    SELECT connection, session_id, arg_max(final_score, (evaluated_at, evaluation_id)) AS final_score
    FROM evaluations
    WHERE status = 'completed'
    GROUP BY connection, session_id
)
SELECT
    printf('run_%03d', number) AS run_id, project, agent, connection, session_id, last_at AS ended_at, trust_score, previous_trust, change,
    mean_of_five, readiness_level, primary_failure_type, repeated, final_score
FROM newest
LEFT JOIN evaluated USING (connection, session_id)
ORDER BY last_at DESC, project, number DESC
