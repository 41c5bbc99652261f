-- purpose: the baselines that held on the days of a window: of those computed on one day the last one
-- grain: one row per UTC day on which one was computed, oldest first: those of the window, the last one before it, and the project's first where there is none yet
-- parameters: $project, $from (the first day) and $to (exclusive)
SELECT * EXCLUDE (_topic, _partition, _offset)
FROM log.baselines
WHERE project = $project
    AND (computed_at < $to::TIMESTAMP OR computed_at = (SELECT min(computed_at) FROM log.baselines WHERE project = $project))
QUALIFY row_number() OVER (
    PARTITION BY greatest(date_trunc('day', computed_at), $from::TIMESTAMP) ORDER BY computed_at DESC, window_start, baseline_id
) = 1
ORDER BY computed_at
