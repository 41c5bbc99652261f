-- purpose: spans refused on their arrival over HTTP or gRPC, by reason, with the newest of each as an example
-- grain: one row per reason
-- parameters: $source (prefix of the dead letters' source, which names the connection), $since (inclusive, by the
--     time of rejection)
SELECT
    reason,
    count(*) AS spans,
    arg_max(detail, (rejected_at, dead_letter_id)) AS example
FROM log.dead_letters
WHERE starts_with(source, $source) AND rejected_at >= $since
GROUP BY reason
ORDER BY spans DESC, reason
