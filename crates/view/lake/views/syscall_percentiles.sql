-- Exact percentiles of the wall time of each system call of a suite: the value at rank CEIL(p * calls), over all calls of the runs that
-- recorded the same, by the same clock (`run_recorded`).
WITH placed AS (
  SELECT r.run_id AS run_id, r.suite AS suite, w.recorded_id AS recorded_id, w.clock AS clock, w.packets AS packets
  FROM runs r JOIN run_recorded w ON w.run_id = r.run_id
),
calls AS (
  SELECT p.suite AS suite, p.recorded_id AS recorded_id, p.clock AS clock, p.packets AS packets, f.name AS name, s.wall_ns AS wall_ns,
         ROW_NUMBER() OVER (PARTITION BY p.suite, p.recorded_id, p.clock, p.packets, f.name ORDER BY s.wall_ns) AS place,
         COUNT(*) OVER (PARTITION BY p.suite, p.recorded_id, p.clock, p.packets, f.name) AS calls
  FROM syscalls s
  JOIN functions f ON f.run_id = s.run_id AND f.func_id = s.func_id
  JOIN placed p ON p.run_id = s.run_id
)
SELECT suite, recorded_id, clock, packets, name, MAX(calls) AS calls,
       MAX(CASE WHEN place * 100 < calls * 50 + 100 THEN wall_ns END) AS p50_ns,
       MAX(CASE WHEN place * 100 < calls * 90 + 100 THEN wall_ns END) AS p90_ns,
       MAX(CASE WHEN place * 100 < calls * 99 + 100 THEN wall_ns END) AS p99_ns,
       MAX(wall_ns) AS max_ns, CAST(SUM(wall_ns) AS BIGINT) AS sum_ns
FROM calls
GROUP BY suite, recorded_id, clock, packets, name
ORDER BY suite, recorded_id, clock, packets, sum_ns DESC
