-- Functions whose instructions differ between consecutive runs of a suite, in the order of the label `position`
-- (a number; runs without it, or with a label `commit` alone, are not compared). `fault` says what is not whole of the two recordings:
-- what one lacks looks like fewer instructions.
WITH ordered AS (
  SELECT r.run_id AS run_id, r.suite AS suite, CAST(p.label_value AS BIGINT) AS run_position, c.label_value AS commit_id,
         LAG(r.run_id) OVER (PARTITION BY r.suite ORDER BY CAST(p.label_value AS BIGINT), r.run_id) AS old_run_id,
         r.fault AS new_fault,
         LAG(r.fault) OVER (PARTITION BY r.suite ORDER BY CAST(p.label_value AS BIGINT), r.run_id) AS old_fault
  FROM runs r
  JOIN labels p ON p.run_id = r.run_id AND p.label_key = 'position'
  LEFT JOIN labels c ON c.run_id = r.run_id AND c.label_key = 'commit'
),
costs AS (
  SELECT run_id, name_key, MIN(name) AS name, MIN(module_name) AS module_name, SUM(insns) AS insns, SUM(calls) AS calls
  FROM functions
  GROUP BY run_id, name_key
),
changed AS (
  SELECT o.suite AS suite, o.run_position AS run_position, o.commit_id AS commit_id, o.old_run_id AS old_run_id,
         o.run_id AS run_id, COALESCE(o.new_fault, o.old_fault) AS fault, c.name_key AS name_key, c.name AS name,
         c.module_name AS module_name, c.insns AS new_insns, c.calls AS new_calls, 0 AS old_insns, 0 AS old_calls
  FROM ordered o JOIN costs c ON c.run_id = o.run_id
  WHERE o.old_run_id IS NOT NULL
  UNION ALL
  SELECT o.suite AS suite, o.run_position AS run_position, o.commit_id AS commit_id, o.old_run_id AS old_run_id,
         o.run_id AS run_id, COALESCE(o.new_fault, o.old_fault) AS fault, c.name_key AS name_key, c.name AS name,
         c.module_name AS module_name, 0 AS new_insns, 0 AS new_calls, c.insns AS old_insns, c.calls AS old_calls
  FROM ordered o JOIN costs c ON c.run_id = o.old_run_id
)
SELECT suite, run_position, commit_id, MIN(name) AS name, MIN(module_name) AS module_name, name_key,
       CAST(SUM(old_insns) AS BIGINT) AS old_insns, CAST(SUM(new_insns) AS BIGINT) AS new_insns,
       CAST(SUM(new_insns) - SUM(old_insns) AS BIGINT) AS insns_change,
       CAST(SUM(old_calls) AS BIGINT) AS old_calls, CAST(SUM(new_calls) AS BIGINT) AS new_calls, MIN(fault) AS fault,
       old_run_id, run_id
FROM changed
GROUP BY suite, run_position, commit_id, name_key, old_run_id, run_id
HAVING SUM(new_insns) <> SUM(old_insns)
ORDER BY suite, run_position, insns_change DESC
