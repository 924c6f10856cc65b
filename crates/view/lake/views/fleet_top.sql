-- The functions that took most instructions over all runs of a suite.
WITH costs AS (
  SELECT f.run_id AS run_id, f.name_key AS name_key, MIN(f.name) AS name, MIN(f.module_name) AS module_name,
         SUM(n.insns) AS insns, SUM(n.self_ns) AS self_ns, SUM(n.calls) AS calls
  FROM nodes n JOIN functions f ON f.run_id = n.run_id AND f.func_id = n.func_id
  GROUP BY f.run_id, f.name_key
)
SELECT r.suite AS suite, MIN(c.name) AS name, MIN(c.module_name) AS module_name, c.name_key AS name_key, COUNT(*) AS run_count,
       CAST(SUM(c.insns) AS BIGINT) AS insns, CAST(SUM(c.self_ns) AS BIGINT) AS self_ns, CAST(SUM(c.calls) AS BIGINT) AS calls
FROM costs c JOIN runs r ON r.run_id = c.run_id
GROUP BY r.suite, c.name_key
ORDER BY suite, insns DESC
