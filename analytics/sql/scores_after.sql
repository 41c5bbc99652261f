-- purpose: all revisions of scores in the order in which they were recorded, for clients that follow them. Scores of
--     anchors are excluded, because no agent earned them
-- grain: one row per score and revision of one partition
-- parameters: $partition, $position (inclusive), $limit
SELECT
    _offset, score_id, revision, exchange_id, "connection", project, agent, session_id, turn_number, exchange_at, scored_at,
    disposition, sampling_reason, sampling_probability, tier1_score, tier1_flags, tier2_state, tier2_reason, tier2_score,
    tier2_dimensions, tier2_flagged, tier2_flag_reason, tier2_5_state, tier2_5_reason, tier2_5_alignment, tier2_5_sycophancy,
    tier2_5_advocacy_suppression, tier2_5_reasoning, tier3_state, tier3_reason, tier3_score, tier3_dimensions, anomaly,
    judge_model, simulated, methodology, methodology_version
FROM log.scores
WHERE _partition = $partition AND _offset >= $position AND NOT starts_with(project, 'anchors.')
ORDER BY _offset
LIMIT $limit
