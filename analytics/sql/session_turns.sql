-- purpose: a page of a session's turns by time, with truncated texts and their current scores
-- grain: one row per turn, which has an exchange, a score or both. place: number of the turn in the session, from 1;
--     row, places: number and total of the turns that match the filter
-- parameters: $project, $connection, $session, $since and $until (first and last event time of the session, both
--     inclusive), $anomalies (true: only turns with an anomaly), $exchange (id of an exchange whose page to show;
--     NULL: skip a number of turns), $skip (turns), $limit, $longest (maximum length of a text)
WITH turns AS (
    SELECT *
    FROM log.session_turns($project, $connection, $session, $since::TIMESTAMP, $until::TIMESTAMP)
    WHERE NOT $anomalies OR anomaly
), counted AS (
    SELECT *, count(*) OVER () AS places, row_number() OVER (ORDER BY place) AS row FROM turns
), start AS (
    SELECT coalesce(max((row - 1) // $limit * $limit) FILTER (exchange_id = $exchange), any_value($skip)) AS skip FROM counted
), page AS (
    SELECT c.* FROM counted AS c, start WHERE row > skip AND row <= skip + $limit
)
SELECT
    p.place, p.row, p.places, p.exchange_id, p.said_at, p.turn_number, p.score_id, p.has_texts,
    left(e.user_message, $longest::BIGINT) AS user_message, length(e.user_message) AS user_message_length,
    left(e.agent_response, $longest::BIGINT) AS agent_response, length(e.agent_response) AS agent_response_length,
    left(e.agent_thinking, $longest::BIGINT) AS agent_thinking, length(e.agent_thinking) AS agent_thinking_length,
    e.outcome, e.agent_model, e.input_tokens, e.output_tokens, e.labels, e.tags, e.redactions, coalesce(e.agent, s.agent) AS agent,
    s.disposition, s.sampling_reason, s.tier1_score, s.tier1_flags, s.tier2_state, s.tier2_score, s.tier2_flagged, s.tier2_flag_reason,
    s.tier2_5_state, s.tier2_5_alignment, s.tier2_5_sycophancy, s.tier2_5_advocacy_suppression, s.tier3_state, s.tier3_score, s.anomaly,
    s.anomaly_reasons, s.cost_usd, s.judge_model, s.simulated
FROM page AS p
LEFT JOIN log.current_exchanges AS e
    ON e.occurred_at = p.said_at AND e.exchange_id = p.exchange_id AND e.session_id = $session AND e.connection = $connection
    AND e.project = $project
LEFT JOIN log.scores AS s
    ON s.exchange_at = p.said_at AND s.score_id = p.score_id AND (s.revision, s._offset) = p.version AND s.session_id = $session
    AND s.project = $project
ORDER BY p.place
