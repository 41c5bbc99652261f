-- purpose: which projects have scores lately, those that hold anchors left out, and when their baseline was computed
-- grain: one row a project; baseline_at: NULL where it has no baseline
-- parameters: $since (only projects with exchanges on that UTC day or later)
WITH baselined AS (
    SELECT project, max(computed_at) AS baseline_at
    FROM log.baselines
    GROUP BY project
)
SELECT project, any_value(baseline_at) AS baseline_at
FROM log.daily_scores
LEFT JOIN baselined USING (project)
WHERE day >= $since::TIMESTAMP AND NOT starts_with(project, 'anchors.')
GROUP BY project
ORDER BY project
