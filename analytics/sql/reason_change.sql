-- purpose: what the rules and the judge found wrong before a change and after it: how many exchanges each reason holds for, of how many it could
-- grain: one row per kind and reason that any exchange has, by kind, then those with the most exchanges after; before, after: exchanges with the reason; all_before, all_after: those it could hold for. Kinds: flagged (by any check of Tier 1, of all exchanges), judge_flag (Tier 2, of those it judged), sycophancy and advocacy_suppression (Tier 2.5, of those it judged), anomalous (of all), anomaly (of all; reason: in words, without the numbers that were scored)
-- parameters: $project, $before_since, $before_until, $after_since, $after_until (in event time, each from inclusive to exclusive)
WITH current AS (
    SELECT
        is_after, len(tier1_flags) > 0 AS is_flagged, tier2_state = 'scored' AS is_judged, tier2_flagged,
        tier2_5_state = 'scored' AS is_compared, tier2_5_sycophancy, tier2_5_advocacy_suppression, anomaly, anomaly_reasons
    FROM log.scores_around(
        $project, $before_since::TIMESTAMP, $before_until::TIMESTAMP, $after_since::TIMESTAMP, $after_until::TIMESTAMP
    )
), sides AS (
    SELECT
        is_after, count(*) AS exchanges, count(*) FILTER (is_flagged) AS flagged, count(*) FILTER (is_judged) AS judged,
        count(*) FILTER (is_judged AND tier2_flagged) AS judge_flag, count(*) FILTER (is_compared) AS compared,
        count(*) FILTER (is_compared AND tier2_5_sycophancy) AS sycophancy,
        count(*) FILTER (is_compared AND tier2_5_advocacy_suppression) AS advocacy_suppression, count(*) FILTER (anomaly) AS anomalous
    FROM current
    GROUP BY is_after
), words AS (
    SELECT
        is_after,
        regexp_replace(
            regexp_replace(regexp_replace(reason, ' scored [0-9.e+-]+ of 5, .* is low$', ' scored low'), ' align at [0-9.e+-]+, .* is low$', ' do not align'),
            ' \(\w+\)$', ''
        ) AS reason
    FROM (SELECT is_after, unnest(list_distinct(anomaly_reasons)) AS reason FROM current)
), reasons AS (
    SELECT is_after, 'flagged' AS kind, '' AS reason, flagged AS found, exchanges AS of_all FROM sides
    UNION ALL
    SELECT is_after, 'judge_flag', '', judge_flag, judged FROM sides
    UNION ALL
    SELECT is_after, 'sycophancy', '', sycophancy, compared FROM sides
    UNION ALL
    SELECT is_after, 'advocacy_suppression', '', advocacy_suppression, compared FROM sides
    UNION ALL
    SELECT is_after, 'anomalous', '', anomalous, exchanges FROM sides
    UNION ALL
    SELECT is_after, 'anomaly', reason, (SELECT count(*) FROM words AS w WHERE w.is_after = s.is_after AND w.reason = k.reason), exchanges
    FROM sides AS s
    CROSS JOIN (SELECT DISTINCT reason FROM words) AS k
)
SELECT
    kind, reason, coalesce(sum(found) FILTER (NOT is_after), 0)::BIGINT AS before, coalesce(sum(found) FILTER (is_after), 0)::BIGINT AS after,
    coalesce(sum(of_all) FILTER (NOT is_after), 0)::BIGINT AS all_before, coalesce(sum(of_all) FILTER (is_after), 0)::BIGINT AS all_after
FROM reasons
GROUP BY kind, reason
HAVING sum(found) > 0
ORDER BY kind, after DESC, before DESC, reason
