-- The runs that executed each line, with what they recorded (`run_recorded`) and their labels:
-- WHERE source_file = 'kernel/sched/fair.c' AND source_line = 100.
SELECT c.source_file AS source_file, c.source_line AS source_line, r.suite AS suite, c.run_id AS run_id, w.recorded_id AS recorded_id,
       MAX(c.executions) AS executions, r.command AS command, l.label_key AS label_key, l.label_value AS label_value
FROM cover_lines c
JOIN runs r ON r.run_id = c.run_id
JOIN run_recorded w ON w.run_id = c.run_id
LEFT JOIN labels l ON l.run_id = c.run_id
WHERE c.executions > 0
GROUP BY c.source_file, c.source_line, r.suite, c.run_id, w.recorded_id, r.command, l.label_key, l.label_value
ORDER BY source_file, source_line, suite, run_id, label_key
