-- purpose: the time of a project's newest scored exchange before a given time, where the last period with data ends
-- grain: one row; none without scores
-- parameters: $project (NULL: all), $until (exclusive; NULL: unbounded)
SELECT exchange_at
FROM log.scores
WHERE
    -- ORDER BY with LIMIT 1 reads the newest rows first; max() would read all rows.
    ($project IS NULL OR project = $project) AND ($until::TIMESTAMP IS NULL OR exchange_at < $until::TIMESTAMP)
ORDER BY exchange_at DESC
LIMIT 1
