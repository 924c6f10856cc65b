-- The functions that took most instructions over all runs of a suite.
WITH costs AS (
  SELECT run_id, name_key, MIN(name) AS name, MIN(module_name) AS module_name, SUM(insns) AS insns, SUM(self_ns) AS self_ns,
         SUM(calls) AS calls
  FROM functions
  WHERE calls > 0 OR insns > 0
  GROUP BY run_id, name_key
)
SELECT r.suite AS suite, MIN(c.name) AS name, MIN(c.module_name) AS module_name, c.name_key AS name_key, COUNT(*) AS run_count,
       CAST(SUM(c.insns) AS BIGINT) AS insns, CAST(SUM(c.self_ns) AS BIGINT) AS self_ns, CAST(SUM(c.calls) AS BIGINT) AS calls
FROM costs c JOIN runs r ON r.run_id = c.run_id
GROUP BY r.suite, c.name_key
ORDER BY suite, insns DESC
