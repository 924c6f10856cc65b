-- Functions whose instructions differ between a run of a suite and the last run before it that recorded the same (`run_pairs`), in the
-- order of the label `position` (a number; runs without it, or with a label `commit` alone, are not compared). `fault` says what is not
-- whole of the two recordings. A function that a recording lacks took no instructions there; if that recording is not whole, how many is
-- not known, and NULL. A run that is compared with none, as no run before it recorded the same, has rows without a function: `left_out`
-- says why.
--
-- First the sum of the differences by pair of runs and function, which is 0 for nearly all; then all else, for the others alone.
WITH sides AS (
  SELECT run_id, pair_id, 1 AS side FROM run_pairs WHERE old_run_id IS NOT NULL
  UNION ALL
  SELECT old_run_id AS run_id, pair_id, -1 AS side FROM run_pairs WHERE old_run_id IS NOT NULL
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
  FROM costs c JOIN run_pairs o ON o.pair_id = c.pair_id
)
SELECT suite, run_position, commit_id, name, module_name, name_key, old_insns, new_insns, insns_change, old_calls, new_calls, fault,
       left_out, old_run_id, run_id
FROM (
  SELECT o.suite AS suite, o.run_position AS run_position, o.commit_id AS commit_id, c.name AS name, c.module_name AS module_name,
         c.name_key AS name_key, c.old_insns AS old_insns, c.new_insns AS new_insns, c.new_insns - c.old_insns AS insns_change,
         c.old_calls AS old_calls, c.new_calls AS new_calls, COALESCE(o.new_fault, o.old_fault) AS fault, CAST(NULL AS STRING) AS left_out,
         o.old_run_id AS old_run_id, o.run_id AS run_id
  FROM known c JOIN run_pairs o ON o.pair_id = c.pair_id
  UNION ALL
  SELECT suite, run_position, commit_id, CAST(NULL AS STRING) AS name, CAST(NULL AS STRING) AS module_name,
         CAST(NULL AS BIGINT) AS name_key, CAST(NULL AS BIGINT) AS old_insns, CAST(NULL AS BIGINT) AS new_insns,
         CAST(NULL AS BIGINT) AS insns_change, CAST(NULL AS BIGINT) AS old_calls, CAST(NULL AS BIGINT) AS new_calls,
         CAST(NULL AS STRING) AS fault, reason AS left_out, CAST(NULL AS STRING) AS old_run_id, run_id
  FROM not_compared
) rows_of_both
ORDER BY suite, run_position, insns_change DESC
