-- The functions that took most instructions over all runs of a suite that recorded the same, by the same clock (`run_recorded`). What
-- another window, filter or clock saw is a row of its own: a sum over both would mean nothing.
WITH costs AS (
  SELECT run_id, name_key, MIN(name) AS name, MIN(module_name) AS module_name, SUM(insns) AS insns, SUM(self_ns) AS self_ns,
         SUM(calls) AS calls
  FROM functions
  WHERE calls > 0 OR insns > 0
  GROUP BY run_id, name_key
),
placed AS (
  SELECT r.run_id AS run_id, r.suite AS suite, w.recorded_id AS recorded_id, w.clock AS clock, w.packets AS packets
  FROM runs r JOIN run_recorded w ON w.run_id = r.run_id
)
SELECT p.suite AS suite, p.recorded_id AS recorded_id, p.clock AS clock, p.packets AS packets, MIN(c.name) AS name,
       MIN(c.module_name) AS module_name, c.name_key AS name_key, COUNT(*) AS run_count,
       CAST(SUM(c.insns) AS BIGINT) AS insns, CAST(SUM(c.self_ns) AS BIGINT) AS self_ns, CAST(SUM(c.calls) AS BIGINT) AS calls
FROM costs c JOIN placed p ON p.run_id = c.run_id
GROUP BY p.suite, p.recorded_id, p.clock, p.packets, c.name_key
ORDER BY suite, recorded_id, clock, packets, insns DESC
