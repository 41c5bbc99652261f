-- purpose: which tiers ran for each agent, and why the others did not
-- grain: one row per project, agent, tier, state and reason, the most frequent of a tier first
-- parameters: $project (NULL: all)
WITH latest AS (
    SELECT score_id, max((revision, _offset)) AS version
    FROM log.scores
    WHERE $project IS NULL OR project = $project
    GROUP BY score_id
), decided AS (
    SELECT
        project, coalesce(agent, '') AS agent,
        unnest([
            {'tier': 'tier2', 'state': tier2_state, 'reason': tier2_reason},
            {'tier': 'tier2_5', 'state': tier2_5_state, 'reason': tier2_5_reason},
            {'tier': 'tier3', 'state': tier3_state, 'reason': tier3_reason}
        ], recursive := true)
    FROM log.scores AS s
    SEMI JOIN latest AS l ON s.score_id = l.score_id AND (s.revision, s._offset) = l.version
)
SELECT project, agent, tier, state, reason, count(*) AS exchanges
FROM decided
GROUP BY ALL
ORDER BY project, agent, tier, exchanges DESC, state, reason
