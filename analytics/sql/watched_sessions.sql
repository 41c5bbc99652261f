-- purpose: the sessions judged without a written case that the watch reads, with their scores and the origin of the scores
-- grain: one row per session in its newest finished judgement, by the end of the session, oldest first. weight: 1 / sampling
--     probability; scores: 0 to 10 by name, overall and the dimensions
-- parameters: $projects (list), $since (inclusive) and $until (exclusive) of the end of the session
SELECT project, ended_at, yardstick, judge_model, simulated, weight, scores
FROM log.session_judgements()
WHERE list_contains($projects::VARCHAR[], project) AND ended_at >= $since::TIMESTAMP AND ended_at < $until::TIMESTAMP
ORDER BY project, ended_at, connection, session_id
