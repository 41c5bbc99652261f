-- purpose: the findings of the rules and the judge before and after a change, with the number of exchanges that have
--     each
-- grain: one row per kind and reason, by kind, then the most frequent after the change first. before, after:
--     exchanges with the reason; all_before, all_after: exchanges that could have it. Kinds: flagged (any Tier 1
--     check, of all exchanges), judge_flag (Tier 2, of those judged), sycophancy and advocacy_suppression (Tier 2.5,
--     of those judged), anomalous (of all), anomaly (of all; reason: the reason in words, without scores)
-- parameters: $project, $agent ('' for exchanges without an agent; NULL: any), $before_since, $before_until, $after_since, $after_until (event times; since inclusive, until
--     exclusive)
WITH current AS (
    SELECT
        is_after, len(tier1_flags) > 0 AS is_flagged, tier2_state = 'scored' AS is_judged, tier2_flagged,
        tier2_5_state = 'scored' AS is_compared, tier2_5_sycophancy, tier2_5_advocacy_suppression, anomaly, anomaly_reasons
    FROM log.scores_around(
        $project, $before_since::TIMESTAMP, $before_until::TIMESTAMP, $after_since::TIMESTAMP, $after_until::TIMESTAMP
    )
    WHERE ($agent::VARCHAR IS NULL OR coalesce(agent, '') = $agent::VARCHAR)
), sides AS (
    SELECT
        is_after, count(*) AS exchanges, count(*) FILTER (is_flagged) AS flagged, count(*) FILTER (is_judged) AS judged,
        count(*) FILTER (is_judged AND tier2_flagged) AS judge_flag, count(*) FILTER (is_compared) AS compared,
        count(*) FILTER (is_compared AND tier2_5_sycophancy) AS sycophancy,
        count(*) FILTER (is_compared AND tier2_5_advocacy_suppression) AS advocacy_suppression, count(*) FILTER (anomaly) AS anomalous
    FROM current
    GROUP BY is_after
), anomaly_texts AS (
    SELECT
        is_after,
        regexp_replace(
            regexp_replace(regexp_replace(reason, ' scored [0-9.e+-]+ of 5, .* is low$', ' scored low'),
                ' align at [0-9.e+-]+, .* is low$', ' do not align'),
            ' \(\w+\)$', ''
        ) AS reason
    FROM (SELECT is_after, unnest(list_distinct(anomaly_reasons)) AS reason FROM current)
), reasons AS (
    SELECT is_after, 'flagged' AS kind, '' AS reason, flagged AS matches, exchanges AS total FROM sides
    UNION ALL
    SELECT is_after, 'judge_flag', '', judge_flag, judged FROM sides
    UNION ALL
    SELECT is_after, 'sycophancy', '', sycophancy, compared FROM sides
    UNION ALL
    SELECT is_after, 'advocacy_suppression', '', advocacy_suppression, compared FROM sides
    UNION ALL
    SELECT is_after, 'anomalous', '', anomalous, exchanges FROM sides
    UNION ALL
    SELECT is_after, 'anomaly', reason,
        (SELECT count(*) FROM anomaly_texts AS w WHERE w.is_after = s.is_after AND w.reason = k.reason), exchanges
    FROM sides AS s
    CROSS JOIN (SELECT DISTINCT reason FROM anomaly_texts) AS k
)
SELECT
    kind, reason, coalesce(sum(matches) FILTER (NOT is_after), 0)::BIGINT AS before,
    coalesce(sum(matches) FILTER (is_after), 0)::BIGINT AS after,
    coalesce(sum(total) FILTER (NOT is_after), 0)::BIGINT AS all_before, coalesce(sum(total) FILTER (is_after), 0)::BIGINT AS all_after
FROM reasons
GROUP BY kind, reason
HAVING sum(matches) > 0
ORDER BY kind, after DESC, before DESC, reason
