-- purpose: the runs around one of a project: those of its agent up to it, how it did before; and those of any agent that ended just before and after it
-- grain: one row per run, the one that ended last first; of_agent: the run itself, and the earlier ones of its agent with evidence, at most $limit of them in all
-- parameters: $project, $number (of the run) and $at (when it ended, or was closed if that is unknown), $agent (NULL for runs whose agent nobody named), $since and $until (when the runs ended that are looked at, both inclusive; NULL: no bound), $limit
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
), near AS (
    -- Numbers are looked up only for these few runs.
    SELECT e.*
    FROM ends AS e
    JOIN edges ON last_at BETWEEN before AND after OR (is_earlier AND trust_score IS NOT NULL AND last_at >= first_at)
), numbered AS (
    SELECT
        n.number, e.*, lead(n.number) OVER earliest_first AS next_number, lag(n.number) OVER earliest_first AS number_before,
        is_earlier AND (trust_score IS NOT NULL OR number = $number) AND (last_at < $at::TIMESTAMP OR number <= $number) AS is_counted
    FROM near AS e
    JOIN log.run_numbers AS n ON n.connection = e.connection AND n.session_id = e.session_id AND n.project = $project
    WINDOW earliest_first AS (ORDER BY e.last_at, n.number)
), told AS (
    SELECT
        *, is_counted AND row_number() OVER (PARTITION BY is_counted ORDER BY last_at DESC, number DESC) <= $limit AS of_agent,
        coalesce(next_number = $number, false) AS is_previous, coalesce(number_before = $number, false) AS is_following
    FROM numbered
)
SELECT
    number, printf('run_%03d', number) AS run_id, last_at AS ended_at, readiness_level, trust_score, primary_failure_type, of_agent,
    is_previous, is_following
FROM told
WHERE of_agent OR is_previous OR is_following
ORDER BY last_at DESC, number DESC
