-- purpose: a page of the runs of a project with their verdicts, the one that ended last first
-- grain: one row a run, that is a finalized session; last_at: when it ended, or was closed where that is not known; ids count up within a project in the order in which runs were finished
-- parameters: $project, $number (only this run; NULL: all), $before_at and $before (last_at and number of a run: only those before it; NULL: from the newest), $readiness (only runs of this level; NULL: all), $limit
WITH numbered AS (
    SELECT connection, session_id, number FROM log.run_numbers WHERE project = $project AND ($number IS NULL OR number = $number)
), newest AS (
    SELECT
        connection, session_id, max((revision, _offset)) AS version,
        arg_max(coalesce(ended_at, closed_at), (revision, _offset)) AS last_at, arg_max(readiness_level, (revision, _offset)) AS readiness
    FROM log.diagnoses
    SEMI JOIN numbered USING (connection, session_id)
    GROUP BY connection, session_id
), page AS (
    SELECT n.*, w.version, w.last_at
    FROM numbered AS n
    JOIN newest AS w USING (connection, session_id)
    WHERE ($readiness IS NULL OR w.readiness = $readiness)
        AND ($before IS NULL OR (w.last_at, n.number) < ($before_at::TIMESTAMP, $before::BIGINT))
    ORDER BY last_at DESC, number DESC
    LIMIT $limit
)
SELECT
    p.number, printf('run_%03d', p.number) AS run_id, $project AS project, d.agent, p.connection, p.session_id, p.last_at, d.started_at,
    d.ended_at, d.closed_at, d.readiness_level, d.trust_score, d.primary_failure_type, d.primary_severity,
    coalesce(list_sum([c.count FOR c IN d.event_counts IF c.event = 'tool_call']), 0)::BIGINT AS tool_calls, d.event_count,
    d.threshold_profile, d.threshold_changes
FROM page AS p
JOIN log.diagnoses AS d ON d.connection = p.connection AND d.session_id = p.session_id AND (d.revision, d._offset) = p.version
ORDER BY p.last_at DESC, p.number DESC
