-- Exact percentiles of the wall time of each system call of a suite: the value at rank CEIL(p * calls), over all calls.
WITH calls AS (
  SELECT r.suite AS suite, f.name AS name, s.wall_ns AS wall_ns,
         ROW_NUMBER() OVER (PARTITION BY r.suite, f.name ORDER BY s.wall_ns) AS place,
         COUNT(*) OVER (PARTITION BY r.suite, f.name) AS calls
  FROM syscalls s
  JOIN functions f ON f.run_id = s.run_id AND f.func_id = s.func_id
  JOIN runs r ON r.run_id = s.run_id
)
SELECT suite, name, MAX(calls) AS calls,
       MAX(CASE WHEN place * 100 < calls * 50 + 100 THEN wall_ns END) AS p50_ns,
       MAX(CASE WHEN place * 100 < calls * 90 + 100 THEN wall_ns END) AS p90_ns,
       MAX(CASE WHEN place * 100 < calls * 99 + 100 THEN wall_ns END) AS p99_ns,
       MAX(wall_ns) AS max_ns, CAST(SUM(wall_ns) AS BIGINT) AS sum_ns
FROM calls
GROUP BY suite, name
ORDER BY suite, sum_ns DESC
