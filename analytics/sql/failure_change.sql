-- purpose: the failures of an agent's or a project's runs before and after a change, with the number of runs that
--     have each
-- grain: one row per failure type, the most frequent after the change first. Runs without evidence are excluded.
--     all_before, all_after: runs that ended in each period
-- parameters: $project, $before_since, $before_until, $after_since, $after_until (by the end of the run; since
--     inclusive, until exclusive), $agent ('' for runs without an agent; NULL: any), $made_with (rule version,
--     threshold profile and threshold changes of the runs to compare, '' for none; NULL: any), $cut (days to exclude;
--     NULL: none)
WITH latest AS (
    SELECT connection, session_id, max((revision, _offset)) AS version
    FROM log.diagnoses
    WHERE project = $project
    GROUP BY connection, session_id
), runs AS (
    SELECT
        coalesce(ended_at, closed_at) AS last_at, coalesce(ended_at, closed_at) >= $after_since::TIMESTAMP AS is_after,
        list_distinct([c.type FOR c IN failure_causes]) AS failures
    FROM log.diagnoses AS d
    JOIN latest AS l ON d.connection = l.connection AND d.session_id = l.session_id AND (d.revision, d._offset) = l.version
    WHERE project = $project AND ($agent::VARCHAR IS NULL OR coalesce(agent, '') = $agent::VARCHAR) AND trust_score IS NOT NULL
        AND ($made_with::VARCHAR[] IS NULL
            OR [rule_version, coalesce(threshold_profile, ''), coalesce(threshold_changes, '')] = $made_with::VARCHAR[])
        AND ($cut::DATE[] IS NULL OR NOT list_contains($cut::DATE[], last_at::DATE)) AND (
        (last_at >= $before_since::TIMESTAMP AND last_at < $before_until::TIMESTAMP)
        OR (last_at >= $after_since::TIMESTAMP AND last_at < $after_until::TIMESTAMP)
    )
), totals AS (
    SELECT count(*) FILTER (NOT is_after) AS all_before, count(*) FILTER (is_after) AS all_after
    FROM runs
)
SELECT
    failure, count(*) FILTER (NOT is_after) AS before, count(*) FILTER (is_after) AS after, any_value(all_before) AS all_before,
    any_value(all_after) AS all_after
FROM (SELECT is_after, unnest(failures) AS failure FROM runs), totals
GROUP BY failure
ORDER BY after DESC, before DESC, failure
