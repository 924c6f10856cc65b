-- For each function of a suite, the first run, in the order of the label `position`, in which its instructions went up.
WITH ordered AS (
  SELECT r.run_id AS run_id, r.suite AS suite, CAST(p.label_value AS BIGINT) AS run_position, c.label_value AS commit_id
  FROM runs r
  JOIN labels p ON p.run_id = r.run_id AND p.label_key = 'position'
  LEFT JOIN labels c ON c.run_id = r.run_id AND c.label_key = 'commit'
),
costs AS (
  SELECT f.run_id AS run_id, f.name_key AS name_key, MIN(f.name) AS name, MIN(f.module_name) AS module_name, SUM(n.insns) AS insns
  FROM nodes n JOIN functions f ON f.run_id = n.run_id AND f.func_id = n.func_id
  GROUP BY f.run_id, f.name_key
),
steps AS (
  SELECT o.suite AS suite, o.run_position AS run_position, o.commit_id AS commit_id, o.run_id AS run_id,
         c.name_key AS name_key, c.name AS name, c.module_name AS module_name, c.insns AS new_insns,
         LAG(c.insns) OVER (PARTITION BY o.suite, c.name_key ORDER BY o.run_position, o.run_id) AS old_insns
  FROM ordered o JOIN costs c ON c.run_id = o.run_id
),
worse AS (
  SELECT suite, run_position, commit_id, run_id, name_key, name, module_name, old_insns, new_insns,
         ROW_NUMBER() OVER (PARTITION BY suite, name_key ORDER BY run_position, run_id) AS place
  FROM steps
  WHERE new_insns > old_insns
)
SELECT suite, name, module_name, commit_id, run_position, CAST(old_insns AS BIGINT) AS old_insns,
       CAST(new_insns AS BIGINT) AS new_insns, CAST(new_insns - old_insns AS BIGINT) AS insns_change, run_id, name_key
FROM worse
WHERE place = 1
ORDER BY suite, run_position, insns_change DESC
