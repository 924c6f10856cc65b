-- Runs of a suite in the order of the label `position` (a number; runs without it are not here), each with the run it is compared with:
-- the last one before it that recorded the same, as `kprism gate` and `kprism diff` understand it (windows, snapshots, filters,
-- conditions). `before_run_id` is the run before it, whatever that recorded. A run of which nothing tells what was recorded, as an
-- older kprism added it, is compared with such runs alone, and its `fault` says so.
WITH placed AS (
  SELECT r.run_id AS run_id, r.suite AS suite, CAST(p.label_value AS BIGINT) AS run_position, c.label_value AS commit_id,
         t.recorded_id AS recorded_id,
         CASE WHEN t.recorded_id = 'not known' THEN COALESCE(r.fault, 'not known whether the same was recorded: an older kprism added it')
              ELSE r.fault END AS new_fault
  FROM runs r
  JOIN labels p ON p.run_id = r.run_id AND p.label_key = 'position'
  JOIN run_recorded t ON t.run_id = r.run_id
  LEFT JOIN labels c ON c.run_id = r.run_id AND c.label_key = 'commit'
)
SELECT run_id, suite, run_position, commit_id, recorded_id, new_fault,
       LAG(run_id) OVER (PARTITION BY suite, recorded_id ORDER BY run_position, run_id) AS old_run_id,
       LAG(new_fault) OVER (PARTITION BY suite, recorded_id ORDER BY run_position, run_id) AS old_fault,
       LAG(run_id) OVER (PARTITION BY suite ORDER BY run_position, run_id) AS before_run_id,
       LAG(recorded_id) OVER (PARTITION BY suite ORDER BY run_position, run_id) AS before_recorded_id,
       ROW_NUMBER() OVER (ORDER BY suite, run_position, run_id) AS pair_id
FROM placed
