-- purpose: the blocks of exchanges in which all words of a text may occur: by the index, or because it does not have them
-- grain: one row per block, the latest first. earliest, latest: times of its exchanges
-- parameters: $text, $since (inclusive) and $until (exclusive) of the time of exchanges
WITH words AS MATERIALIZED (
    SELECT DISTINCT log.word_hash(unnest(log.words_of($text))) AS word
), blocks AS MATERIALIZED (
    -- One row per block, with its times. They are stored together, so few row groups are read.
    SELECT block, word, earliest, latest
    FROM log.search_words
    WHERE word < 0 AND latest >= $since::TIMESTAMP AND earliest < $until::TIMESTAMP
), matches AS (
    -- A join with few rows filters while the table is scanned.
    SELECT block
    FROM log.search_words
    SEMI JOIN words USING (word)
    GROUP BY block
    HAVING count(DISTINCT word) = (SELECT count(*) FROM words)
), indexed AS (
    SELECT block, earliest, latest FROM blocks WHERE word = -1 OR block IN (FROM matches)
), marks AS (
    SELECT partition, next_position FROM log.watermarks WHERE consumer = 'words and times of exchanges'
), unindexed AS (
    SELECT log.block_of(_partition, _offset) AS block, min(occurred_at) AS earliest, max(occurred_at) AS latest
    FROM log.exchanges
    LEFT JOIN marks ON _partition = partition
    WHERE _offset >= (SELECT coalesce(min(next_position), 0) FROM marks) AND _offset >= coalesce(next_position, 0)
        AND occurred_at >= $since::TIMESTAMP AND occurred_at < $until::TIMESTAMP
    GROUP BY block
)
SELECT block, min(earliest) AS earliest, max(latest) AS latest
FROM (FROM indexed UNION ALL FROM unindexed)
GROUP BY block
ORDER BY latest DESC, block
