-- purpose: sessions with exchanges whose newest end was diagnosed and has no request to judge the session as a whole
-- grain: one row per session, the earliest end first. last_end: number of the newest end, from 0; ended_at: its time
-- parameters: $since (inclusive) and $until (exclusive) of the newest end
SELECT d.connection, d.project, d.session_id, d.revision AS last_end, d.closed_at AS ended_at
FROM (
    SELECT connection, project, session_id, revision, closed_at
    FROM log.diagnoses
    WHERE closed_at >= $since::TIMESTAMP
    QUALIFY row_number() OVER (PARTITION BY connection, session_id ORDER BY revision DESC, _offset DESC) = 1
) AS d
SEMI JOIN log.exchanges AS e ON e.connection = d.connection AND e.session_id = d.session_id
ANTI JOIN log.evaluation_requests AS r
    ON r.connection = d.connection AND r.session_id = d.session_id AND r.case_id = 'whole-session' AND r.attempt >= d.revision
WHERE d.closed_at < $until::TIMESTAMP
ORDER BY ended_at, d.connection, d.session_id
