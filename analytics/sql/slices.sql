-- purpose: the input of `audit.drift.slices`: sums of weights and scores per slice before and after a change, for
--     every label of the exchanges, for agent and model, and for arrival (live, or later: ingested more than a day
--     after the event)
-- grain: one row per side (before, after), label, kind and value. kind: value (the 50 heaviest values of a label),
--     not_given (exchanges without the label) or other (remaining values); label: NULL for all exchanges of the side,
--     at most 40 labels; last_at: last exchange, NULL for not_given and for all; w: a session's weight (1 /
--     sampling_probability) in the slice; t: weight times score; ww, wt, tt: sums of squares and products; w_all,
--     wt_all, tw_all, t_all: products with the weight and total of the whole session. Sums are in integer millionths,
--     so they do not depend on the order of rows
-- parameters: $project, $agent ('' for exchanges without an agent; NULL: any), $tier (tier1, tier2, tier2_5 or tier3; NULL: anomalies), $before_since, $before_until,
--     $after_since, $after_until (since inclusive, until exclusive)
WITH scored AS (
    SELECT
        CASE WHEN is_after THEN 'after' ELSE 'before' END AS side,
        s.connection, s.session_id, s.exchange_id, s.exchange_at, s.agent,
        log.weight_of($tier, sampling_probability) AS weight,
        log.score_of($tier, anomaly, tier1_score, tier2_state, tier2_score, tier2_5_state, tier2_5_alignment, tier3_state,
            tier3_score) AS score
    FROM log.scores_around(
        $project, $before_since::TIMESTAMP, $before_until::TIMESTAMP, $after_since::TIMESTAMP, $after_until::TIMESTAMP
    ) AS s
    WHERE ($agent::VARCHAR IS NULL OR coalesce(s.agent, '') = $agent::VARCHAR)
), measured AS (
    SELECT * EXCLUDE (weight, score), round(weight * 1e6)::BIGINT AS w, round(weight * score * 1e6)::BIGINT AS t
    FROM scored
    WHERE score IS NOT NULL
), labelled AS (
    SELECT
        m.*, e.agent_model, coalesce(e.labels, []) AS labels,
        CASE WHEN e.ingested_at > e.occurred_at + INTERVAL 1 DAY THEN 'later' WHEN e.ingested_at IS NOT NULL THEN 'live' END AS arrival
    FROM measured AS m
    LEFT JOIN log.current_exchanges AS e ON e.connection = m.connection AND e.exchange_id = m.exchange_id AND e.occurred_at = m.exchange_at
    QUALIFY row_number() OVER (PARTITION BY m.connection, m.exchange_id ORDER BY e._partition, e._offset) = 1
), label_values AS (
    SELECT side, connection, session_id, exchange_at, w, t, item.name AS label, item.value AS value
    FROM (SELECT side, connection, session_id, exchange_at, w, t, unnest(labels) AS item FROM labelled)
    UNION ALL
    SELECT side, connection, session_id, exchange_at, w, t, 'agent', agent FROM labelled WHERE agent IS NOT NULL
    UNION ALL
    SELECT side, connection, session_id, exchange_at, w, t, 'model', agent_model FROM labelled WHERE agent_model IS NOT NULL
    UNION ALL
    SELECT side, connection, session_id, exchange_at, w, t, 'arrival', arrival FROM labelled WHERE arrival IS NOT NULL
), top_labels AS (
    SELECT label FROM label_values GROUP BY label ORDER BY sum(w) DESC, label LIMIT 40
), ranked AS (
    SELECT label, value, row_number() OVER (PARTITION BY label ORDER BY sum(w) DESC, value) AS value_rank
    FROM label_values SEMI JOIN top_labels USING (label)
    GROUP BY label, value
), sessions AS (
    SELECT side, connection, session_id, count(*) AS exchanges, sum(w) AS w, sum(t) AS t
    FROM labelled
    GROUP BY ALL
), label_slices AS (
    SELECT
        side, connection, session_id, label, CASE WHEN value_rank <= 50 THEN 'value' ELSE 'other' END AS kind,
        CASE WHEN value_rank <= 50 THEN value ELSE '' END AS value, max(exchange_at) AS last_at, count(*) AS exchanges,
            sum(w) AS w, sum(t) AS t
    FROM label_values JOIN ranked USING (label, value)
    GROUP BY ALL
), labelled_sums AS (
    SELECT side, connection, session_id, label, sum(exchanges) AS exchanges, sum(w) AS w, sum(t) AS t FROM label_slices GROUP BY ALL
), slices AS (
    SELECT side, connection, session_id, label, kind, value, last_at, exchanges, w, t FROM label_slices
    UNION ALL
    SELECT
        s.side, s.connection, s.session_id, k.label, 'not_given', '', NULL, s.exchanges - coalesce(c.exchanges, 0), s.w - coalesce(c.w, 0),
        s.t - coalesce(c.t, 0)
    FROM sessions AS s
    CROSS JOIN top_labels AS k
    LEFT JOIN labelled_sums AS c ON c.side = s.side AND c.connection = s.connection AND c.session_id = s.session_id AND c.label = k.label
    WHERE s.exchanges > coalesce(c.exchanges, 0)
    UNION ALL
    SELECT side, connection, session_id, NULL, 'value', '', NULL, exchanges, w, t FROM sessions
)
SELECT
    side, label, kind, value, max(last_at) AS last_at, count(*) AS sessions, sum(p.exchanges)::BIGINT AS exchanges,
    sum(p.w) / 1e6 AS w, sum(p.t) / 1e6 AS t,
    sum(p.w::HUGEINT * p.w) / 1e12 AS ww, sum(p.w::HUGEINT * p.t) / 1e12 AS wt, sum(p.t::HUGEINT * p.t) / 1e12 AS tt,
    sum(p.w::HUGEINT * s.w) / 1e12 AS w_all, sum(p.w::HUGEINT * s.t) / 1e12 AS wt_all, sum(p.t::HUGEINT * s.w) / 1e12 AS tw_all,
    sum(p.t::HUGEINT * s.t) / 1e12 AS t_all
FROM slices AS p
JOIN sessions AS s USING (side, connection, session_id)
GROUP BY side, label, kind, value
ORDER BY label NULLS FIRST, kind, value, side
