-- purpose: when the newest scored exchange of a project happened, where a page without recent ones ends
-- grain: one row; none without scores
-- parameters: $project (NULL for all, which is known without reading)
SELECT exchange_at
FROM log.scores
WHERE
    -- The first row of the order is looked for in the newest rows first; a maximum would read those of all times.
    $project IS NULL OR project = $project
ORDER BY exchange_at DESC
LIMIT 1
