-- purpose: when the newest scored exchange of a project happened, where a page without recent ones ends
-- grain: one row; none without scores
-- parameters: $project (NULL for all, which is known without reading)
SELECT max(exchange_at) AS exchange_at
FROM log.scores
WHERE $project IS NULL OR project = $project
HAVING max(exchange_at) IS NOT NULL
