-- purpose: the judgements of one exchange within a period, in the order in which they were recorded. The period makes
--     them quick to find
-- grain: one row per judgement, with the columns of its record
-- parameters: $connection, $subject (id of the exchange), $since and $until (of judged_at, both inclusive)
SELECT * EXCLUDE (_topic, _partition, _offset)
FROM log.judgements
WHERE judged_at >= $since::TIMESTAMP AND judged_at <= $until::TIMESTAMP AND connection = $connection AND subject_id = $subject
ORDER BY _partition, _offset
