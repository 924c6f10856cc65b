-- Runs of a suite that `regressions` and `first_bad_commit` leave out, as no run before them recorded the same: a row for each difference
-- to the run before, in words. Runs with other clocks or packets are compared, as instructions do not depend on these.
WITH alone AS (
  SELECT run_id, before_run_id, suite, run_position, commit_id,
         CASE WHEN recorded_id = 'not known' OR before_recorded_id = 'not known' THEN 1 ELSE 0 END AS is_unknown
  FROM run_pairs
  WHERE old_run_id IS NULL AND before_run_id IS NOT NULL
),
sides AS (
  SELECT run_id AS of_run_id, run_id, 1 AS side FROM alone WHERE is_unknown = 0
  UNION ALL
  SELECT run_id AS of_run_id, before_run_id AS run_id, -1 AS side FROM alone WHERE is_unknown = 0
),
parts AS (
  SELECT s.of_run_id AS of_run_id, r.part_name AS part_name, SUM(s.side) AS only_in,
         MAX(CASE WHEN s.side < 0 THEN r.part_value ELSE NULL END) AS old_value,
         MAX(CASE WHEN s.side > 0 THEN r.part_value ELSE NULL END) AS new_value
  FROM sides s JOIN recorded_parts r ON r.run_id = s.run_id
  WHERE r.bears_on = 'all'
  GROUP BY s.of_run_id, r.part_name
),
reasons AS (
  SELECT of_run_id,
         'not the same was recorded: ' || part_name || ': ' || COALESCE(old_value, 'none') || ' → '
         || COALESCE(new_value, 'none') AS reason
  FROM parts
  WHERE only_in <> 0 OR old_value <> new_value
  UNION ALL
  SELECT run_id AS of_run_id, 'not known whether the same was recorded: an older kprism added one of the two' AS reason
  FROM alone
  WHERE is_unknown = 1
)
SELECT a.suite AS suite, a.run_position AS run_position, a.commit_id AS commit_id, w.reason AS reason, a.before_run_id AS before_run_id,
       a.run_id AS run_id
FROM alone a JOIN reasons w ON w.of_run_id = a.run_id
ORDER BY suite, run_position, reason
