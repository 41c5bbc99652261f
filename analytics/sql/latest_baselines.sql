-- purpose: the latest baseline of each project
-- grain: one row per project, with the columns of its record
-- parameters: $projects (list; NULL: all), $as_of (later baselines are ignored; NULL: none)
SELECT * EXCLUDE (_topic, _partition, _offset)
FROM log.baselines
WHERE ($projects::VARCHAR[] IS NULL OR list_contains($projects::VARCHAR[], project))
    AND ($as_of IS NULL OR computed_at <= $as_of::TIMESTAMP)
QUALIFY row_number() OVER (PARTITION BY project ORDER BY computed_at DESC, window_start, baseline_id) = 1
ORDER BY project
