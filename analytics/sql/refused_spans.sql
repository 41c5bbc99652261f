-- purpose: spans that a connection sent over HTTP or gRPC and that were refused, by the reason why, with an example of each
-- grain: one row per reason
-- parameters: $source (the beginning of the letters' source, which names the connection), $since (refused from then on)
SELECT
    reason,
    count(*) AS spans,
    arg_max(detail, (rejected_at, dead_letter_id)) AS example
FROM log.dead_letters
WHERE starts_with(source, $source) AND rejected_at >= $since
GROUP BY reason
ORDER BY spans DESC, reason
