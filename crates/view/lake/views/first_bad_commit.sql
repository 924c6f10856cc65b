-- For each function of a suite, the first run, in the order of the label `position`, in which its instructions went up. A function that did
-- not run before went up from 0.
WITH worse AS (
  SELECT suite, run_position, commit_id, run_id, name_key, name, module_name, old_insns, new_insns, insns_change,
         ROW_NUMBER() OVER (PARTITION BY suite, name_key ORDER BY run_position, run_id) AS place
  FROM regressions
  WHERE insns_change > 0
)
SELECT suite, name, module_name, commit_id, run_position, old_insns, new_insns, insns_change, run_id, name_key
FROM worse
WHERE place = 1
ORDER BY suite, run_position, insns_change DESC
