-- Lines that are known to at least one run of a suite, and that no run of the suite executed. `recorded_count` tells in how many ways the
-- runs recorded (`run_recorded`): above 1, some may have counted in windows that others did not have.
SELECT r.suite AS suite, c.source_file AS source_file, c.source_line AS source_line, COUNT(DISTINCT c.run_id) AS run_count,
       COUNT(DISTINCT w.recorded_id) AS recorded_count
FROM cover_lines c
JOIN runs r ON r.run_id = c.run_id
JOIN run_recorded w ON w.run_id = c.run_id
GROUP BY r.suite, c.source_file, c.source_line
HAVING MAX(c.executions) = 0
ORDER BY suite, source_file, source_line
