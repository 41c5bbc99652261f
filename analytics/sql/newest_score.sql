-- purpose: when the newest scored exchange of a project before a time happened, where the last period with data ends
-- grain: one row; none without scores
-- parameters: $project (NULL for all, which is known without reading), $until (exclusive; NULL: no bound)
SELECT exchange_at
FROM log.scores
WHERE
    -- ORDER BY with LIMIT 1 searches the newest rows first; max() would read all rows.
    ($project IS NULL OR project = $project) AND ($until::TIMESTAMP IS NULL OR exchange_at < $until::TIMESTAMP)
ORDER BY exchange_at DESC
LIMIT 1
