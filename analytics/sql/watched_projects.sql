-- purpose: projects with recent exchanges or finished runs that have runtime events, for the scheduled watch. Anchor
--     projects are excluded
-- grain: one row per project
-- parameters: $since (inclusive, by UTC day, of the exchange or the end of the run)
SELECT DISTINCT project
FROM (
    SELECT project FROM log.daily_scores WHERE day >= date_trunc('day', $since::TIMESTAMP)
    UNION ALL
    SELECT project FROM log.diagnoses WHERE event_count > 0 AND coalesce(ended_at, closed_at) >= date_trunc('day', $since::TIMESTAMP)
)
WHERE NOT starts_with(project, 'anchors.')
ORDER BY project
