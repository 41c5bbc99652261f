-- purpose: the runs around one run of a project: the earlier runs of its agent, and the runs of any agent that ended
--     directly before and after it
-- grain: one row per run, the latest end first. of_agent: the run itself or an earlier run of its agent with
--     evidence, at most $limit in total
-- parameters: $project, $number (of the run) and $at (its end, or its closing if the end is unknown), $agent (NULL
--     for runs without an agent), $since and $until (bounds of the end of the runs to read, both inclusive; NULL:
--     unbounded), $limit
WITH ends AS (
    SELECT
        connection, session_id, coalesce(ended_at, closed_at) AS last_at, readiness_level, trust_score, primary_failure_type,
        agent IS NOT DISTINCT FROM $agent AND last_at <= $at::TIMESTAMP AS is_earlier
    FROM log.run_diagnoses($project)
    WHERE coalesce(ended_at, closed_at) BETWEEN coalesce($since::TIMESTAMP, TIMESTAMP '-infinity')
        AND coalesce($until::TIMESTAMP, TIMESTAMP 'infinity')
), edges AS (
    SELECT
        coalesce(max(last_at) FILTER (last_at < $at::TIMESTAMP), $at::TIMESTAMP) AS before,
        coalesce(min(last_at) FILTER (last_at > $at::TIMESTAMP), $at::TIMESTAMP) AS after,
        list_min(max(last_at, $limit) FILTER (is_earlier AND trust_score IS NOT NULL)) AS first_at
    FROM ends
), neighbours AS (
    -- Numbers are looked up only for these few runs.
    SELECT e.*
    FROM ends AS e
    JOIN edges ON last_at BETWEEN before AND after OR (is_earlier AND trust_score IS NOT NULL AND last_at >= first_at)
), numbered AS (
    SELECT
        n.number, e.*, lead(n.number) OVER earliest_first AS next_number, lag(n.number) OVER earliest_first AS number_before,
        is_earlier AND (trust_score IS NOT NULL OR number = $number) AND (last_at < $at::TIMESTAMP OR number <= $number) AS is_counted
    FROM neighbours AS e
    JOIN log.run_numbers AS n ON n.connection = e.connection AND n.session_id = e.session_id AND n.project = $project
    WINDOW earliest_first AS (ORDER BY e.last_at, n.number)
), marked AS (
    SELECT
        *, is_counted AND row_number() OVER (PARTITION BY is_counted ORDER BY last_at DESC, number DESC) <= $limit AS of_agent,
        coalesce(next_number = $number, false) AS is_previous, coalesce(number_before = $number, false) AS is_following
    FROM numbered
)
SELECT
    number, printf('run_%03d', number) AS run_id, last_at AS ended_at, readiness_level, trust_score, primary_failure_type, of_agent,
    is_previous, is_following
FROM marked
WHERE of_agent OR is_previous OR is_following
ORDER BY last_at DESC, number DESC
