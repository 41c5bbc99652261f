-- purpose: alerts to deliver now. An alert waits while an earlier one of the same channel and subject is being
--     retried
-- grain: one row per alert, oldest first
-- parameters: $as_of
WITH waiting AS (
    SELECT
        * EXCLUDE (_topic, _partition, _offset),
        max(not_before) FILTER (WHERE attempts > 0) OVER (
            PARTITION BY channel, subject_id ORDER BY created_at, alert_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS earlier_not_before
    FROM log.alerts
    WHERE status = 'waiting'
)
SELECT * EXCLUDE (earlier_not_before)
FROM waiting
WHERE not_before <= $as_of::TIMESTAMP AND (earlier_not_before IS NULL OR earlier_not_before <= $as_of::TIMESTAMP)
ORDER BY created_at, alert_id
