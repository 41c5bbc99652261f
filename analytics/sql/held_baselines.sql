-- purpose: the baselines in force on the days of a window; of several computed on one day, the last
-- grain: one row per UTC day with a baseline, oldest first: those of the window, the last one before it, and the
--     project's first if none is earlier
-- parameters: $project, $from (first day) and $to (exclusive)
SELECT * EXCLUDE (_topic, _partition, _offset)
FROM log.baselines
WHERE project = $project
    AND (computed_at < $to::TIMESTAMP OR computed_at = (SELECT min(computed_at) FROM log.baselines WHERE project = $project))
QUALIFY row_number() OVER (
    PARTITION BY greatest(date_trunc('day', computed_at), $from::TIMESTAMP) ORDER BY computed_at DESC, window_start, baseline_id
) = 1
ORDER BY computed_at
