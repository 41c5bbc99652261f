-- purpose: a page of the runs of a project with their verdicts, the worst readiness first, of one level the lowest trust first, of equals the one that was finished last; also those of some agents in some time
-- grain: one row a run, that is a finalized session; level: 0 unsafe for production, 1 review recommended, 2 ready for runtime, 3 without evidence, so without a trust score
-- parameters: $project, $readiness (only runs of this level; NULL: all), $agents (only runs of these; NULL: of all), $since (inclusive), $until (exclusive; when a run ended, or was closed where that is not known; NULL: any time), $after_level, $after_trust and $after_number (only what comes after that run; -1 is no trust score; NULL: from the worst on), $limit
WITH numbered AS (
    SELECT connection, session_id, number FROM log.run_numbers WHERE project = $project
), newest AS (
    SELECT
        connection, session_id, max((revision, _offset)) AS version,
        arg_max(
            {'trust': trust_score, 'readiness': readiness_level, 'agent': agent, 'ended_at': coalesce(ended_at, closed_at)},
            (revision, _offset)
        ) AS told
    FROM log.diagnoses
    SEMI JOIN numbered USING (connection, session_id)
    GROUP BY connection, session_id
), page AS (
    SELECT
        n.*, w.version, coalesce(w.told.trust, 'infinity'::DOUBLE) AS place,
        coalesce(list_position(['unsafe_for_production', 'review_recommended', 'ready_for_runtime'], w.told.readiness) - 1, 3)::INTEGER AS level
    FROM numbered AS n
    JOIN newest AS w USING (connection, session_id)
    WHERE ($readiness IS NULL OR w.told.readiness = $readiness)
        AND ($agents::VARCHAR[] IS NULL OR list_contains($agents::VARCHAR[], w.told.agent))
        AND ($since IS NULL OR w.told.ended_at >= $since::TIMESTAMP) AND ($until IS NULL OR w.told.ended_at < $until::TIMESTAMP)
        AND (
            $after_number IS NULL
            OR (level, place, -n.number) > (
                $after_level::INTEGER, coalesce(nullif($after_trust::DOUBLE, -1), 'infinity'::DOUBLE), -$after_number::BIGINT
            )
        )
    ORDER BY level, place, number DESC
    LIMIT $limit
)
SELECT
    p.number, printf('run_%03d', p.number) AS run_id, $project AS project, d.agent, p.connection, p.session_id, d.started_at,
    d.ended_at, d.closed_at, p.level, d.readiness_level, d.trust_score, d.primary_failure_type, d.primary_severity,
    coalesce(list_sum([c.count FOR c IN d.event_counts IF c.event = 'tool_call']), 0)::BIGINT AS tool_calls, d.event_count
FROM page AS p
JOIN log.diagnoses AS d ON d.connection = p.connection AND d.session_id = p.session_id AND (d.revision, d._offset) = p.version
ORDER BY p.level, p.place, p.number DESC
