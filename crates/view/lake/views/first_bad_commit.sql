-- For each function of a suite, the first run, in the order of the label `position`, in which its instructions went up. A function that did
-- not run before went up from 0. Two whole recordings count before any that is not whole, which `fault` tells. Runs that are compared
-- with none have rows without a function: `left_out` says why, and what went up in them is not known.
WITH worse AS (
  SELECT suite, run_position, commit_id, run_id, name_key, name, module_name, old_insns, new_insns, insns_change, fault,
         ROW_NUMBER() OVER (
           PARTITION BY suite, name_key ORDER BY CASE WHEN fault IS NULL THEN 0 ELSE 1 END, run_position, run_id
         ) AS place
  FROM regressions
  WHERE insns_change > 0
)
SELECT suite, name, module_name, commit_id, run_position, old_insns, new_insns, insns_change, fault, left_out, run_id, name_key
FROM (
  SELECT suite, name, module_name, commit_id, run_position, old_insns, new_insns, insns_change, fault, CAST(NULL AS STRING) AS left_out,
         run_id, name_key
  FROM worse
  WHERE place = 1
  UNION ALL
  SELECT suite, name, module_name, commit_id, run_position, old_insns, new_insns, insns_change, fault, left_out, run_id, name_key
  FROM regressions
  WHERE left_out IS NOT NULL
) rows_of_both
ORDER BY suite, run_position, insns_change DESC
