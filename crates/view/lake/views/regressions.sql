-- Functions whose instructions differ between consecutive runs of a suite, in the order of the label `position`
-- (a number; runs without it, or with a label `commit` alone, are not compared). `fault` says what is not whole of the two recordings.
-- A function that a recording lacks took no instructions there; if that recording is not whole, how many is not known, and NULL.
--
-- First the sum of the differences by pair of runs and function, which is 0 for nearly all; then all else, for the others alone.
WITH ordered AS (
  SELECT r.run_id AS run_id, r.suite AS suite, CAST(p.label_value AS BIGINT) AS run_position, c.label_value AS commit_id,
         LAG(r.run_id) OVER (PARTITION BY r.suite ORDER BY CAST(p.label_value AS BIGINT), r.run_id) AS old_run_id,
         r.fault AS new_fault,
         LAG(r.fault) OVER (PARTITION BY r.suite ORDER BY CAST(p.label_value AS BIGINT), r.run_id) AS old_fault,
         ROW_NUMBER() OVER (ORDER BY r.suite, CAST(p.label_value AS BIGINT), r.run_id) AS pair_id
  FROM runs r
  JOIN labels p ON p.run_id = r.run_id AND p.label_key = 'position'
  LEFT JOIN labels c ON c.run_id = r.run_id AND c.label_key = 'commit'
),
sides AS (
  SELECT run_id, pair_id, 1 AS side FROM ordered WHERE old_run_id IS NOT NULL
  UNION ALL
  SELECT old_run_id AS run_id, pair_id, -1 AS side FROM ordered WHERE old_run_id IS NOT NULL
),
changed AS (
  SELECT s.pair_id AS pair_id, f.name_key AS name_key
  FROM functions f JOIN sides s ON s.run_id = f.run_id
  GROUP BY s.pair_id, f.name_key
  HAVING SUM(s.side * f.insns) <> 0
),
costs AS (
  SELECT c.pair_id AS pair_id, c.name_key AS name_key, MIN(f.name) AS name, MIN(f.module_name) AS module_name,
         SUM(CASE WHEN s.side < 0 THEN 1 ELSE 0 END) AS old_rows, SUM(CASE WHEN s.side > 0 THEN 1 ELSE 0 END) AS new_rows,
         CAST(SUM(CASE WHEN s.side < 0 THEN f.insns ELSE 0 END) AS BIGINT) AS old_insns,
         CAST(SUM(CASE WHEN s.side > 0 THEN f.insns ELSE 0 END) AS BIGINT) AS new_insns,
         CAST(SUM(CASE WHEN s.side < 0 THEN f.calls ELSE 0 END) AS BIGINT) AS old_calls,
         CAST(SUM(CASE WHEN s.side > 0 THEN f.calls ELSE 0 END) AS BIGINT) AS new_calls
  FROM changed c
  JOIN sides s ON s.pair_id = c.pair_id
  JOIN functions f ON f.run_id = s.run_id AND f.name_key = c.name_key
  GROUP BY c.pair_id, c.name_key
),
known AS (
  SELECT c.pair_id AS pair_id, c.name_key AS name_key, c.name AS name, c.module_name AS module_name,
         CASE WHEN c.old_rows = 0 AND o.old_fault IS NOT NULL THEN NULL ELSE c.old_insns END AS old_insns,
         CASE WHEN c.new_rows = 0 AND o.new_fault IS NOT NULL THEN NULL ELSE c.new_insns END AS new_insns,
         CASE WHEN c.old_rows = 0 AND o.old_fault IS NOT NULL THEN NULL ELSE c.old_calls END AS old_calls,
         CASE WHEN c.new_rows = 0 AND o.new_fault IS NOT NULL THEN NULL ELSE c.new_calls END AS new_calls
  FROM costs c JOIN ordered o ON o.pair_id = c.pair_id
)
SELECT o.suite AS suite, o.run_position AS run_position, o.commit_id AS commit_id, c.name AS name, c.module_name AS module_name,
       c.name_key AS name_key, c.old_insns AS old_insns, c.new_insns AS new_insns, c.new_insns - c.old_insns AS insns_change,
       c.old_calls AS old_calls, c.new_calls AS new_calls, COALESCE(o.new_fault, o.old_fault) AS fault,
       o.old_run_id AS old_run_id, o.run_id AS run_id
FROM known c JOIN ordered o ON o.pair_id = c.pair_id
ORDER BY suite, run_position, insns_change DESC
