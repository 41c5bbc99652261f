-- purpose: the failures that the runs of an agent, or of a project, were diagnosed with before a change and after it: in how many runs each of them, of how many
-- grain: one row per type of failure that any run had, those with the most runs after first; runs without evidence are left out; all_before, all_after: runs that ended in each time
-- parameters: $project, $before_since, $before_until, $after_since, $after_until (when runs ended, each from inclusive to exclusive), $agent ('' for runs of no named agent; NULL: of any), $made_with (rule version, threshold profile and threshold changes of the runs that are compared, each '' for none; NULL: any), $cut (days that are not compared; NULL: none)
WITH latest AS (
    SELECT connection, session_id, max((revision, _offset)) AS version
    FROM log.diagnoses
    WHERE project = $project
    GROUP BY connection, session_id
), runs AS (
    SELECT
        coalesce(ended_at, closed_at) AS ended, coalesce(ended_at, closed_at) >= $after_since::TIMESTAMP AS is_after,
        list_distinct([c.type FOR c IN failure_causes]) AS failures
    FROM log.diagnoses AS d
    JOIN latest AS l ON d.connection = l.connection AND d.session_id = l.session_id AND (d.revision, d._offset) = l.version
    WHERE project = $project AND ($agent::VARCHAR IS NULL OR coalesce(agent, '') = $agent::VARCHAR) AND trust_score IS NOT NULL
        AND ($made_with::VARCHAR[] IS NULL
            OR [rule_version, coalesce(threshold_profile, ''), coalesce(threshold_changes, '')] = $made_with::VARCHAR[])
        AND ($cut::DATE[] IS NULL OR NOT list_contains($cut::DATE[], ended::DATE)) AND (
        (ended >= $before_since::TIMESTAMP AND ended < $before_until::TIMESTAMP)
        OR (ended >= $after_since::TIMESTAMP AND ended < $after_until::TIMESTAMP)
    )
), whole AS (
    SELECT count(*) FILTER (NOT is_after) AS all_before, count(*) FILTER (is_after) AS all_after
    FROM runs
)
SELECT
    failure, count(*) FILTER (NOT is_after) AS before, count(*) FILTER (is_after) AS after, any_value(all_before) AS all_before,
    any_value(all_after) AS all_after
FROM (SELECT is_after, unnest(failures) AS failure FROM runs), whole
GROUP BY failure
ORDER BY after DESC, before DESC, failure
