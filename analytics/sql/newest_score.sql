-- purpose: when the newest scored exchange of a project before a time happened, where the last period with data ends
-- grain: one row; none without scores
-- parameters: $project (NULL for all, which is known without reading), $until (exclusive; NULL: no bound)
SELECT exchange_at
FROM log.scores
WHERE
    -- The first row of the order is looked for in the newest rows first; a maximum would read those of all times.
    ($project IS NULL OR project = $project) AND ($until::TIMESTAMP IS NULL OR exchange_at < $until::TIMESTAMP)
ORDER BY exchange_at DESC
LIMIT 1
