-- Each run with what it recorded, as `kprism gate` and `kprism diff` understand it. Runs with one `recorded_id` can be compared in
-- instructions and calls; with one `clock` and one setting of `packets` in times, too. A run of which nothing tells it, as an older kprism
-- added it, has 'not known'. The table `recorded_parts` has the parts of a `recorded_id` in words.
WITH told AS (
  SELECT run_id, MIN(recorded_id) AS recorded_id, MAX(CASE WHEN part_name = 'clock' THEN part_value ELSE NULL END) AS clock,
         MAX(CASE WHEN part_name = 'packets' THEN part_value ELSE NULL END) AS packets
  FROM recorded_parts
  GROUP BY run_id
)
SELECT r.run_id AS run_id, COALESCE(t.recorded_id, 'not known') AS recorded_id,
       CASE WHEN t.recorded_id IS NULL THEN 'not known' ELSE COALESCE(t.clock, 'none') END AS clock,
       CASE WHEN t.recorded_id IS NULL THEN 'not known' ELSE COALESCE(t.packets, 'none') END AS packets
FROM runs r
LEFT JOIN told t ON t.run_id = r.run_id
