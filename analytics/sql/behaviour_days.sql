-- purpose: what agents do, by day, without a judge: tool errors by tool, calls and tokens per turn, refusals, empty answers, failed
--     and abandoned turns, repeated calls. It outlives the exchanges
-- grain: one row per project, agent, version (label agent_version; '' for none, or for all), series, UTC day and, from $hours_since on,
--     hour of the day (otherwise 0). units: sessions; weight: turns, or calls of a tool; total: those with the property, or the sum of
--     ln(1 + size); squares, mixed, totals: sums of the squares and products of both over sessions
-- parameters: $projects (list), $since (inclusive) and $until (exclusive) by the last exchange of a session on a day, $by_version: whether
--     versions have rows of their own; $hours_since: NULL for days alone
SELECT
    project, agent, CASE WHEN $by_version THEN version ELSE '' END AS version, series, summed.hour::DATE AS day,
    CASE WHEN summed.hour >= $hours_since::TIMESTAMP THEN hour(summed.hour) ELSE 0 END AS hour, sum(units)::BIGINT AS units,
    sum(weight)::BIGINT AS weight, sum(total)::BIGINT / 1e9 AS total, sum(squares)::BIGINT AS squares,
    sum(mixed) / 1e9 AS mixed, sum(totals) / 1e18 AS totals
FROM log.hourly_behaviour AS summed
WHERE list_contains($projects::VARCHAR[], project) AND summed.hour >= $since::TIMESTAMP AND last_at < $until::TIMESTAMP
GROUP BY ALL
ORDER BY project, agent, version, series, day, hour
