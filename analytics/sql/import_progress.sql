-- purpose: files that were imported completely, to leave out those that have not changed
-- grain: one row per file
-- parameters: $source
SELECT path, size, modified_ns, settings_digest
FROM log.import_progress
WHERE source = $source AND complete
ORDER BY path
